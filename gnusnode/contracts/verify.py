"""May I believe this record? Signature, swarm, time, authority, replay: a pure function with a closed set of answers.

A valid signature is not authority: each kind of record may be issued by certain roles only, and the roster says whether
the signer held one of them at the time in question. Authority is judged at ``at_ms``; to judge an old record, pass the
time at which it was received. Expected refusals are values, never exceptions; ``refusal`` turns one into an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

from gnusnode.contracts import canonical, dsse
from gnusnode.contracts.artifacts import ChunkManifest
from gnusnode.contracts.base import MalformedRecord, SignedRecord
from gnusnode.contracts.consensus import QuorumCertificate, Vote
from gnusnode.contracts.events import AuditEvent, LearningEvent
from gnusnode.contracts.expert import ExpertOutput
from gnusnode.contracts.memory import MemoryEvent
from gnusnode.contracts.outcome import Outcome, refusal
from gnusnode.contracts.plan import ExecutionPlan, ExpertRole
from gnusnode.contracts.replay import ReplayGuard
from gnusnode.contracts.roster import Roster
from gnusnode.contracts.settlement import Receipt, TaskRecord
from gnusnode.contracts.swarm import (
    AdminDelegation,
    KeyRotation,
    MembershipCertificate,
    NodeAnnouncement,
    Revocation,
    RevocationKind,
    Role,
    Tier,
)
from gnusnode.contracts.tools import CapabilityManifest, ToolApproval, ToolAttestation

__all__ = [
    "AUTHORITY",
    "MAX_SKEW_MS",
    "Outcome",
    "Verdict",
    "open_signed",
    "refusal",
    "verify",
    "verify_bytes",
    "verify_quorum",
]

MAX_SKEW_MS: Final = 60_000

R = TypeVar("R", bound=SignedRecord)
Authority = Callable[[Any, int, Roster], Outcome]
"""``(record, at_ms, roster)``: whether the record's signer may issue it."""


@dataclass(frozen=True)
class Verdict(Generic[R]):
    """What ``verify_bytes`` found. ``record`` is there exactly when ``outcome`` is ``OK``."""

    outcome: Outcome
    record: R | None = None
    detail: str = ""
    """Where a malformed record is malformed."""


def verify(
    record: SignedRecord, at_ms: int, roster: Roster, *, seen: ReplayGuard | None = None, max_skew_ms: int = MAX_SKEW_MS
) -> Outcome:
    """Whether ``record`` is to be believed at ``at_ms`` (milliseconds since the epoch).

    Args:
        seen: where nonces are remembered; a record with a nonce is then believed once. None where a record may be
            shown repeatedly, as a plan is to each of its experts.
        max_skew_ms: how far the signer's clock may be ahead.
    """
    if not record.signature_is_valid():
        return Outcome.BAD_SIGNATURE
    return _judge(record, at_ms, roster, seen, max_skew_ms)


def verify_bytes(
    cls: type[R],
    data: bytes,
    at_ms: int,
    roster: Roster,
    *,
    seen: ReplayGuard | None = None,
    max_skew_ms: int = MAX_SKEW_MS,
) -> Verdict[R]:
    """``verify`` for received bytes: the signature is checked over what arrived before anything else looks at it."""
    try:
        plain = canonical.decode(data, max_bytes=cls.max_bytes)
    except canonical.NotCanonical as error:
        return Verdict(Outcome.MALFORMED, detail=str(error))
    opened = open_signed(cls, plain, data)
    if opened.record is None:
        return opened
    outcome = _judge(opened.record, at_ms, roster, seen, max_skew_ms)
    return opened if outcome is Outcome.OK else Verdict(outcome)


def open_signed(cls: type[R], plain: object, data: bytes) -> Verdict[R]:
    """The record in ``data``, whose plain form is ``plain``, once its signature holds. Says nothing of authority."""
    try:
        signer, signature, payload = _take_apart(cls, plain)
    except MalformedRecord as error:
        return Verdict(Outcome.MALFORMED, detail=str(error))
    if not dsse.verify(signer, dsse.payload_type(cls.record_name), payload, signature):
        return Verdict(Outcome.BAD_SIGNATURE)
    try:
        return Verdict(Outcome.OK, cls.from_plain(plain, data))
    except MalformedRecord as error:
        return Verdict(Outcome.MALFORMED, detail=str(error))


def verify_quorum(certificate: QuorumCertificate, at_ms: int, roster: Roster) -> Outcome:
    """``OK`` when every vote in ``certificate`` is to be believed; else the first reason against one.

    Votes only had to be in force when the certificate was made; their signers have to be members at ``at_ms``.
    """
    if certificate.swarm_id != roster.swarm_id:
        return Outcome.WRONG_SWARM
    if certificate.decided_at_ms > at_ms + MAX_SKEW_MS:
        return Outcome.CLOCK_SKEW
    for vote in certificate.votes:
        if not vote.signature_is_valid():
            return Outcome.BAD_SIGNATURE
        outcome = AUTHORITY[Vote](vote, at_ms, roster)
        if outcome is not Outcome.OK:
            return outcome
    return Outcome.OK


def _take_apart(cls: type[SignedRecord], plain: object) -> tuple[str, str, bytes]:
    """Signer, signature and signed bytes of a record in its plain form."""
    if not isinstance(plain, dict):
        raise MalformedRecord(f"{cls.__name__}: not a map")
    fields = dict(cast("dict[str, object]", plain))
    signature = fields.pop(cls.signature_field, None)
    signer = fields.get(cls.signer_field)
    if not isinstance(signer, str) or not isinstance(signature, str):
        raise MalformedRecord(f"{cls.__name__}: {cls.signer_field} or {cls.signature_field} is missing")
    return signer, signature, canonical.encode_known(fields)


def _judge(record: SignedRecord, at_ms: int, roster: Roster, seen: ReplayGuard | None, max_skew_ms: int) -> Outcome:
    """Everything but the signature; the nonce last, so that only what is believed is remembered."""
    if getattr(record, "swarm_id", roster.swarm_id) != roster.swarm_id:
        return Outcome.WRONG_SWARM
    outcome = _time(record, at_ms, max_skew_ms)
    if outcome is Outcome.OK:
        outcome = AUTHORITY[type(record)](record, at_ms, roster)
    nonce: str | None = getattr(record, "nonce", None)
    if outcome is not Outcome.OK or seen is None or nonce is None or record.expires_ms is None:
        return outcome
    return seen.admit(record.signer_peer, nonce, expires_at_ms=record.expires_ms, at_ms=at_ms)


def _time(record: SignedRecord, at_ms: int, max_skew_ms: int) -> Outcome:
    if isinstance(record, MembershipCertificate | AdminDelegation):
        if record.issued_ms > at_ms:
            return Outcome.NOT_YET_VALID
    elif record.issued_ms > at_ms + max_skew_ms:
        return Outcome.CLOCK_SKEW
    if record.expires_ms is not None and at_ms >= record.expires_ms:
        return Outcome.EXPIRED
    return Outcome.OK


# --- who may issue what -----------------------------------------------------------------------------------------------


def _member(record: SignedRecord, at_ms: int, roster: Roster) -> Outcome:
    """Any certified member: a node without a certificate has no roles beyond ``OPEN_ROLES`` and is of tier D."""
    standing = roster.standing(record.signer_peer, at_ms)
    if standing.outcome is Outcome.OK and standing.tier is Tier.D:
        return Outcome.ROLE_NOT_GRANTED
    return standing.outcome


def _one_of(*roles: Role) -> Authority:
    """Whoever holds at least one of ``roles``."""

    def check(record: SignedRecord, at_ms: int, roster: Roster) -> Outcome:
        return _holds(record, roles, at_ms, roster)

    return check


def _holds(record: SignedRecord, roles: Iterable[Role], at_ms: int, roster: Roster) -> Outcome:
    standing = roster.standing(record.signer_peer, at_ms)
    if standing.outcome is Outcome.OK and standing.roles.isdisjoint(roles):
        return Outcome.ROLE_NOT_GRANTED
    return standing.outcome


_EXPERT_NEEDS: Final[dict[ExpertRole, tuple[Role, ...]]] = {
    ExpertRole.SEMANTIC_CORE: (Role.CORE,),
    ExpertRole.VERIFIER: (Role.CORE, Role.ELM, Role.VERIFIER),
    ExpertRole.ARBITER: (Role.CORE, Role.ELM, Role.VERIFIER),
    ExpertRole.REFINER: (Role.CORE, Role.ELM, Role.VERIFIER),
    ExpertRole.FORMATTER: (Role.CORE, Role.ELM, Role.VERIFIER),
    ExpertRole.GROUNDING: (Role.CORE, Role.ELM, Role.GROUNDING),
}


def _expert(record: ExpertOutput, at_ms: int, roster: Roster) -> Outcome:
    if roster.is_revoked(RevocationKind.ARTIFACT, record.artifact_hash, at_ms):
        return Outcome.REVOKED
    return _holds(record, _EXPERT_NEEDS.get(record.expert_role, (Role.CORE, Role.ELM)), at_ms, roster)


def _worker(record: Receipt, at_ms: int, roster: Roster) -> Outcome:
    if roster.is_revoked(RevocationKind.ARTIFACT, record.artifact_hash, at_ms):
        return Outcome.REVOKED
    workers = (Role.CORE, Role.ELM, Role.VERIFIER, Role.GROUNDING, Role.MEMORY)
    return _holds(record, workers, at_ms, roster)


def _voucher(record: CapabilityManifest | ChunkManifest, at_ms: int, roster: Roster) -> Outcome:
    """Any certified member, for an artifact that is not revoked."""
    if roster.is_revoked(RevocationKind.ARTIFACT, record.artifact_hash, at_ms):
        return Outcome.REVOKED
    return _member(record, at_ms, roster)


def _announcer(record: NodeAnnouncement, at_ms: int, roster: Roster) -> Outcome:
    """A node may announce the roles that it was granted, and no other."""
    standing = roster.standing(record.signer, at_ms)
    if standing.outcome is Outcome.OK and not standing.roles.issuperset(record.roles):
        return Outcome.ROLE_NOT_GRANTED
    return standing.outcome


def _certifier(record: MembershipCertificate, at_ms: int, roster: Roster) -> Outcome:
    return roster.may_certify(record, at_ms)


def _delegator(record: AdminDelegation, at_ms: int, roster: Roster) -> Outcome:
    if record.signer != roster.root:
        return Outcome.ROLE_NOT_GRANTED
    return Outcome.REVOKED if roster.is_revoked(RevocationKind.DELEGATION, record.peer_id, at_ms) else Outcome.OK


def _revoker(record: Revocation, at_ms: int, roster: Roster) -> Outcome:
    del at_ms  # a revocation stays, and was issued with power or never
    return roster.may_revoke(record)


def _successor(record: KeyRotation, at_ms: int, roster: Roster) -> Outcome:
    if not record.proof_is_valid():
        return Outcome.BAD_SIGNATURE
    return _member(record, at_ms, roster)


AUTHORITY: Final[dict[type[SignedRecord], Authority]] = {
    ExecutionPlan: _one_of(Role.ROUTER),
    ExpertOutput: _expert,
    CapabilityManifest: _voucher,
    ChunkManifest: _voucher,
    ToolAttestation: _one_of(Role.INTERMEDIARY),
    ToolApproval: _one_of(Role.INTERMEDIARY),
    MemoryEvent: _one_of(Role.MEMORY),
    Vote: _one_of(Role.MEMORY, Role.VERIFIER),
    TaskRecord: _one_of(Role.SETTLEMENT),
    Receipt: _worker,
    LearningEvent: _one_of(Role.MEMORY),
    AuditEvent: _member,
    NodeAnnouncement: _announcer,
    MembershipCertificate: _certifier,
    AdminDelegation: _delegator,
    Revocation: _revoker,
    KeyRotation: _successor,
}
"""Every signed record has an entry: what is not listed cannot be believed."""
