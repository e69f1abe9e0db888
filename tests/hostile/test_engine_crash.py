"""An engine child that crashes, hangs, lies or floods hurts its own streams and nothing else."""

from __future__ import annotations

import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from gnusnode.contracts.generation import ClassifyRequest, EngineState, GenerateRequest, Started
from gnusnode.errors import Cancelled, EngineFailed, GnusError, Poisoned
from gnusnode.inference.crashes import CrashLedger, CrashPolicy
from gnusnode.inference.limits import EngineLimits
from gnusnode.inference.process import LlamaEngine, open_llama
from tests.fakes.engines import FAKE_CHILD, alive, collect, fake_spec, generation, request_id

LIMITS = EngineLimits(ping_every=0.05, silent_after=0.5, load_timeout=30.0, cancel_wait=5.0)
PATIENCE = 60.0


async def failure_of(engine: LlamaEngine, request: GenerateRequest) -> GnusError:
    with pytest.raises(GnusError) as caught:
        await collect(engine, request)
    return caught.value


@pytest.mark.parametrize(
    "text",
    [
        "crash:SIGSEGV",
        "crash:SIGABRT",
        "crash:SIGKILL",
        "crash:SIGSTOP",
        "unfinished",
        "orphan",
        "surplus",
        "stranger",
        "twice",
        "early",
        "unbegun",
        "beg",
        "raw:ffffffff",
        "raw:00000004deadbeef",
        "raw:0000000101",
        "raw:00000001a0",
        "raw:0000000fa162657663646f6e656269641901f4",
    ],
    ids=str,
)
async def test_the_stream_ends_with_a_typed_error_and_a_new_child_serves(text: str) -> None:
    with trio.fail_after(PATIENCE):
        async with open_llama(fake_spec(), limits=LIMITS, command=FAKE_CHILD) as engine:
            first = engine.pid
            assert first is not None
            assert isinstance(await failure_of(engine, generation(text)), EngineFailed)
            assert (await collect(engine, generation()))[2].tokens == (0, 1, 2, 3, 4)
            assert engine.pid != first
            assert not alive(first)
            assert engine.info().restarts == 1
            assert engine.info().state is EngineState.READY


@pytest.mark.parametrize("lie", ["step", "started"])
async def test_events_of_a_generation_for_another_kind_of_job_are_a_broken_protocol(lie: str) -> None:
    request = ClassifyRequest(request_id=request_id(), instruction=lie, text="t", labels=("a", "b"))
    honest = request.model_copy(update={"instruction": "i", "request_id": request_id()})
    with trio.fail_after(PATIENCE):
        async with open_llama(fake_spec(), limits=LIMITS, command=FAKE_CHILD) as engine:
            with pytest.raises(EngineFailed, match="protocol"):
                await engine.classify(request)
            assert (await engine.classify(honest)).label == "a"


async def test_a_child_that_chatters_is_not_passed_on_without_end() -> None:
    lines: list[str] = []

    def notify(name: str, fields: dict[str, Any]) -> None:
        if name == "engine_log":
            lines.append(fields["text"])

    with trio.fail_after(PATIENCE):
        async with open_llama(fake_spec(), command=FAKE_CHILD, notify=notify) as engine:
            await collect(engine, generation("chatter"))
    assert lines[0] == "line 0"
    assert len(lines) < 500


async def test_the_error_says_how_the_child_died() -> None:
    async with open_llama(fake_spec(), limits=LIMITS, command=FAKE_CHILD) as engine:
        error = await failure_of(engine, generation("crash:SIGSEGV"))
    assert "SIGSEGV" in error.what


async def test_a_child_that_is_killed_from_outside_takes_all_its_streams_and_no_waiting_job() -> None:
    outcomes: list[object] = []
    running = 0
    both_run = trio.Event()

    async def stream(engine: LlamaEngine) -> None:
        nonlocal running
        try:
            async with engine.generate(generation("forever")) as events:
                async for event in events:
                    running += not isinstance(event, Started)
                    if running == 2:
                        both_run.set()
        except EngineFailed as error:
            outcomes.append(type(error))

    async def wait(engine: LlamaEngine) -> None:
        outcomes.append((await collect(engine, generation("count")))[2].tokens)

    with trio.fail_after(PATIENCE):
        async with (
            open_llama(fake_spec(slots=2), limits=LIMITS, command=FAKE_CHILD) as engine,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(stream, engine)
            nursery.start_soon(stream, engine)
            await both_run.wait()
            nursery.start_soon(wait, engine)
            await trio.testing.wait_all_tasks_blocked()
            assert engine.info().queued == 1
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGSEGV)
    assert outcomes == [EngineFailed, EngineFailed, (0, 1, 2, 3, 4)]


async def test_a_job_that_had_not_begun_survives_one_crash(tmp_path: Path) -> None:
    flag = tmp_path / "crashed"
    with trio.fail_after(PATIENCE):
        async with open_llama(fake_spec(), limits=LIMITS, command=FAKE_CHILD) as engine:
            assert (await collect(engine, generation(f"crash-early:{flag}")))[2].tokens == (0, 1, 2, 3, 4)
            assert engine.info().restarts == 1


async def test_a_request_that_kills_twice_is_poisoned_everywhere() -> None:
    ledger = CrashLedger()
    request = generation("crash-early")
    with trio.fail_after(PATIENCE):
        async with open_llama(fake_spec(), limits=LIMITS, command=FAKE_CHILD, crashes=ledger) as engine:
            assert isinstance(await failure_of(engine, request), Poisoned)
            assert engine.info().restarts <= 2
        async with open_llama(fake_spec("other.gguf"), limits=LIMITS, command=FAKE_CHILD, crashes=ledger) as other:
            assert isinstance(await failure_of(other, request), Poisoned)
            assert (await collect(other, generation()))[2].tokens == (0, 1, 2, 3, 4)
            assert other.info().restarts == 0


async def test_an_artifact_that_keeps_crashing_is_quarantined_until_an_operator_releases_it() -> None:
    ledger = CrashLedger(CrashPolicy(quarantine_after=2))
    limits = EngineLimits(ping_every=0.05, restart_delays=(0.0,))
    quarantined = trio.Event()

    def notify(name: str, _fields: dict[str, Any]) -> None:
        if name == "engine_quarantined":
            quarantined.set()

    with trio.fail_after(PATIENCE):
        async with open_llama(fake_spec(), limits=limits, command=FAKE_CHILD, crashes=ledger, notify=notify) as engine:
            for _ in range(2):
                assert isinstance(await failure_of(engine, generation("crash:SIGSEGV")), EngineFailed)
            await quarantined.wait()
            assert engine.info().state is EngineState.QUARANTINED
            assert "2 times" in engine.info().reason
            assert "quarantine" in (await failure_of(engine, generation())).what
            assert engine.pid is None
            engine.end_quarantine()
            while engine.info().state is EngineState.QUARANTINED:
                await trio.sleep(0)
            assert (await collect(engine, generation()))[2].tokens == (0, 1, 2, 3, 4)


async def test_fifty_streams_that_nobody_reads_hold_up_nobody_and_little_memory() -> None:
    limits = EngineLimits(ping_every=0.05, stream_bytes=20_000)
    with trio.fail_after(PATIENCE):
        async with (
            open_llama(fake_spec(slots=64), limits=limits, command=FAKE_CHILD) as engine,
            AsyncExitStack() as stack,
        ):
            unread = [
                await stack.enter_async_context(engine.generate(generation("fat", max_tokens=200, tenant=f"{number}")))
                for number in range(50)
            ]
            assert (await collect(engine, generation("count")))[2].tokens == (0, 1, 2, 3, 4)
            for events in unread:
                with pytest.raises(Cancelled):
                    await anext(events)
            assert engine.info().restarts == 0


async def test_a_child_that_ignores_a_cancel_is_killed() -> None:
    with trio.fail_after(PATIENCE):
        async with open_llama(fake_spec(), limits=LIMITS, command=FAKE_CHILD) as engine:
            first = engine.pid
            async with engine.generate(generation("deaf")) as events:
                await anext(events)
            assert (await collect(engine, generation()))[2].tokens == (0, 1, 2, 3, 4)
            assert engine.pid != first


async def test_a_child_that_grows_beyond_its_bound_is_killed_and_replaced() -> None:
    causes: list[str] = []

    def notify(name: str, fields: dict[str, Any]) -> None:
        if name == "engine_died":
            causes.append(fields["cause"])

    spec = fake_spec(max_memory=2_000_000)
    with trio.fail_after(PATIENCE):
        async with open_llama(spec, limits=LIMITS, command=FAKE_CHILD, notify=notify) as engine:
            assert "memory" in (await failure_of(engine, generation("grow:3000000"))).what
            assert (await collect(engine, generation("count")))[2].tokens == (0, 1, 2, 3, 4)
            assert engine.info().restarts == 1
    assert causes == ["out-of-memory"]


async def test_one_engine_crashes_and_another_does_not_notice() -> None:
    with trio.fail_after(PATIENCE):
        async with (
            open_llama(fake_spec(), limits=LIMITS, command=FAKE_CHILD) as bad,
            open_llama(fake_spec("b.gguf"), limits=LIMITS, command=FAKE_CHILD) as good,
        ):
            async with good.generate(generation("forever")) as events:
                await anext(events)
                await failure_of(bad, generation("crash:SIGSEGV"))
                await anext(events)
            assert good.info().restarts == 0


async def test_a_child_that_never_gets_ready_is_given_up_and_leaves_nothing() -> None:
    limits = EngineLimits(load_timeout=0.5)
    before = _children()
    with trio.fail_after(PATIENCE), pytest.raises(EngineFailed, match="within"):
        async with open_llama(fake_spec("never-ready"), limits=limits, command=FAKE_CHILD):
            pass
    assert _children() == before


async def test_cancelling_while_a_model_loads_leaves_no_process() -> None:
    before = _children()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:

            async def load() -> None:
                async with open_llama(fake_spec("never-ready"), command=FAKE_CHILD):
                    pass

            nursery.start_soon(load)
            while _children() == before:
                await trio.sleep(0.01)  # a process appears without an event
            nursery.cancel_scope.cancel()
    assert _children() == before


async def test_a_stopped_child_is_gone_when_the_engine_is_closed() -> None:
    with trio.fail_after(PATIENCE):
        async with open_llama(fake_spec(), command=FAKE_CHILD) as engine:
            pid = engine.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
    assert not alive(pid)


def _children() -> set[str]:
    """Processes that any thread of this one has started and not reaped."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}
