"""The engine over a child process: a child without a model stands in for llama.cpp."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from gnusnode.contracts.generation import (
    CapabilityRequest,
    CapabilityVerdict,
    ClassifyRequest,
    ContextProfile,
    EmbedRequest,
    EngineState,
    ScoreRequest,
    Started,
)
from gnusnode.errors import (
    Cancelled,
    ContextTooLong,
    DeadlineExceeded,
    EngineFailed,
    ModelInvalid,
    Overloaded,
    RateLimited,
    Unavailable,
    UnsupportedField,
)
from gnusnode.inference.crashes import CrashLedger, CrashPolicy
from gnusnode.inference.limits import EngineLimits
from gnusnode.inference.process import LlamaEngine, open_llama
from gnusnode.inference.queue import QueueLimits
from tests.fakes.engines import ARTIFACT, FAKE_CHILD, alive, collect, fake_spec, generation, request_id

FAST = EngineLimits(ping_every=0.05, silent_after=30.0, load_timeout=30.0, cancel_wait=5.0)


@pytest.fixture
async def engine() -> AsyncIterator[LlamaEngine]:
    async with open_llama(fake_spec(slots=2), limits=FAST, command=FAKE_CHILD) as engine:
        yield engine


async def test_a_generation_streams_started_deltas_and_done_in_order(engine: LlamaEngine) -> None:
    started, deltas, done = await collect(engine, generation(max_tokens=3))
    assert started.prompt_tokens == (1, 2)
    assert "".join(delta.text for delta in deltas) == "0 1 2 "
    assert done.tokens == (0, 1, 2)


async def test_more_jobs_than_slots_are_all_served(engine: LlamaEngine) -> None:
    finished = []

    async def one(tenant: str) -> None:
        finished.append((await collect(engine, generation(tenant=tenant)))[2].tokens)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for index in range(9):
                nursery.start_soon(one, f"tenant-{index % 3}")
    assert finished == [(0, 1, 2, 3, 4)] * 9
    assert engine.idle


async def test_unary_calls_give_their_results(engine: LlamaEngine) -> None:
    classify = ClassifyRequest(request_id=request_id(), instruction="i", text="t", labels=("a", "b"))
    assert (await engine.classify(classify)).label == "a"
    score = ScoreRequest(request_id=request_id(), prompt_tokens=(1,), answer_tokens=(2,))
    assert (await engine.score(score)).argmax_match == 1.0
    assert (await engine.embed(EmbedRequest(request_id=request_id(), texts=("x",)))).vectors == ((1.0, 0.0),)


async def test_leaving_a_stream_frees_its_slot(engine: LlamaEngine) -> None:
    with trio.fail_after(30):
        for _ in range(6):
            async with engine.generate(generation("forever")) as events:
                assert isinstance(await anext(events), Started)
    assert engine.idle
    assert engine.info().free_slots == 2


async def test_leaving_by_cancellation_frees_the_slot_too(engine: LlamaEngine) -> None:
    with trio.fail_after(30):
        with trio.CancelScope() as scope:
            async with engine.generate(generation("forever")) as events:
                await anext(events)
                scope.cancel()
                await trio.sleep_forever()
    assert engine.idle


async def test_a_request_that_waits_can_be_left(engine: LlamaEngine) -> None:
    with trio.fail_after(30):
        async with engine.generate(generation("forever")), engine.generate(generation("forever")):
            async with engine.generate(generation("count")):
                assert engine.info().queued == 1
            assert engine.info().queued == 0


async def test_the_childs_refusal_of_a_request_keeps_its_class(engine: LlamaEngine) -> None:
    with pytest.raises(ContextTooLong) as caught:
        await collect(engine, generation("too-long"))
    assert caught.value.param == "messages"


async def test_a_deadline_ends_a_stream_and_its_job(engine: LlamaEngine) -> None:
    with trio.fail_after(30), pytest.raises(DeadlineExceeded):
        await collect(engine, generation("forever", deadline_ms=100))
    assert engine.idle


async def test_a_deadline_passes_even_when_nobody_reads(engine: LlamaEngine) -> None:
    with trio.fail_after(30):
        async with engine.generate(generation("forever", deadline_ms=100)):
            while not engine.idle:
                await trio.sleep(0.01)  # nothing to await: the point is that nobody touches the stream


async def test_a_reader_that_is_too_slow_is_cut_off_and_others_go_on(engine: LlamaEngine) -> None:
    with trio.fail_after(30):
        async with engine.generate(generation("fat", max_tokens=100)) as events:
            assert (await collect(engine, generation("count")))[2].tokens == (0, 1, 2, 3, 4)
            with pytest.raises(Cancelled, match="too slow"):
                async for _ in events:
                    pass


async def test_what_waits_for_a_reader_is_bounded(engine: LlamaEngine) -> None:
    limits = EngineLimits(stream_events=10)
    async with (
        open_llama(fake_spec(), limits=limits, command=FAKE_CHILD) as small,
        small.generate(generation("count", max_tokens=1000)) as events,
    ):
        await collect(small, generation("count"))  # behind it in the child: the first one's tokens have all come
        with pytest.raises(Cancelled):
            await anext(events)


async def test_a_request_of_another_profile_is_refused(engine: LlamaEngine) -> None:
    with pytest.raises(UnsupportedField):
        async with engine.generate(generation(profile=ContextProfile.CANONICAL)):
            pass


@pytest.mark.requirement("G-IF-4")
async def test_capabilities_are_denied_by_default(engine: LlamaEngine) -> None:
    _, deltas, _ = await collect(engine, generation("capability"))
    assert deltas[0].text == "False"


@pytest.mark.requirement("G-IF-4")
async def test_the_host_decides_on_a_capability() -> None:
    asked: list[CapabilityRequest] = []

    def grant(request: CapabilityRequest) -> CapabilityVerdict:
        asked.append(request)
        return CapabilityVerdict(name=request.name, granted=True, reason="the manifest grants it")

    async with open_llama(fake_spec(), command=FAKE_CHILD, capabilities=grant) as engine:
        _, deltas, _ = await collect(engine, generation("capability"))
    assert deltas[0].text == "True"
    assert asked == [CapabilityRequest(name="net.fetch", scope="example.org")]


async def test_the_queue_refuses_at_once_what_it_cannot_hold() -> None:
    limits = EngineLimits(queue=QueueLimits(waiting=2, waiting_per_tenant=1))
    async with (
        open_llama(fake_spec(slots=1), limits=limits, command=FAKE_CHILD) as engine,
        engine.generate(generation("forever")),
        engine.generate(generation()),
    ):
        with pytest.raises(RateLimited) as limited:
            await collect(engine, generation())
        assert limited.value.retry_after is not None
        async with engine.generate(generation(tenant="b")):
            with pytest.raises(Overloaded):
                await collect(engine, generation(tenant="c"))


async def test_a_model_that_is_refused_says_so_and_is_not_retried() -> None:
    with pytest.raises(ModelInvalid, match="not a model"):
        async with open_llama(fake_spec("refuse"), limits=FAST, command=FAKE_CHILD):
            pass


@pytest.mark.parametrize("path", ["die", "garbage", "odd"])
async def test_a_child_that_fails_while_loading_is_a_typed_error(path: str) -> None:
    with trio.fail_after(30), pytest.raises(EngineFailed):
        async with open_llama(fake_spec(path), limits=FAST, command=FAKE_CHILD):
            pass


async def test_a_program_that_cannot_be_started_is_a_typed_error() -> None:
    with pytest.raises(EngineFailed, match="could not be started"):
        async with open_llama(fake_spec(), command=["/nonexistent/program"]):
            pass


async def test_an_error_of_the_user_comes_out_as_itself_and_the_child_is_gone() -> None:
    pids: list[int | None] = []

    async def use() -> None:
        async with open_llama(fake_spec(), command=FAKE_CHILD) as engine:
            pids.append(engine.pid)
            raise KeyError("mine")

    with pytest.raises(KeyError):
        await use()
    (pid,) = pids
    assert pid is not None
    assert not alive(pid)


async def test_streams_of_an_engine_that_stops_end_with_a_typed_error() -> None:
    started = trio.Event()
    failures: list[Unavailable] = []

    async def read(engine: LlamaEngine) -> None:
        try:
            async with engine.generate(generation("forever")) as events:
                async for _ in events:
                    started.set()
        except Unavailable as error:
            failures.append(error)

    async with trio.open_nursery() as nursery, open_llama(fake_spec(), command=FAKE_CHILD) as engine:
        nursery.start_soon(read, engine)
        await started.wait()
    assert len(failures) == 1
    assert engine.info().state is EngineState.STOPPED
    with pytest.raises(Unavailable):
        await collect(engine, generation())


async def test_what_the_child_says_of_itself_is_in_info_and_its_pulse_keeps_it_fresh() -> None:
    events: list[str] = []

    def notify(name: str, _fields: dict[str, Any]) -> None:
        events.append(name)

    async with open_llama(fake_spec(n_ctx=777), limits=FAST, command=FAKE_CHILD, notify=notify) as engine:
        with trio.fail_after(30):
            while engine.info().rss_bytes == 0:
                await trio.sleep(0.02)  # a pong is not announced
        info = engine.info()
    assert (info.model, info.artifact_hash, info.state) == ("fake", ARTIFACT, EngineState.READY)
    assert (info.n_ctx, info.build, info.decode_rate) == (777, "fake", 50.0)
    assert events == ["engine_ready"]


async def test_a_quarantined_artifact_is_not_started() -> None:
    ledger = CrashLedger(CrashPolicy(quarantine_after=1))
    ledger.record(ARTIFACT, [], now=trio.current_time(), reason="was killed by SIGSEGV")
    with pytest.raises(EngineFailed, match="quarantine"):
        async with open_llama(fake_spec(), command=FAKE_CHILD, crashes=ledger):
            pass
