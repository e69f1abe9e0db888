"""The services of a node: which methods exist, what they take and what they give (spec 18.1.5.1).

Errors of every method are ``gnusnode.errors`` codes. A role implements the handlers; nobody imports a role to call it.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, StringConstraints, TypeAdapter

from gnusnode.contracts.base import Record
from gnusnode.contracts.expert import ExpertOutput
from gnusnode.contracts.fields import JsonDocument
from gnusnode.contracts.generation import (
    ClassifyRequest,
    ClassifyResult,
    Delta,
    EmbedRequest,
    EmbedResult,
    EngineInfo,
    GenerateRequest,
    Sampling,
    ScoreRequest,
    ScoreResult,
    Timing,
    TokenIds,
    Usage,
)
from gnusnode.contracts.ids import Name, PeerId, Sha256, Uuid
from gnusnode.contracts.methods import Method, StreamMethod, UnaryMethod
from gnusnode.contracts.plan import ExecutionPlan
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.tools import ToolProposal

MAX_CHOICES: Final = 8
MAX_PLANS: Final = 8
"""Plans that one request may have."""
FAST: Final = "gnus-fast"
LOCAL: Final = "gnus-local"
ROUTED: Final = ("gnus", "gnus-auto", FAST, LOCAL)
"""Model names that leave the choice to the router: ``FAST`` takes whoever is expected to end first, ``LOCAL`` keeps to
this node's own models, the others weigh everything.
"""


OpenSampling = Annotated[tuple[Name, ...], Field(max_length=8)]
"""Fields of ``generation.sampling`` that the client left open: the model's own defaults go before what stands there."""


class ToolSpec(Record):
    """A function that the client offers: the expert may propose calls to it and never runs it."""

    record_name: ClassVar[str] = "tool-spec"

    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: Annotated[str, StringConstraints(max_length=4096)] = ""
    parameters: JsonDocument = {}
    """JSON Schema of the arguments, of our bounded subset."""


class TaskRequest(Record):
    """A user's request as ingress hands it to the router."""

    record_name: ClassVar[str] = "task-request"
    max_bytes: ClassVar[int] = 8 * 1024 * 1024

    model: Name
    """One of ``ROUTED``: the router decides; else the name of a model or expert, or a model file's ``sha256:…``."""
    generation: GenerateRequest
    choices: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    tools: Annotated[tuple[ToolSpec, ...], Field(max_length=64)] = ()
    tool_choice: Annotated[str, StringConstraints(max_length=64)] = "auto"
    """``auto``, ``none``, ``required`` or the name of one tool."""
    policy: PolicyEnvelope
    open_sampling: OpenSampling = ()


class PlanMade(Record):
    """The signed plan under which everything after it happens.

    A request has one plan for each expert that was asked. A plan that is told of again is the one that goes on.
    """

    record_name: ClassVar[str] = "task-plan"

    kind: Literal["plan"] = "plan"
    plan: ExecutionPlan
    model: Name
    """The expert that will answer first, by the name that requests may use."""
    confidence: float
    """The router's confidence in its classification, 0 to 1."""
    reasons: tuple[str, ...] = ()
    """Why: one line each for intent, domain, risk, mode and expert."""
    node: PeerId | None = None
    """Who is asked to answer."""


class ChoiceDelta(Record):
    record_name: ClassVar[str] = "task-delta"

    kind: Literal["delta"] = "delta"
    index: int
    delta: Delta


class ChoiceDone(Record):
    """One choice is complete. ``output`` is the expert's signed package, tool proposals included.

    Where ``resumed``, the package holds what its expert made, and ``usage`` counts the whole answer.
    """

    record_name: ClassVar[str] = "task-choice"

    kind: Literal["choice"] = "choice"
    index: int
    finish_reason: Literal["stop", "length", "tool_calls"]
    tool_calls: tuple[ToolProposal, ...] = ()
    output: ExpertOutput
    usage: Usage
    timing: Timing
    resumed: bool = False
    """Another node took over in the middle of this answer."""


class TaskDone(Record):
    """The last event of a task that ended well."""

    record_name: ClassVar[str] = "task-done"

    kind: Literal["done"] = "done"
    usage: Usage
    node: PeerId
    """Who answered; of several, the last."""
    plan_digest: Sha256
    plan_digests: tuple[Sha256, ...] = ()
    """All plans of the request, in the order in which they were made."""
    rerouted: int = 0
    """How often another expert was asked to take over, before or after the first word."""
    resumed: bool = False
    """Whether one took over in the middle of an answer."""
    stages_ms: dict[str, float] = {}
    """Milliseconds per stage, by the router's own clock."""


TaskEvent = Annotated[PlanMade | ChoiceDelta | ChoiceDone | TaskDone, Field(discriminator="kind")]
TASK_EVENTS: Final[TypeAdapter[PlanMade | ChoiceDelta | ChoiceDone | TaskDone]] = TypeAdapter(TaskEvent)


class DraftBeat(Record):
    """The expert is at it: its first word on a draft, said again whenever it had nothing else to say for a while."""

    record_name: ClassVar[str] = "draft-beat"

    kind: Literal["beat"] = "beat"
    sampling: Sampling
    """The whole sampler chain of the draft, the model's own defaults filled in: what another expert needs to go on."""


class ChoiceResume(Record):
    """A choice that is still to be made, and the token ids of it that the user has already."""

    record_name: ClassVar[str] = "choice-resume"

    index: Annotated[int, Field(ge=0, lt=MAX_CHOICES)]
    tokens: TokenIds = ()


class DraftRequest(Record):
    """What the router asks of an expert. The plan is the authority; the expert verifies it before it works."""

    record_name: ClassVar[str] = "draft-request"
    max_bytes: ClassVar[int] = 8 * 1024 * 1024

    plan: ExecutionPlan
    expert_id: Name
    expert_role: Name
    model: Name
    generation: GenerateRequest
    choices: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    open_sampling: OpenSampling = ()
    resume: Annotated[tuple[ChoiceResume, ...], Field(max_length=MAX_CHOICES)] = ()
    """The choices that are left to make, each from where it was cut off; empty: all of them, from the start."""


DraftEvent = Annotated[DraftBeat | ChoiceDelta | ChoiceDone, Field(discriminator="kind")]
DRAFT_EVENTS: Final[TypeAdapter[DraftBeat | ChoiceDelta | ChoiceDone]] = TypeAdapter(DraftEvent)


class ModelCall(Record):
    """A request to one model of an expert service."""

    record_name: ClassVar[str] = "model-call"
    max_bytes: ClassVar[int] = 8 * 1024 * 1024

    model: Name = "default"
    classify: ClassifyRequest | None = None
    score: ScoreRequest | None = None
    embed: EmbedRequest | None = None


class Empty(Record):
    record_name: ClassVar[str] = "empty"


class ExpertCard(Record):
    """An expert that a service hosts: what the router chooses from."""

    record_name: ClassVar[str] = "expert-card"

    expert_id: Name
    version: Name
    service: Literal["core", "elm"]
    role: Name
    domains: tuple[Name, ...] = ()
    capabilities: tuple[Name, ...] = ()
    engine: EngineInfo
    peer: PeerId


class ExpertList(Record):
    record_name: ClassVar[str] = "expert-list"
    max_bytes: ClassVar[int] = 4 * 1024 * 1024

    experts: tuple[ExpertCard, ...]


class PlanQuery(Record):
    record_name: ClassVar[str] = "plan-query"

    request_id: Uuid
    tenant: Name | None = None
    """Whose requests may be looked up; None: everybody's, which is for the operator."""


class PlanView(Record):
    """The records of one request, each verifiable on its own."""

    record_name: ClassVar[str] = "plan-view"
    max_bytes: ClassVar[int] = 8 * 1024 * 1024

    request_id: Uuid
    tenant: Name
    plan: ExecutionPlan
    """The plan that came last: that of the answer, where there is one."""
    former_plans: Annotated[tuple[ExecutionPlan, ...], Field(max_length=MAX_PLANS)] = ()
    """Those before it, oldest first: of experts that failed, lost a race, or were cut off in the middle."""
    outputs: tuple[ExpertOutput, ...] = ()
    reasons: tuple[str, ...] = ()
    state: Literal["running", "done", "failed"]
    error: dict[str, Any] | None = None
    stages_ms: dict[str, float] = {}


INGRESS_CHAT: Final = StreamMethod("ingress", "chat", TaskRequest, TASK_EVENTS)
INGRESS_EMBED: Final = UnaryMethod("ingress", "embed", ModelCall, EmbedResult)
INGRESS_PLAN: Final = UnaryMethod("ingress", "plan", PlanQuery, PlanView)

ROUTER_RUN: Final = StreamMethod("router", "run", TaskRequest, TASK_EVENTS)

CORE_DRAFT: Final = StreamMethod("core", "draft", DraftRequest, DRAFT_EVENTS)
CORE_CLASSIFY: Final = UnaryMethod("core", "classify", ModelCall, ClassifyResult)
CORE_SCORE: Final = UnaryMethod("core", "score", ModelCall, ScoreResult)
CORE_EMBED: Final = UnaryMethod("core", "embed", ModelCall, EmbedResult)
CORE_EXPERTS: Final = UnaryMethod("core", "experts", Empty, ExpertList)

ELM_DRAFT: Final = StreamMethod("elm", "draft", DraftRequest, DRAFT_EVENTS)
ELM_CLASSIFY: Final = UnaryMethod("elm", "classify", ModelCall, ClassifyResult)
ELM_SCORE: Final = UnaryMethod("elm", "score", ModelCall, ScoreResult)
ELM_EMBED: Final = UnaryMethod("elm", "embed", ModelCall, EmbedResult)
ELM_EXPERTS: Final = UnaryMethod("elm", "experts", Empty, ExpertList)

METHODS: Final[tuple[Method, ...]] = (
    INGRESS_CHAT,
    INGRESS_EMBED,
    INGRESS_PLAN,
    ROUTER_RUN,
    CORE_DRAFT,
    CORE_CLASSIFY,
    CORE_SCORE,
    CORE_EMBED,
    CORE_EXPERTS,
    ELM_DRAFT,
    ELM_CLASSIFY,
    ELM_SCORE,
    ELM_EMBED,
    ELM_EXPERTS,
)
"""Every method: what a peer may name. A method that is missing here can only be called within a node."""
