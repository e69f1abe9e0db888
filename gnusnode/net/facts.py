"""What a node says of itself: which start of it this is, and what it offers just now."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

from gnusnode import __version__
from gnusnode.contracts.swarm import OfferedArtifact, Role


@dataclass(frozen=True)
class ThisStart:
    """One start of this node. ``started_ms`` is the wall clock."""

    instance: str
    started_ms: int
    version: str = __version__

    @classmethod
    def now(cls, now_ms: int) -> Self:
        return cls(secrets.token_hex(16), now_ms)


@dataclass(frozen=True)
class NodeFacts:
    """What the node offers: asked for whenever it is needed, so making it must be quick.

    Attributes:
        roles: those that run; what others hear is cut down to what this node was granted.
        services: version by name of the services that others may call.
        artifacts: the models that it serves, at most 64.
    """

    roles: frozenset[Role] = frozenset()
    services: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    artifacts: tuple[OfferedArtifact, ...] = ()

    def news(self) -> object:
        """Two facts whose news are equal differ by nothing that others have to know at once."""
        artifacts = frozenset((a.artifact_hash, a.expert_ids, a.state, a.free_slots > 0) for a in self.artifacts)
        return (self.roles, frozenset(self.services.items()), artifacts)
