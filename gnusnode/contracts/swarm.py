"""Who belongs to a swarm and what each member may do: certificates, announcements, revocations, key rotation."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from gnusnode.contracts import dsse, ids
from gnusnode.contracts.base import Record, SignedRecord
from gnusnode.contracts.fields import Count, Line, Moment, Part, check_lifetime
from gnusnode.contracts.generation import EngineState
from gnusnode.contracts.ids import Name, Nonce, PeerId, Sha256, Signature

MAX_ANNOUNCEMENT_MS: Final = 600_000
MAX_ADDRESSES: Final = 16
"""Addresses of one node that are told and kept."""
MAX_ADDRESS: Final = 256
"""Characters of one address."""
MAX_ARTIFACTS: Final = 64
"""Model files in one announcement."""
MAX_EXPERTS: Final = 16
"""Experts of one model file that an announcement names."""


class Role(StrEnum):
    INGRESS = "ingress"
    ROUTER = "router"
    CORE = "core"
    ELM = "elm"
    VERIFIER = "verifier"
    GROUNDING = "grounding"
    MEMORY = "memory"
    INTERMEDIARY = "intermediary"
    SETTLEMENT = "settlement"


class Tier(StrEnum):
    """How far a node is trusted, most first. ``D`` is everybody without a certificate."""

    A = "A"
    B = "B"
    C = "C"
    D = "D"


LOWEST_TIER: Final[dict[Role, Tier]] = {
    Role.SETTLEMENT: Tier.A,
    Role.INTERMEDIARY: Tier.A,
    Role.INGRESS: Tier.B,
    Role.ROUTER: Tier.B,
    Role.VERIFIER: Tier.B,
    Role.GROUNDING: Tier.B,
    Role.MEMORY: Tier.B,
    Role.CORE: Tier.C,
    Role.ELM: Tier.C,
}
"""The lowest tier that may hold a role by certificate."""

OPEN_ROLES: Final = frozenset({Role.CORE, Role.ELM})
"""What a node without a certificate may offer on an open swarm."""

Roles = Annotated[tuple[Role, ...], Field(min_length=1, max_length=len(Role))]
Multiaddr = Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9_.:%-]+)+$", max_length=MAX_ADDRESS)]


def swarm_id(root: str) -> str:
    """The name of the swarm whose root key is ``root`` (a PeerID): ``sha256:<hex>`` of the public key."""
    return f"sha256:{hashlib.sha256(ids.public_key(root)).hexdigest()}"


def short_id(swarm_id: str) -> str:
    """The 16 hex digits of a swarm's id by which people know it, and by which its topics are called."""
    return swarm_id.removeprefix("sha256:")[:16]


def allows(tier: Tier, role: Role) -> bool:
    """Whether a node of ``tier`` may hold ``role`` by certificate."""
    return tier.value <= LOWEST_TIER[role].value


class MembershipCertificate(SignedRecord):
    """Grants ``roles`` to ``peer_id`` inside one swarm. Signed by the root key or by an admin it delegated to."""

    record_name: ClassVar[str] = "membership-certificate"
    issued_field: ClassVar[str] = "not_before"
    expires_field: ClassVar[str] = "not_after"

    swarm_id: Sha256
    peer_id: PeerId
    operator: Name
    """Who runs the node: quorums count operators, not nodes."""
    roles: Roles
    tier: Tier
    not_before: Moment
    not_after: Moment
    serial: Count
    signer: PeerId
    signature: Signature

    @model_validator(mode="after")
    def _hangs_together(self) -> MembershipCertificate:
        _check_window(self.not_before, self.not_after)
        for role in self.roles:
            if not allows(self.tier, role):
                raise ValueError(f"a node of tier {self.tier} cannot hold the role {role}")
        return self


class AdminDelegation(SignedRecord):
    """Lets ``peer_id`` issue certificates and revocations for the root key. It cannot be passed on."""

    record_name: ClassVar[str] = "admin-delegation"
    issued_field: ClassVar[str] = "not_before"
    expires_field: ClassVar[str] = "not_after"

    swarm_id: Sha256
    peer_id: PeerId
    roles: Roles
    """What the admin may grant."""
    tier: Tier
    """The highest tier the admin may grant."""
    not_before: Moment
    not_after: Moment
    serial: Count
    signer: PeerId
    signature: Signature

    @model_validator(mode="after")
    def _window(self) -> AdminDelegation:
        _check_window(self.not_before, self.not_after)
        return self


class RevocationKind(StrEnum):
    """What is taken back: a node with all it holds, one certificate, an admin's power, or a model artifact."""

    PEER = "peer"
    CERTIFICATE = "certificate"
    DELEGATION = "delegation"
    ARTIFACT = "artifact"


class Revocation(SignedRecord):
    """Takes back trust for good. ``target`` is a PeerID (peer, delegation) or a digest (certificate, artifact)."""

    record_name: ClassVar[str] = "revocation"

    swarm_id: Sha256
    kind: RevocationKind
    target: PeerId | Sha256
    effective_at_ms: Moment
    """May lie in the past: a stolen key is not trusted from the theft on."""
    reason: Line
    signer: PeerId
    issued_at_ms: Moment
    signature: Signature

    @model_validator(mode="after")
    def _target_fits_kind(self) -> Revocation:
        is_digest = self.target.startswith("sha256:")
        if is_digest != (self.kind in (RevocationKind.CERTIFICATE, RevocationKind.ARTIFACT)):
            raise ValueError(f"the target is not what one names a {self.kind} by")
        return self


class KeyRotation(SignedRecord):
    """A node's old key hands over to its new one; ``proof`` shows that the new key's owner agrees.

    From ``issued_at_ms`` on the new key holds what the old one was granted, and the old one is worth nothing. Whoever
    steals a key can hand it over too: two handovers of one key void each other, and the revocation of a key takes back
    what its successors hold through it. A certificate made out to the new key ends that dependence.
    """

    record_name: ClassVar[str] = "key-rotation"

    old_peer_id: PeerId
    new_peer_id: PeerId
    issued_at_ms: Moment
    proof: Signature
    """The new key's signature over ``RotationProof``."""
    signature: Signature

    signer_field: ClassVar[str] = "old_peer_id"

    @model_validator(mode="after")
    def _two_keys(self) -> KeyRotation:
        if self.old_peer_id == self.new_peer_id:
            raise ValueError("the old key and the new key are the same")
        return self

    @classmethod
    def between(cls, old: dsse.Signer, new: dsse.Signer, *, issued_at_ms: int) -> Self:
        """The statement that moves a node from ``old`` to ``new``."""
        claim = RotationProof(old_peer_id=old.peer_id, new_peer_id=new.peer_id, issued_at_ms=issued_at_ms)
        proof = dsse.sign(new, dsse.payload_type(RotationProof.record_name), claim.to_bytes())
        return cls.signed(old, new_peer_id=new.peer_id, issued_at_ms=issued_at_ms, proof=proof)

    def proof_is_valid(self) -> bool:
        """Whether the owner of the new key has agreed to exactly this handover."""
        claim = RotationProof(
            old_peer_id=self.old_peer_id, new_peer_id=self.new_peer_id, issued_at_ms=self.issued_at_ms
        )
        kind = dsse.payload_type(RotationProof.record_name)
        return dsse.verify(self.new_peer_id, kind, claim.to_bytes(), self.proof)


class RotationProof(Record):
    """What the new key signs in a ``KeyRotation``. It has a type of its own: neither signature passes for the other."""

    record_name: ClassVar[str] = "rotation-proof"

    old_peer_id: PeerId
    new_peer_id: PeerId
    issued_at_ms: Moment


class OfferedArtifact(Part):
    """A model that a node serves just now."""

    name: Name
    artifact_hash: Sha256
    slots: Count
    free_slots: Count
    queued: Count
    decode_rate: Annotated[float, Field(ge=0, le=1e9)]
    """Tokens per second of all its streams together, measured."""
    prefill_rate: Annotated[float, Field(ge=0, le=1e9)]
    state: EngineState = EngineState.READY
    determinism: Literal["A", "B", "C"] = "C"
    """As in ``EngineInfo``."""
    n_ctx: Count = 0
    expert_ids: Annotated[tuple[Name, ...], Field(max_length=MAX_EXPERTS)] = ()
    """The experts that answer with it."""


class NodeAnnouncement(SignedRecord):
    """A node's heartbeat: where it is, what it offers, how busy it is. A hint, until a probe confirms it."""

    record_name: ClassVar[str] = "node-announcement"
    max_bytes: ClassVar[int] = 64 * 1024

    swarm_id: Sha256
    instance: Nonce
    """Drawn anew at each start: one key that speaks with two of them at once is in two places."""
    seq: Count
    """Rises by one with each announcement of an instance."""
    leaving: bool = False
    """The last word of this instance."""
    addresses: Annotated[tuple[Multiaddr, ...], Field(max_length=MAX_ADDRESSES)] = ()
    roles: Roles
    artifacts: Annotated[tuple[OfferedArtifact, ...], Field(max_length=MAX_ARTIFACTS)] = ()
    version: Name
    signer: PeerId
    issued_at_ms: Moment
    expires_at_ms: Moment
    nonce: Nonce
    signature: Signature

    @model_validator(mode="after")
    def _bounded_lifetime(self) -> NodeAnnouncement:
        check_lifetime(self.issued_at_ms, self.expires_at_ms, MAX_ANNOUNCEMENT_MS)
        return self


def _check_window(not_before: int, not_after: int) -> None:
    if not_after <= not_before:
        raise ValueError("not_after is not after not_before")
