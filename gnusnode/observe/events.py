"""What happens in a node, as typed events: a closed set of names, each with a schema. No event can carry content.

One stream of events feeds the log, ``/gnus/v1/events`` and whoever listens inside the node. A field is a number, a
switch or an identifier without spaces; names that promise content are refused when the class is made.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from gnusnode.contracts.events import names_content
from gnusnode.contracts.ids import PeerId, Sha256, Uuid

Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/+-]{0,127}$")]
"""An identifier such as a model, a role or an error code."""
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Outcome = Literal["ok", "failed", "cancelled"]

EVENTS: Final[dict[str, type[Event]]] = {}
"""Every event by name: filled by the classes below, and by nothing else."""


class Event(BaseModel):
    """Base of all events. ``name`` is ``noun.verb`` and stable."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        content = [field for field in cls.model_fields if names_content(field)]
        assert not content, f"{cls.__name__}: {content} would carry content; an event carries digests and measures"
        assert EVENTS.setdefault(cls.name, cls) is cls, f"two events are named {cls.name}"

    def fields(self) -> dict[str, Any]:
        """The fields as plain JSON."""
        return self.model_dump(mode="json")


class NodeStarted(Event):
    """The node is up and its API answers."""

    name: ClassVar[str] = "node.started"

    peer_id: PeerId
    version: Word
    startup_ms: Milliseconds


class NodeStopping(Event):
    """The node has begun to shut down."""

    name: ClassVar[str] = "node.stopping"

    cause: Literal["signal", "request", "failure"]


class RoleChanged(Event):
    """A role started, failed, stopped, or is withheld because the swarm does not grant it to this node."""

    name: ClassVar[str] = "role.changed"

    role: Word
    state: Literal["starting", "running", "failed", "withheld", "stopped"]
    restarts: Count = 0


class EngineChanged(Event):
    """The engine of a model is in a new state."""

    name: ClassVar[str] = "engine.changed"

    model: Word
    state: Literal["starting", "ready", "restarting", "quarantined", "stopped"]
    cause: Literal["start", "stop", "crash", "hang", "out-of-memory"]
    restarts: Count = 0


class ModelChanged(Event):
    """A model file was added, verified or removed, or a verification failed."""

    name: ClassVar[str] = "model.changed"

    model: Word
    action: Literal["added", "removed", "verified", "refused"]
    artifact_hash: Sha256 | None = None


class PullProgressed(Event):
    """A download went on; at most four of these a second for one file."""

    name: ClassVar[str] = "pull.progressed"

    model: Word
    done_bytes: Count
    total_bytes: Count | None = None


class RequestStarted(Event):
    """A request was admitted."""

    name: ClassVar[str] = "request.started"

    request_id: Uuid
    endpoint: Word


class RequestEnded(Event):
    """A request was answered, failed, or was left by its client."""

    name: ClassVar[str] = "request.ended"

    request_id: Uuid
    endpoint: Word
    outcome: Outcome
    code: Word | None = None
    """The code of the error that ended it."""
    tokens_in: Count = 0
    tokens_cached: Count = 0
    tokens_out: Count = 0
    first_token_ms: Milliseconds | None = None
    total_ms: Milliseconds


class RequestRefused(Event):
    """A request was turned away before any work: limits, authentication, queues."""

    name: ClassVar[str] = "request.refused"

    code: Word


class PlanMade(Event):
    """The router has signed a plan."""

    name: ClassVar[str] = "plan.made"

    request_id: Uuid
    plan_digest: Sha256
    mode: Word
    expert: Word
    confidence: Annotated[float, Field(ge=0, le=1)]


class StageEnded(Event):
    """A stage of a request is over; written by ``observe.stage`` alone."""

    name: ClassVar[str] = "stage.ended"

    request_id: Uuid
    stage: Word
    outcome: Outcome
    elapsed_ms: Milliseconds


class PeerChanged(Event):
    """A peer of the swarm came, went, or got further; ``cause`` is why it is not further."""

    name: ClassVar[str] = "peer.changed"

    peer: PeerId
    state: Literal["discovered", "dialled", "connected", "authenticated", "usable", "refused", "banned", "gone"]
    cause: Word | None = None


class RecordRefused(Event):
    """A signed record failed verification."""

    name: ClassVar[str] = "record.refused"

    record: Word
    outcome: Word
    signer: PeerId | None = None


class RosterChanged(Event):
    """Who belongs to the swarm has changed, or which swarm this node belongs to."""

    name: ClassVar[str] = "roster.changed"

    records: Count
    members: Count


class JoinAttempted(Event):
    """A node showed an invite here; ``ok``: it is a member now."""

    name: ClassVar[str] = "join.attempted"

    peer_id: PeerId
    outcome: Literal["ok", "again", "unknown", "expired", "used", "withdrawn", "limited", "forbidden"]


class HealthChanged(Event):
    """A health warning was raised or is over."""

    name: ClassVar[str] = "health.changed"

    code: Word
    severity: Literal["info", "warning", "critical"]
    active: bool


def schemas() -> dict[str, dict[str, Any]]:
    """JSON Schema of each event's fields, by name."""
    return {name: kind.model_json_schema() for name, kind in sorted(EVENTS.items())}
