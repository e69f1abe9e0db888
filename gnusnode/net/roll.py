"""The roll: the membership records of a node's present swarm, live, with whoever follows their changes.

Records are on the disk before they count. All work with many records is done in a thread: the event loop only swaps one
immutable set for the next.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import trio

from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.roster import Roster
from gnusnode.net.records import MAX_RECORDS, Merge, RecordFiles, RecordSet, SwarmRecord, read_record
from gnusnode.observe import events
from gnusnode.observe.health import SWARM_RECORDS_FULL
from gnusnode.observe.observer import Observer

_TOLD: Final = 16
"""Refused records that are told one by one each time; the others are counted in the report."""


@dataclass(frozen=True)
class AddReport:
    """What came of adding records."""

    added: tuple[SwarmRecord, ...] = ()
    refused: tuple[tuple[str, Outcome], ...] = ()
    """Digest and reason of what does not count; the digest is empty for bytes that are no record."""
    surplus: int = 0
    """Records for which there was no room."""


class Roll:
    """The records of one swarm after another; without one, the roster of a swarm of one. For the trio thread."""

    def __init__(self, files: RecordFiles, peer_id: str, observer: Observer, now_ms: Callable[[], int]) -> None:
        self._files = files
        self._observer = observer
        self._now_ms = now_ms
        self._nobody = RecordSet(peer_id)
        self._solo = Roster.solo(peer_id)
        self._set = self._nobody
        self._outbox: list[SwarmRecord] = []
        self._version = 0
        self._turned = trio.lowlevel.ParkingLot()
        self._writing = trio.Lock()

    @property
    def roster(self) -> Roster:
        return self._solo if self._set is self._nobody else self._set.roster

    @property
    def records(self) -> RecordSet:
        return self._set

    @property
    def version(self) -> int:
        """Rises with each change."""
        return self._version

    # --- one swarm after another --------------------------------------------------------------------------------------

    async def begin(self, root: str, open_to_all: bool, records: Sequence[SwarmRecord]) -> None:
        """Starts with ``records``, which lie on the disk, and keeps those that count under ``root``."""
        async with self._writing:
            empty = RecordSet(root, open_to_all)
            merge = await trio.to_thread.run_sync(empty.merged, records, self._now_ms())
            self._set = merge.result
            self.tell()

    @asynccontextmanager
    async def ending(self) -> AsyncGenerator[None]:
        """Takes in nothing more; when the context is left without an error, the records are forgotten."""
        async with self._writing:
            yield
            self._set, self._outbox = self._nobody, []
            self.tell()

    # --- taking in ----------------------------------------------------------------------------------------------------

    async def add(self, records: Iterable[SwarmRecord | bytes], *, gossiped: bool = False) -> AddReport:
        """See ``Membership.add``. Costs about 0.2 ms of a thread for each record, and one new roster."""
        given = list(records)
        async with self._writing:
            if not given or self._set is self._nobody:
                return AddReport()
            good, malformed = await trio.to_thread.run_sync(_opened, given)
            merge = await trio.to_thread.run_sync(self._set.merged, good, self._now_ms())
            if merge.added or merge.gone:
                await trio.to_thread.run_sync(self._files.put, merge.added)
                await trio.to_thread.run_sync(self._files.remove, merge.gone)
                self._set = merge.result
                if not gossiped:
                    self._outbox = [*self._outbox, *merge.added][-MAX_RECORDS:]
                self.tell()
        self._tell_refused(malformed, merge)
        refused = [("", outcome) for outcome in malformed]
        refused += [(record.digest, outcome) for record, outcome in merge.refused]
        return AddReport(merge.added, tuple(refused), merge.surplus)

    def take_outbox(self) -> list[SwarmRecord]:
        """Records that others should hear of, since the last call."""
        taken, self._outbox = self._outbox, []
        return taken

    def _tell_refused(self, malformed: list[Outcome], merge: Merge) -> None:
        for outcome in malformed[:_TOLD]:
            self._observer.bus.publish(events.RecordRefused(record="membership", outcome=outcome))
        for record, outcome in merge.refused[:_TOLD]:
            self._observer.bus.publish(
                events.RecordRefused(record=record.record_name, outcome=outcome, signer=record.signer_peer)
            )
        self._observer.health.update(SWARM_RECORDS_FULL, merge.surplus > 0, f"{len(self._set.records)} records")

    # --- following ----------------------------------------------------------------------------------------------------

    def tell(self) -> None:
        """Says that something changed, to all who follow."""
        self._version += 1
        self._observer.bus.publish(
            events.RosterChanged(records=len(self._set.records), members=len(self._set.roster.grants))
        )
        self._turned.unpark_all()

    @asynccontextmanager
    async def changes(self) -> AsyncGenerator[AsyncIterator[Roster]]:
        """See ``Membership.changes``."""
        yield _Changes(self)

    async def wait_beyond(self, version: int) -> None:
        """Returns as soon as ``self.version`` is another than ``version``."""
        await trio.lowlevel.checkpoint()
        while version == self._version:
            await self._turned.park()


class _Changes(AsyncIterator[Roster]):
    """One follower's place. Owns nothing."""

    def __init__(self, roll: Roll) -> None:
        self._roll = roll
        self._seen = roll.version

    async def __anext__(self) -> Roster:
        await self._roll.wait_beyond(self._seen)
        self._seen = self._roll.version
        return self._roll.roster


def _opened(given: list[SwarmRecord | bytes]) -> tuple[list[SwarmRecord], list[Outcome]]:
    good: list[SwarmRecord] = []
    malformed: list[Outcome] = []
    for item in given:
        if isinstance(item, bytes):
            verdict = read_record(item)
            malformed.append(verdict.outcome) if verdict.record is None else good.append(verdict.record)
        else:
            good.append(item)
    return good, malformed
