"""A file that arrives in chunks, in any order, and may be interrupted at any moment: its bytes and a map of them.

``<digits>.part`` has the size of the whole file; ``<digits>.map`` holds the digest of the layout and one byte a chunk.
A chunk is written only when its hash was right, and counts after an interruption only when it still is: so the map
needs no flushing and a crash costs nothing but a look. All methods block; run them in a thread.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from gnusnode.inference.artifacts.filework import explained
from gnusnode.inference.artifacts.partial import open_part

_READ_BYTES: Final = 1024 * 1024
_DONE: Final = b"1"
_MISSING: Final = b"0"


@dataclass(frozen=True)
class ChunkLayout:
    """How a file is cut, and the sha256 of each piece."""

    sha256: str
    """``sha256:<hex>`` of the whole file."""
    size: int
    chunk_bytes: int
    chunks: tuple[str, ...]
    """``sha256:<hex>`` of each chunk."""

    def length(self, chunk: int) -> int:
        """Bytes of a chunk: ``chunk_bytes``, less in the last one."""
        return min(self.chunk_bytes, self.size - chunk * self.chunk_bytes)

    @cached_property
    def digest(self) -> str:
        """64 hex digits that stand for this layout."""
        text = "\n".join([self.sha256, str(self.size), str(self.chunk_bytes), *self.chunks])
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def fits(self, chunk: int, data: memoryview) -> bool:
        """Whether ``data`` is the chunk."""
        return f"sha256:{hashlib.sha256(data).hexdigest()}" == self.chunks[chunk]


class ChunkedPart:
    """One partial file, locked while this lives. ``close`` keeps it for later, ``discard`` throws it away.

    Args:
        directory: where it lies, on the filesystem of the final file.
        sha256: of the whole file.

    Raises:
        Conflict: another task or process is fetching the same file.
        DataError, DiskFull.
    """

    def __init__(self, directory: Path, sha256: str) -> None:
        key = sha256.removeprefix("sha256:")[:32]
        self.path = directory / f"{key}.part"
        self._map_path = directory / f"{key}.map"
        self._handle = open_part(self.path, where=sha256)
        self._map: int | None = None

    def begin(self, layout: ChunkLayout) -> list[int]:
        """Takes up what an earlier attempt left: the chunks that should be here. ``check`` says whether they are.

        Another layout than before begins anew.
        """
        head = layout.digest.encode("ascii")
        with explained(self.path, "cannot open the partial download"):
            if self._map is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                self._map = os.open(self._map_path, flags, 0o600)
            known = os.pread(self._map, len(head) + len(layout.chunks) + 1, 0)
            if len(known) != len(head) + len(layout.chunks) or not known.startswith(head):
                known = head + _MISSING * len(layout.chunks)
                os.ftruncate(self._map, 0)
                os.pwrite(self._map, known, 0)
            os.ftruncate(self._handle, layout.size)
        return [chunk for chunk, mark in enumerate(known[len(head) :]) if mark == _DONE[0]]

    def check(self, layout: ChunkLayout, chunk: int) -> bool:
        """Whether the chunk is here, whole; one that is not will be fetched again."""
        digest, at = hashlib.sha256(), chunk * layout.chunk_bytes
        end = at + layout.length(chunk)
        with explained(self.path, "cannot read the partial download"):
            while at < end and (data := os.pread(self._handle, min(_READ_BYTES, end - at), at)):
                digest.update(data)
                at += len(data)
        good = f"sha256:{digest.hexdigest()}" == layout.chunks[chunk]
        if not good:
            self._mark(layout, chunk, _MISSING)
        return good

    def write(self, layout: ChunkLayout, chunk: int, data: memoryview) -> None:
        """Keeps a chunk whose hash was found right."""
        at = chunk * layout.chunk_bytes
        with explained(self.path, "cannot write the download"):
            while data:
                count = os.pwrite(self._handle, data, at)
                data, at = data[count:], at + count
        self._mark(layout, chunk, _DONE)

    def flush(self) -> None:
        """Makes the file durable."""
        with explained(self.path, "cannot write the download"):
            os.fsync(self._handle)

    def discard(self) -> None:
        """Removes file and map; the file may have been moved away before."""
        with explained(self.path, "cannot remove the partial download"):
            self._map_path.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._handle)
        if self._map is not None:
            os.close(self._map)

    def _mark(self, layout: ChunkLayout, chunk: int, mark: bytes) -> None:
        assert self._map is not None, "begin comes first"
        with explained(self._map_path, "cannot write the map of the download"):
            os.pwrite(self._map, mark, len(layout.digest) + chunk)
