"""Tools: what an expert may propose, what its manifest allows, what the intermediary found and attests (18.1.3.8)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, StringConstraints, model_validator

from gnusnode.contracts import canonical, ids
from gnusnode.contracts.base import Record, SignedRecord
from gnusnode.contracts.fields import (
    Capability,
    Count,
    Domain,
    JsonObject,
    Line,
    MediaType,
    Moment,
    Part,
    Path,
    Word,
    check_lifetime,
)
from gnusnode.contracts.ids import Name, Nonce, PeerId, Sha256, Signature, Uuid

MAX_ATTESTATION_MS: Final = 3_600_000
MAX_APPROVAL_MS: Final = 3_600_000
NEEDS_APPROVAL: Final = "APPROVAL_REQUIRED"
"""``reason_code`` of an attestation that is good for execution only together with a person's approval."""
RequestLine = Annotated[str, StringConstraints(max_length=4096)]
ToolName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class ToolPolicy(Record):
    """What tools a plan or a policy allows. The default allows none."""

    record_name: ClassVar[str] = "tool-policy"

    require_dry_run: Literal[True] = True
    """Nobody can ask for a tool without a dry-run."""
    human_approval: bool = False
    """Ask a person before every real execution."""
    capability_whitelist: Annotated[tuple[Capability, ...], Field(max_length=256)] = ()
    allowlisted_domains: Annotated[tuple[Domain, ...], Field(max_length=1024)] = ()
    allowlisted_paths: Annotated[tuple[Path, ...], Field(max_length=256)] = ()


class ToolProposal(Record):
    """A call that an expert would like to be made. It is never executable by itself (18.1.3.2.6)."""

    record_name: ClassVar[str] = "tool-proposal"

    tool_call_id: Uuid
    tool_name: ToolName
    arguments: JsonObject
    reason: Line = ""
    expected_side_effects: Line = ""


class RequiredCapability(Part):
    name: Capability
    scope: Word
    """``readonly``, ``proposal_only`` and the like."""
    constraints: JsonObject = {}


class SandboxRequirements(Part):
    """What an artifact needs of the host. The default needs nothing."""

    network: Word = "disabled"
    filesystem: Word = "disabled"
    clock: Word = "coarse"
    randomness: Word = "host_attested"


class CapabilityManifest(SignedRecord):
    """What an expert artifact is and what it asks of its host, signed by whoever packed it (18.1.3.2.5)."""

    record_name: ClassVar[str] = "capability-manifest"

    module_name: Name
    module_version: Name
    artifact_hash: Sha256
    signature: Signature
    required_capabilities: Annotated[tuple[RequiredCapability, ...], Field(max_length=64)] = ()
    sandbox_requirements: SandboxRequirements = SandboxRequirements()
    signer: PeerId
    issued_at_ms: Moment


class SimulatedEffects(Part):
    network_requests: Annotated[
        tuple[Annotated[str, StringConstraints(max_length=4096)], ...], Field(max_length=256)
    ] = ()
    """``METHOD URL`` of each request that the tool would send."""
    filesystem_access: Annotated[tuple[Path, ...], Field(max_length=1024)] = ()
    secrets_required: bool = False


class MockOutput(Part):
    content_type: MediaType
    preview: Annotated[str, StringConstraints(max_length=65_536)]


class DryRunResult(Record):
    """What would happen if a proposal were executed (18.1.3.8.5)."""

    record_name: ClassVar[str] = "dry-run-result"
    max_bytes: ClassVar[int] = 2 * 1024 * 1024

    tool_call_id: Uuid
    dry_run_ok: bool
    simulated_effects: SimulatedEffects
    mock_output: MockOutput
    risk_flags: Annotated[tuple[Word, ...], Field(max_length=64)] = ()
    human_approval_required: bool


class ToolAttestation(SignedRecord):
    """The intermediary's word on one proposal; without it nothing is executed, read or remembered (18.1.3.8.6).

    ``args_hash`` binds the exact arguments, ``plan_hash`` the plan under which they were judged. ``provenance_hash`` is
    the digest of the ``DryRunResult`` before the call is made, and of the ``SanitizedData`` after it.
    """

    record_name: ClassVar[str] = "tool-attestation"
    signature_field: ClassVar[str] = "intermediary_signature"
    signer_field: ClassVar[str] = "intermediary_node_id"
    issued_field: ClassVar[str] = "timestamp_ms"

    request_id: Uuid
    tool_call_id: Uuid
    dry_run_ok: bool
    safe_to_execute: bool
    safe_to_memorize: bool
    provenance_hash: Sha256
    capability_hash: Sha256
    policy_hash: Sha256
    sanitizer_version: Name
    intermediary_node_id: PeerId
    timestamp_ms: Moment
    reason_code: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]{0,63}$")]
    """``OK``, or why the call is not safe to execute."""
    intermediary_signature: Signature
    plan_hash: Sha256
    args_hash: Sha256
    expires_at_ms: Moment
    nonce: Nonce

    @model_validator(mode="after")
    def _hangs_together(self) -> ToolAttestation:
        if self.safe_to_execute and not self.dry_run_ok:
            raise ValueError("safe_to_execute without a successful dry-run")
        check_lifetime(self.timestamp_ms, self.expires_at_ms, MAX_ATTESTATION_MS)
        return self


class Decision(StrEnum):
    APPROVE = "approve"
    DENY = "deny"


class ToolApproval(SignedRecord):
    """What a person decided on one attested call, signed by the node at which it was asked (18.1.3.8.11).

    ``attestation_hash`` binds everything that was shown: arguments, plan, policy, dry-run. Good for one execution.
    """

    record_name: ClassVar[str] = "tool-approval"
    issued_field: ClassVar[str] = "decided_at_ms"

    request_id: Uuid
    tool_call_id: Uuid
    attestation_hash: Sha256
    args_hash: Sha256
    shown_hash: Sha256
    """Of what the person saw, arguments and all."""
    decision: Decision
    decided_by: Name
    """The API key or local user through which the person spoke; never a model."""
    signature: Signature
    signer: PeerId
    decided_at_ms: Moment
    expires_at_ms: Moment
    nonce: Nonce

    @model_validator(mode="after")
    def _bounded_lifetime(self) -> ToolApproval:
        check_lifetime(self.decided_at_ms, self.expires_at_ms, MAX_APPROVAL_MS)
        return self


class SanitizedContentType(StrEnum):
    PLAIN = "text/plain"
    JSON = "application/json"
    MARKDOWN = "text/markdown"


class StripReport(Part):
    removed_zero_width_chars: Count = 0
    removed_active_content: bool = False
    instruction_scrub_applied: bool


class SanitizedData(Record):
    """What is left of a tool's output once everything dangerous is taken out (18.1.3.8.7)."""

    record_name: ClassVar[str] = "sanitized-data"
    max_bytes: ClassVar[int] = 4 * 1024 * 1024

    tool_call_id: Uuid
    source_hash: Sha256
    """Of the raw output, which itself goes nowhere."""
    content_type: SanitizedContentType
    plain_text: Annotated[str, StringConstraints(max_length=500_000)]
    structured_fields: JsonObject = {}
    strip_report: StripReport


def arguments_hash(arguments: dict[str, Any]) -> str:
    """``args_hash`` of a proposal's arguments."""
    return ids.sha256(canonical.encode(arguments))
