"""What the swarm remembers, and how far each piece may be trusted (18.1.3.4)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from gnusnode.contracts.base import Record, SignedRecord
from gnusnode.contracts.fields import Moment, Ratio, Ref
from gnusnode.contracts.ids import Cid, Name, PeerId, Sha256, Signature, Uuid

Cids = Annotated[tuple[Cid, ...], Field(max_length=256)]


class MemoryClass(StrEnum):
    BRIDGE_BLOCK = "bridge_block"
    FACT = "fact"
    POLICY = "policy"
    """Policies and invariants."""
    EVENT = "event"
    """Events and outcomes."""
    TENANT_OPERATIONAL = "tenant_operational"


class TrustClass(StrEnum):
    """``higher_trust`` may guide routing and policy; ``lower_trust`` supports reasoning and defines nothing."""

    HIGHER_TRUST = "higher_trust"
    LOWER_TRUST = "lower_trust"


class SourceType(StrEnum):
    USER = "user"
    TOOL = "tool"
    WEB = "web"
    EXPERT = "expert"
    SYNTHESIS = "synthesis"


class ConsensusState(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"


class MemoryEvent(SignedRecord):
    """One thing to remember, as the memory node that gated it saw it (18.1.3.4.8).

    ``consensus_state`` is the state at the time of writing. What holds later follows from the votes, never from here.
    """

    record_name: ClassVar[str] = "memory-event"

    memory_event_id: Uuid
    request_id: Uuid
    memory_class: MemoryClass
    trust_class: TrustClass
    content_hash: Sha256
    source_type: SourceType
    source_reputation: Ratio
    attestation_refs: Cids = ()
    provenance_score: Ratio
    safe_to_memorize: bool
    instruction_scrubbed: bool
    consensus_state: ConsensusState
    payload_ref: Cid
    signer: PeerId
    tenant: Name
    derived_from: Cids = ()
    """The records that this one was made from: its trust is never above theirs."""
    issued_at_ms: Moment
    expires_at_ms: Moment | None = None
    signature: Signature

    @model_validator(mode="after")
    def _hangs_together(self) -> MemoryEvent:
        if self.trust_class is TrustClass.HIGHER_TRUST and not self.instruction_scrubbed and self.is_external:
            raise ValueError("external content of higher trust that was not scrubbed")
        if self.trust_class is TrustClass.HIGHER_TRUST and self.is_external and not self.safe_to_memorize:
            raise ValueError("external content of higher trust that is not safe to memorize")
        if self.expires_at_ms is not None and self.expires_at_ms <= self.issued_at_ms:
            raise ValueError("expires before it is issued")
        return self

    @property
    def is_external(self) -> bool:
        """Whether the content came in through a tool or from the web."""
        return self.source_type in (SourceType.TOOL, SourceType.WEB)


class MemoryProvenanceMetadata(Record):
    """Where a snippet comes from: what stands beside it whenever it enters a prompt."""

    record_name: ClassVar[str] = "memory-provenance-metadata"

    memory_event_id: Uuid
    trust_class: TrustClass
    source_type: SourceType
    source_ref: Ref | None = None
    """The page or record behind the snippet."""
    source_hash: Sha256
    author: PeerId
    """The memory node that signed the event."""
    derived_from: Cids = ()
    attestation_refs: Cids = ()
    provenance_score: Ratio
    safe_to_memorize: bool
    instruction_scrubbed: bool
    sanitizer_version: Name | None = None
    recorded_at_ms: Moment
