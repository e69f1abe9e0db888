"""A reader of LMDB data files (format 0.9, 64 bit) that trusts nothing in them.

LMDB maps its file, and a file that ends early or points outside itself then kills the process by a signal. This reader
uses plain bounded reads, so damage is always a ``Damaged`` exception. The start check and the salvage rest on it.

Format: ``libraries/liblmdb/mdb.c`` of LMDB 0.9 (MDB_meta, MDB_page, MDB_node, MDB_db).
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_ORDER: Final = "<" if sys.byteorder == "little" else ">"
_PAGE_HEADER: Final = struct.Struct(_ORDER + "QHHHH")  # number, pad, flags, lower, upper
_OVERFLOW_COUNT: Final = struct.Struct(_ORDER + "12xI")
_NODE: Final = struct.Struct(_ORDER + "HHHH")  # size or child low, high, flags or child top, key size
_TREE: Final = struct.Struct(_ORDER + "IHHQQQQQ")  # pad, flags, depth, branch, leaf, overflow pages, entries, root
_META_HEAD: Final = struct.Struct(_ORDER + "IIQQ")  # magic, version, address, map size
_META_TAIL: Final = struct.Struct(_ORDER + "QQ")  # last page, transaction
_U64: Final = struct.Struct(_ORDER + "Q")

_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_META_BYTES: Final = _PAGE_HEADER.size + _META_HEAD.size + 2 * _TREE.size + _META_TAIL.size
_FREE_FLAGS: Final = 0x08  # MDB_INTEGERKEY; any other persistent flag would change how LMDB maps the file
_NO_ROOT: Final = 2**64 - 1
_MAX_DEPTH: Final = 32
_USUAL_PAGE: Final = 4096

BRANCH: Final = 0x01
LEAF: Final = 0x02
OVERFLOW: Final = 0x04
META: Final = 0x08
_BIG: Final = 0x01
_SUBTREE: Final = 0x02


class Damaged(ValueError):
    """The file contradicts its format; the text says which page and how."""


@dataclass(frozen=True)
class Tree:
    """Root of one B+tree; ``root`` is None when it is empty."""

    root: int | None
    entries: int
    depth: int


@dataclass(frozen=True)
class Meta:
    """One of the two roots of the file: the state after transaction ``transaction``."""

    page_size: int
    free: Tree
    main: Tree
    last_page: int
    transaction: int


@dataclass(frozen=True, slots=True)
class Node:
    """One entry of a leaf page: where its value lies, not the value."""

    key: bytes
    size: int
    """Bytes of the value."""
    offset: int
    """Of the value in its page; unused when ``overflow`` is set."""
    overflow: int | None
    """First page of a value too large for a leaf."""
    is_tree: bool


class PageFile:
    """Bounded reads on one open data file.

    Args:
        descriptor: open for reading; the caller closes it.
        tolerant: go on with what is left when a root is damaged. LMDB itself wants both to be sound.

    Raises:
        Damaged: a root is, and ``tolerant`` is not set.
    """

    def __init__(self, descriptor: int, *, tolerant: bool = False) -> None:
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self.root_damage: list[Damaged] = []
        first = self._meta(0, None)
        second = self._meta(first.page_size if first else _USUAL_PAGE, first.page_size if first else None)
        if self.root_damage and not tolerant:
            raise self.root_damage[0]
        roots = [root for root in (first, second) if root is not None]
        self.meta = max(roots, key=lambda root: root.transaction, default=_unknown_root(self.size))
        """The newer root: the one that LMDB uses."""
        self.page_size = self.meta.page_size
        self.pages = self.size // self.page_size
        """Whole pages in the file."""

    @property
    def is_short(self) -> bool:
        """Whether the file ends before its last page. LMDB allows that when the missing pages are free."""
        return self.meta.last_page >= self.pages

    def page(self, number: int) -> bytes:
        """The bytes of page ``number``, whose header names it."""
        data = self._read(number, 1)
        if _PAGE_HEADER.unpack_from(data)[0] != number:
            raise Damaged(f"page {number} does not carry its own number")
        return data

    def value(self, page: bytes, node: Node) -> bytes:
        """The value of a leaf entry of ``page``."""
        if node.overflow is None:
            return page[node.offset : node.offset + node.size]
        count = self.check_overflow(node)
        return self._read(node.overflow, count)[_PAGE_HEADER.size : _PAGE_HEADER.size + node.size]

    def check_overflow(self, node: Node) -> int:
        """The number of pages of an overflowing value, once it is sure that they lie in the file."""
        assert node.overflow is not None
        head = self.page(node.overflow)
        flags, count = _PAGE_HEADER.unpack_from(head)[2], _OVERFLOW_COUNT.unpack_from(head)[0]
        if flags != OVERFLOW or count * self.page_size < _PAGE_HEADER.size + node.size:
            raise Damaged(f"page {node.overflow} is not the overflow page of a value of {node.size} bytes")
        self.require(node.overflow, count)
        return count

    def require(self, number: int, count: int = 1) -> None:
        """Raises ``Damaged`` unless ``count`` data pages from ``number`` on lie in the file."""
        if number < 2 or number + count > min(self.pages, self.meta.last_page + 1):
            raise Damaged(f"page {number} lies outside the file of {self.pages} pages")

    def _read(self, number: int, count: int) -> bytes:
        self.require(number, count)
        try:
            data = os.pread(self._descriptor, count * self.page_size, number * self.page_size)
        except OSError as error:
            raise Damaged(f"page {number} cannot be read: {error.strerror}") from error
        if len(data) != count * self.page_size:
            raise Damaged(f"page {number} cannot be read whole")
        return data

    def _meta(self, offset: int, page_size: int | None) -> Meta | None:
        data = os.pread(self._descriptor, _META_BYTES, offset)
        try:
            if len(data) < _META_BYTES:
                raise Damaged(f"the file ends after {self.size} bytes, before its two root pages do")
            return parse_meta(data, page_size)
        except Damaged as damage:
            self.root_damage.append(damage)
            return None


def _unknown_root(size: int) -> Meta:
    """Stands for the roots when both are damaged: no tree can be entered, but pages can be looked at."""
    return Meta(_USUAL_PAGE, Tree(None, 0, 0), Tree(None, 0, 0), max(1, size // _USUAL_PAGE - 1), 0)


def parse_meta(data: bytes, page_size: int | None) -> Meta:
    """The root in the first bytes of a meta page; ``page_size`` is what the other one said."""
    _, _, flags, _, _ = _PAGE_HEADER.unpack_from(data)
    at = _PAGE_HEADER.size
    magic, version, _, _ = _META_HEAD.unpack_from(data, at)
    if not flags & META or magic != _MAGIC:
        raise Damaged("a root page does not have the marks of an LMDB file")
    if version != _VERSION:
        raise Damaged(f"LMDB file format {version} is not the format {_VERSION} that this node writes")
    at += _META_HEAD.size
    size = _TREE.unpack_from(data, at)[0]
    free = parse_tree(data[at : at + _TREE.size], flags=_FREE_FLAGS)
    main = parse_tree(data[at + _TREE.size : at + 2 * _TREE.size])
    last_page, transaction = _META_TAIL.unpack_from(data, at + 2 * _TREE.size)
    if size not in {2**power for power in range(9, 16)} or size != (page_size or size):
        raise Damaged(f"{size} bytes is no possible page size")
    if last_page < 1 or last_page >= 2**46 // size:
        raise Damaged(f"{last_page} is no possible last page")
    return Meta(size, free, main, last_page, transaction)


def parse_tree(data: bytes, *, flags: int = 0) -> Tree:
    """A B+tree's description: part of a root page, or the value of a named table."""
    if len(data) != _TREE.size:
        raise Damaged(f"a table is described by {_TREE.size} bytes, not {len(data)}")
    _, found, depth, _, _, _, entries, root = _TREE.unpack(data)
    if found != flags or depth > _MAX_DEPTH or (depth == 0) != (root == _NO_ROOT):
        raise Damaged("the description of a table contradicts itself")
    return Tree(None if root == _NO_ROOT else root, entries, depth)


def kind(page: bytes) -> int:
    """The flags of a page: ``BRANCH``, ``LEAF`` or ``OVERFLOW`` when it is sound."""
    return _PAGE_HEADER.unpack_from(page)[2]


def children(page: bytes) -> list[int]:
    """Page numbers under a branch page, left to right."""
    found: list[int] = []
    for offset in _offsets(page):
        low, high, top, key_size = _NODE.unpack_from(page, offset)
        if offset + _NODE.size + key_size > len(page):
            raise Damaged(f"a key of branch page {_number(page)} ends outside the page")
        found.append(low | high << 16 | top << 32)
    if len(found) < 2:
        raise Damaged(f"branch page {_number(page)} has fewer than two children")
    return found


def nodes(page: bytes) -> Iterator[Node]:
    """The entries of a leaf page in key order."""
    previous: bytes | None = None
    for offset in _offsets(page):
        low, high, flags, key_size = _NODE.unpack_from(page, offset)
        size, start = low | high << 16, offset + _NODE.size + key_size
        end = start + (_U64.size if flags & _BIG else size)
        if flags & ~(_BIG | _SUBTREE) or flags == (_BIG | _SUBTREE) or end > len(page):
            raise Damaged(f"an entry of leaf page {_number(page)} is malformed or ends outside the page")
        key = page[offset + _NODE.size : start]
        if previous == key:
            raise Damaged(f"leaf page {_number(page)} holds a key twice")
        previous = key
        overflow = _U64.unpack_from(page, start)[0] if flags & _BIG else None
        yield Node(key, size, start, overflow, bool(flags & _SUBTREE))


def _offsets(page: bytes) -> tuple[int, ...]:
    number, _, _, lower, upper = _PAGE_HEADER.unpack_from(page)
    if not _PAGE_HEADER.size <= lower <= upper <= len(page) or lower % 2:
        raise Damaged(f"page {number} has impossible bounds")
    count = (lower - _PAGE_HEADER.size) // 2
    offsets = struct.unpack_from(f"{_ORDER}{count}H", page, _PAGE_HEADER.size)
    if any(offset < upper or offset + _NODE.size > len(page) for offset in offsets):
        raise Damaged(f"an entry of page {number} lies outside its page")
    return offsets


def _number(page: bytes) -> int:
    return _PAGE_HEADER.unpack_from(page)[0]
