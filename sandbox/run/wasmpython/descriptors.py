"""What a guest has open: its standard streams, and files and directories of its memory file system."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sandbox.run.wasmpython.memfs import Directory, Errno, File, MemoryFiles, Node, WasiError

StreamIn = Callable[[int], bytes]
"""The next bytes, at most so many; none at the end."""
StreamOut = Callable[[bytes], None]


@dataclass(eq=False, slots=True)
class Stream:
    read: StreamIn | None = None
    write: StreamOut | None = None


@dataclass(eq=False, slots=True)
class OpenFile:
    node: File
    readable: bool
    writable: bool
    append: bool
    position: int = 0


@dataclass(eq=False, slots=True)
class OpenDirectory:
    node: Directory


Entry = Stream | OpenFile | OpenDirectory
_E = TypeVar("_E", Stream, OpenFile, OpenDirectory)


class Descriptors:
    """Numbers to what they stand for; the lowest free one is given next.

    Args:
        files: gets the room of removed files back when they are closed.
        most: descriptors at the same time; ``MFILE`` beyond.
    """

    def __init__(self, files: MemoryFiles, most: int) -> None:
        self._files = files
        self._most = most
        self._entries: dict[int, Entry] = {}
        self._removed: set[Node] = set()

    def add(self, entry: Entry) -> int:
        if len(self._entries) >= self._most:
            raise WasiError(Errno.MFILE)
        number = next(number for number in range(self._most) if number not in self._entries)
        self._entries[number] = entry
        return number

    def get(self, number: int) -> Entry:
        entry = self._entries.get(number)
        if entry is None:
            raise WasiError(Errno.BADF)
        return entry

    def of(self, number: int, kind: type[_E]) -> _E:
        """The entry, which must be a ``kind``: ``BADF`` for streams, ``NOTDIR`` and ``ISDIR`` for the rest."""
        entry = self.get(number)
        if isinstance(entry, kind):
            return entry
        if isinstance(entry, Stream):
            raise WasiError(Errno.SPIPE if kind is OpenFile else Errno.NOTDIR)
        raise WasiError(Errno.ISDIR if kind is OpenFile else Errno.NOTDIR)

    def close(self, number: int) -> None:
        entry = self.get(number)
        del self._entries[number]
        if not isinstance(entry, Stream) and entry.node in self._removed and not self._is_open(entry.node):
            self._removed.discard(entry.node)
            self._files.forget(entry.node)

    def removed(self, node: Node) -> None:
        """Told that ``node`` left the tree: its room is free once nothing has it open."""
        if self._is_open(node):
            self._removed.add(node)
        else:
            self._files.forget(node)

    def _is_open(self, node: Node) -> bool:
        return any(not isinstance(entry, Stream) and entry.node is node for entry in self._entries.values())
