"""What work was done and what proves it (18.1.3.6, 18.1.5.2)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from gnusnode.contracts.base import SignedRecord
from gnusnode.contracts.fields import Count, Moment
from gnusnode.contracts.generation import ContextProfile, Sampling, TokenIds
from gnusnode.contracts.ids import Name, PeerId, Sha256, Signature, Uuid

Hashes = Annotated[tuple[Sha256, ...], Field(max_length=1024)]


class ProcessingPass(StrEnum):
    """The kinds of work that a node is paid for."""

    INFERENCE = "inference"
    COMPUTE = "compute"
    DATA_TRANSFORM = "data_transform"
    VERIFICATION = "verification"
    RETRIEVAL = "retrieval"
    RETRAIN = "retrain"


class TaskRecord(SignedRecord):
    """The end of a task: the digests of everything that made its answer, signed by a settlement node."""

    record_name: ClassVar[str] = "task-record"
    signature_field: ClassVar[str] = "settlement_signature"
    max_bytes: ClassVar[int] = 512 * 1024

    task_id: Uuid
    request_id: Uuid
    plan_hash: Sha256
    expert_result_hashes: Hashes = ()
    tool_attestation_hashes: Hashes = ()
    memory_event_hashes: Hashes = ()
    final_response_hash: Sha256
    settlement_signature: Signature
    signer: PeerId
    issued_at_ms: Moment


class Receipt(SignedRecord):
    """A worker's claim about one generation, exact enough to be replayed teacher-forced by a settlement node."""

    record_name: ClassVar[str] = "receipt"
    max_bytes: ClassVar[int] = 8 * 1024 * 1024

    receipt_id: Uuid
    request_id: Uuid
    processing_pass: ProcessingPass
    plan_hash: Sha256
    result_hash: Sha256
    """Digest of the output that the receipt is for."""
    expert_id: Name
    artifact_hash: Sha256
    build: Name
    """Engine build: bit equality may only be asked between equal builds."""
    profile: ContextProfile
    sampling: Sampling
    prompt_hash: Sha256
    """Of the canonical encoding of the prompt's token ids."""
    prompt_tokens: TokenIds | None = None
    """None where the privacy mode keeps the prompt at home; a replay then has to ask for it."""
    tokens: TokenIds
    logprobs_milli: Annotated[tuple[Annotated[int, Field(ge=-(2**31), le=0)], ...], Field(max_length=1_000_000)]
    """Natural log-probability of each token in thousandths, rounded: integers compare the same everywhere."""
    cached_tokens: Count = 0
    work_ms: Count
    signer: PeerId
    issued_at_ms: Moment
    signature: Signature

    @model_validator(mode="after")
    def _one_logprob_per_token(self) -> Receipt:
        if len(self.logprobs_milli) not in (0, len(self.tokens)):
            raise ValueError("logprobs_milli has neither none nor one entry per token")
        return self
