"""The audit log: what this node did, in a chain that shows every later change.

Ownership: one ``AuditLog`` a store. Each family of events has one writer, taken once by the part that these events are
about; what a part does not own it cannot forge.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import trio
from pydantic import ValidationError

from gnusnode.clock import unix_ms
from gnusnode.contracts import ids
from gnusnode.contracts.base import MalformedRecord, Record, describe
from gnusnode.contracts.dsse import Signer
from gnusnode.contracts.events import GENESIS, AuditEvent, AuditValue
from gnusnode.contracts.swarm import KeyRotation
from gnusnode.errors import DataError, InternalError, RecordRefused, storage_error
from gnusnode.store import faults
from gnusnode.store.chain import FAMILY, ROTATED, AuditHead, Break, ChainWalk, KeyLine
from gnusnode.store.db import Store
from gnusnode.store.tables import AUDIT, AUDIT_HEADS, ROTATIONS, from_u64, u64
from gnusnode.store.txn import ReadTxn, WriteTxn

PAGE: Final = 500
"""Events that are read and verified at a time: about 0.1 s in a thread."""
_HEAD: Final = b"head"
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class AuditReport:
    """Result of a verification: ``broken`` is None when all is well."""

    checked: int
    """Events that are proven good."""
    length: int
    """Events that the head knows."""
    broken: Break | None

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


class FamilyWriter:
    """The right to append events of one family. Made by ``AuditLog.writer`` only."""

    def __init__(self, family: str, append: Callable[[str, dict[str, AuditValue]], Awaitable[AuditEvent]]) -> None:
        self.family = family
        self._append = append

    async def append(self, event: str, **fields: AuditValue) -> AuditEvent:
        """Appends one event; returns once it is durable. A cancelled caller learns of that after its event was written.

        Args:
            event: ``<family>.<what happened>``.
            fields: digests, identifiers, codes, numbers; never content.

        Raises:
            RecordRefused: another family's event, a key that names content, or a value that is not a digest or code.
            DiskFull, DataError: nothing was written.
        """
        if event.partition(".")[0] != self.family:
            raise RecordRefused(f"an event of the family {self.family!r} does not begin with its name", where=event)
        return await self._append(event, fields)


class AuditLog:
    """The chain of one node. Made by ``open_audit``."""

    def __init__(self, store: Store, signer: Signer, line: KeyLine, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._signer = signer
        self._line = line
        self._now_ms = now_ms
        self._taken: set[str] = {FAMILY}
        self._grown = trio.lowlevel.ParkingLot()

    @property
    def length(self) -> int:
        """Number of events in the chain."""
        with self._store.snapshot() as txn:
            return _tip(txn)[0]

    def writer(self, family: str) -> FamilyWriter:
        """The writer of ``family``, for the part of the node that owns these events.

        Raises:
            InternalError: it was taken already.
        """
        if family in self._taken:
            raise InternalError(f"the audit family {family!r} has a writer already", where="audit log")
        self._taken.add(family)
        return FamilyWriter(family, partial(self._append, family))

    async def events(self, first: int, limit: int = PAGE) -> list[AuditEvent]:
        """Up to ``limit`` events from number ``first`` on, as they stand in the store (``verify`` proves them)."""
        return await trio.to_thread.run_sync(self._read, first, limit)

    async def tail(self, count: int) -> list[AuditEvent]:
        """The last ``count`` events, oldest first."""
        return await self.events(max(0, self.length - count), count)

    async def follow(self, after: int, limit: int = PAGE) -> list[AuditEvent]:
        """The events that come after number ``after`` (-1: from the beginning); waits until there is one."""
        while not (found := await self.events(after + 1, limit)):
            await self._grown.park()
        return found

    def head(self) -> AuditHead | None:
        """The signed end of the chain; None before the first event."""
        value = self._store.get(AUDIT_HEADS, _HEAD)
        return None if value is None else _stored(AuditHead, value)

    async def verify(self, first: int = 0, last: int | None = None) -> AuditReport:
        """Walks the chain from event ``first`` to ``last`` (None: to the end, and compares it with the signed head).

        A walk that does not begin at 0 takes the event before ``first`` on trust.
        """
        return await trio.to_thread.run_sync(self._verify, first, last)

    async def export(self, path: Path) -> int:
        """Writes all events and then the head to the new file ``path``, one JSON object a line; returns the events.

        Raises:
            DataError: the file exists or cannot be written.
        """
        return await trio.to_thread.run_sync(self._export, path)

    async def _append(self, family: str, event: str, fields: dict[str, AuditValue]) -> AuditEvent:
        operation = partial(_append_event, self._signer, family, event, fields, self._now_ms())
        written = await self._write_shielded(operation)
        self._grown.unpark_all()
        await trio.lowlevel.checkpoint_if_cancelled()  # a task that does nothing but append can be cancelled, too
        return written

    async def _write_shielded(self, operation: Callable[[WriteTxn], AuditEvent]) -> AuditEvent:
        with trio.CancelScope(shield=True):  # what happened is recorded, even when its task is being cancelled
            return await self._store.write(operation)
        raise AssertionError("a shielded scope that nobody cancels ends by return or by an exception")

    def _read(self, first: int, limit: int) -> list[AuditEvent]:
        return [_stored(AuditEvent, value) for _, value in self._store.scan(AUDIT, start=u64(first), limit=limit)]

    def _verify(self, first: int, last: int | None) -> AuditReport:
        with self._store.snapshot() as txn:
            head, stop = txn.get(AUDIT_HEADS, _HEAD), _end(txn)
            before = txn.get(AUDIT, u64(first - 1)) if first else None
        length = _head_length(head)
        if first and before is None:
            return AuditReport(0, length, Break(first - 1, "the event is missing"))
        walk = ChainWalk(self._line, seq=first, prev=ids.sha256(before) if before else GENESIS)
        end = stop if last is None else min(last + 1, stop)
        while walk.seq < end:
            entries = self._store.scan(AUDIT, start=u64(walk.seq), limit=min(PAGE, end - walk.seq))
            for key, value in entries or [(b"", b"")]:
                if (broken := walk.step(key, value)) is not None:
                    return AuditReport(walk.seq - first, length, broken)
        return AuditReport(walk.seq - first, length, walk.end(head) if walk.seq >= stop else None)

    def _export(self, path: Path) -> int:
        count = 0
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as out:
                while events := self._read(count, PAGE):
                    out.writelines(json.dumps(event.to_plain()) + "\n" for event in events)
                    count += len(events)
                head = self._store.get(AUDIT_HEADS, _HEAD)
                if head is not None:
                    out.write(json.dumps(_stored(AuditHead, head).to_plain()) + "\n")
        except OSError as error:
            raise storage_error(error, path, "cannot write the export") from error
        return count


async def open_audit(
    store: Store, signer: Signer, *, rotations: Iterable[KeyRotation] = (), now_ms: Callable[[], int] = unix_ms
) -> AuditLog:
    """The audit log of ``store``, continued by ``signer``. Checks the last link and the head.

    Args:
        rotations: statements that lead from former keys of this node to ``signer``; the store keeps those it has used.
        now_ms: the wall clock, Unix milliseconds.

    Raises:
        DataError: the end of the chain is damaged or cut off, or the chain is another node's.
    """
    known = [*rotations, *(_stored(KeyRotation, value) for _, value in store.scan(ROTATIONS))]
    with store.snapshot() as txn:
        stop = _end(txn)
        last = txn.get(AUDIT, u64(stop - 1)) if stop else None
    former = _stored(AuditEvent, last).signer if last is not None else signer.peer_id
    log = AuditLog(store, signer, KeyLine(signer.peer_id, known), now_ms)
    if former != signer.peer_id:
        # Checked under the key that wrote it: whether this node may go on is decided by ``adopt``.
        line = KeyLine(former, known)
        report = await AuditLog(store, signer, line, now_ms).verify(first=max(0, stop - 1))
    else:
        report = await log.verify(first=max(0, stop - 1))
    if report.broken is not None:
        raise faults.damaged(f"the audit log is damaged at event {report.broken.seq}: {report.broken.why}", store.path)
    if former != signer.peer_id:
        await _hand_over(store, signer, KeyLine(signer.peer_id, known).path(former), former, now_ms())
    return log


async def _hand_over(store: Store, signer: Signer, path: list[KeyRotation] | None, former: str, at_ms: int) -> None:
    """Continues a chain whose last event was signed by ``former``; ``path`` are the rotations from it to ``signer``."""
    if not path:
        raise DataError(
            f"the audit chain belongs to {former}, not to this node's key {signer.peer_id}",
            where=str(store.path),
            hint="put that node's key back, or give this node its own --home",
        )
    fields: dict[str, AuditValue] = {"old_key": former, "rotation_hash": path[-1].digest}

    def operation(txn: WriteTxn) -> None:
        for step in path:
            txn.put(ROTATIONS, step.new_peer_id.encode("ascii"), step.to_bytes())
        _append_event(signer, FAMILY, ROTATED, fields, at_ms, txn)

    await store.write(operation)


def _append_event(
    signer: Signer, family: str, event: str, fields: dict[str, AuditValue], at_ms: int, txn: WriteTxn
) -> AuditEvent:
    seq, prev = _tip(txn)
    try:
        record = AuditEvent.signed(
            signer, seq=seq, prev=prev, family=family, event=event, fields=fields, issued_at_ms=at_ms
        )
    except ValidationError as error:
        raise RecordRefused(describe(error), where=f"audit event {event}") from error
    txn.put(AUDIT, u64(seq), record.to_bytes())
    txn.put(AUDIT_HEADS, _HEAD, AuditHead.after(record, signer).to_bytes())
    return record


def _tip(txn: ReadTxn) -> tuple[int, str]:
    """Length of the chain and digest of its last event, by the head."""
    head = txn.get(AUDIT_HEADS, _HEAD)
    if head is None:
        return 0, GENESIS
    record = _stored(AuditHead, head)
    return record.length, record.last


def _end(txn: ReadTxn) -> int:
    """One more than the greatest sequence number in the table."""
    last = txn.scan(AUDIT, limit=1, reverse=True)
    if last and len(last[0][0]) != len(u64(0)):
        raise faults.damaged("a key of the audit table is not a number", "audit log")
    return from_u64(last[0][0]) + 1 if last else 0


def _head_length(head: bytes | None) -> int:
    try:
        return AuditHead.from_bytes(head).length if head is not None else 0
    except MalformedRecord:
        return 0


def _stored(kind: type[R], value: bytes) -> R:
    try:
        return kind.from_bytes(value)
    except MalformedRecord as error:
        raise faults.damaged(f"a record is damaged: {error}", "audit log") from error
