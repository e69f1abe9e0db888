"""The store: named tables in one LMDB environment, durable when a call returns.

Ownership: ``open_store`` owns the environment and its writer thread; leaving its context closes both.
Reads are short and run inline; writes go through one thread that commits them in groups.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import lmdb
import trio

from gnusnode.store import faults, tables
from gnusnode.store.memory import DEFAULT_MAP
from gnusnode.store.opening import DATA_FILE, open_environment
from gnusnode.store.tables import Table
from gnusnode.store.txn import Handles, ReadTxn, WriteTxn
from gnusnode.store.writer import Gate, Writer

T = TypeVar("T")


@dataclass(frozen=True)
class StoreInfo:
    """Facts for ``status`` and ``doctor``."""

    path: Path
    schema: int
    file_bytes: int
    map_bytes: int
    entries: dict[str, int]
    """Entries per table."""


class Store:
    """Tables of bytes. Made by ``open_store`` only."""

    def __init__(self, path: Path, env: lmdb.Environment, handles: Handles, gate: Gate, writer: Writer) -> None:
        self.path = path
        self._env = env
        self._handles = handles
        self._gate = gate
        self._writer = writer

    async def write(self, operation: Callable[[WriteTxn], T]) -> T:
        """Runs ``operation(txn)`` in a write transaction and returns its result once that is on the disk.

        The operation runs in the writer thread, possibly more than once (after the map grew, or next to one that
        failed): it must be quick and touch nothing but ``txn``. If it raises, its changes are undone and the exception
        comes out here.
        A cancelled caller cannot know whether its operation was written.

        Raises:
            DiskFull: no room; nothing was written, and later calls work when there is room again.
            DataError: the store is damaged or not writable.
            NotRunning: the store is closed.
        """
        return await self._writer.write(operation)

    async def put(self, table: Table, key: bytes, value: bytes) -> None:
        """Sets ``key`` to ``value``, durably."""
        await self.write(lambda txn: txn.put(table, key, value))

    async def delete(self, table: Table, key: bytes) -> bool:
        """Removes ``key``, durably; says whether it was there."""
        return await self.write(lambda txn: txn.delete(table, key))

    @contextmanager
    def snapshot(self) -> Generator[ReadTxn]:
        """A consistent view of all tables. Do not ``await`` inside: an old view keeps the file growing.

        Raises:
            DataError: the store is damaged.
        """
        try:
            with self._gate.reading(), self._env.begin() as txn:
                yield ReadTxn(txn, self._handles)
        except lmdb.Error as error:
            raise faults.translate(error, self.path) from error

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The value under ``key``, or None."""
        with self.snapshot() as txn:
            return txn.get(table, key)

    def scan(
        self,
        table: Table,
        *,
        prefix: bytes = b"",
        start: bytes | None = None,
        limit: int = 1000,
        reverse: bool = False,
    ) -> list[tuple[bytes, bytes]]:
        """Up to ``limit`` entries in key order; see ``ReadTxn.scan``."""
        with self.snapshot() as txn:
            return txn.scan(table, prefix=prefix, start=start, limit=limit, reverse=reverse)

    async def page(
        self, table: Table, *, prefix: bytes = b"", start: bytes | None = None, limit: int = 1000
    ) -> list[tuple[bytes, bytes]]:
        """Like ``scan``, read in a thread: for walks over whole tables, a page at a time."""
        return await trio.to_thread.run_sync(partial(self.scan, table, prefix=prefix, start=start, limit=limit))

    def count(self, table: Table) -> int:
        """Number of entries of ``table``."""
        with self.snapshot() as txn:
            return txn.count(table)

    def info(self) -> StoreInfo:
        """Sizes and counts."""
        with self.snapshot() as txn:
            entries = {table.name: txn.count(table) for table in self._handles}
        size = (self.path / DATA_FILE).stat().st_size
        return StoreInfo(self.path, tables.SCHEMA_VERSION, size, self._env.info()["map_size"], entries)


@asynccontextmanager
async def open_store(
    path: Path, *, map_size: int = DEFAULT_MAP, committed: Callable[[float], None] = lambda _seconds: None
) -> AsyncGenerator[Store]:
    """Opens or creates the store in the directory ``path``; leaving the context writes what is queued and closes it.

    Args:
        map_size: bytes of the memory map to begin with. It is sparse, shrinks to what the process may map, and doubles
            when it is full.
        committed: told the seconds of each group commit, in the writer's thread.

    Raises:
        AlreadyRunning: another process, or this one, has it open.
        DiskFull: no room to create it.
        DataError: damaged, not writable, or written by a newer gnusnode.
    """
    with ExitStack() as owned:
        # Not cancellable, so that a half opened environment always has an owner.
        env, handles = await trio.to_thread.run_sync(open_environment, path, map_size, owned)
        gate = Gate()
        writer = Writer(env, handles, gate, path, committed)
        writer.start()
        try:
            yield Store(path, env, handles, gate, writer)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(writer.stop)
