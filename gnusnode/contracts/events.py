"""What nodes learn from and what they must be able to show: learning events and the audit chain. Digests only."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field, StringConstraints, model_validator

from gnusnode.contracts.base import SignedRecord
from gnusnode.contracts.fields import Count, Moment, Word
from gnusnode.contracts.ids import Cid, Name, PeerId, Sha256, Signature, Uuid
from gnusnode.contracts.memory import TrustClass
from gnusnode.contracts.plan import ExpertRole

GENESIS: Final = "sha256:" + "0" * 64
"""``prev`` of the first event of a chain."""


class LearningTarget(StrEnum):
    """What a learning event may improve (18.1.4.2)."""

    ROUTER = "router"
    ELM = "elm"
    VERIFIER = "verifier"
    MEMORY_GOVERNOR = "memory_governor"


class LearningEvent(SignedRecord):
    """An approved memory update that may be learnt from. Queued by ``domain``, ``role`` and ``policy_scope``."""

    record_name: ClassVar[str] = "learning-event"

    learning_event_id: Uuid
    memory_event_hash: Sha256
    certificate_hash: Sha256
    """The approval: a quorum certificate, or the event's own digest where a person curated it."""
    targets: Annotated[tuple[LearningTarget, ...], Field(min_length=1, max_length=4)]
    domain: Name
    role: ExpertRole
    policy_scope: Name
    """The tenant or scope inside which the event may be used."""
    trust_class: TrustClass
    payload_ref: Cid
    signer: PeerId
    issued_at_ms: Moment
    signature: Signature

    @model_validator(mode="after")
    def _higher_trust_only(self) -> LearningEvent:
        if self.trust_class is not TrustClass.HIGHER_TRUST:
            raise ValueError("memory of lower trust may not be learnt from")
        return self


Fingerprint = Annotated[
    str, StringConstraints(pattern=r"^(sha256:[0-9a-f]{64}|cid://b[a-z2-7]{58}|12D3KooW[1-9A-HJ-NP-Za-km-z]{44})$")
]
Code = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/+-]{0,63}$")]
"""An identifier such as a role, a tool, an outcome or a UUID: no spaces, so never a sentence."""

AuditValue = bool | Annotated[int, Field(ge=-(2**53), le=2**53)] | Fingerprint | Code


class AuditEvent(SignedRecord):
    """One link of a node's audit chain: which event, when, and digests of what it was about.

    ``prev`` is the digest of the event with the sequence number before it, so that nothing can be changed, dropped or
    put in between afterwards.
    """

    record_name: ClassVar[str] = "audit-event"
    max_bytes: ClassVar[int] = 64 * 1024

    seq: Count
    prev: Sha256
    family: Word
    """The part of the node that alone writes these events: ``node``, ``plan``, ``tool`` …"""
    event: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$", max_length=64)]
    fields: Annotated[dict[Word, AuditValue], Field(max_length=32)]
    signer: PeerId
    issued_at_ms: Moment
    signature: Signature

    @model_validator(mode="after")
    def _carries_no_content(self) -> AuditEvent:
        for key in self.fields:
            if names_content(key):
                raise ValueError(f"the key {key!r} names content: only digests belong into the audit chain")
        if (self.seq == 0) != (self.prev == GENESIS):
            raise ValueError("only the first event of a chain has the genesis as its predecessor")
        return self


_CONTENT_WORDS: Final = frozenset(
    {"answer", "argument", "arguments", "body", "content", "completion", "data", "html", "input", "message", "messages"}
    | {"output", "password", "payload", "plain", "prompt", "query", "response", "secret", "snippet", "text", "url"}
)
_DIGEST_ENDINGS: Final = ("_sha256", "_hash", "_cid", "_digest", "_bytes", "_count", "_ms", "_id")


def names_content(key: str) -> bool:
    """Whether an audit key promises content, not a digest or a measure: ``output`` does, ``output_sha256`` does not."""
    return not key.endswith(_DIGEST_ENDINGS) and any(word in _CONTENT_WORDS for word in key.split("_"))
