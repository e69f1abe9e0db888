"""What one may do inside a transaction: the only code that touches LMDB transactions and cursors."""

from __future__ import annotations

from collections.abc import Mapping

import lmdb

from gnusnode.store.tables import Table, check_key, check_value

Handles = Mapping[Table, "lmdb._Database"]
"""LMDB's handle of every table."""


class ReadTxn:
    """A consistent view of all tables. Lives inside one ``with`` block and never across an ``await``."""

    def __init__(self, txn: lmdb.Transaction[bytes], handles: Handles) -> None:
        self._txn = txn
        self._handles = handles

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The value under ``key``, or None."""
        check_key(key)
        return self._txn.get(key, db=self._handles[table])

    def scan(
        self,
        table: Table,
        *,
        prefix: bytes = b"",
        start: bytes | None = None,
        limit: int = 1000,
        reverse: bool = False,
    ) -> list[tuple[bytes, bytes]]:
        """Up to ``limit`` entries in key order.

        Args:
            prefix: only keys that begin with it.
            start: first key that may appear (with ``reverse``: the last one); it need not exist.
            reverse: from the greatest key downwards.
        """
        found: list[tuple[bytes, bytes]] = []
        with self._txn.cursor(self._handles[table]) as cursor:
            there = _seek_last(cursor, prefix, start) if reverse else _seek_first(cursor, prefix, start)
            while there and len(found) < limit and cursor.key().startswith(prefix):
                found.append(cursor.item())
                there = cursor.prev() if reverse else cursor.next()
        return found

    def count(self, table: Table) -> int:
        """Number of entries of ``table``, without looking at them."""
        return self._txn.stat(self._handles[table])["entries"]


class WriteTxn(ReadTxn):
    """A view that may be changed; all changes become visible and durable together or not at all."""

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        """Sets ``key`` to ``value``."""
        check_key(key)
        check_value(value)
        self._txn.put(key, value, db=self._handles[table])

    def insert(self, table: Table, key: bytes, value: bytes) -> bool:
        """Sets ``key`` unless it has a value; says whether it did."""
        check_key(key)
        check_value(value)
        return self._txn.put(key, value, overwrite=False, db=self._handles[table])

    def delete(self, table: Table, key: bytes) -> bool:
        """Removes ``key``; says whether it was there."""
        check_key(key)
        return self._txn.delete(key, db=self._handles[table])


def _seek_first(cursor: lmdb.Cursor[bytes], prefix: bytes, start: bytes | None) -> bool:
    low = max(prefix, start or b"")
    return cursor.set_range(low) if low else cursor.first()


def _seek_last(cursor: lmdb.Cursor[bytes], prefix: bytes, start: bytes | None) -> bool:
    """Moves to the greatest key that is at most ``start`` and not behind the keys of ``prefix``."""
    if start is not None and (not prefix or start < prefix or start.startswith(prefix)):
        if cursor.set_range(start):
            return cursor.key() == start or cursor.prev()
        return cursor.last()
    after = _successor(prefix)
    if after is not None and cursor.set_range(after):
        return cursor.prev()
    return cursor.last()


def _successor(prefix: bytes) -> bytes | None:
    """The least key greater than every key with ``prefix``; None when there is no such key."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None
