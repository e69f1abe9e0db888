"""What can still be read from a damaged store, as JSON lines.

The data file is read with bounded reads and never mapped, so that no damage can end the process: what a page does not
say clearly is left out and counted. Run it on a stopped node; nothing in the store is changed.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

from gnusnode.contracts import canonical
from gnusnode.errors import storage_error
from gnusnode.store import pages
from gnusnode.store.check import opened
from gnusnode.store.opening import DATA_FILE
from gnusnode.store.tables import MAX_VALUE

_UNKNOWN: Final = None
"""Table of an entry on a page that no tree leads to any more."""


@dataclass
class Salvage:
    """What an export found."""

    entries: dict[str, int] = field(default_factory=dict[str, int])
    """Entries per table; those of unknown table under ``?``."""
    damage: list[str] = field(default_factory=list[str])
    """What could not be read, one line each (the first hundred)."""

    def note(self, damage: pages.Damaged) -> None:
        if len(self.damage) < 100:
            self.damage.append(str(damage))


def salvage(store: Path, out: Path) -> Salvage:
    """Writes every readable entry of ``store`` to the new file ``out``. Blocks.

    A line is ``{"table", "key", "value"}``: the key in hex, the value decoded when it is a record without byte strings,
    else ``"value_base64"``. When the trees are damaged, pages that none of them leads to are searched as well:
    their entries have the table null and may be older states.

    Raises:
        DataError: there is no data file, or ``out`` exists or cannot be written.
    """
    found = Salvage()
    with opened(store / DATA_FILE, tolerant=True) as file:
        try:
            descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                for table, key, value in _Reader(file, found).entries():
                    name = table or "?"
                    found.entries[name] = found.entries.get(name, 0) + 1
                    _write_line(stream, table, key, value)
        except OSError as error:
            raise storage_error(error, out, "cannot write the export") from error
    return found


Entry = tuple[str | None, bytes, bytes]


class _Reader:
    """Walks the trees of one file and notes damage instead of stopping at it."""

    def __init__(self, file: pages.PageFile, found: Salvage) -> None:
        self._file = file
        self._found = found
        self._seen: set[int] = set()
        for damage in file.root_damage:
            found.note(damage)

    def entries(self) -> Generator[Entry]:
        main = self._file.meta.main.root
        tables: list[tuple[str, int]] = []
        for page, node in self._leaves(main):
            if not node.is_tree:
                continue
            try:
                root = pages.parse_tree(self._file.value(page, node)).root
            except pages.Damaged as damage:
                self._found.note(damage)
                continue
            if root is not None:
                tables.append((node.key.decode("ascii", errors="replace"), root))
        for name, root in tables:
            for page, node in self._leaves(root):
                yield from self._entry(name, page, node)
        if self._found.damage:
            yield from self._orphans()

    def _leaves(self, root: int | None) -> Iterator[tuple[bytes, pages.Node]]:
        """The leaf entries under ``root`` in key order."""
        stack = [] if root is None else [root]
        while stack:
            number = stack.pop()
            if number in self._seen:
                continue
            self._seen.add(number)
            try:
                page = self._file.page(number)
                if pages.kind(page) == pages.BRANCH:
                    stack.extend(reversed(pages.children(page)))
                elif pages.kind(page) == pages.LEAF:
                    yield from ((page, node) for node in pages.nodes(page))
                else:
                    raise pages.Damaged(f"page {number} is neither branch nor leaf")
            except pages.Damaged as damage:
                self._found.note(damage)

    def _entry(self, table: str | None, page: bytes, node: pages.Node) -> Iterator[Entry]:
        try:
            if node.size > MAX_VALUE:
                raise pages.Damaged(f"a value of {node.size} bytes was never written")
            yield table, node.key, self._file.value(page, node)
        except pages.Damaged as damage:
            self._found.note(damage)

    def _orphans(self) -> Iterator[Entry]:
        for number in range(2, min(self._file.pages, self._file.meta.last_page + 1)):
            if number in self._seen:
                continue
            try:
                page = self._file.page(number)
                if pages.kind(page) != pages.LEAF:
                    continue
                nodes = list(pages.nodes(page))
            except pages.Damaged:
                continue  # a free page may hold anything
            for node in nodes:
                if not node.is_tree:
                    yield from self._entry(_UNKNOWN, page, node)


def _write_line(stream: TextIO, table: str | None, key: bytes, value: bytes) -> None:
    line: dict[str, object] = {"table": table, "key": key.hex()}
    try:
        record = canonical.decode(value)
        if not isinstance(record, dict):
            raise TypeError("not a record")
        text = json.dumps({**line, "value": record})
    except (canonical.NotCanonical, TypeError):  # other bytes, or byte strings inside
        text = json.dumps({**line, "value_base64": base64.b64encode(value).decode("ascii")})
    stream.write(text + "\n")
