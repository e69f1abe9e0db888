"""Group commit: one thread writes what many tasks ask for, in one durable transaction per turn.

A transaction begins and ends inside one call in this thread: LMDB's writer lock belongs to the thread that took it, and
a commit from another one blocks every later writer for ever.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import lmdb
import trio

from gnusnode.errors import DataError, GnusError, InternalError, NotRunning
from gnusnode.store import faults
from gnusnode.store.memory import address_space_allows
from gnusnode.store.txn import Handles, WriteTxn

T = TypeVar("T")
MAX_BATCH: Final = 512
"""Operations of one transaction: bounds the time until the first of them is acknowledged."""


class Gate:
    """Readers share it, growth of the map excludes them: ``set_mapsize`` moves the memory that a reader looks at."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._closed = False

    @contextmanager
    def reading(self) -> Generator[None]:
        # Growth that still waits does not hold up new readers: a reader may nest another one in the same thread.
        with self._changed:
            while self._closed:
                self._changed.wait()
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def growing(self) -> Generator[None]:
        with self._changed:
            while self._readers:
                self._changed.wait()
            self._closed = True
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()


class _Spoilt(Exception):
    """An operation failed, so the transaction that it ran in has to go."""


class _Job:
    """One operation on its way: queued, then run with a ``result`` or an ``error``, then acknowledged by ``done``."""

    __slots__ = ("done", "error", "operation", "result", "withdrawn")

    def __init__(self, operation: Callable[[WriteTxn], Any]) -> None:
        self.operation = operation
        self.done = trio.Event()
        self.result: Any = None
        self.error: Exception | None = None
        self.withdrawn = False

    def run(self, txn: WriteTxn) -> None:
        """Runs the operation. Raises ``_Spoilt`` when it failed, ``lmdb.Error`` when the environment did."""
        self.error = None
        try:
            self.result = self.operation(txn)
        except lmdb.Error:
            raise  # a full map or disk: the caller of this operation is not to blame
        except Exception as error:  # the operation is foreign code and its failure belongs to its caller
            self.error = error
            raise _Spoilt from error


class Writer:
    """The one writer of an environment. Owned by ``open_store``, which starts and stops its thread.

    Args:
        env: open for writing, with ``handles`` of its tables.
        gate: shared with the readers of ``env``.
        where: directory of the store, for error texts.
        committed: told the seconds of each commit, in the writer's thread; must be quick and not raise.
    """

    def __init__(
        self, env: lmdb.Environment, handles: Handles, gate: Gate, where: Path, committed: Callable[[float], None]
    ) -> None:
        self._env = env
        self._handles = handles
        self._gate = gate
        self._where = where
        self._committed = committed
        self._token = trio.lowlevel.current_trio_token()
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name="store-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Writes what is queued, then ends the thread. Blocks; call it off the loop."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    async def write(self, operation: Callable[[WriteTxn], T]) -> T:
        """Runs ``operation`` in a transaction; returns its result once that is durable. See ``Store.write``."""
        job = _Job(operation)
        with self._changed:
            if self._stopping:
                raise NotRunning("the store is closed", where=str(self._where))
            self._waiting.append(job)
            self._changed.notify()
        try:
            await job.done.wait()
        except trio.Cancelled:
            job.withdrawn = True  # helps while it is queued; a running transaction is not torn apart
            raise
        if job.error is not None:
            raise job.error
        return job.result

    def _main(self) -> None:
        while batch := self._next_batch():
            began = time.perf_counter()
            try:
                self._commit(batch)
                self._committed(time.perf_counter() - began)
            except Exception as cause:  # noqa: BLE001 - a dead thread would leave every later writer waiting for ever
                for job in batch:
                    job.error = self._fault(cause)
                    job.error.__cause__ = cause
            try:
                self._token.run_sync_soon(_acknowledge, batch)
            except trio.RunFinishedError:
                return  # the loop is gone and nobody waits any more

    def _next_batch(self) -> list[_Job]:
        """The next operations to run together; empty when the writer shall end."""
        with self._changed:
            while True:
                batch: list[_Job] = []
                while self._waiting and len(batch) < MAX_BATCH:
                    job = self._waiting.popleft()
                    if not job.withdrawn:
                        batch.append(job)
                if batch or self._stopping:
                    return batch
                self._changed.wait()

    def _commit(self, batch: list[_Job]) -> None:
        """Runs ``batch`` in one transaction. A failing operation leaves no trace and spoils no other one."""
        run = self._run_plain
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    run(batch, txn)
                return
            except lmdb.MapFullError:
                self._grow()
            except _Spoilt:
                if len(batch) == 1:
                    return
                run = self._run_isolated

    def _run_plain(self, batch: list[_Job], txn: lmdb.Transaction[bytes]) -> None:
        view = WriteTxn(txn, self._handles)
        for job in batch:
            job.run(view)

    def _run_isolated(self, batch: list[_Job], txn: lmdb.Transaction[bytes]) -> None:
        # A nested transaction an operation is slower, so it is used only for a batch in which one has failed.
        for job in batch:
            with suppress(_Spoilt), self._env.begin(write=True, parent=txn) as nested:
                job.run(WriteTxn(nested, self._handles))

    def _grow(self) -> None:
        size = self._env.info()["map_size"] * 2
        # A refused set_mapsize would close the environment, so ask first.
        if not address_space_allows(size):
            raise DataError(
                f"the store cannot grow: no address space for a map of {size >> 20} MiB",
                where=str(self._where),
                hint="raise the limit on virtual memory (`ulimit -v`) and start again; nothing is lost",
            )
        with self._gate.growing():
            self._env.set_mapsize(size)

    def _fault(self, cause: Exception) -> Exception:
        match cause:
            case lmdb.Error() | OSError():
                return faults.translate(cause, self._where)
            case GnusError():
                return type(cause).rebuild(cause.what, where=cause.where, hint=cause.hint, param=None, retry_after=None)
            case _:
                return InternalError(f"the writer failed: {cause!r}", where=str(self._where))


def _acknowledge(batch: list[_Job]) -> None:
    for job in batch:
        job.done.set()
