"""Deterministic CPython as a ``SandboxBackend``: pure Python programs, the same bytes and the same fuel every time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from gnusnode.errors import GnusError
from sandbox.linux import IS_LINUX
from sandbox.run import selftest
from sandbox.run.pool import WarmPool
from sandbox.run.types import (
    NO_GRANTS,
    Availability,
    Boundary,
    Control,
    Feature,
    Grants,
    Job,
    Limits,
    Result,
    SelfTestReport,
    Status,
    Strength,
)
from sandbox.run.wasmpython import supply
from sandbox.run.wasmpython.guestprocess import GuestProcess, Metered
from sandbox.worker import KILL_SECONDS

NAME: Final = "wasm-cpython"


class WasmPythonBackend:
    """Runs jobs in CPython compiled to WebAssembly, each in a confined process of its own.

    Time is counted in instructions (``virtual.FUEL_PER_SECOND``), so the wall limit ends a job at the same instruction
    everywhere; on a machine that is slower than that the real clock ends it first, and says so.

    Args:
        directory: where the compiled interpreter is kept.
        warm: how many interpreters may wait at once while ``keep_warm`` runs.
        warm_limits: the limits of those; a job with other ones gets a cold one.
        at_once: jobs that may run at the same time; others wait.
        trouble: told why an interpreter could not be started ahead of time.
    """

    def __init__(
        self,
        directory: Path,
        *,
        warm: int = 2,
        warm_limits: Limits = Limits(),  # noqa: B008 - frozen
        at_once: int = 2,
        trouble: Callable[[GnusError], None] | None = None,
    ) -> None:
        self.store = supply.InterpreterStore(directory)
        self._warm_limits = warm_limits
        self._slots = trio.CapacityLimiter(at_once)
        self._pool = WarmPool(self._open_warm, most=warm, failed=trouble)
        self._closed = False

    @property
    def name(self) -> str:
        return NAME

    @property
    def waiting(self) -> int:
        """Interpreters that wait for a job."""
        return self._pool.waiting

    async def probe(self) -> Availability:
        """Whether wasmtime and the interpreter are here. Never raises."""
        reason = "" if IS_LINUX else "the process around it can be confined on Linux only"
        if reason := reason or self.store.missing():
            return Availability(available=False, reason=reason)
        return Availability(available=True, strength=strength())

    async def self_test(self) -> SelfTestReport:
        """Proves the declared strength with a row of jobs. Never raises."""
        return await selftest.prove(self)

    async def run(self, job: Job, limits: Limits, grants: Grants = NO_GRANTS) -> Result:
        """Runs ``job`` in an interpreter of its own. It gives no access to files: such a grant ends as ``infra``."""
        return (await self.run_metered(job, limits, grants)).result

    async def run_metered(self, job: Job, limits: Limits, grants: Grants = NO_GRANTS) -> Metered:
        """``run``, and the fuel that the job burnt."""
        since = time.monotonic()
        if self._closed:
            return Metered(Result(status=Status.INFRA, reason="this backend is closed"))
        if grants != NO_GRANTS:
            return Metered(Result(status=Status.INFRA, reason=f"{NAME} can show a program no file of the host"))
        async with self._slots:
            try:
                return await self._run(job, limits, since)
            except GnusError as error:
                took = time.monotonic() - since
                return Metered(Result(status=Status.INFRA, reason=str(error), wall_seconds=took))

    async def _run(self, job: Job, limits: Limits, since: float) -> Metered:
        guest = self._pool.take() if _made_alike(limits, self._warm_limits) else None
        warm = guest is not None
        guest = guest or await GuestProcess.start(self.store, limits)
        try:
            return await guest.perform(job, limits, since=since, warm=warm)
        finally:
            with trio.move_on_after(2 * KILL_SECONDS, shield=True):
                await guest.remove()

    async def keep_warm(self) -> None:
        """Keeps interpreters ready until cancelled; then ends what waits."""
        await self._pool.serve()

    async def sweep(self) -> int:
        """Nothing can be left behind: the kernel ends a worker with the process that started it."""
        return 0

    async def aclose(self) -> None:
        """Ends the interpreters that wait; ``run`` answers ``infra`` from now on. Never raises."""
        self._closed = True
        await self._pool.drain()

    async def _open_warm(self) -> GuestProcess:
        return await GuestProcess.start(self.store, self._warm_limits)


def strength() -> Strength:
    """What this backend declares to be, with the installed wasmtime."""
    return Strength(
        boundary=Boundary.WASM,
        engine="wasmtime",
        engine_version=f"wasmtime {supply.wasmtime_version()}",
        image_digest=supply.MODULE_SHA256,
        seccomp_digest=None,
        controls=frozenset(Control),
        features=frozenset({Feature.TMP}),
        deterministic=True,
    )


def _made_alike(a: Limits, b: Limits) -> bool:
    """Whether an interpreter started for ``b`` enforces ``a``."""
    return (a.memory_bytes, a.cpus, a.tmp_bytes, a.open_files) == (
        b.memory_bytes,
        b.cpus,
        b.tmp_bytes,
        b.open_files,
    ) and a.wall_seconds <= b.wall_seconds
