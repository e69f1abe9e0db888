"""The chunks of one file from several holders at once. A chunk is kept only when its hash is right."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from gnusnode.clock import unix_ms
from gnusnode.contracts.roster import Roster
from gnusnode.errors import GnusError, Unavailable
from gnusnode.inference.artifacts.chunked import ChunkedPart, ChunkLayout
from gnusnode.inference.artifacts.filework import Progress
from gnusnode.net.blobs.bandwidth import TokenBucket
from gnusnode.net.blobs.schedule import Schedule
from gnusnode.net.blobs.source import Lied, Lost, Patience, Refused, Source, open_source
from gnusnode.net.port import Net

_log = logging.getLogger(__name__)

_AHEAD: Final = 2
"""Chunks asked for at a time: the next one is on its way while the last is stored."""


@dataclass(frozen=True)
class FetchLimits:
    """How files are fetched from peers. Sizes in bytes, times in seconds."""

    max_bytes: int = 64 * 1024**3
    reserve: int = 64 * 1024**2
    """Disk space that must stay free."""
    bytes_per_second: int = 0
    """Of all sources and downloads together; 0: no limit."""
    sources: int = 4
    """At a time; each takes the memory of one chunk."""
    survey: int = 8
    """Holders asked at a time before the download begins."""
    survey_grace: float = 2.0
    """How long the first holder that answered waits for the others."""
    attempts: int = 5
    """Failures in a row, without a chunk between them, after which a source is given up."""
    backoff: float = 1.0
    """Pause after the first failure; doubles with each further one."""
    look_again: float = 5.0
    """How often new holders are looked for."""
    slow_rate: int = 64 * 1024
    slow_window: float = 30.0
    """While others tell another story of the same file, those of a story that bring fewer bytes per second than
    ``slow_rate``, looked at every ``slow_window``, stand aside: a liar could keep the truth waiting for ever."""
    steal_after: float = 2.0
    """At the end, a chunk that is owed for so long, or twice the time that others take, is fetched elsewhere too."""
    patience: Patience = field(default_factory=Patience)


@dataclass
class FetchStatistics:
    """Counts since start."""

    bytes_received: int = 0
    chunks_received: int = 0
    chunks_in_vain: int = 0
    """Whole ones that somebody else had brought before."""
    sources_lost: int = 0
    sources_excluded: int = 0


class TooSlow(Exception):
    """The sources of a layout bring less than could be had by another; ``rate``: bytes per second."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self.rate = rate


Report = Callable[[str, str], None]
"""``(peer, reason)``: a peer sent what no sound holder sends."""


@dataclass(frozen=True)
class Fetching:
    """What all downloads of a node share."""

    net: Net
    roster: Callable[[], Roster]
    report: Report
    limits: FetchLimits
    bucket: TokenBucket
    statistics: FetchStatistics = field(default_factory=FetchStatistics)
    now_ms: Callable[[], int] = unix_ms

    def blame(self, peer: str, reason: str) -> None:
        _log.warning("the peer %s %s", peer, reason)
        self.statistics.sources_excluded += 1
        self.report(peer, reason)


@dataclass
class _Record:
    """How it went with a peer."""

    failures: int = 0
    retry_at: float = float("-inf")
    reason: str = "was not asked"
    out: bool = False


class Download:
    """Completes ``part`` by ``layout``.

    Args:
        agreed: the holders known to vouch for ``layout``, best first.
        seek: the holders known now; those that are new are asked for their layout first.
        others: where holders of another layout are noted.
        excluded: peers that get no further chance; grows.
        floor: bytes per second below which others go first; asked now and then.
    """

    def __init__(
        self,
        fetching: Fetching,
        part: ChunkedPart,
        layout: ChunkLayout,
        done: Iterable[int],
        *,
        agreed: Sequence[str],
        seek: Callable[[], Sequence[str]],
        others: dict[ChunkLayout, list[str]],
        excluded: set[str],
        floor: Callable[[], float],
        progress: Progress | None,
    ) -> None:
        self._fetching = fetching
        self._floor = floor
        self._looked_at, self._had = trio.current_time(), 0
        self._limits = fetching.limits
        self._part = part
        self._layout = layout
        here = set(done)
        self._schedule = Schedule(len(layout.chunks), here)
        self._agreed = set(agreed)
        self._seek = seek
        self._others = others
        self._excluded = excluded
        self._progress = progress
        self._peers = {peer: _Record() for peer in agreed}
        self._active: dict[str, int] = {}
        """Peer -> bytes of the chunk that is arriving."""
        self._kept = sum(map(layout.length, here))
        self._changed = trio.Event()
        self._idle = trio.lowlevel.ParkingLot()
        self._fault: GnusError | None = None
        self.received: dict[str, int] = {}
        """Peer -> bytes that came from it, whether they were needed or not."""

    async def run(self) -> None:
        """Returns when all chunks are kept.

        Raises:
            Unavailable: no holder is left; the text says what became of each. ``part`` keeps what came.
            DataError, DiskFull: the part cannot be written.
            TooSlow: ``floor`` was not reached; ``part`` keeps what came.
        """
        rate: float | None = None
        self._tell()
        async with trio.open_nursery() as nursery:
            while not self._schedule.finished and self._fault is None and rate is None:
                self._changed = trio.Event()
                for peer in self._recruits():
                    self._active[peer] = 0
                    nursery.start_soon(self._work, peer)
                if not self._active and not self._hopeful():
                    break
                with trio.move_on_at(self._next_look()):
                    await self._changed.wait()
                rate = self._too_slow()
            self._idle.unpark_all()  # who waits for work ends in order
            nursery.cancel_scope.cancel()
        if self._fault is not None:
            raise self._fault
        if self._schedule.finished:
            return
        raise self._exhausted() if rate is None else TooSlow(rate)

    def _too_slow(self) -> float | None:
        """The rate of the window that has just ended, if that was below the floor."""
        now, window, had = trio.current_time(), self._limits.slow_window, sum(self.received.values())
        if now - self._looked_at < window:
            return None
        rate = (had - self._had) / (now - self._looked_at)
        self._looked_at, self._had = now, had
        return rate if rate < self._floor() else None

    # --- who ----------------------------------------------------------------------------------------------------------

    def _recruits(self) -> list[str]:
        for peer in self._seek():
            if peer not in self._peers and not self._stands_aside(peer):
                self._peers[peer] = _Record()
        now = trio.current_time()
        ready = [peer for peer in self._hopeful() if peer not in self._active and self._peers[peer].retry_at <= now]
        return ready[: max(0, self._limits.sources - len(self._active))]

    def _hopeful(self) -> list[str]:
        return [
            peer
            for peer, record in self._peers.items()
            if not record.out and peer not in self._excluded and record.failures < self._limits.attempts
        ]

    def _stands_aside(self, peer: str) -> bool:
        return peer in self._excluded or any(peer in peers for peers in self._others.values())

    def _next_look(self) -> float:
        waiting = [self._peers[peer].retry_at for peer in self._hopeful() if peer not in self._active]
        now = trio.current_time()
        return min([now + self._limits.look_again, *(at for at in waiting if at > now)])

    def _exhausted(self) -> Unavailable:
        reasons = "; ".join(f"{peer} {record.reason}" for peer, record in self._peers.items())
        return Unavailable(
            f"no holder of the file is left: {reasons}",
            where=self._layout.sha256,
            hint="try again later: it goes on where it stopped",
        )

    # --- one source ---------------------------------------------------------------------------------------------------

    async def _work(self, peer: str) -> None:
        record = self._peers[peer]
        await trio.lowlevel.checkpoint()
        try:
            async with open_source(self._fetching.net, peer, self._limits.patience) as source:
                if peer not in self._agreed and not await self._agrees(peer, source):
                    return
                await self._draw(peer, source, record)
        except Lost as error:
            self._fetching.statistics.sources_lost += 1
            record.failures, record.reason = record.failures + 1, str(error)
            pause = max(error.retry_after, self._limits.backoff * 2 ** (record.failures - 1))
            record.retry_at = trio.current_time() + pause
        except Refused as error:
            record.out, record.reason = True, str(error)
        except Lied as error:
            record.reason = str(error)
            self._excluded.add(peer)
            self._fetching.blame(peer, str(error))
        except GnusError as error:
            self._fault = error  # of our own disk: a source raises none
        finally:
            self._schedule.release(peer)
            del self._active[peer]
            self._changed.set()
            self._idle.unpark_all()

    async def _agrees(self, peer: str, source: Source) -> bool:
        fetching = self._fetching
        layout = await source.layout(self._layout.sha256, fetching.roster(), fetching.now_ms())
        if layout == self._layout:
            self._agreed.add(peer)
            return True
        self._peers[peer].out, self._peers[peer].reason = True, "vouches for other chunks"
        self._others.setdefault(layout, []).append(peer)
        return False

    async def _draw(self, peer: str, source: Source, record: _Record) -> None:
        """Fetches chunks until none is left to fetch."""
        layout, limits, bucket = self._layout, self._limits, self._fetching.bucket
        buffer = memoryview(bytearray(min(layout.chunk_bytes, layout.size)))
        asked: deque[int] = deque()
        slowest, rate = 0.0, 0
        await trio.lowlevel.checkpoint()
        while not self._schedule.finished:
            while len(asked) < (1 if bucket.rate else _AHEAD):
                chunk = self._next(peer, max(limits.steal_after, 2 * slowest), steal=not asked)
                if chunk is None:
                    break
                # The source keeps to the rate by itself; the bucket is for one that does not.
                await bucket.take(layout.length(chunk))
                rate = bucket.rate // len(self._active)
                await source.ask(layout.sha256, chunk, rate)
                asked.append(chunk)
            if not asked:
                with trio.move_on_after(limits.steal_after):
                    await self._idle.park()
                continue
            started = trio.current_time()
            chunk = asked.popleft()
            data = buffer[: layout.length(chunk)]
            await source.take(data, lambda count: self._arrived(peer, count), rate)
            slowest = max(slowest, trio.current_time() - started)
            await self._keep(peer, chunk, data)
            record.failures = 0

    def _next(self, peer: str, patience: float, *, steal: bool) -> int | None:
        now = trio.current_time()
        chunk = self._schedule.claim(peer, now)
        return self._schedule.steal(peer, now, patience) if chunk is None and steal else chunk

    def _arrived(self, peer: str, count: int) -> None:
        self._active[peer] += count
        self.received[peer] = self.received.get(peer, 0) + count
        self._fetching.statistics.bytes_received += count
        self._tell()

    async def _keep(self, peer: str, chunk: int, data: memoryview) -> None:
        needed = not self._schedule.is_done(chunk)
        if not await trio.to_thread.run_sync(self._store, chunk, data, needed):
            raise Lied("sent a chunk that is not the one it vouched for")
        self._active[peer] = 0
        statistics = self._fetching.statistics
        statistics.chunks_received += 1
        if self._schedule.is_done(chunk):
            statistics.chunks_in_vain += 1
            return
        self._schedule.complete(chunk)
        self._kept += len(data)
        self._tell()
        self._idle.unpark_all()
        if self._schedule.finished:
            self._changed.set()

    def _store(self, chunk: int, data: memoryview, needed: bool) -> bool:
        if not self._layout.fits(chunk, data):
            return False
        if needed:
            self._part.write(self._layout, chunk, data)
        return True

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(min(self._layout.size, self._kept + sum(self._active.values())), self._layout.size)
