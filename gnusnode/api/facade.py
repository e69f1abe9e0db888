"""All that the HTTP layer knows of a node. The daemon implements it; a heavy ingress can put it behind a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import trio
from prometheus_client import CollectorRegistry

from gnusnode.contracts.base import SignedRecord
from gnusnode.contracts.events import AuditEvent
from gnusnode.contracts.generation import EmbedRequest, EmbedResult
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.services import ChoiceDelta, ChoiceDone, PlanMade, PlanView, TaskDone, TaskRequest
from gnusnode.inference.artifacts.filework import Progress
from gnusnode.net.blobs import Pulled
from gnusnode.net.swarmdesk import FoundSwarm, InviteNode, JoinSwarm, MakeAdmin, Revoke, SetRoles


@dataclass(frozen=True)
class ModelCard:
    """A name that ``model`` may take in a request."""

    id: str
    created: int
    """Unix seconds."""
    owned_by: str
    generates: bool
    embeds: bool
    artifact_hash: str | None = None
    n_ctx: int | None = None
    state: str = "ready"


@dataclass(frozen=True)
class Readiness:
    """Whether the node can do what its roles promise; ``reasons`` maps a role or part to why it cannot (yet)."""

    ready: bool
    reasons: dict[str, str] = field(default_factory=dict[str, str])


class SwarmFacade(Protocol):
    """Who belongs to the swarm, for people. ``net.swarmdesk.SwarmDesk`` is one. Answers are plain JSON."""

    def swarm_status(self) -> dict[str, Any]: ...

    def swarm_members(self) -> list[dict[str, Any]]: ...

    def swarm_admins(self) -> list[dict[str, Any]]: ...

    async def swarm_invites(self) -> list[dict[str, Any]]: ...

    async def swarm_init(self, asked: FoundSwarm) -> dict[str, Any]: ...

    async def swarm_join(self, asked: JoinSwarm) -> dict[str, Any]: ...

    async def swarm_leave(self) -> dict[str, Any]: ...

    async def swarm_invite(self, asked: InviteNode) -> dict[str, Any]: ...

    async def swarm_withdraw(self, invite_id: str) -> dict[str, Any]: ...

    async def swarm_roles(self, asked: SetRoles) -> dict[str, Any]: ...

    async def swarm_revoke(self, asked: Revoke) -> dict[str, Any]: ...

    async def swarm_admin(self, asked: MakeAdmin) -> dict[str, Any]: ...

    async def swarm_unadmin(self, peer: str) -> dict[str, Any]: ...


class PeersFacade(Protocol):
    """The other nodes that this one knows. ``net.presence.Presence`` is one. Answers are plain JSON.

    A peer is named by its PeerID or by the end of it.
    """

    def overview(self) -> dict[str, Any]:
        """``counts`` and ``data``: all peers."""
        ...

    def show(self, name: str) -> dict[str, Any]: ...

    async def connect(self, address: str) -> dict[str, Any]: ...

    async def ping(self, name: str) -> dict[str, Any]: ...

    async def ban(self, name: str, reason: str = "") -> dict[str, Any]: ...

    async def unban(self, name: str) -> dict[str, Any]: ...


class PullFacade(Protocol):
    """What brings models from peers. ``net.blobs.Puller`` is one."""

    async def pull(
        self,
        address: str,
        *,
        name: str | None = None,
        peers: Sequence[str] = (),
        replace: bool = False,
        progress: Progress | None = None,
    ) -> Pulled: ...


@dataclass(frozen=True)
class SwarmSurface:
    """What the API shows of the swarm, besides the node itself.

    Attributes:
        pulls: what fetches models from peers; None while the node takes part in no network.
    """

    desk: SwarmFacade
    peers: PeersFacade
    pulls: Callable[[], PullFacade | None] = lambda: None


class NodeFacade(Protocol):
    """A running node as the API sees it. Errors are ``gnusnode.errors``."""

    @property
    def peer_id(self) -> str: ...

    @property
    def metrics(self) -> CollectorRegistry: ...

    @property
    def stopping(self) -> trio.Event:
        """Set when the node begins to shut down: open streams end with an error event."""
        ...

    def models(self) -> list[ModelCard]: ...

    def readiness(self) -> Readiness: ...

    def status(self) -> dict[str, Any]:
        """What ``gnusnode status`` shows; plain JSON."""
        ...

    def chat(
        self, request: TaskRequest, *, deadline: float, traceparent: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[PlanMade | ChoiceDelta | ChoiceDone | TaskDone]]:
        """Runs a task; leaving the context stops it. ``deadline`` is ``time.monotonic()`` based."""
        ...

    async def embed(self, model: str, request: EmbedRequest, *, deadline: float) -> EmbedResult: ...

    async def plan(self, request_id: str, *, tenant: str | None = None) -> PlanView:
        """The records of a request of ``tenant`` (None: of anybody). Raises ``NotFound`` when there is none."""
        ...

    def verify(self, record: SignedRecord) -> Outcome:
        """Whether a signed record was to be believed when it was issued: ``ok``, or why not."""
        ...

    async def audit_events(self, first: int | None, count: int) -> list[AuditEvent]:
        """Up to ``count`` audit events from number ``first`` on; None: the last ones."""
        ...

    async def audit_head(self) -> dict[str, Any]:
        """The signed head of the audit chain in plain form; empty before the first event."""
        ...

    async def audit_report(self) -> dict[str, Any]:
        """The result of a full verification: ``checked``, ``length``, ``broken``."""
        ...

    def request_stop(self) -> None:
        """Begins an orderly shutdown; returns at once."""
        ...

    async def bugreport(self) -> dict[str, Any]:
        """Redacted configuration, versions, last events, task tree."""
        ...
