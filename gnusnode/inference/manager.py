"""``EngineManager``: all models of a node. Loads on demand, within the memory there is, one child a model and profile.

    async with open_manager(…) as manager:
        engine = await manager.engine("smollm2", ContextProfile.THROUGHPUT)

An engine that is given out is a handle: the child behind it may be put out for another model while nobody uses it, and
comes back with the next call.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, Final

import trio

from gnusnode.contracts.generation import (
    ClassifyRequest,
    ClassifyResult,
    ContextProfile,
    Delta,
    Done,
    EmbedRequest,
    EmbedResult,
    EngineInfo,
    EngineState,
    GenerateRequest,
    ScoreRequest,
    ScoreResult,
    Started,
)
from gnusnode.errors import Conflict, EngineFailed, GnusError, ModelNotFound
from gnusnode.inference.crashes import CrashLedger
from gnusnode.inference.devices import DeviceReport, available_ram
from gnusnode.inference.engine import Engine
from gnusnode.inference.frames import ChildSpec
from gnusnode.inference.hosts import Hosts, OnDeterminism, OpenEngine
from gnusnode.inference.limits import EngineLimits, Notify, ignore
from gnusnode.inference.nurseries import plain_errors
from gnusnode.inference.process import LlamaEngine, open_llama
from gnusnode.inference.residency import HostedModel, Key, Residency

_RAM_SHARE: Final = 0.9
_LOAD_AGAIN: Final = (6.0, 15.0, 60.0)
"""Seconds between attempts to load a model that should be up; the last one repeats."""
_THROUGHPUT: Final = ContextProfile.THROUGHPUT


@dataclass(frozen=True)
class ManagerSettings:
    """
    Attributes:
        ram: bytes for all engines; None: nine tenths of what is free at start.
        nice: how much less of the CPU engines get, 0 … 19.
        calibrate: find out the determinism class at the first canonical load of an artifact.
        ready: profiles that are loaded at start, in this order; others are with the first request for them.
    """

    ram: int | None = None
    nice: int = 0
    calibrate: bool = True
    ready: tuple[ContextProfile, ...] = (ContextProfile.THROUGHPUT,)
    limits: EngineLimits = field(default_factory=EngineLimits)


class EngineManager:
    """See the module. Made by ``open_manager``."""

    def __init__(
        self,
        nursery: trio.Nursery,
        hosts: Hosts,
        *,
        ready: tuple[ContextProfile, ...],
        crashes: CrashLedger,
        notify: Notify,
    ) -> None:
        self._nursery = nursery
        self._hosts = hosts
        self._ready = ready
        self._crashes = crashes
        self._notify = notify
        self._models: dict[str, HostedModel] = {}
        self._attached: dict[str, Engine] = {}
        self._wanted: set[str] = set()

    # --- which models there are --------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        return (*self._models, *self._attached)

    def add(self, model: HostedModel) -> None:
        """Makes a model known; it loads with the first request.

        Raises:
            Conflict: another model has this name.
        """
        if model.name in self.names:
            raise Conflict(f"a model of the name {model.name!r} is known already")
        self._models[model.name] = model
        if model.determinism != "C":
            self._hosts.determinism.setdefault(model.artifact_hash, model.determinism)

    def attach(self, name: str, engine: Engine) -> None:
        """Makes an engine known that somebody else owns: a remote server, a scripted one.

        Raises:
            Conflict: another model has this name.
        """
        if name in self.names:
            raise Conflict(f"a model of the name {name!r} is known already")
        self._attached[name] = engine

    async def remove(self, name: str) -> None:
        """Forgets a model; its engines end, and what they work on fails.

        Raises:
            ModelNotFound.
        """
        if self._attached.pop(name, None) is None:
            await self.unload(name)
            del self._models[name]
        self._wanted.discard(name)

    async def unload(self, name: str) -> None:
        """Ends the engines of a model and waits until their memory is free.

        Raises:
            ModelNotFound.
        """
        model = self._model(name)
        for residency in [residency for residency in self._hosts.up.values() if residency.model == model]:
            residency.leave.set()
            await residency.gone.wait()

    def preload(self, names: Iterable[str]) -> None:
        """Begins to load models, in order; until they are up they are reasons of ``readiness``.

        Raises:
            ModelNotFound.
        """
        models = [self._model(name) for name in names if name not in self._attached]
        self._wanted |= {model.name for model in models}
        self._nursery.start_soon(self._preload, models)

    def release(self, name: str) -> None:
        """An operator ends the quarantine of a model's artifact.

        Raises:
            ModelNotFound.
        """
        model = self._model(name)
        self._crashes.clear(model.artifact_hash)
        for key in [key for key in self._hosts.failures if key.artifact_hash == model.artifact_hash]:
            del self._hosts.failures[key]
        for residency in self._hosts.up.values():
            if residency.key.artifact_hash == model.artifact_hash and isinstance(residency.engine, LlamaEngine):
                residency.engine.end_quarantine()

    # --- what callers use --------------------------------------------------------------------------------------------

    async def engine(self, name: str, profile: ContextProfile = ContextProfile.THROUGHPUT) -> Engine:
        """The engine that runs a model; takes as long as the model takes to load.

        Raises:
            ModelNotFound.
            EngineFailed, ModelInvalid: it cannot be loaded; the text says why.
            Overloaded: other models that are in use leave no room.
        """
        if attached := self._attached.get(name):
            return attached
        model = self._model(name)
        await self._hosts.bring_up(model, profile)
        return _Handle(self, self._hosts, model, profile)

    def info(self, name: str, profile: ContextProfile = ContextProfile.THROUGHPUT) -> EngineInfo:
        """What a model is and how it does just now. Never waits.

        Raises:
            ModelNotFound.
        """
        if attached := self._attached.get(name):
            return attached.info()
        model = self._model(name)
        key = Key.of(model, profile)
        residency = self._hosts.up.get(key)
        if residency is None or residency.engine is None:
            return self._info_of_absent(model, key, residency)
        info, placement = residency.engine.info(), residency.placement
        update: dict[str, Any] = {"model": name, "determinism": self._hosts.determinism.get(model.artifact_hash, "C")}
        if placement is not None:
            update |= {"device": placement.device, "gpu_layers": placement.gpu_layers}
            update |= {"reason": f"{placement.reason}; {info.reason}" if info.reason else placement.reason}
        return info.model_copy(update=update)

    def infos(self) -> tuple[EngineInfo, ...]:
        """One entry an engine that is up, and one a model that has none."""
        up = [(residency.model, residency.profile) for residency in self._hosts.up.values()]
        absent = [(model, _THROUGHPUT) for model in self._models.values() if model not in [known for known, _ in up]]
        infos = [self.info(model.name, profile) for model, profile in up + absent if model.name in self._models]
        return (*infos, *(engine.info() for engine in self._attached.values()))

    def readiness(self) -> dict[str, str]:
        """Why the models that were to be loaded at the start are not (yet) usable, by name; empty: they are."""
        reasons: dict[str, str] = {}
        for name in sorted(self._wanted):
            info = self.info(name)
            if info.state is not EngineState.READY:
                reasons[name] = info.reason
        return reasons

    def statistics(self) -> dict[str, Any]:
        """Plain numbers for status and metrics; sizes in bytes."""
        placements = [residency.placement for residency in self._hosts.up.values() if residency.placement]
        return {
            "models": len(self.names),
            "engines": len(self._hosts.up),
            "loads": self._hosts.loads,
            "evictions": self._hosts.evictions,
            "ram_budget": self._hosts.ram,
            "ram_reserved": sum(placement.ram_bytes for placement in placements),
            "gpu_reserved": sum(placement.gpu_bytes for placement in placements),
        }

    # --- inside ------------------------------------------------------------------------------------------------------

    def _model(self, name: str) -> HostedModel:
        model = self._models.get(name)
        if model is None:
            known = ", ".join(self.names[:8]) or "none"
            raise ModelNotFound(f"there is no model {name!r:.200} here", param="model", hint=f"known: {known}")
        return model

    def _info_of_absent(self, model: HostedModel, key: Key, residency: Residency | None) -> EngineInfo:
        failed = self._hosts.failures.get(key)
        held = self._crashes.quarantine(model.artifact_hash, now=trio.current_time())
        if residency is not None:
            state, reason = EngineState.STARTING, f"loading model {model.name}"
        elif held is not None:
            state, reason = EngineState.QUARANTINED, held[1]
        else:
            state, reason = (
                EngineState.STOPPED,
                str(failed[0]) if failed else "not loaded; loads with the first request",
            )
        return EngineInfo(
            model=model.name,
            artifact_hash=model.artifact_hash,
            state=state,
            reason=reason,
            n_ctx=model.n_ctx,
            n_ctx_train=model.header.context_train,
            n_vocab=model.header.vocab_size,
            embedding_size=model.header.n_embd,
            generates=not model.embeddings,
            embeds=model.embeddings,
            determinism=self._hosts.determinism.get(model.artifact_hash, "C"),
        )

    async def _preload(self, models: Sequence[HostedModel]) -> None:
        for model in models:
            if await self._try_to_load(model):
                self._nursery.start_soon(self._load_again, model)

    async def _load_again(self, model: HostedModel) -> None:
        """Loads a model whose engine died while it loaded: a node that is not ready gets no request that would."""
        for delay in chain(_LOAD_AGAIN, repeat(_LOAD_AGAIN[-1])):
            await trio.sleep(delay)
            if self._models.get(model.name) is not model or not await self._try_to_load(model):
                return

    async def _try_to_load(self, model: HostedModel) -> bool:
        """Brings a model up; whether it failed in a way that may pass."""
        try:
            for profile in self._ready:
                if profile is ContextProfile.THROUGHPUT or not model.embeddings:
                    await self._hosts.bring_up(model, profile)
        except GnusError as error:
            self._notify("engine_load_failed", {"model": model.name, "reason": str(error)})
            return isinstance(error, EngineFailed)
        return False


class _Handle:
    """An ``Engine`` whose child is there while it is used."""

    def __init__(self, manager: EngineManager, hosts: Hosts, model: HostedModel, profile: ContextProfile) -> None:
        self._manager = manager
        self._hosts = hosts
        self._model = model
        self._profile = profile

    def info(self) -> EngineInfo:
        return self._manager.info(self._model.name, self._profile)

    @asynccontextmanager
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[AsyncIterator[Started | Delta | Done]]:
        async with self._hosts.lease(self._model, self._profile) as engine, engine.generate(request) as events:
            yield events

    async def classify(self, request: ClassifyRequest) -> ClassifyResult:
        async with self._hosts.lease(self._model, self._profile) as engine:
            return await engine.classify(request)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        async with self._hosts.lease(self._model, self._profile) as engine:
            return await engine.score(request)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        async with self._hosts.lease(self._model, self._profile) as engine:
            return await engine.embed(request)


@asynccontextmanager
async def open_manager(
    models: Iterable[HostedModel] = (),
    *,
    settings: ManagerSettings | None = None,
    devices: DeviceReport | None = None,
    crashes: CrashLedger | None = None,
    notify: Notify = ignore,
    on_determinism: OnDeterminism | None = None,
    open_engine: OpenEngine | None = None,
) -> AsyncGenerator[EngineManager]:
    """The engines of a node; all children are gone when the context is left.

    Args:
        devices: outcome of ``probe_devices``; None: the CPU only.
        crashes: the node's ledger; a new one when None.
        open_engine: how an engine is made; a llama.cpp child when None.
    """
    settings = settings or ManagerSettings()
    ledger = crashes or CrashLedger()

    def open_child(spec: ChildSpec) -> AbstractAsyncContextManager[Engine]:
        return open_llama(spec, limits=settings.limits, crashes=ledger, notify=notify, nice=settings.nice)

    with plain_errors():
        async with trio.open_nursery() as nursery:
            hosts = Hosts(
                nursery,
                open_engine or open_child,
                ram=settings.ram if settings.ram is not None else int(available_ram() * _RAM_SHARE),
                gpus=(devices or DeviceReport()).gpus,
                calibrate=settings.calibrate,
                notify=notify,
                on_determinism=on_determinism,
            )
            manager = EngineManager(nursery, hosts, ready=settings.ready, crashes=ledger, notify=notify)
            for model in models:
                manager.add(model)
            try:
                yield manager
            finally:
                hosts.close()
