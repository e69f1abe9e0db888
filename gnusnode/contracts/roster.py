"""Who may do what in a swarm at a given time: immutable data made from signed certificates, and questions about it.

Everything that the roster believes was signed by the root key or by an admin that the root key delegated to; what does
not hold up is left out and listed in ``refused``. Trust is judged at the time one asks about, so one roster serves
until its inputs change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Self, TypeVar

from gnusnode.contracts.base import SignedRecord
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.swarm import (
    OPEN_ROLES,
    AdminDelegation,
    KeyRotation,
    MembershipCertificate,
    Revocation,
    RevocationKind,
    Role,
    Tier,
    swarm_id,
)

Signed = TypeVar("Signed", bound=SignedRecord)

_FOREVER: Final = 2**53 - 1
MAX_ROTATIONS: Final = 32
"""Longest chain of keys that is followed back to a certificate."""


@dataclass(frozen=True)
class Standing:
    """What a node is at some time. When ``outcome`` is not ``OK`` it holds no role, whatever it was granted."""

    outcome: Outcome
    roles: frozenset[Role] = frozenset()
    tier: Tier = Tier.D
    operators: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Grant:
    """What a certificate grants, once its signature was checked; whether it is in force depends on the time."""

    roles: frozenset[Role]
    tier: Tier
    operator: str
    not_before: int
    not_after: int
    issuer: str
    digest: str
    serial: int = 0


@dataclass(frozen=True)
class Roster:
    """Make it with ``build`` or ``solo``; ask it with ``standing``."""

    swarm_id: str
    root: str
    open_to_all: bool = False
    """Whether nodes without a certificate may offer ``OPEN_ROLES``."""
    refused: tuple[tuple[str, Outcome], ...] = ()
    """Digest and reason of each input that was left out."""
    grants: Mapping[str, tuple[Grant, ...]] = field(default_factory=dict[str, tuple[Grant, ...]])
    """By member."""
    admins: Mapping[str, tuple[AdminDelegation, ...]] = field(default_factory=dict[str, tuple[AdminDelegation, ...]])
    revoked: Mapping[tuple[RevocationKind, str], int] = field(default_factory=dict[tuple[RevocationKind, str], int])
    """What is revoked, and since when (ms)."""
    rotations: tuple[KeyRotation, ...] = ()
    verified: Container[str] = field(default_factory=frozenset[str], repr=False, compare=False)
    """Digests of inputs whose signatures were checked before."""

    @classmethod
    def solo(cls, peer_id: str, roles: Collection[Role] = tuple(Role)) -> Self:
        """The roster of a node that is a swarm of one: its own key is the root and it grants itself ``roles``."""
        own = Grant(frozenset(roles), Tier.A, "self", 0, _FOREVER, peer_id, "")
        return cls(swarm_id(peer_id), peer_id, grants=MappingProxyType({peer_id: (own,)}))

    @classmethod
    def build(
        cls,
        root: str,
        *,
        certificates: Iterable[MembershipCertificate] = (),
        delegations: Iterable[AdminDelegation] = (),
        revocations: Iterable[Revocation] = (),
        rotations: Iterable[KeyRotation] = (),
        open_to_all: bool = False,
        verified: Container[str] = frozenset(),
    ) -> Self:
        """The roster of the swarm whose root key is ``root``. Order and repetition of the inputs do not matter.

        Costs one signature check (about 0.1 ms) for each input that is not among ``verified``: digests of records
        whose signatures the caller has checked itself.
        """
        empty = cls(swarm_id(root), root, open_to_all, verified=verified)
        with_admins = empty._with_admins(delegations)
        with_revocations = with_admins._with_revocations(list(revocations))
        return with_revocations._with_members(certificates)._with_rotations(rotations)

    # --- questions ----------------------------------------------------------------------------------------------------

    def standing(self, peer: str, at_ms: int) -> Standing:
        """What ``peer`` is and may do at ``at_ms``. Several certificates in force add up."""
        if self.is_revoked(RevocationKind.PEER, peer, at_ms) or self._is_retired(peer, at_ms):
            return Standing(Outcome.REVOKED)
        outcomes: set[Outcome] = set()
        valid: list[Grant] = []
        for grant in self.grants_of(peer, at_ms):
            outcome = self._judge(grant, at_ms)
            outcomes.add(outcome)
            if outcome is Outcome.OK:
                valid.append(grant)
        if valid:
            return Standing(
                Outcome.OK,
                frozenset(role for grant in valid for role in grant.roles),
                min((grant.tier for grant in valid), key=lambda tier: tier.value),
                frozenset(grant.operator for grant in valid),
            )
        if outcomes:
            return Standing(next(outcome for outcome in _MOST_TELLING if outcome in outcomes))
        return Standing(Outcome.OK, OPEN_ROLES) if self.open_to_all else Standing(Outcome.UNKNOWN_SIGNER)

    def is_revoked(self, kind: RevocationKind, target: str, at_ms: int) -> bool:
        since = self.revoked.get((kind, target))
        return since is not None and at_ms >= since

    def grants_of(self, peer: str, at_ms: int) -> list[Grant]:
        """The certificates of the node's key and of the keys that it had before, unless one of those was revoked."""
        grants = list(self.grants.get(peer, ()))
        current, seen = peer, {peer}
        for _ in range(MAX_ROTATIONS):
            before = [r.old_peer_id for r in self.rotations if r.new_peer_id == current and r.issued_at_ms <= at_ms]
            if len(before) != 1 or before[0] in seen or self._is_contested(before[0]):
                break
            current = before[0]
            if self.is_revoked(RevocationKind.PEER, current, at_ms):
                break
            seen.add(current)
            grants.extend(self.grants.get(current, ()))
        return grants

    def is_in_force(self, grant: Grant, at_ms: int) -> bool:
        return self._judge(grant, at_ms) is Outcome.OK

    def may_certify(self, certificate: MembershipCertificate, at_ms: int) -> Outcome:
        """Whether the issuer of ``certificate`` has the power to grant this, and it was not taken back."""
        return self._judge(_grant(certificate), at_ms)

    def may_revoke(self, revocation: Revocation) -> Outcome:
        """Whether the issuer of ``revocation`` had the power to take this back when it did.

        Only the root key may touch admins, so that two admins who revoke each other cannot make the result depend on
        who was heard first.
        """
        if revocation.signer == self.root:
            return Outcome.OK
        touches_power = revocation.kind is RevocationKind.DELEGATION or revocation.target in {self.root, *self.admins}
        if touches_power:
            return Outcome.ROLE_NOT_GRANTED
        return self._issuer(revocation.signer, frozenset(), Tier.D, revocation.issued_at_ms)

    # --- how they are answered ----------------------------------------------------------------------------------------

    def _judge(self, grant: Grant, at_ms: int) -> Outcome:
        if self.is_revoked(RevocationKind.CERTIFICATE, grant.digest, at_ms):
            return Outcome.REVOKED
        if at_ms < grant.not_before:
            return Outcome.CERTIFICATE_NOT_YET_VALID
        if at_ms >= grant.not_after:
            return Outcome.CERTIFICATE_EXPIRED
        return self._issuer(grant.issuer, grant.roles, grant.tier, at_ms)

    def _issuer(self, signer: str, roles: frozenset[Role], tier: Tier, at_ms: int) -> Outcome:
        """Whether ``signer`` may grant ``roles`` at ``tier`` at ``at_ms``."""
        if signer == self.root:
            return Outcome.OK
        if any(self.is_revoked(kind, signer, at_ms) for kind in (RevocationKind.DELEGATION, RevocationKind.PEER)):
            return Outcome.REVOKED
        outcome = Outcome.UNKNOWN_SIGNER
        for delegation in self.admins.get(signer, ()):
            if at_ms < delegation.not_before:
                outcome = Outcome.CERTIFICATE_NOT_YET_VALID
            elif at_ms >= delegation.not_after:
                outcome = Outcome.CERTIFICATE_EXPIRED
            elif not roles <= set(delegation.roles) or tier.value < delegation.tier.value:
                outcome = Outcome.ROLE_NOT_GRANTED
            else:
                return Outcome.OK
        return outcome

    def _is_retired(self, peer: str, at_ms: int) -> bool:
        return any(r.old_peer_id == peer and r.issued_at_ms <= at_ms for r in self.rotations)

    def _is_contested(self, old: str) -> bool:
        """Two handovers of one key: somebody else has it too. Neither counts, and a person has to decide."""
        return sum(r.old_peer_id == old for r in self.rotations) > 1

    # --- how it is built ----------------------------------------------------------------------------------------------

    def _with_admins(self, delegations: Iterable[AdminDelegation]) -> Self:
        good, refused = _sift(delegations, self._check_delegation)
        return replace(self, admins=_by(good, lambda record: record.peer_id), refused=self.refused + refused)

    def _with_revocations(self, revocations: list[Revocation]) -> Self:
        # The root's first: they decide which admins' revocations count.
        roots = [record for record in revocations if record.signer == self.root]
        others = [record for record in revocations if record.signer != self.root]
        return self._with_revocations_of_one_rank(roots)._with_revocations_of_one_rank(others)

    def _with_revocations_of_one_rank(self, revocations: list[Revocation]) -> Self:
        good, refused = _sift(revocations, self._check_revocation)
        revoked = dict(self.revoked)
        for record in good:
            key = (record.kind, record.target)
            revoked[key] = min(record.effective_at_ms, revoked.get(key, record.effective_at_ms))
        return replace(self, revoked=MappingProxyType(revoked), refused=self.refused + refused)

    def _with_members(self, certificates: Iterable[MembershipCertificate]) -> Self:
        good, refused = _sift(certificates, self._check_certificate)
        members = {peer: tuple(map(_grant, held)) for peer, held in _by(good, lambda record: record.peer_id).items()}
        return replace(self, grants=MappingProxyType(members), refused=self.refused + refused)

    def _with_rotations(self, rotations: Iterable[KeyRotation]) -> Self:
        good, refused = _sift(rotations, self._check_rotation)
        return replace(self, rotations=tuple(good), refused=self.refused + refused)

    def _check_delegation(self, record: AdminDelegation) -> Outcome:
        if record.signer != self.root:
            return Outcome.ROLE_NOT_GRANTED
        return self._check_origin(record, record.swarm_id)

    def _check_revocation(self, record: Revocation) -> Outcome:
        outcome = self._check_origin(record, record.swarm_id)
        return self.may_revoke(record) if outcome is Outcome.OK else outcome

    def _check_certificate(self, record: MembershipCertificate) -> Outcome:
        if record.signer != self.root and record.signer not in self.admins:
            return Outcome.UNKNOWN_SIGNER
        return self._check_origin(record, record.swarm_id)

    def _check_origin(self, record: SignedRecord, swarm: str) -> Outcome:
        if swarm != self.swarm_id:
            return Outcome.WRONG_SWARM
        good = record.digest in self.verified or record.signature_is_valid()
        return Outcome.OK if good else Outcome.BAD_SIGNATURE

    def _check_rotation(self, record: KeyRotation) -> Outcome:
        good = record.digest in self.verified or (record.signature_is_valid() and record.proof_is_valid())
        return Outcome.OK if good else Outcome.BAD_SIGNATURE


_MOST_TELLING: Final = (
    Outcome.REVOKED,
    Outcome.CERTIFICATE_EXPIRED,
    Outcome.CERTIFICATE_NOT_YET_VALID,
    Outcome.ROLE_NOT_GRANTED,
    Outcome.UNKNOWN_SIGNER,
)
"""Which reason to give when a node's certificates fail for different ones."""


def _grant(certificate: MembershipCertificate) -> Grant:
    return Grant(
        frozenset(certificate.roles),
        certificate.tier,
        certificate.operator,
        certificate.not_before,
        certificate.not_after,
        certificate.signer,
        certificate.digest,
        certificate.serial,
    )


def _sift(
    records: Iterable[Signed], check: Callable[[Signed], Outcome]
) -> tuple[list[Signed], tuple[tuple[str, Outcome], ...]]:
    """The good ones in the order of their digests, each once; and digest and outcome of the others."""
    distinct = {record.digest: record for record in records}
    judged = {digest: check(record) for digest, record in sorted(distinct.items())}
    good = [distinct[digest] for digest, outcome in judged.items() if outcome is Outcome.OK]
    return good, tuple((digest, outcome) for digest, outcome in judged.items() if outcome is not Outcome.OK)


def _by(records: list[Signed], key: Callable[[Signed], str]) -> Mapping[str, tuple[Signed, ...]]:
    groups: dict[str, list[Signed]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return MappingProxyType({name: tuple(group) for name, group in groups.items()})
