"""The rules of the audit chain, without I/O: how an event follows another, and what breaks the chain.

Every event carries the digest of the one before it and the node's signature, so that nothing can be changed, dropped or
put in between. A signed head says how long the chain is, so that cutting events off its end is noticed too. A node that
rotates its key continues the chain: the first event under the new key names the rotation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from gnusnode.contracts import dsse, ids
from gnusnode.contracts.base import MalformedRecord, SignedRecord
from gnusnode.contracts.events import GENESIS, AuditEvent
from gnusnode.contracts.fields import Count, Moment
from gnusnode.contracts.ids import PeerId, Sha256, Signature
from gnusnode.contracts.swarm import KeyRotation
from gnusnode.store.tables import from_u64

FAMILY: Final = "audit"
"""The family of events about the chain itself."""
ROTATED: Final = "audit.key_rotated"


class AuditHead(SignedRecord):
    """How far the chain goes: rewritten with every event."""

    record_name: ClassVar[str] = "audit-head"
    max_bytes: ClassVar[int] = 4096

    length: Count
    last: Sha256
    """Digest of the last event; ``GENESIS`` for an empty chain."""
    signer: PeerId
    issued_at_ms: Moment
    signature: Signature

    @classmethod
    def after(cls, event: AuditEvent, by: dsse.Signer) -> Self:
        """The head of a chain that ends with ``event``."""
        return cls.signed(by, length=event.seq + 1, last=event.digest, issued_at_ms=event.issued_at_ms)


@dataclass(frozen=True)
class Break:
    """The first place where a chain is not what it claims to be."""

    seq: int
    why: str


class KeyLine:
    """The keys that a node has had, oldest last: who may have signed its chain.

    Args:
        current: PeerID of the node today.
        rotations: statements that lead to it; those that are invalid or lead elsewhere are ignored.
    """

    def __init__(self, current: str, rotations: Iterable[KeyRotation] = ()) -> None:
        by_new = {r.new_peer_id: r for r in rotations if r.signature_is_valid() and r.proof_is_valid()}
        self.rotations: dict[str, KeyRotation] = {}
        """Rotations on the line, by the PeerID of the old key."""
        self.keys = {current}
        while (step := by_new.get(current)) is not None and step.old_peer_id not in self.keys:
            current = step.old_peer_id
            self.rotations[current] = step
            self.keys.add(current)

    def path(self, old: str) -> list[KeyRotation] | None:
        """The rotations from ``old`` to the current key in order; None when ``old`` is not on the line."""
        if old not in self.keys:
            return None
        steps: list[KeyRotation] = []
        while (step := self.rotations.get(old)) is not None:
            steps.append(step)
            old = step.new_peer_id
        return steps


class ChainWalk:
    """Checks a chain event by event.

    Args:
        line: who may have signed.
        seq: sequence number of the first event to come.
        prev: digest of the event before it.
        signer: who signed that one; None before the first event, or when the walk begins in the middle.
    """

    def __init__(self, line: KeyLine, *, seq: int = 0, prev: str = GENESIS, signer: str | None = None) -> None:
        self._line = line
        self.seq = seq
        self.prev = prev
        self._signer = signer

    def step(self, key: bytes, value: bytes) -> Break | None:
        """Takes the next entry of the audit table; says what is wrong with it."""
        if len(key) != 8 or from_u64(key) != self.seq:
            return Break(self.seq, "the event is missing")
        try:
            event = AuditEvent.from_bytes(value)
        except MalformedRecord as error:
            return Break(self.seq, f"not an audit event: {error}")
        why = self._fault(event)
        if why is not None:
            return Break(self.seq, why)
        self.seq, self.prev, self._signer = event.seq + 1, ids.sha256(value), event.signer
        return None

    def end(self, head: bytes | None) -> Break | None:
        """Compares the walked chain with its signed head."""
        if head is None:
            return Break(self.seq, "the signed head of the chain is missing") if self.seq else None
        try:
            record = AuditHead.from_bytes(head)
        except MalformedRecord as error:
            return Break(self.seq, f"the head of the chain is damaged: {error}")
        if record.signer not in self._line.keys or not record.signature_is_valid():
            return Break(self.seq, "the head of the chain is not signed by this node")
        if record.length > self.seq:
            return Break(self.seq, f"the chain ends here, but its head knows {record.length} events")
        if record.length < self.seq:
            return Break(record.length, "the event is newer than the head of the chain")
        if record.last != self.prev:
            return Break(self.seq - 1, "the event is not the one that the head names")
        return None

    def _fault(self, event: AuditEvent) -> str | None:
        if event.seq != self.seq:
            return f"the event has the number {event.seq}"
        if event.prev != self.prev:
            return "the event does not follow from the one before it"
        if event.signer not in self._line.keys:
            return f"signed by {event.signer}, which is not a key of this node"
        if not event.signature_is_valid():
            return "the signature is wrong"
        if self._signer not in (None, event.signer) and not self._hands_over(event):
            return "the key changes without a rotation statement"
        return None

    def _hands_over(self, event: AuditEvent) -> bool:
        """Whether ``event`` names a rotation that leads from the last signer to its own."""
        steps = self._line.path(self._signer or "") or []
        return event.event == ROTATED and any(
            step.new_peer_id == event.signer and step.digest == event.fields.get("rotation_hash") for step in steps
        )
