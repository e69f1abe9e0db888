"""What an expert hands back: an answer with evidence, confidence and proposals, signed (18.1.3.2.3)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints, model_validator

from gnusnode.contracts import ids
from gnusnode.contracts.base import SignedRecord
from gnusnode.contracts.fields import JsonObject, Moment, Part, Ratio, Ref
from gnusnode.contracts.ids import Name, PeerId, Sha256, Signature, Uuid
from gnusnode.contracts.plan import ExpertRole
from gnusnode.contracts.tools import ToolProposal

AnswerText = Annotated[str, StringConstraints(max_length=500_000)]


class EvidenceType(StrEnum):
    MEMORY_POINTER = "memory_pointer"
    CITATION = "citation"


class Evidence(Part):
    """Where a claim comes from: ``memory_pointer`` names a record by ``cid://``, ``citation`` a page by its URL."""

    type: EvidenceType
    ref: Ref

    @model_validator(mode="after")
    def _ref_fits_type(self) -> Evidence:
        if self.type is EvidenceType.MEMORY_POINTER:
            ids.sha256_from_cid(self.ref)
        elif not self.ref.startswith(("https://", "http://")):
            raise ValueError("a citation is not an http(s) address")
        return self


class ExpertOutput(SignedRecord):
    """One expert's package for one request. ``tool_calls`` are proposals: nothing in here has been executed."""

    record_name: ClassVar[str] = "expert-output"
    signature_field: ClassVar[str] = "expert_signature"
    max_bytes: ClassVar[int] = 4 * 1024 * 1024

    request_id: Uuid
    expert_id: Name
    expert_version: Name
    expert_role: ExpertRole
    answer: AnswerText | JsonObject
    confidence: Ratio
    """From token probabilities, label margins and agreement; never what the model says of itself."""
    evidence: Annotated[tuple[Evidence, ...], Field(max_length=256)] = ()
    tool_calls: Annotated[tuple[ToolProposal, ...], Field(max_length=64)] = ()
    expert_signature: Signature
    signer: PeerId
    plan_hash: Sha256
    """Digest of the plan under which the expert worked."""
    artifact_hash: Sha256
    """The model file that answered."""
    uncertainty: Ratio | None = None
    """Spread of the measurements behind ``confidence``; None where there was only one."""
    issued_at_ms: Moment
