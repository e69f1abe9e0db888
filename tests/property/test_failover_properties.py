"""Whatever fails, and when: the caller gets the whole text of one answer or a typed error, never a patched-up one."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import event, given, settings
from hypothesis import strategies as st

from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.services import ChoiceDelta, ChoiceDone, PlanMade, TaskDone, TaskRequest
from gnusnode.contracts.swarm import Tier
from gnusnode.contracts.verify import verify
from gnusnode.errors import Unavailable
from gnusnode.inference.artifacts.modelrecord import GenerationDefaults
from roles.router.facts import PeerFacts
from tests.fakes.workers import ByteEngine, Fault, Worker, net
from tests.fakes.world import Event, of_kind, task, text_of

SAYS = "Grüße aus Ōsaka 🦊! END or not EN—D. Schluß."

faults = st.one_of(
    st.none(),
    st.builds(
        Fault,
        before=st.sampled_from(["claim", "word", "word", "word", "done"]),
        after=st.integers(0, 3) | st.integers(0, 90),
        how=st.sampled_from(["gone", "silent", "crash"]),
    ),
)
workers = st.builds(
    lambda fault, temperature, determinism, artifact: Worker(
        ByteEngine(says=SAYS, determinism=determinism),
        fault,
        artifact=artifact,
        defaults=GenerationDefaults(temperature=temperature),
    ),
    faults,
    st.sampled_from([0.0, 0.0, 0.7]),
    st.sampled_from("AAABC"),
    st.sampled_from(["one.gguf", "one.gguf", "one.gguf", "two.gguf"]),
)


@st.composite
def requests(draw: st.DrawFn) -> TaskRequest:
    return task(
        "hello",
        choices=draw(st.integers(1, 3)),
        max_tokens=draw(st.sampled_from([1, 7, 13, 30, 200, 200])),
        stop=draw(st.sampled_from([(), (), ("END",), ("🦊!", "END"), ("not EN—D", "ß.")])),
        top_logprobs=draw(st.none() | st.just(0)),
        sampling={"seed": draw(st.integers(1, 9)), "temperature": 0.0},
        policy=PolicyEnvelope(allow_resume=draw(st.sampled_from([True, True, True, False])), max_wall_ms=600_000),
    ).model_copy(update={"open_sampling": draw(st.sampled_from([(), ("temperature",)]))})


async def whole(request: TaskRequest, worker: Worker) -> list[Event]:
    """What a sound worker like this one says."""
    alone = Worker(worker.engine, artifact=worker.artifact, defaults=worker.defaults)
    async with net([alone]) as swarm:
        seen, error = await swarm.ask(request)
    assert error is None
    return seen


def tokens_of(seen: list[Event], index: int) -> tuple[int, ...]:
    deltas = [item.delta for item in seen if isinstance(item, ChoiceDelta) and item.index == index]
    return tuple(token for delta in deltas for token in delta.tokens)


def logged(seen: list[Event], index: int) -> tuple[int, ...]:
    deltas = [item.delta for item in seen if isinstance(item, ChoiceDelta) and item.index == index]
    return tuple(one.token for delta in deltas for one in delta.logprobs)


def choice(seen: list[Event], index: int) -> tuple[Any, ...]:
    ends = [(item.finish_reason, item.usage) for item in seen if isinstance(item, ChoiceDone) and item.index == index]
    return text_of(seen, index), tokens_of(seen, index), logged(seen, index), ends


async def check(request: TaskRequest, swarm_workers: list[Worker]) -> None:
    async with net(swarm_workers) as swarm:
        seen, error = await swarm.ask(request)
        view = await swarm.log.get(request.generation.request_id)
        for record in () if view is None else (view.plan, *view.former_plans, *view.outputs):
            assert verify(record, swarm.node.now_ms(), swarm.roster) is Outcome.OK
    plans = of_kind(seen, PlanMade)
    assert len({made.plan.digest for made in plans}) <= 3
    # Whose sampling it is, is settled by who said the first word: all choices are of one piece.
    sound = [await whole(request, worker) for worker in swarm_workers]
    indices = range(request.choices)
    if error is None:
        assert any(all(choice(seen, index) == choice(one, index) for index in indices) for one in sound)
        [end] = of_kind(seen, TaskDone)
        assert end.usage.completion_tokens == sum(len(tokens_of(seen, index)) for index in indices)
        assert end.plan_digests == tuple(made.plan.digest for made in plans)
        assert end.resumed or not any(done.resumed for done in of_kind(seen, ChoiceDone))
        event("resumed" if end.resumed else "rerouted" if end.rerouted else "answered at once")
        return
    event(f"failed with {error.code} {'after' if of_kind(seen, ChoiceDelta) else 'before'} the first word")
    assert isinstance(error, Unavailable)
    assert not of_kind(seen, TaskDone)
    assert any(
        all(tokens_of(one, index)[: len(tokens_of(seen, index))] == tokens_of(seen, index) for index in indices)
        and all(text_of(one, index).startswith(text_of(seen, index)) for index in indices)
        for one in sound
    )


@pytest.mark.requirement("G-RL-1")
@settings(max_examples=150)
@given(requests(), st.lists(workers, min_size=1, max_size=4))
def test_the_text_is_whole_and_of_one_piece_or_the_error_is_typed(request: TaskRequest, swarm: list[Worker]):
    trio.run(check, request, swarm, clock=trio.testing.MockClock(autojump_threshold=0))


@settings(max_examples=60)
@given(requests(), st.integers(0, 200), st.sampled_from(["gone", "silent", "crash"]))
def test_with_a_second_holder_a_broken_answer_is_always_finished(request: TaskRequest, after: int, how: Any):
    async def run() -> None:
        broken = Worker(ByteEngine(says=SAYS), Fault("word", after, how), facts=PeerFacts(Tier.C, reputation=0.9))
        second = Worker(ByteEngine(says=SAYS), defaults=GenerationDefaults(temperature=0.3))
        async with net([broken, second]) as swarm:
            seen, error = await swarm.ask(allowed)
        assert error is None
        # Before the first word the second expert answers in its own way, after it in that of the first.
        expected = await whole(allowed, broken if after else second)
        for index in range(allowed.choices):
            assert choice(seen, index) == choice(expected, index)
        [end] = of_kind(seen, TaskDone)
        words = sum(len(tokens_of(expected, index)) for index in range(allowed.choices))
        assert (end.rerouted, end.resumed) == (int(after < words), 0 < after < words)

    allowed = request.model_copy(update={"policy": PolicyEnvelope(max_wall_ms=600_000)})
    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
