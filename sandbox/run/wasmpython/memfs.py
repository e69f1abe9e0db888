"""A file system that is nothing but memory of the worker: bounded, empty at the start, gone at the end. Pure data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeVar

MAX_NAME: Final = 255
MAX_DEPTH: Final = 64
NODE_COST: Final = 4096
"""Bytes that a file or directory counts besides its content, so that empty ones are bounded too: about what a real
file system would need for one."""


class Errno(IntEnum):
    """Error numbers of WASI preview 1."""

    SUCCESS = 0
    ACCES = 2
    BADF = 8
    EXIST = 20
    FAULT = 21
    INVAL = 28
    ISDIR = 31
    MFILE = 33
    NAMETOOLONG = 37
    NOENT = 44
    NOSPC = 51
    NOSYS = 52
    NOTDIR = 54
    NOTEMPTY = 55
    NOTSUP = 58
    SPIPE = 70
    NOTCAPABLE = 76


class WasiError(Exception):
    """What a call answers instead of success."""

    def __init__(self, errno: Errno) -> None:
        super().__init__(errno.name)
        self.errno = errno


@dataclass(eq=False, slots=True)
class File:
    inode: int
    modified_ns: int = 0
    content: bytearray = field(default_factory=bytearray)


@dataclass(eq=False, slots=True)
class Directory:
    inode: int
    modified_ns: int = 0
    entries: dict[str, File | Directory] = field(default_factory=dict[str, "File | Directory"])
    removed: bool = False


Node = File | Directory
_N = TypeVar("_N", File, Directory)


class MemoryFiles:
    """A tree of directories and files with one quota over all of them. Paths are relative; none leads out of a tree.

    Args:
        quota: bytes of all content, each node counted with ``NODE_COST`` besides. A file that was removed counts until
            it is closed.
    """

    def __init__(self, quota: int) -> None:
        self.root = Directory(1)
        self._left = quota
        self._inodes = 1

    def find(self, base: Directory, path: str) -> Node:
        """What stands at ``path`` from ``base``. Raises ``WasiError``, as every method here."""
        parts = _parts(path)
        if not parts:
            return base
        node = _descend(base, parts[:-1]).entries.get(parts[-1])
        if node is None:
            raise WasiError(Errno.NOENT)
        return node

    def open_file(self, base: Directory, path: str, *, create: bool, exclusive: bool, truncate: bool, now: int) -> File:
        """The file at ``path``, made when it is not there and ``create`` says so."""
        parent, name = self._place(base, path)
        node = parent.entries.get(name)
        if node is None:
            if not create:
                raise WasiError(Errno.NOENT)
            return self._add(parent, name, File(self._next(), now), now)
        if create and exclusive:
            raise WasiError(Errno.EXIST)
        if isinstance(node, Directory):
            raise WasiError(Errno.ISDIR)
        if truncate:
            self.resize(node, 0, now)
        return node

    def make_directory(self, base: Directory, path: str, now: int) -> None:
        parent, name = self._place(base, path)
        if name in parent.entries:
            raise WasiError(Errno.EXIST)
        self._add(parent, name, Directory(self._next(), now), now)

    def remove(self, base: Directory, path: str, *, directory: bool, now: int) -> Node:
        """Takes a file or an empty directory out of the tree; the caller calls ``forget`` once nobody has it open."""
        parent, name = self._place(base, path)
        node = self._removable(parent.entries.get(name), directory=directory)
        del parent.entries[name]
        parent.modified_ns = now
        return node

    def rename(self, source: Directory, old: str, target: Directory, new: str, now: int) -> Node | None:
        """Moves a node; gives what stood at the new path and was replaced, which is then to be forgotten."""
        from_parent, from_name = self._place(source, old)
        to_parent, to_name = self._place(target, new)
        node = from_parent.entries.get(from_name)
        if node is None:
            raise WasiError(Errno.NOENT)
        replaced = to_parent.entries.get(to_name)
        if replaced is node:
            return None
        if isinstance(node, Directory) and _contains(node, to_parent):
            raise WasiError(Errno.INVAL)
        if replaced is not None:
            self._removable(replaced, directory=isinstance(node, Directory))
        del from_parent.entries[from_name]
        to_parent.entries[to_name] = node
        from_parent.modified_ns = to_parent.modified_ns = now
        return replaced

    def write(self, file: File, offset: int, data: bytes, now: int) -> None:
        """Writes ``data`` at ``offset``, a gap before it filled with zeros; all of it or, over the quota, nothing."""
        end = offset + len(data)
        if end > len(file.content):
            self.resize(file, end, now)
        file.content[offset:end] = data
        file.modified_ns = now

    def resize(self, file: File, size: int, now: int) -> None:
        growth = size - len(file.content)
        self._take(growth)
        if growth > 0:
            file.content += bytes(growth)
        else:
            del file.content[size:]
        file.modified_ns = now

    def forget(self, node: Node) -> None:
        """Gives the room of a removed node back."""
        self._left += NODE_COST + (len(node.content) if isinstance(node, File) else 0)

    def _add(self, parent: Directory, name: str, node: _N, now: int) -> _N:
        self._take(NODE_COST)
        parent.entries[name] = node
        parent.modified_ns = now
        return node

    def _take(self, room: int) -> None:
        if room > self._left:
            raise WasiError(Errno.NOSPC)
        self._left -= room

    def _next(self) -> int:
        self._inodes += 1
        return self._inodes

    def _place(self, base: Directory, path: str) -> tuple[Directory, str]:
        """The directory in which the last part of ``path`` stands, or would stand, and that part."""
        parts = _parts(path)
        if not parts:
            raise WasiError(Errno.EXIST)
        parent = _descend(base, parts[:-1])
        if parent.removed:
            raise WasiError(Errno.NOENT)
        return parent, parts[-1]

    def _removable(self, node: Node | None, *, directory: bool) -> Node:
        if node is None:
            raise WasiError(Errno.NOENT)
        if isinstance(node, Directory):
            if not directory:
                raise WasiError(Errno.ISDIR)
            if node.entries:
                raise WasiError(Errno.NOTEMPTY)
            node.removed = True
        elif directory:
            raise WasiError(Errno.NOTDIR)
        return node


def _parts(path: str) -> list[str]:
    """The names of a relative path, ``.`` and ``..`` resolved by name: there are no links that could change that."""
    if path.startswith("/"):
        raise WasiError(Errno.NOTCAPABLE)
    if "\0" in path:
        raise WasiError(Errno.INVAL)
    parts: list[str] = []
    for name in path.split("/"):
        if name == "..":
            if not parts:
                raise WasiError(Errno.NOTCAPABLE)
            parts.pop()
        elif name not in ("", "."):
            if len(name.encode("utf-8", "replace")) > MAX_NAME:
                raise WasiError(Errno.NAMETOOLONG)
            parts.append(name)
    if len(parts) > MAX_DEPTH:
        raise WasiError(Errno.NAMETOOLONG)
    return parts


def _descend(base: Directory, parts: Sequence[str]) -> Directory:
    for name in parts:
        node = base.entries.get(name)
        if node is None:
            raise WasiError(Errno.NOENT)
        if not isinstance(node, Directory):
            raise WasiError(Errno.NOTDIR)
        base = node
    return base


def _contains(outer: Directory, inner: Directory) -> bool:
    pending = [outer]
    while pending:
        directory = pending.pop()
        if directory is inner:
            return True
        pending += [node for node in directory.entries.values() if isinstance(node, Directory)]
    return False
