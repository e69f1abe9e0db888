"""A local sandbox as a ``SandboxBackend``: one process group a job, in a control group of our own."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Final

import trio

from gnusnode.errors import GnusError
from sandbox.run import cgroups, selftest
from sandbox.run.local.box import Box, sweep_directories
from sandbox.run.local.recipe import Recipe
from sandbox.run.pool import WarmPool
from sandbox.run.types import (
    NO_GRANTS,
    Availability,
    Grants,
    Job,
    Limits,
    Result,
    SelfTestReport,
    Status,
)

_REMOVE_WITHIN: Final = 15.0


class LocalBackend:
    """Runs jobs by ``recipe``, each in a control group of its own; without real limits it is not available.

    Args:
        recipe: what isolates.
        node: whose control groups they are; one process at a time may use a node's name.
        warm: how many sandboxes may wait at once while ``keep_warm`` runs.
        warm_limits: the limits of those; a job with other ones gets a cold sandbox.
        at_once: jobs that may run at the same time; others wait.
        trouble: told why a sandbox could not be started ahead of time.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        node: str,
        warm: int = 4,
        warm_limits: Limits = Limits(),  # noqa: B008 - frozen
        at_once: int = 4,
        trouble: Callable[[GnusError], None] | None = None,
    ) -> None:
        self._recipe = recipe
        self._owner = f"{recipe.name}-{node}"
        self._session = secrets.token_hex(8)
        self._hierarchy = cgroups.detect()
        self._warm_limits = warm_limits
        self._slots = trio.CapacityLimiter(at_once)
        self._pool = WarmPool(self._open_warm, most=warm, failed=trouble)
        self._closed = False

    @property
    def name(self) -> str:
        return self._recipe.name

    @property
    def waiting(self) -> int:
        """Sandboxes that wait for a job."""
        return self._pool.waiting

    async def probe(self) -> Availability:
        """Whether the program, its file system and control groups with real limits are here. Never raises."""
        if reason := self._recipe.missing() or self._hierarchy.missing():
            return Availability(available=False, reason=reason)
        return Availability(available=True, strength=self._recipe.strength(), warnings=self._recipe.warnings())

    async def self_test(self) -> SelfTestReport:
        """Proves the declared strength with a row of sandboxes. Never raises."""
        return await selftest.prove(self)

    async def run(self, job: Job, limits: Limits, grants: Grants = NO_GRANTS) -> Result:
        """Runs ``job`` in a sandbox of its own. Its file system has no place for a grant: one ends as ``infra``."""
        since = time.monotonic()
        if self._closed:
            return Result(status=Status.INFRA, reason="this backend is closed")
        if grants != NO_GRANTS:
            return Result(status=Status.INFRA, reason=f"{self.name} can show a program no file of the host")
        async with self._slots:
            try:
                return await self._run(job, limits, since)
            except GnusError as error:
                return Result(status=Status.INFRA, reason=str(error), wall_seconds=time.monotonic() - since)

    async def _run(self, job: Job, limits: Limits, since: float) -> Result:
        box = self._pool.take() if _made_alike(limits, self._warm_limits) else None
        warm = box is not None
        box = box or await self._open(limits)
        try:
            return await box.perform(job, limits, since=since, warm=warm)
        finally:
            with trio.move_on_after(_REMOVE_WITHIN, shield=True):
                await box.remove()

    async def keep_warm(self) -> None:
        """Keeps sandboxes ready until cancelled; then ends what waits."""
        await self._pool.serve()

    async def sweep(self) -> int:
        """Removes what an earlier process of this node left: groups, the processes in them, directories."""
        swept = await cgroups.sweep(self._hierarchy, self._owner, but=self._session)
        await trio.to_thread.run_sync(sweep_directories, self._owner, self._session)
        return swept

    async def aclose(self) -> None:
        """Ends the sandboxes that wait; ``run`` answers ``infra`` from now on. Never raises."""
        self._closed = True
        await self._pool.drain()

    async def _open(self, limits: Limits) -> Box:
        return await Box.start(self._recipe, self._hierarchy, f"{self._owner}-{self._session}", limits)

    async def _open_warm(self) -> Box:
        return await self._open(self._warm_limits)


def _made_alike(a: Limits, b: Limits) -> bool:
    """Whether a sandbox started for ``b`` enforces ``a``."""
    return (
        (a.memory_bytes, a.cpus, a.pids, a.tmp_bytes, a.open_files)
        == (b.memory_bytes, b.cpus, b.pids, b.tmp_bytes, b.open_files)
    ) and a.wall_seconds <= b.wall_seconds
