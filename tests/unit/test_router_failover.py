"""Failover over several nodes: who takes over when, what the caller sees of it, and what is kept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest
import trio
import trio.testing

from gnusnode.contracts.generation import Delta
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.plan import PrivacyMode
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.services import ChoiceDelta, ChoiceDone, ExpertCard, PlanMade, TaskDone
from gnusnode.contracts.swarm import Tier
from gnusnode.contracts.verify import verify
from gnusnode.errors import (
    EngineFailed,
    Forbidden,
    GnusError,
    InternalError,
    ModelNotFound,
    NoExpert,
    Overloaded,
    PeerUnreachable,
    Poisoned,
    RecordRefused,
)
from gnusnode.inference.artifacts.modelrecord import GenerationDefaults
from gnusnode.inference.scripted import Rule, ScriptedEngine
from roles.router.facts import PeerFacts
from tests.fakes.workers import ByteEngine, Fault, Worker, net
from tests.fakes.world import Event, FakeEngine, of_kind, task, text_of

STORY = " ".join(f"word{number}" for number in range(60))
OPEN = PolicyEnvelope(privacy_mode=PrivacyMode.PLAINTEXT)


def scripted(fault: Fault | None = None, reputation: float = 0.8, **rule: Any) -> Worker:
    engine = ScriptedEngine("story", [Rule(answer=STORY, **rule)], fixture=True)
    return Worker(engine, fault, facts=PeerFacts(Tier.C, reputation))


def nodes(seen: Sequence[Event]) -> list[str | None]:
    return [made.node for made in of_kind(seen, PlanMade)]


# --- taking over ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G-RL-1", "G-FL-1")
async def test_a_worker_that_is_killed_at_token_20_is_replaced_and_nothing_shows_but_the_flag():
    first, second = scripted(Fault("word", 20), 0.9), scripted()
    async with net([first, second]) as swarm:
        request = task()
        seen, error = await swarm.ask(request)
        view = await swarm.log.get(request.generation.request_id)
        outcomes = [] if view is None else [
            verify(record, swarm.node.now_ms(), swarm.roster) for record in (view.plan, *view.former_plans)
        ]  # fmt: skip
    assert error is None
    assert text_of(seen) == STORY
    assert sum(len(item.delta.tokens) for item in of_kind(seen, ChoiceDelta)) == 60
    [done], [end] = of_kind(seen, ChoiceDone), of_kind(seen, TaskDone)
    assert (done.resumed, end.resumed, end.rerouted) == (True, True, 1)
    assert done.output.answer == " " + " ".join(STORY.split(" ")[20:]), "the second signs what it made, and no more"
    assert done.output.signer == end.node == second.peer
    assert end.usage.completion_tokens == done.usage.completion_tokens == 61, "with its end of turn"
    assert nodes(seen) == [first.peer, second.peer]
    assert of_kind(seen, PlanMade)[1].reasons[-1] == "resumed from small after 20 tokens: peer_unreachable"
    assert view is not None
    assert end.plan_digests == tuple(plan.digest for plan in (*view.former_plans, view.plan))
    assert outcomes == [Outcome.OK] * 2
    assert view.outputs == (done.output,)


async def test_of_two_choices_the_finished_one_is_kept_and_only_the_other_is_made_again():
    first, second = Worker(ByteEngine(), Fault("done", 1), facts=PeerFacts(Tier.C, 0.9)), Worker(ByteEngine())
    async with net([first, second]) as swarm:
        seen, error = await swarm.ask(task(choices=2))
    assert error is None
    assert sorted(done.index for done in of_kind(seen, ChoiceDone)) == [0, 1]
    assert [request.sampling.seed for request in second.engine.requests] == [
        1 + next(done.index for done in of_kind(seen, ChoiceDone) if done.output.signer == second.peer)
    ]
    assert {done.output.signer for done in of_kind(seen, ChoiceDone)} == {first.peer, second.peer}
    assert [text_of(seen, index)[4:] for index in (0, 1)] == [f": {FakeEngine.says}"] * 2


async def test_a_worker_that_goes_after_the_last_choice_has_answered():
    async with net([scripted(Fault("done", 1)), scripted()]) as swarm:
        seen, error = await swarm.ask(task())
    assert error is None
    assert len(of_kind(seen, PlanMade)) == 1


async def test_who_goes_on_samples_as_the_first_did_not_as_it_would_itself():
    first = Worker(ByteEngine(), Fault("word", 9), facts=PeerFacts(Tier.C, 0.9))
    first.defaults = GenerationDefaults(temperature=0.9, top_k=7)
    second = Worker(ByteEngine(), defaults=GenerationDefaults(temperature=0.1))
    request = task().model_copy(update={"open_sampling": ("temperature", "top_k")})
    async with net([first, second]) as swarm:
        _, error = await swarm.ask(request)
    assert error is None
    [asked], [again] = first.engine.requests, second.engine.requests
    assert asked.sampling == again.sampling
    assert (again.sampling.temperature, again.sampling.top_k, len(again.resume_tokens)) == (0.9, 7, 9)


@pytest.mark.parametrize(
    ("second", "policy", "why"),
    [
        (None, OPEN, "holds the same model file"),
        ({"artifact": "other.gguf"}, OPEN, "holds the same model file"),
        ({}, OPEN.model_copy(update={"allow_resume": False}), "the policy forbids it"),
        ({"engine": ByteEngine(determinism="C")}, OPEN, "holds the same model file"),
    ],
)
async def test_where_nobody_may_go_on_the_stream_ends_with_the_error_and_says_why(
    second: dict[str, Any] | None, policy: PolicyEnvelope, why: str
):
    first = Worker(ByteEngine(), Fault("word", 5), facts=PeerFacts(Tier.C, 0.9))
    others = [] if second is None else [Worker(**{"engine": ByteEngine(), **second})]
    async with net([first, *others]) as swarm:
        seen, error = await swarm.ask(task(policy=policy))
    assert isinstance(error, PeerUnreachable)
    assert error.hint is not None
    assert why in error.hint
    assert len(of_kind(seen, ChoiceDelta)) == 5
    assert not of_kind(seen, ChoiceDone)
    assert [worker.drafts for worker in others] == [0] * len(others)


async def test_an_engine_that_never_says_the_same_twice_is_not_resumed_but_replaced_before_its_first_word():
    for after, finished in ((0, True), (3, False)):
        first = Worker(ByteEngine(determinism="C"), Fault("word", after), facts=PeerFacts(Tier.C, 0.9))
        async with net([first, Worker(ByteEngine())]) as swarm:
            _, error = await swarm.ask(task())
        assert (error is None) is finished


async def test_a_poisoned_request_and_one_that_felled_two_engines_are_shown_to_nobody_else():
    poisoned = Worker(FakeEngine(fails=Poisoned("twice")), facts=PeerFacts(Tier.C, 0.9))
    bystander = Worker(ByteEngine(), facts=PeerFacts(Tier.C, 0.5))
    async with net([poisoned, bystander]) as swarm:
        _, error = await swarm.ask(task())
    assert isinstance(error, Poisoned)
    assert bystander.drafts == 0
    crashing = [Worker(ByteEngine(), Fault("word", at, "crash"), facts=PeerFacts(Tier.C, 0.9)) for at in (0, 1)]
    async with net([*crashing, bystander]) as swarm:
        _, error = await swarm.ask(task())
    assert isinstance(error, EngineFailed)
    assert bystander.drafts == 0


@pytest.mark.parametrize("error", [InternalError("a bug"), ModelNotFound("it was unloaded"), Forbidden("not for you")])
async def test_what_only_this_worker_has_against_the_request_is_no_answer_to_the_user(error: GnusError):
    first, second = Worker(FakeEngine(fails=error), facts=PeerFacts(Tier.C, 0.9)), scripted()
    async with net([first, second]) as swarm:
        seen, raised = await swarm.ask(task())
    assert raised is None
    assert text_of(seen) == STORY


async def test_a_liar_is_found_out_and_its_beginning_is_not_built_upon():
    class Liar(ByteEngine):
        async def _events(self, request: Any) -> Any:
            async with aclosing(super()._events(request)) as items:
                async for item in items:
                    endless = {"tokens": (1,) * 5000} if isinstance(item, Delta) else {}
                    yield item.model_copy(update=endless)

    honest = Worker(ByteEngine())
    async with net([Worker(Liar(), facts=PeerFacts(Tier.C, 0.9)), honest]) as swarm:
        seen, error = await swarm.ask(task(max_tokens=64))
        assert [code for _, code in swarm.reports] == ["record_refused", None]
    assert error is None, "not a word of it was shown"
    assert FakeEngine.says in text_of(seen)


# --- silence ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "seconds"),
    [(Fault("claim", how="silent"), 1.0), (Fault("word", how="silent"), 10.0), (Fault("word", 8, "silent"), 30.0)],
)
async def test_a_silent_worker_is_left_after_the_limit_of_its_phase(
    fault: Fault, seconds: float, autojump_clock: trio.testing.MockClock
):
    async with net([scripted(fault, 0.9), scripted()]) as swarm:
        begin = trio.current_time()
        seen, error = await swarm.ask(task())
        assert error is None
        assert text_of(seen) == STORY
        assert seconds <= trio.current_time() - begin <= seconds + 0.5


async def test_the_last_worker_that_may_be_asked_is_given_time(autojump_clock: trio.testing.MockClock):
    """On a machine where everything is slow, each claim comes late: a request must not run through all in 3 s."""
    workers = [scripted(Fault("claim", how="silent"), 0.9 - place / 10) for place in range(5)]
    async with net(workers) as swarm:
        begin = trio.current_time()
        _, error = await swarm.ask(task())
        assert 12.0 <= trio.current_time() - begin <= 13.0
        assert swarm.reports == [(workers[2].peer, "peer_unreachable")], "two were taken for busy"
    assert isinstance(error, PeerUnreachable)
    assert [worker.drafts for worker in workers] == [1, 1, 1, 0, 0]


async def test_without_anybody_else_a_late_claim_is_waited_for(autojump_clock: trio.testing.MockClock):
    only = Worker(ByteEngine(hold=trio.Event()))

    async def wake() -> None:
        await trio.sleep(8)
        only.engine.hold.set()

    async with net([only]) as swarm, trio.open_nursery() as nursery:
        nursery.start_soon(wake)
        _, error = await swarm.ask(task())
    assert error is None


async def test_a_worker_that_is_slow_but_says_so_is_not_given_up_where_nobody_else_can_be_asked(
    autojump_clock: trio.testing.MockClock,
):
    slow = scripted(None, 0.9, delay=45.0, token_delay=33.0)
    async with net([slow]) as swarm:
        seen, error = await swarm.ask(task(max_tokens=3, policy=PolicyEnvelope(max_wall_ms=600_000)))
    assert error is None
    assert nodes(seen) == [slow.peer]


async def test_a_worker_that_only_says_that_it_is_at_it_is_left_at_the_time_of_a_first_word_for_one_that_is_idle(
    autojump_clock: trio.testing.MockClock,
):
    slow, idle = scripted(None, 0.9, delay=45.0), scripted()
    async with net([slow, idle]) as swarm:
        begin = trio.current_time()
        seen, error = await swarm.ask(task(max_tokens=3, policy=PolicyEnvelope(max_wall_ms=600_000)))
        assert 10 <= trio.current_time() - begin <= 10.5
    assert error is None
    assert nodes(seen) == [slow.peer, idle.peer]
    assert of_kind(seen, PlanMade)[1].reasons[-1] == "rerouted from small: peer_unreachable"


# --- two at once ------------------------------------------------------------------------------------------------------


async def test_a_slow_first_word_brings_in_a_second_worker_and_the_faster_one_answers(
    autojump_clock: trio.testing.MockClock,
):
    slow, quick = scripted(None, 0.9, delay=60.0), scripted()
    async with net([slow, quick]) as swarm:
        begin = trio.current_time()
        request = task("hello there", policy=OPEN)
        seen, error = await swarm.ask(request)
        view = await swarm.log.get(request.generation.request_id)
        assert error is None
        assert trio.current_time() - begin < 5
        assert swarm.router.tally.hedged == 1
    assert text_of(seen) == STORY
    assert nodes(seen) == [slow.peer, quick.peer]
    assert of_kind(seen, TaskDone)[0].node == quick.peer
    assert view is not None
    assert [plan.digest for plan in (*view.former_plans, view.plan)] == [m.plan.digest for m in of_kind(seen, PlanMade)]
    assert (slow.experts and slow.experts.drafts) == 0, "the slower one was told to stop"


async def test_where_the_first_worker_speaks_first_after_all_its_plan_is_told_again(
    autojump_clock: trio.testing.MockClock,
):
    first, second = scripted(None, 0.9, delay=3.0), scripted(None, delay=60.0)
    async with net([first, second]) as swarm:
        request = task("hello there", policy=OPEN)
        seen, error = await swarm.ask(request)
        view = await swarm.log.get(request.generation.request_id)
    assert error is None
    assert nodes(seen) == [first.peer, second.peer, first.peer]
    assert view is not None
    assert view.plan.digest == of_kind(seen, TaskDone)[0].plan_digest == of_kind(seen, PlanMade)[0].plan.digest
    assert [plan.digest for plan in view.former_plans] == [of_kind(seen, PlanMade)[1].plan.digest]


@pytest.mark.parametrize(
    ("text", "policy"),
    [("hello there", PolicyEnvelope()), ("What dosage of this medication is lethal, and is my password safe?", OPEN)],
)
async def test_what_is_not_for_everybody_is_never_given_to_two(
    text: str, policy: PolicyEnvelope, autojump_clock: trio.testing.MockClock
):
    slow, other = scripted(None, 0.9, delay=9.0), scripted()
    async with net([slow, other]) as swarm:
        _, error = await swarm.ask(task(text, policy=policy))
        assert error is None
        assert (other.drafts, swarm.router.tally.hedged) == (0, 0)


async def test_both_at_once_may_fail_and_a_third_takes_over(autojump_clock: trio.testing.MockClock):
    slow = scripted(Fault("word", 0, "silent"), 0.95)
    second, third = scripted(Fault("word", 0), 0.9), scripted()
    async with net([slow, second, third]) as swarm:
        seen, error = await swarm.ask(task("hello there", policy=OPEN))
    assert error is None
    assert text_of(seen) == STORY
    assert nodes(seen) == [slow.peer, second.peer, third.peer]


# --- who is asked -----------------------------------------------------------------------------------------------------


async def test_a_node_without_a_certificate_never_sees_what_is_for_members():
    stranger = Worker(ByteEngine(), facts=PeerFacts(Tier.D, 1.0))
    async with net([], strangers=[stranger]) as swarm:
        _, error = await swarm.ask(task())
        assert isinstance(error, NoExpert)
        assert "tier D" in error.what
        assert stranger.drafts == 0
        _, error = await swarm.ask(task(policy=OPEN))
        assert error is None
        assert stranger.drafts == 1


async def test_the_peer_table_is_told_how_drafts_ended_and_a_failed_peer_goes_last_for_a_while():
    broken, sound = scripted(Fault("claim"), 0.9), scripted()
    async with net([broken, sound]) as swarm:
        await swarm.ask(task())
        await swarm.ask(task())
        assert swarm.reports == [(broken.peer, "peer_unreachable"), (sound.peer, None), (sound.peer, None)]
    assert (broken.drafts, sound.drafts) == (1, 2)


async def test_many_at_once_are_spread_over_workers_that_have_not_yet_told_of_their_load():
    gate = trio.Event()
    workers = [Worker(ByteEngine(hold=gate)) for _ in range(3)]
    assert {worker.info().free_slots for worker in workers} == {4}
    async with net(workers) as swarm, trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(swarm.ask, task())
        await trio.testing.wait_all_tasks_blocked()
        assert [worker.drafts for worker in workers] == [4, 4, 4]
        gate.set()


async def test_if_all_are_full_the_caller_learns_when_the_first_has_time():
    full = [scripted(), scripted()]
    for worker, seconds in zip(full, (20.0, 7.0), strict=True):
        worker.engine = FakeEngine(fails=Overloaded("full", retry_after=seconds))
    async with net(full) as swarm:
        _, error = await swarm.ask(task())
        assert swarm.reports == [], "to be full is no misconduct"
    assert isinstance(error, Overloaded)
    assert error.retry_after == 7.0


async def test_what_a_peer_says_in_this_nodes_name_does_not_count():
    async with net([scripted()]) as swarm:

        def pretended() -> tuple[ExpertCard, ...]:
            return (scripted().card().model_copy(update={"peer": swarm.node.peer_id}),)

        from gnusnode.net.local import LocalRpc
        from gnusnode.net.rpc import CallContext
        from roles.router.directory import RpcDirectory, SwarmDirectory

        own = RpcDirectory(LocalRpc(swarm.node.peer_id), swarm.node.peer_id)
        directory = SwarmDirectory(own, swarm.node.peer_id, pretended)
        assert await directory.cards(CallContext("r", time.monotonic() + 60)) == ()


async def test_a_draft_whose_caller_leaves_ends_at_the_worker():
    worker = Worker(ByteEngine(hold=trio.Event()))
    async with net([worker]) as swarm:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(swarm.ask, task())
            await trio.testing.wait_all_tasks_blocked()
            assert worker.engine.running == 1
            nursery.cancel_scope.cancel()
        assert worker.engine.running == 0


async def test_a_package_that_says_something_else_ends_the_request_even_with_a_second_holder():
    first, second = Worker(ByteEngine(), facts=PeerFacts(Tier.C, 0.9)), Worker(ByteEngine())
    async with net([first, second]) as swarm:
        assert first.service is not None
        draft = first.service.streams["draft"]

        async def lying(request: Any, context: Any, send: Any) -> None:
            async def changed(item: Any) -> None:
                if isinstance(item, ChoiceDelta) and item.delta.text:
                    item = item.model_copy(update={"delta": item.delta.model_copy(update={"text": "?"})})
                await send(item)

            await draft(request, context, changed)

        first.service.streams["draft"] = lying
        _, error = await swarm.ask(task())
    assert isinstance(error, RecordRefused)
    assert second.drafts == 0
