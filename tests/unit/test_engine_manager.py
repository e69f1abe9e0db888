"""All models of a node: on demand, within memory, and never put out while in use."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from gnusnode.contracts.generation import ContextProfile, EmbedRequest, EngineInfo, EngineState
from gnusnode.errors import Conflict, EngineFailed, GnusError, ModelInvalid, ModelNotFound, Overloaded, Unavailable
from gnusnode.inference.crashes import CrashLedger, CrashPolicy
from gnusnode.inference.devices import DeviceReport
from gnusnode.inference.engine import Engine
from gnusnode.inference.frames import ChildSpec
from gnusnode.inference.limits import EngineLimits
from gnusnode.inference.manager import EngineManager, ManagerSettings, open_manager
from gnusnode.inference.process import open_llama
from gnusnode.inference.residency import HostedModel
from gnusnode.inference.scripted import Rule, ScriptedEngine
from tests.fakes.engines import FAKE_CHILD, MIB, alive, collect, generation, gpu, header, request_id

PATIENCE = 30.0
THROUGHPUT, CANONICAL = ContextProfile.THROUGHPUT, ContextProfile.CANONICAL


def model(name: str = "m", *, mib: int = 1000, **fields: Any) -> HostedModel:
    """A model whose weights take ``mib`` MiB, all in its layers."""
    digest = f"sha256:{sum(name.encode()) * mib:064x}"
    sizes = header(layers=10, layer_mib=mib // 10, other_mib=0, kv_heads=1, head_dim=1)
    return HostedModel(name=name, path=f"/models/{name}.gguf", artifact_hash=digest, header=sizes, **fields)


class Opener:
    """Makes scripted engines and remembers what it was asked for."""

    def __init__(self) -> None:
        self.specs: list[ChildSpec] = []
        self.up: list[str] = []
        self.refuse: dict[str, GnusError] = {}
        self.most_layers: int | None = None
        self.gate: trio.Event | None = None
        self.rules: tuple[Rule, ...] = ()

    def __call__(self, spec: ChildSpec) -> AbstractAsyncContextManager[Engine]:
        return self._open(spec)

    @asynccontextmanager
    async def _open(self, spec: ChildSpec) -> AsyncGenerator[Engine]:
        self.specs.append(spec)
        if self.gate is not None:
            await self.gate.wait()
        if spec.model_name in self.refuse:
            raise self.refuse[spec.model_name]
        if self.most_layers is not None and spec.gpu_layers > self.most_layers:
            raise EngineFailed("out of device memory")
        self.up.append(spec.model_name)
        try:
            yield ScriptedEngine(spec.model_name, self.rules, fixture=True)
        finally:
            self.up.remove(spec.model_name)


@pytest.fixture
def opener() -> Opener:
    return Opener()


def manager_of(
    opener: Opener, *models: HostedModel, ram: int = 100_000, gpus: tuple[int, ...] = (), **options: Any
) -> AbstractAsyncContextManager[EngineManager]:
    devices = DeviceReport(devices=tuple(gpu(free, f"GPU{index}") for index, free in enumerate(gpus)), offload=True)
    settings = ManagerSettings(ram=ram * MIB)
    return open_manager(models, settings=settings, devices=devices, open_engine=opener, **options)


async def test_a_model_loads_with_the_first_request_and_only_once(opener: Opener) -> None:
    async with manager_of(opener, model()) as manager:
        assert manager.info("m").state is EngineState.STOPPED
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(manager.engine, "m")
        assert len(opener.specs) == 1
        assert manager.info("m").state is EngineState.READY
        assert manager.infos() == (manager.info("m"),)
    assert opener.up == []


async def test_the_canonical_profile_has_slots_of_its_own_number(opener: Opener) -> None:
    async with manager_of(opener, model(slots=8, canonical_slots=3)) as manager:
        await manager.engine("m")
        await manager.engine("m", CANONICAL)
    assert [(spec.profile, spec.slots) for spec in opener.specs] == [(THROUGHPUT, 8), (CANONICAL, 3)]
    assert model(n_ctx=100, slots=8, canonical_slots=3).cells(CANONICAL) == 300


async def test_models_are_loaded_at_start_in_the_profiles_that_are_to_be_ready(opener: Opener) -> None:
    settings = ManagerSettings(ram=10**12, calibrate=False, ready=(THROUGHPUT, CANONICAL))
    models = (model("chat"), model("vectors", embeddings=True))
    async with open_manager(models, settings=settings, open_engine=opener) as manager:
        manager.preload(["chat", "vectors"])
        with trio.fail_after(PATIENCE):
            while len(opener.up) < 3:
                await trio.testing.wait_all_tasks_blocked()
        assert [(spec.model_name, spec.profile) for spec in opener.specs] == [
            ("chat", THROUGHPUT), ("chat", CANONICAL), ("vectors", THROUGHPUT),
        ]  # fmt: skip


async def test_an_unknown_model_is_named_with_those_that_exist(opener: Opener) -> None:
    async with manager_of(opener, model()) as manager:
        with pytest.raises(ModelNotFound, match="known: m"):
            await manager.engine("other")
        with pytest.raises(Conflict):
            manager.add(model())


async def test_each_profile_has_a_child_of_its_own(opener: Opener) -> None:
    async with manager_of(opener, model()) as manager:
        await manager.engine("m", THROUGHPUT)
        await manager.engine("m", CANONICAL)
        assert len(manager.infos()) == 2
    assert [spec.profile for spec in opener.specs] == [THROUGHPUT, CANONICAL]


async def test_two_names_of_one_artifact_share_a_child_unless_their_templates_differ(opener: Opener) -> None:
    first = model("a")
    same = HostedModel(name="b", path=first.path, artifact_hash=first.artifact_hash, header=first.header)
    other = HostedModel(
        name="c", path=first.path, artifact_hash=first.artifact_hash, header=first.header, template="{{ x }}"
    )
    async with manager_of(opener, first, same, other) as manager:
        for name in "abc":
            await manager.engine(name)
        assert manager.info("b").model == "b"
    assert [spec.template for spec in opener.specs] == [None, "{{ x }}"]


async def test_the_model_that_was_idle_for_longest_makes_room(
    opener: Opener, autojump_clock: trio.testing.MockClock
) -> None:
    async with manager_of(opener, model("a"), model("b"), model("c"), ram=2500) as manager:
        for name in ("a", "b"):
            await collect(await manager.engine(name), generation())
            await trio.sleep(1)
        await collect(await manager.engine("a"), generation())
        await manager.engine("c")
        assert sorted(opener.up) == ["a", "c"]
        assert manager.statistics()["evictions"] == 1
        assert manager.statistics()["ram_reserved"] <= 2500 * MIB


async def test_a_handle_brings_its_model_back(opener: Opener) -> None:
    async with manager_of(opener, model("a"), model("b"), ram=1500) as manager:
        a, b = await manager.engine("a"), await manager.engine("b")
        assert opener.up == ["b"]
        await collect(a, generation())
        assert opener.up == ["a"]
        await b.embed(EmbedRequest(request_id=request_id(), texts=("x",)))
        assert opener.up == ["b"]


async def test_a_model_in_use_is_not_put_out(opener: Opener) -> None:
    async with (
        manager_of(opener, model("a"), model("b"), ram=1500) as manager,
        (await manager.engine("a")).generate(generation()) as events,
    ):
        await anext(events)
        with pytest.raises(Overloaded) as caught:
            await manager.engine("b")
        assert caught.value.retry_after is not None
        assert opener.up == ["a"]


async def test_a_pinned_model_is_not_put_out(opener: Opener) -> None:
    async with manager_of(opener, model("a", pinned=True), model("b"), ram=1500) as manager:
        await manager.engine("a")
        with pytest.raises(Overloaded):
            await manager.engine("b")


async def test_a_model_larger_than_the_machine_is_refused_with_the_figures(opener: Opener) -> None:
    async with manager_of(opener, model(mib=4000), ram=1000) as manager:
        with pytest.raises(EngineFailed, match=r"3\.9|4\.0"):
            await manager.engine("m")
    assert opener.specs == []


async def test_layers_go_to_the_gpu_and_the_reason_is_shown(opener: Opener) -> None:
    async with manager_of(opener, model(), gpus=(8000,)) as manager:
        await manager.engine("m")
        info = manager.info("m")
    assert opener.specs[0].gpu_layers == info.gpu_layers == 11
    assert info.device == "GPU0"
    assert "all 10 layers" in info.reason


async def test_a_load_that_fails_on_the_gpu_steps_down(opener: Opener) -> None:
    opener.most_layers = 3
    async with manager_of(opener, model(), gpus=(8000,)) as manager:
        await manager.engine("m")
        assert [spec.gpu_layers for spec in opener.specs] == [11, 5, 2]
        assert "2 of 10 layers" in manager.info("m").reason


async def test_an_idle_model_on_the_gpu_makes_room_for_another(opener: Opener) -> None:
    async with manager_of(opener, model("a"), model("b"), gpus=(2000,)) as manager:
        await manager.engine("a")
        await manager.engine("b")
        assert opener.up == ["b"]
        assert opener.specs[1].gpu_layers == 11


async def test_beside_a_busy_gpu_a_model_runs_with_what_is_left(opener: Opener) -> None:
    async with (
        manager_of(opener, model("a"), model("b"), gpus=(2000,)) as manager,
        (await manager.engine("a")).generate(generation()) as events,
    ):
        await anext(events)
        await manager.engine("b")
    assert opener.specs[1].gpu_layers == 4  # 1000 MiB are left, of which 512 stay free


async def test_a_broken_model_fails_all_who_wait_and_is_not_tried_again_at_once(
    opener: Opener, autojump_clock: trio.testing.MockClock
) -> None:
    opener.refuse["m"] = ModelInvalid("tensors are corrupt")
    failures = []

    async def use(manager: EngineManager) -> None:
        with pytest.raises(ModelInvalid, match="corrupt") as caught:
            await manager.engine("m")
        failures.append(caught.value)

    async with manager_of(opener, model()) as manager:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(use, manager)
        await use(manager)
        assert len(failures) == 4
        assert len(opener.specs) == 1
        assert "corrupt" in manager.info("m").reason
        del opener.refuse["m"]
        await trio.sleep(10)
        await manager.engine("m")


async def test_readiness_says_what_loads_and_what_failed(opener: Opener) -> None:
    opener.gate = trio.Event()
    opener.refuse["b"] = ModelInvalid("tensors are corrupt")
    async with manager_of(opener, model("a"), model("b")) as manager:
        assert manager.readiness() == {}
        manager.preload(["a", "b"])
        await trio.testing.wait_all_tasks_blocked()
        assert manager.readiness()["a"] == "loading model a"
        opener.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert list(manager.readiness()) == ["b"]
        assert "corrupt" in manager.readiness()["b"]


async def test_a_caller_that_leaves_does_not_stop_the_load_for_others(opener: Opener) -> None:
    opener.gate = trio.Event()
    async with manager_of(opener, model()) as manager:
        with trio.CancelScope() as impatient:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(manager.engine, "m")
                await trio.testing.wait_all_tasks_blocked()
                impatient.cancel()
        opener.gate.set()
        await manager.engine("m")
    assert len(opener.specs) == 1


async def test_unloading_waits_until_the_memory_is_free(opener: Opener) -> None:
    async with manager_of(opener, model()) as manager:
        await manager.engine("m")
        await manager.unload("m")
        assert opener.up == []
        assert manager.statistics()["ram_reserved"] == 0
        await manager.remove("m")
        assert manager.names == ()


async def test_attached_engines_are_served_as_they_are(opener: Opener) -> None:
    async with manager_of(opener) as manager:
        engine = ScriptedEngine("far", fixture=True)
        manager.attach("far", engine)
        assert await manager.engine("far") is engine
        assert manager.info("far") == engine.info()
        await manager.remove("far")
        assert manager.names == ()


async def test_the_determinism_class_is_found_once_at_the_first_canonical_load(opener: Opener) -> None:
    found: list[tuple[str, str, str]] = []
    one = model()
    async with manager_of(opener, one, on_determinism=lambda *args: found.append(args)) as manager:
        await manager.engine("m", THROUGHPUT)
        assert manager.info("m").determinism == "C"
        await manager.engine("m", CANONICAL)
        assert manager.info("m").determinism == "A"
        await manager.unload("m")
        await manager.engine("m", CANONICAL)
    assert found == [(one.artifact_hash, "scripted", "A")]


async def test_an_artifact_whose_answers_differ_in_a_batch_is_of_class_b(opener: Opener) -> None:
    opener.rules = (Rule(match="", answer="one"),)

    class Fickle(ScriptedEngine):
        calls = 0

        def _rule(self, text: str) -> Rule:
            self.calls += 1
            return Rule(answer=f"answer {self.calls}")

    @asynccontextmanager
    async def fickle(spec: ChildSpec) -> AsyncGenerator[Engine]:
        yield Fickle(spec.model_name, fixture=True)

    async with open_manager([model()], settings=ManagerSettings(ram=10**12), open_engine=fickle) as manager:
        await manager.engine("m", CANONICAL)
        assert manager.info("m").determinism == "B"


async def test_after_the_end_a_handle_refuses(opener: Opener) -> None:
    async with manager_of(opener, model()) as manager:
        engine = await manager.engine("m")
    with pytest.raises(Unavailable):
        await collect(engine, generation())


async def test_an_operator_releases_a_quarantined_model() -> None:
    ledger = CrashLedger(CrashPolicy(quarantine_after=1))
    limits = EngineLimits(ping_every=0.05, restart_delays=(0.0,))
    quarantined = trio.Event()

    def notify(name: str, _fields: dict[str, Any]) -> None:
        if name == "engine_quarantined":
            quarantined.set()

    def open_fake(spec: ChildSpec) -> AbstractAsyncContextManager[Engine]:
        return open_llama(spec, limits=limits, crashes=ledger, command=FAKE_CHILD, notify=notify)

    def state() -> EngineInfo:
        return manager.info("m")

    with trio.fail_after(PATIENCE):
        async with open_manager([model()], crashes=ledger, open_engine=open_fake) as manager:
            engine = await manager.engine("m")
            with pytest.raises(EngineFailed):
                await collect(engine, generation("crash:SIGSEGV"))
            await quarantined.wait()
            assert state().state is EngineState.QUARANTINED
            manager.release("m")
            while state().state is EngineState.QUARANTINED:
                await trio.sleep(0)
            assert (await collect(engine, generation()))[2].tokens == (0, 1, 2, 3, 4)


async def test_closing_the_manager_leaves_no_child() -> None:
    pids: list[int] = []

    @asynccontextmanager
    async def open_fake(spec: ChildSpec) -> AsyncGenerator[Engine]:
        async with open_llama(spec, command=FAKE_CHILD) as engine:
            assert engine.pid is not None
            pids.append(engine.pid)
            yield engine

    with trio.fail_after(PATIENCE):
        async with open_manager([model("a"), model("b")], open_engine=open_fake) as manager:
            await manager.engine("a")
            await manager.engine("b")
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)
