"""What an expert service needs of the node that hosts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from gnusnode.contracts.generation import ContextProfile, EngineInfo
from gnusnode.contracts.plan import ExpertRole
from gnusnode.contracts.services import ExpertCard
from gnusnode.inference.artifacts.modelrecord import GenerationDefaults
from gnusnode.inference.engine import Engine

ServiceName = Literal["core", "elm"]


@dataclass(frozen=True)
class Expert:
    """An expert of this node: a model in a role.

    Attributes:
        version: of its packaging; the artifact's hash where it has no other.
        model: the name under which ``Engines`` knows its model.
        capabilities: what its manifest declares.
        defaults: its sampling where a request leaves it open.
    """

    expert_id: str
    version: str
    role: ExpertRole
    model: str
    domains: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)


class Engines(Protocol):
    """The engines of this node."""

    async def engine(self, model: str, profile: ContextProfile, /) -> Engine:
        """The engine that runs ``model``; may take as long as a model takes to load.

        Raises:
            ModelNotFound, EngineFailed, Overloaded.
        """
        ...

    def info(self, model: str, /) -> EngineInfo:
        """What the model is and how it does just now. Never waits.

        Raises:
            ModelNotFound.
        """
        ...


@dataclass(frozen=True)
class Host:
    """The experts that one service offers, and the engines behind them."""

    service: ServiceName
    experts: Sequence[Expert]
    engines: Engines

    def cards(self, peer: str) -> tuple[ExpertCard, ...]:
        """What a router chooses from."""
        return tuple(
            ExpertCard(
                expert_id=expert.expert_id,
                version=expert.version,
                service=self.service,
                role=expert.role.value,
                domains=expert.domains,
                capabilities=expert.capabilities,
                engine=self.engines.info(expert.model),
                peer=peer,
            )
            for expert in self.experts
        )
