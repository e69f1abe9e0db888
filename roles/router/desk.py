"""What every request on its way through experts works with: settings, what was decided, what is remembered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from gnusnode.contracts.plan import PrivacyMode
from gnusnode.contracts.services import ChoiceDelta, ChoiceDone, ExpertCard, PlanMade, TaskDone
from gnusnode.errors import Forbidden, GnusError, Overloaded
from gnusnode.net.rpc import Rpc
from roles.ports import RoleContext
from roles.router.choose import Candidate
from roles.router.classify import Intent
from roles.router.facts import Swarm
from roles.router.health import Health, Key

Send: TypeAlias = "Callable[[PlanMade | ChoiceDelta | ChoiceDone | TaskDone], Awaitable[None]]"


@dataclass(frozen=True)
class Decision:
    """Who may answer and why, by what was known of the swarm; made anew whenever an expert failed."""

    intent: Intent
    privacy: PrivacyMode
    cards: tuple[ExpertCard, ...]
    ranked: tuple[Candidate, ...]
    swarm: Swarm


@dataclass(frozen=True)
class FailoverOptions:
    """
    Attributes:
        requeues: further experts that are asked after a failure.
        claim_seconds: silence of a remote expert, besides its way, until another one is asked, if there is one.
        first_seconds: silence before the first word, besides the expected time until then.
        idle_seconds: silence in the middle of an answer.
        hedge_seconds: least time without a word after which a second expert is asked beside the first.
    """

    requeues: int = 2
    claim_seconds: float = 1.0
    first_seconds: float = 10.0
    idle_seconds: float = 30.0
    hedge_seconds: float = 2.0


@dataclass
class Tally:
    """What happened since start, for status and metrics."""

    rerouted: int = 0
    resumed: int = 0
    hedged: int = 0


@dataclass(frozen=True)
class Desk:
    """What every course works with. ``report`` is told how the draft of another node's expert ended: None for well."""

    rpc: Rpc
    node: RoleContext
    options: FailoverOptions
    health: Health
    tally: Tally
    report: Callable[[Key, GnusError | None], None]

    def note(self, key: Key, error: GnusError | None) -> None:
        """Remembers how a draft ended."""
        if error is None:
            self.health.answered(key)
        else:
            self.health.failed(key, error)
        # To be full, or not to work for this router, is honest: it says nothing about a peer's conduct.
        if key[0] != self.node.peer_id and not isinstance(error, Overloaded | Forbidden):
            self.report(key, error)
