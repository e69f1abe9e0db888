"""Which models and experts this node offers: found by the settings, verified, loaded while the API is already up."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from gnusnode.config.paths import Home
from gnusnode.config.settings import RemoteEngine, Settings
from gnusnode.contracts.generation import ContextProfile, EngineInfo
from gnusnode.contracts.plan import ExpertRole
from gnusnode.contracts.services import ExpertCard
from gnusnode.contracts.swarm import MAX_EXPERTS, OfferedArtifact
from gnusnode.errors import ConfigError, GnusError, storage_error
from gnusnode.inference.artifacts import elm as elms
from gnusnode.inference.artifacts.catalogue import load_catalogue
from gnusnode.inference.artifacts.models import LoadableModel, ModelStore
from gnusnode.inference.artifacts.packaged import ensure
from gnusnode.inference.crashes import CrashLedger, CrashPolicy
from gnusnode.inference.devices import DeviceReport, probe_devices
from gnusnode.inference.limits import EngineLimits
from gnusnode.inference.manager import EngineManager, ManagerSettings, open_manager
from gnusnode.inference.queue import QueueLimits
from gnusnode.inference.remote import open_remote
from gnusnode.inference.residency import HostedModel
from gnusnode.observe import events
from gnusnode.observe.health import (
    ENGINE_QUARANTINED,
    ENGINE_STEPPED_DOWN,
    EXPERT_LEFT_OUT,
    NO_MODEL,
    TEMPLATE_UNKNOWN,
)
from gnusnode.observe.observer import Observer
from roles.experts.hosting import Expert, Host

_log = logging.getLogger(__name__)

NONE: Final = "none"
AUTO: Final = "auto"


class Offering:
    """The experts of a node and the engines behind them. Made by ``open_offering``; ``load`` fills it.

    Attributes:
        core, elm: what the two expert services offer; grows while models are loaded.
    """

    def __init__(
        self, settings: Settings, store: ModelStore, manager: EngineManager, observer: Observer, peer_id: str
    ) -> None:
        self._settings = settings
        self._store = store
        self._manager = manager
        self._observer = observer
        self._peer_id = peer_id
        self._pending: dict[str, str] = {}
        self._core_experts: list[Expert] = []
        self._elm_experts: list[Expert] = []
        self.core = Host("core", self._core_experts, manager)
        self.elm = Host("elm", self._elm_experts, manager)
        if settings.models.default != NONE and "core" in settings.node.roles:
            self._pending["model"] = "about to be loaded"

    def cards(self) -> tuple[ExpertCard, ...]:
        """All experts of this node, those that load included."""
        return self.core.cards(self._peer_id) + self.elm.cards(self._peer_id)

    def artifacts(self, serving: Collection[str]) -> tuple[OfferedArtifact, ...]:
        """The model files loaded here, as others hear of them, with the experts of the services ``serving``."""
        by_hash: dict[str, list[ExpertCard]] = {}
        for card in self.cards():
            by_hash.setdefault(card.engine.artifact_hash, []).append(card)
        return tuple(_offered(cards, serving) for cards in by_hash.values())

    def engine_infos(self) -> tuple[EngineInfo, ...]:
        """All engines, canonical ones included."""
        return self._manager.infos()

    def pending(self) -> dict[str, str]:
        """Why what the settings ask for cannot be used yet; empty when it can."""
        engines = {f"model {name}": reason for name, reason in self._manager.readiness().items()}
        return {**self._pending, **engines}

    async def load(self) -> None:
        """Finds, verifies and loads what the settings name. A failure is a health warning and a reason, not the end."""
        models = self._settings.models
        if "core" in self._settings.node.roles:
            if models.default != NONE:
                await self._attempt("model", lambda: self._load_core(models.default, default=True))
            for name in models.load:
                await self._attempt(f"model {name}", lambda name=name: self._load_core(name))
            if models.embedding != NONE:
                await self._attempt("embedding model", lambda: self._load_embedding(models.embedding))
        if "elm" in self._settings.node.roles:
            await self._attempt("elms", self._load_elms)
        self._observer.health.update(NO_MODEL, not any(card.engine.generates for card in self.cards()))

    def attach_remote(self, remote: RemoteEngine, engine: Any) -> None:
        """Offers a server that the operator runs as one more expert of the core."""
        self._manager.attach(remote.name, engine)
        self._core_experts.append(
            Expert(remote.name, engine.info().artifact_hash, ExpertRole.SEMANTIC_CORE, remote.name)
        )

    # --- parts --------------------------------------------------------------------------------------------------------

    async def _attempt(self, part: str, work: Callable[[], Awaitable[None]]) -> None:
        self._pending[part] = "being verified"
        try:
            await work()
        except GnusError as error:
            _log.warning("%s cannot be used: %s", part, error)
            self._pending[part] = str(error)
        else:
            del self._pending[part]

    async def _load_core(self, name: str, *, default: bool = False) -> None:
        if name == AUTO:
            name = load_catalogue().default
        if any(expert.model == name for expert in self._core_experts):
            return  # named as the default and in models.load
        await ensure(self._store, name)
        model = await self._store.resolve(name)
        self._host(model, pinned=default)
        role = ExpertRole.SEMANTIC_CORE
        defaults = model.manifest.traits.defaults
        self._core_experts.append(
            Expert(model.manifest.name, model.manifest.sha256, role, model.manifest.name, defaults=defaults)
        )

    async def _load_embedding(self, name: str) -> None:
        if name == AUTO:
            name = load_catalogue().embedding
        await ensure(self._store, name)
        model = await self._store.resolve(name)
        self._host(model, embeddings=True)
        role = ExpertRole.SEMANTIC_CORE
        self._core_experts.append(Expert(model.manifest.name, model.manifest.sha256, role, model.manifest.name))

    async def _load_elms(self) -> None:
        # Not the node's former keys: a key may have been rotated because somebody else had it.
        trusted = (self._peer_id, *self._settings.models.trusted_packers)
        found = await elms.installed(
            self._store, trusted_signers=trusted, require_signature=self._settings.models.require_signature
        )
        for problem in found.problems:
            _log.warning("an expert is left out: %s", problem)
            self._observer.health.warn(EXPERT_LEFT_OUT, str(problem), about=problem.where or "")
        for one in found.elms:
            self._host(await self._store.resolve(one.model_name))
            self._elm_experts.append(
                Expert(
                    one.expert_id,
                    one.version,
                    ExpertRole(one.manifest.role.value),
                    one.model_name,
                    one.manifest.domains,
                    one.capabilities,
                    one.manifest.defaults,
                )
            )

    def _host(self, model: LoadableModel, *, embeddings: bool = False, pinned: bool = False) -> None:
        inference = self._settings.inference
        hosted = HostedModel(
            name=model.manifest.name,
            path=str(model.path),
            artifact_hash=model.manifest.sha256,
            header=model.header,
            template=model.manifest.traits.template,
            embeddings=embeddings,
            n_ctx=min(inference.n_ctx, model.header.context_train),
            slots=inference.slots,
            canonical_slots=min(inference.slots, inference.canonical_slots),
            batch=inference.batch,
            prefill_per_step=inference.prefill_per_step,
            threads=inference.threads,
            gpu_layers=None if inference.gpu == AUTO else int(inference.gpu),
            pinned=pinned,
            determinism=model.manifest.traits.determinism,
        )
        if hosted.name in self._manager.names:
            return
        self._manager.add(hosted)
        self._manager.preload([hosted.name])
        no_template = not embeddings and model.template is None
        self._observer.health.update(TEMPLATE_UNKNOWN, no_template, hosted.name, about=hosted.name)


async def open_models(home: Home, settings: Settings) -> ModelStore:
    """The node's model files.

    Raises:
        DataError, DiskFull: the model folder cannot be used.
    """
    store = ModelStore(settings.models.path or home.models, reserve=settings.models.reserve_bytes)
    await store.prepare()
    return store


@asynccontextmanager
async def open_offering(
    settings: Settings, store: ModelStore, peer_id: str, observer: Observer
) -> AsyncGenerator[Offering]:
    """An empty ``Offering`` whose engines end with the context.

    Raises:
        ConfigError: a remote server's key file cannot be used.
    """
    inference = settings.inference
    crashes = CrashLedger(
        CrashPolicy(
            quarantine_after=inference.quarantine_crashes,
            window=inference.quarantine_window_seconds,
            quarantine_for=inference.quarantine_seconds,
        )
    )
    wants_gpu = inference.gpu != 0 and settings.models.default != NONE
    devices = await probe_devices() if wants_gpu else DeviceReport()
    async with AsyncExitStack() as stack:
        manager = await stack.enter_async_context(
            open_manager(
                settings=ManagerSettings(
                    ready=tuple(ContextProfile) if inference.canonical_ready else (ContextProfile.THROUGHPUT,),
                    limits=_engine_limits(settings),
                ),
                devices=devices,
                crashes=crashes,
                notify=lambda name, fields: _tell(observer, name, fields),
            )
        )
        offering = Offering(settings, store, manager, observer, peer_id)
        for remote in inference.remote:
            key = await trio.to_thread.run_sync(_read_secret, remote.key_file) if remote.key_file else None
            engine = await stack.enter_async_context(
                open_remote(remote.name, url=remote.url, model=remote.model, key=key)
            )
            offering.attach_remote(remote, engine)
        yield offering


def _offered(cards: list[ExpertCard], serving: Collection[str]) -> OfferedArtifact:
    """One model file and the experts that answer with it. A service that is withheld answers nobody: naming its experts
    would be a lie, which excludes the node.
    """
    engine = cards[0].engine
    return OfferedArtifact(
        name=engine.model,
        artifact_hash=engine.artifact_hash,
        slots=engine.slots,
        free_slots=engine.free_slots,
        queued=engine.queued,
        decode_rate=engine.decode_rate,
        prefill_rate=engine.prefill_rate,
        state=engine.state,
        determinism=engine.determinism,
        n_ctx=engine.n_ctx,
        expert_ids=tuple(card.expert_id for card in cards if card.service in serving)[:MAX_EXPERTS],
    )


def _engine_limits(settings: Settings) -> EngineLimits:
    inference, limits = settings.inference, settings.limits
    return EngineLimits(
        silent_after=inference.watchdog_seconds,
        load_timeout=inference.start_seconds,
        stream_bytes=limits.stream_buffer_bytes,
        queue=QueueLimits(
            waiting=inference.max_queued,
            waiting_per_tenant=inference.max_queued_per_tenant,
            # One slot is never one tenant's to take: whoever comes next begins at once.
            left_to_others=1,
        ),
    )


def _tell(observer: Observer, name: str, fields: dict[str, Any]) -> None:
    """What the engines report, as events and health warnings."""
    model = str(fields["model"])
    health = observer.health
    match name:
        case "engine_ready":
            health.clear(ENGINE_QUARANTINED, about=model)
            observer.bus.publish(events.EngineChanged(model=model, state="ready", cause="start"))
        case "engine_died":
            _log.warning("the engine of %s ended: %s", model, fields["reason"])
            observer.bus.publish(events.EngineChanged(model=model, state="restarting", cause=fields["cause"]))
        case "engine_quarantined":
            health.warn(ENGINE_QUARANTINED, f"{model}: {fields['reason']}", about=model)
            observer.bus.publish(events.EngineChanged(model=model, state="quarantined", cause="crash"))
        case "engine_step_down":
            health.warn(ENGINE_STEPPED_DOWN, f"{model}: {fields}", about=model)
        case "engine_load_failed":
            _log.error("the model %s could not be loaded: %s", model, fields["reason"])
        case _:
            _log.debug("%s %s", name, fields)


def _read_secret(file: Path) -> str:
    """A secret in a file of its own, which nobody else may read."""
    try:
        if file.stat().st_mode & 0o077:
            raise ConfigError("others can read this key file", where=str(file), hint="chmod 600 it")
        return file.read_text("utf-8").strip()
    except OSError as error:
        raise storage_error(error, file, "cannot read the server's key") from error
