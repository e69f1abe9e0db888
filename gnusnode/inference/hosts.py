"""The engines that are up: brought up on demand, put out for others, counted while in use."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import trio

from gnusnode.contracts.generation import ContextProfile
from gnusnode.errors import GnusError
from gnusnode.inference.calibrate import Determinism, determinism_class
from gnusnode.inference.devices import Device
from gnusnode.inference.engine import Engine
from gnusnode.inference.frames import ChildSpec
from gnusnode.inference.layers import Placement, step_down
from gnusnode.inference.limits import Notify
from gnusnode.inference.residency import HostedModel, Key, Residency, plan
from gnusnode.inference.supervisor import stopping_error

_REMEMBER_FAILURE: Final = 5.0
"""Seconds for which a failed load is not tried again: what failed just now fails again."""

OpenEngine = Callable[[ChildSpec], AbstractAsyncContextManager[Engine]]
OnDeterminism = Callable[[str, str, Determinism], None]
"""``(artifact hash, engine build, class)``, after a calibration."""


class Hosts:
    """Runs engines within a budget of memory. Its tasks live in the nursery that it is given.

    Attributes:
        up: engines by what they serve, those that load or leave included.
        failures: why a load failed last, until one succeeds.
        determinism: known classes by artifact.
        ram: bytes of main memory for all engines.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        open_engine: OpenEngine,
        *,
        ram: int,
        gpus: Sequence[Device],
        calibrate: bool,
        notify: Notify,
        on_determinism: OnDeterminism | None,
    ) -> None:
        self.up: dict[Key, Residency] = {}
        self.failures: dict[Key, tuple[GnusError, float]] = {}
        self.determinism: dict[str, Determinism] = {}
        self.ram = ram
        self.loads = 0
        self.evictions = 0
        self._nursery = nursery
        self._open_engine = open_engine
        self._gpus = gpus
        self._calibrates = calibrate
        self._notify = notify
        self._on_determinism = on_determinism
        self._planning = trio.Lock()
        self._closed = False

    def close(self) -> None:
        """Nothing is brought up any more."""
        self._closed = True
        self._nursery.cancel_scope.cancel()

    async def bring_up(self, model: HostedModel, profile: ContextProfile) -> Residency:
        """The residency of a model, up and not about to leave."""
        key = Key.of(model, profile)
        while True:
            if self._closed:
                raise stopping_error()
            residency = self.up.get(key)
            if residency is not None and residency.leave.is_set():
                await residency.gone.wait()
                continue
            if residency is None:
                failed = self.failures.get(key)
                if failed and failed[1] > trio.current_time():
                    raise _again(failed[0])
                residency = self.up[key] = Residency(model, profile)
                self._nursery.start_soon(self._host, residency)
            await residency.settled.wait()
            if residency.error is not None:
                raise _again(residency.error)
            if residency.engine is not None and not residency.leave.is_set():
                return residency

    @asynccontextmanager
    async def lease(self, model: HostedModel, profile: ContextProfile) -> AsyncGenerator[Engine]:
        """An engine that is not put out while the context is open. Errors as for ``engine``."""
        residency = await self.bring_up(model, profile)
        assert residency.engine is not None
        residency.leases += 1
        try:
            yield residency.engine
        finally:
            residency.leases -= 1
            residency.last_used = trio.current_time()

    async def _host(self, residency: Residency) -> None:
        """Runs one engine until it is told to leave; a load that fails on a GPU is tried with fewer layers."""
        try:
            at_most = residency.model.gpu_layers
            steps: list[int] | None = None
            while True:
                placement = residency.placement = await self._make_room(residency, at_most)
                try:
                    await self._run(residency, placement)
                    return
                except GnusError as error:
                    steps = list(step_down(placement.gpu_layers)) if steps is None else steps
                    if residency.settled.is_set() or not steps:
                        raise
                    at_most = steps.pop(0)
                    fields = {"model": residency.model.name, "layers": at_most, "reason": str(error)}
                    self._notify("engine_step_down", fields)
        except GnusError as error:
            residency.error = error
            self.failures[residency.key] = (error, trio.current_time() + _REMEMBER_FAILURE)
        finally:
            del self.up[residency.key]
            residency.placement = residency.engine = None
            if not residency.settled.is_set() and residency.error is None:
                residency.error = stopping_error()  # cancelled while it loaded
            residency.settled.set()
            residency.gone.set()

    async def _run(self, residency: Residency, placement: Placement) -> None:
        async with self._open_engine(residency.model.spec(residency.profile, placement)) as engine:
            self.loads += 1
            await self._calibrate(residency, engine)
            residency.engine = engine
            residency.last_used = trio.current_time()
            self.failures.pop(residency.key, None)
            residency.settled.set()
            await residency.leave.wait()

    async def _make_room(self, residency: Residency, at_most: int | None) -> Placement:
        """Reserves memory, putting out the engine that was idle for longest when needed."""
        residency.placement = None
        async with self._planning:
            while True:
                found = plan(residency, self.up.values(), gpus=self._gpus, ram=self.ram, at_most=at_most)
                if found.error is not None:
                    raise found.error
                if found.placement is not None:
                    return found.placement
                assert found.victim is not None, "a plan is a place, a victim or an error"
                self.evictions += 1
                self._notify("engine_evicted", {"model": found.victim.model.name, "for": residency.model.name})
                found.victim.leave.set()
                await found.victim.gone.wait()

    async def _calibrate(self, residency: Residency, engine: Engine) -> None:
        """Finds the determinism class of a canonical engine whose artifact has none yet."""
        artifact = residency.model.artifact_hash
        canonical = residency.profile is ContextProfile.CANONICAL and not residency.model.embeddings
        if not (canonical and self._calibrates) or artifact in self.determinism:
            return
        found = await determinism_class(engine)
        self.determinism[artifact] = found
        if self._on_determinism is not None:
            self._on_determinism(artifact, engine.info().build, found)


def _again(error: GnusError) -> GnusError:
    """A new instance of an error that several callers get."""
    return GnusError.from_wire(error.to_wire())
