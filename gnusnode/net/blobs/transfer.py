"""A whole file from peers who may disagree: by one layout after the other, until the file has its hash."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import trio

from gnusnode.errors import DiskFull, ModelInvalid, TooLarge, Unavailable
from gnusnode.inference.artifacts import filework
from gnusnode.inference.artifacts.chunked import ChunkedPart, ChunkLayout
from gnusnode.inference.artifacts.filework import Hashed, Progress, mib
from gnusnode.net.blobs.download import Download, Fetching, TooSlow


class Transfer:
    """Brings one file into ``part``.

    Args:
        groups: layout -> who vouches for it, the likeliest first.
        excluded: peers that lied already.
        seek: the holders known now.
    """

    def __init__(
        self,
        fetching: Fetching,
        part: ChunkedPart,
        groups: dict[ChunkLayout, list[str]],
        excluded: Collection[str],
        *,
        seek: Callable[[], Sequence[str]],
        progress: Progress | None,
    ) -> None:
        self._fetching = fetching
        self._part = part
        self._groups = groups
        self._excluded = set(excluded)
        self._seek = seek
        self._progress = progress
        self._aside: dict[ChunkLayout, tuple[float, list[str]]] = {}
        """Layouts whose holders were slow, with their bytes per second: they go on when no other is left."""
        self._resumed = False
        """Chunks of the present layout were here."""
        self.received: dict[str, int] = {}
        """Peer -> bytes that came from it."""

    async def run(self) -> Hashed:
        """The file, whole and durable. The chunk hashes only say what a holder stands by; its own hash is the judge.

        Raises:
            Unavailable: no holder is left; the part keeps what came.
            ModelInvalid: all holders lied; the part is discarded.
            TooLarge, DiskFull: before the first chunk.
        """
        assert self._groups, "somebody vouches for it"
        while True:
            layout, agreed = self._take_turn()
            done = await self._begin(layout)
            if done is None:
                continue
            try:
                await self._fetch(layout, agreed, done)
            except TooSlow as slow:
                self._aside[layout] = (slow.rate, agreed)
                continue
            except Unavailable:
                if not self._others:
                    raise
                continue
            hashed = await filework.hash_file(self._part.path)
            if hashed.sha256 == layout.sha256:
                return hashed
            for peer in agreed:
                self._excluded.add(peer)
                self._fetching.blame(peer, "vouches for chunks that do not make up the file")
            if not self._others:
                self._part.discard()
                raise ModelInvalid(
                    "no holder gave the file that the address names",
                    where=layout.sha256,
                    hint="fetch it from elsewhere, or name a holder that you trust with --from PEER",
                )

    @property
    def _others(self) -> bool:
        return bool(self._groups or self._aside)

    def _take_turn(self) -> tuple[ChunkLayout, list[str]]:
        """The layout that most vouch for; once all had their turn, the one that came fastest."""
        if self._groups:
            layout = max(self._groups, key=lambda one: len(self._groups[one]))
            return layout, self._groups.pop(layout)
        layout = max(self._aside, key=lambda one: self._aside[one][0])
        return layout, self._aside.pop(layout)[1]

    def _floor(self) -> float:
        """Bytes per second that the present layout must bring while there are others."""
        own, limits = self._fetching.bucket.rate, self._fetching.limits
        if self._groups:
            return min(limits.slow_rate, own / 4) if own else limits.slow_rate
        return max((rate for rate, _ in self._aside.values()), default=0.0) / 2

    async def _begin(self, layout: ChunkLayout) -> list[int] | None:
        """The chunks that are here; None: it does not fit, which is only somebody's word while others say otherwise."""
        try:
            return await self._resume(layout)
        except (TooLarge, DiskFull):
            if self._resumed:
                raise
            if self._others:
                return None
            self._part.discard()
            raise

    async def _fetch(self, layout: ChunkLayout, agreed: Sequence[str], done: Sequence[int]) -> None:
        download = Download(
            self._fetching,
            self._part,
            layout,
            done,
            agreed=agreed,
            seek=self._seek,
            others=self._groups,
            excluded=self._excluded,
            floor=self._floor,
            progress=self._progress,
        )
        try:
            await download.run()
        finally:
            for peer, count in download.received.items():
                self.received[peer] = self.received.get(peer, 0) + count
        await trio.to_thread.run_sync(self._part.flush)

    async def _resume(self, layout: ChunkLayout) -> list[int]:
        """The chunks that are here, whole; refuses at once what would not fit."""
        limits, part = self._fetching.limits, self._part
        self._resumed = False
        if layout.size > limits.max_bytes:
            raise TooLarge(
                f"the file has {mib(layout.size)}, {mib(limits.max_bytes)} are allowed",
                where=layout.sha256,
                hint="raise models.pull_max_bytes",
            )
        done = [
            chunk
            for chunk in await trio.to_thread.run_sync(part.begin, layout)
            if await trio.to_thread.run_sync(part.check, layout, chunk)
        ]
        missing = layout.size - sum(map(layout.length, done))
        self._resumed = bool(done)
        await trio.to_thread.run_sync(filework.require_space, part.path.parent, missing, limits.reserve)
        return done
