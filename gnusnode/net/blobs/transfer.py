"""A whole file from peers who may disagree: by one layout after the other, until the file has its hash."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import trio

from gnusnode.errors import DiskFull, ModelInvalid, TooLarge, Unavailable
from gnusnode.inference.artifacts import filework
from gnusnode.inference.artifacts.chunked import ChunkedPart, ChunkLayout
from gnusnode.inference.artifacts.filework import Hashed, Progress, mib
from gnusnode.net.blobs.download import Download, Fetching


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
            layout = max(self._groups, key=lambda one: len(self._groups[one]))
            agreed = self._groups.pop(layout)
            try:
                await self._fetch(layout, agreed)
            except Unavailable:
                if not self._groups:
                    raise
                continue
            hashed = await filework.hash_file(self._part.path)
            if hashed.sha256 == layout.sha256:
                return hashed
            for peer in agreed:
                self._excluded.add(peer)
                self._fetching.blame(peer, "vouches for chunks that do not make up the file")
            if not self._groups:
                self._part.discard()
                raise ModelInvalid(
                    "no holder gave the file that the address names",
                    where=layout.sha256,
                    hint="fetch it from elsewhere, or name a holder that you trust with --from PEER",
                )

    async def _fetch(self, layout: ChunkLayout, agreed: Sequence[str]) -> None:
        done = await self._resume(layout)
        download = Download(
            self._fetching,
            self._part,
            layout,
            done,
            agreed=agreed,
            seek=self._seek,
            others=self._groups,
            excluded=self._excluded,
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
        if layout.size > limits.max_bytes:
            part.discard()
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
        try:
            await trio.to_thread.run_sync(filework.require_space, part.path.parent, missing, limits.reserve)
        except DiskFull:
            if not done:
                part.discard()
            raise
        return done
