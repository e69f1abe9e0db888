"""The signed execution plan: who works on a request, in which order, within which limits (18.1.3.1.3-4)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, model_validator

from gnusnode.contracts.base import SignedRecord
from gnusnode.contracts.fields import Capability, Moment, Part, Ratio, check_lifetime
from gnusnode.contracts.ids import Name, Nonce, PeerId, Sha256, Signature, Uuid
from gnusnode.contracts.tools import ToolPolicy

MAX_WALL_MS: Final = 86_400_000
MAX_PLAN_MS: Final = MAX_WALL_MS + 3_600_000


class ElmRole(StrEnum):
    """The part that an expert language model may play."""

    PLANNER = "planner"
    PRIMARY_DRAFT = "primary_draft"
    VERIFIER = "verifier"
    ARBITER = "arbiter"
    REFINER = "refiner"
    FORMATTER = "formatter"
    GROUNDING = "grounding"
    TOOL_SUPPORT = "tool_support"
    DOMAIN_EXPERT = "domain_expert"


class ExpertRole(StrEnum):
    """The part that any expert may play: those of an ELM, and the semantic core's."""

    SEMANTIC_CORE = "semantic_core"
    PLANNER = "planner"
    PRIMARY_DRAFT = "primary_draft"
    VERIFIER = "verifier"
    ARBITER = "arbiter"
    REFINER = "refiner"
    FORMATTER = "formatter"
    GROUNDING = "grounding"
    TOOL_SUPPORT = "tool_support"
    DOMAIN_EXPERT = "domain_expert"


class Mode(StrEnum):
    SINGLE_NODE = "single_node"
    ELM_ASSISTED = "elm_assisted"
    SWARM = "swarm"
    AGENT = "agent"


class Topology(StrEnum):
    SINGLE = "single"
    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"
    PARALLEL_WITH_ARBITER = "parallel_with_arbiter"


class Stage(StrEnum):
    MEMORY = "memory"
    DRAFT = "draft"
    VERIFY = "verify"
    GROUND = "ground"
    TOOL = "tool"
    SYNTHESIZE = "synthesize"


class PrivacyMode(StrEnum):
    """How far a prompt may travel, from anywhere to nowhere.

    ``restricted`` keeps it from nodes without a membership certificate, ``private_boundary`` inside the operator's own.
    """

    PLAINTEXT = "plaintext"
    RESTRICTED = "restricted"
    PRIVATE_BOUNDARY = "private_boundary"


class MemoryMode(StrEnum):
    """Which memory may enter a prompt: what the policy allows, higher trust only, or none."""

    POLICY_SCOPED = "policy_scoped"
    TRUSTED_ONLY = "trusted_only"
    OFF = "off"


class Platform(StrEnum):
    """The kinds of sandbox, strongest first."""

    SERVER_FIRECRACKER = "server_firecracker"
    SERVER_GVISOR = "server_gvisor"
    SERVER_CONTAINER = "server_container"
    SERVER_NAMESPACES = "server_namespaces"


class SelectedCore(Part):
    core_id: Name
    version: Name


class SelectedElm(Part):
    elm_id: Name
    version: Name
    role: ElmRole
    capabilities: Annotated[tuple[Capability, ...], Field(max_length=64)] = ()


class ExecutionGraph(Part):
    mode: Mode
    topology: Topology
    stages: Annotated[tuple[Stage, ...], Field(min_length=1, max_length=32)]


class Constraints(Part):
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)]
    max_wall_ms: Annotated[int, Field(ge=1, le=MAX_WALL_MS)]
    max_spend: Annotated[float, Field(ge=0, le=1_000_000)]
    """Credits."""


class AttestationRequirements(Part):
    require_task_attestation: bool = True
    require_tool_attestation: bool = True
    min_reputation: Ratio = 0.0
    """Of the nodes that take part."""


class SandboxProfile(Part):
    default_deny: Literal[True] = True
    platform: Platform


class ExecutionPlan(SignedRecord):
    """The authority under which everything else of a request happens; signed by a router.

    ``swarm_id`` keeps it from being replayed in another swarm, ``policy_hash`` names the ``PolicyEnvelope`` it obeys.
    """

    record_name: ClassVar[str] = "execution-plan"
    signature_field: ClassVar[str] = "plan_signature"

    request_id: Uuid
    query_hash: Sha256
    selected_core: SelectedCore
    selected_elms: Annotated[tuple[SelectedElm, ...], Field(max_length=32)] = ()
    execution_graph: ExecutionGraph
    constraints: Constraints
    privacy_mode: PrivacyMode
    attestation_requirements: AttestationRequirements
    tool_policy: ToolPolicy
    memory_mode: MemoryMode
    sandbox_profile: SandboxProfile
    plan_signature: Signature
    signer: PeerId
    swarm_id: Sha256
    policy_hash: Sha256
    issued_at_ms: Moment
    expires_at_ms: Moment
    nonce: Nonce

    @model_validator(mode="after")
    def _bounded_lifetime(self) -> ExecutionPlan:
        check_lifetime(self.issued_at_ms, self.expires_at_ms, MAX_PLAN_MS)
        return self
