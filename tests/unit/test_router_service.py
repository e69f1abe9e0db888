"""The router at work: signing, driving, rerouting while nothing was shown, and passing nothing on unchecked."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from gnusnode.contracts.generation import Message
from gnusnode.contracts.plan import ExpertRole
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.services import ChoiceDelta, ChoiceDone, ExpertList, PlanMade, TaskDone
from gnusnode.errors import (
    DeadlineExceeded,
    EngineFailed,
    GnusError,
    ModelInvalid,
    Overloaded,
    PeerUnreachable,
    Poisoned,
    RecordRefused,
    RequestError,
    SchemaRefused,
)
from gnusnode.net.rpc import CallContext, Rpc, Service
from gnusnode.observe import events
from roles.router.directory import RpcDirectory
from roles.router.facts import Swarm
from roles.router.service import Router, RouterOptions
from tests.fakes.cards import card
from tests.fakes.world import Event, FakeEngine, World, expert, of_kind, task, text_of, world

CODE = "Fix this Python function"
CODER = expert("coder", ExpertRole.DOMAIN_EXPERT, domains=("code",))


@pytest.mark.requirement("G-OB-1")
async def test_a_plan_is_announced_before_any_word_with_reasons_experts_and_confidence():
    async with world([FakeEngine()]) as node:
        first, *rest = await node.chat(task())
        assert isinstance(first, PlanMade)
        assert first.model == "fake"
        assert {reason.split(" ")[0] for reason in first.reasons} >= {"intent", "domain", "risk", "mode", "expert"}
        assert not of_kind(rest, PlanMade)
        [made] = [e.event for e in node.observer.bus.recent() if isinstance(e.event, events.PlanMade)]
        assert (made.plan_digest, made.expert, made.mode) == (first.plan.digest, "fake", "single_node")
        assert made.confidence == first.confidence > 0


@pytest.mark.requirement("G-TGT-2")
async def test_the_last_event_has_usage_node_plan_and_stages_apart():
    async with world([FakeEngine()]) as node:
        seen = await node.chat(task(choices=2))
    done = seen[-1]
    assert isinstance(done, TaskDone)
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (3, 12)
    assert done.node == node.node.peer_id
    assert done.plan_digest == of_kind(seen, PlanMade)[0].plan.digest
    assert set(done.stages_ms) == {"routing", "compute", "dispatch", "queue", "prefill", "decode"}


async def test_an_expert_of_the_domain_drafts_and_the_core_takes_over_before_the_first_word():
    coder = FakeEngine("coder", fails=EngineFailed("crashed"))
    async with world([FakeEngine(says="from the core")], [(CODER, coder)]) as node:
        seen = await node.chat(task(CODE))
    plans = of_kind(seen, PlanMade)
    assert [plan.model for plan in plans] == ["coder", "fake"]
    assert "rerouted from coder: engine_failed" in plans[1].reasons
    assert plans[0].plan.nonce != plans[1].plan.nonce
    assert text_of(seen) == "from the core"
    assert of_kind(seen, TaskDone)[0].plan_digest == plans[1].plan.digest
    assert node.router.tally.rerouted == 1


@pytest.mark.requirement("G-RL-1")
async def test_the_first_two_requeues_go_to_the_next_best_and_the_third_is_not_made():
    engines = [FakeEngine(name, fails=PeerUnreachable(f"{name} is gone")) for name in "abcd"]
    async with world(engines) as node:
        seen, error = await node.failure(task())
    assert isinstance(error, PeerUnreachable)
    assert [plan.model for plan in of_kind(seen, PlanMade)] == ["a", "b", "c"]
    assert [len(engine.requests) for engine in engines] == [1, 1, 1, 0]


async def test_a_request_under_which_two_engines_fell_is_not_shown_to_a_third():
    engines = [FakeEngine(name, fails=EngineFailed(f"{name} crashed")) for name in "abc"]
    async with world(engines) as node:
        _, error = await node.failure(task())
    assert isinstance(error, EngineFailed)
    assert [len(engine.requests) for engine in engines] == [1, 1, 0]


async def test_an_expert_whose_model_is_broken_is_passed_over():
    async with world([FakeEngine("a", fails=ModelInvalid("bad tensor")), FakeEngine("b")]) as node:
        assert [plan.model for plan in of_kind(await node.chat(task()), PlanMade)] == ["a", "b"]


async def test_after_visible_words_the_error_comes_out_and_nobody_else_is_asked():
    first, second = FakeEngine("a", fails=EngineFailed("crashed"), fails_after=2), FakeEngine("b")
    async with world([first, second]) as node:
        seen, error = await node.failure(task())
    assert isinstance(error, EngineFailed)
    assert text_of(seen) == "Paris is"
    assert second.requests == []


@pytest.mark.parametrize(
    "error", [Poisoned("twice"), SchemaRefused("no"), RequestError("bad"), DeadlineExceeded("late")]
)
async def test_a_request_at_fault_or_out_of_time_is_not_tried_elsewhere(error: GnusError):
    first, second = FakeEngine("a", fails=error), FakeEngine("b")
    async with world([first, second]) as node:
        _, raised = await node.failure(task())
    assert type(raised) is type(error)
    assert second.requests == []


async def test_a_named_model_is_not_swapped_for_another():
    first, second = FakeEngine("a", fails=EngineFailed("crashed")), FakeEngine("b")
    async with world([first, second]) as node:
        _, raised = await node.failure(task(model="a"))
    assert isinstance(raised, EngineFailed)
    assert second.requests == []


async def test_all_attempts_share_one_deadline(autojump_clock: trio.testing.MockClock):
    engine = FakeEngine(hold=trio.Event())
    async with world([engine]) as node:
        seen, error = await node.failure(task(policy=PolicyEnvelope(max_wall_ms=5_000)), seconds=600)
        assert isinstance(error, DeadlineExceeded)
        assert of_kind(seen, PlanMade)[0].plan.constraints.max_wall_ms <= 5_000
        assert engine.running == 0


async def test_more_choices_than_tokens_is_the_callers_fault():
    async with world([FakeEngine()]) as node:
        _, error = await node.failure(task(choices=4, policy=PolicyEnvelope(max_tokens=3)))
    assert isinstance(error, RequestError)
    assert error.param == "n"


async def test_a_follow_up_goes_to_the_expert_that_holds_the_conversation():
    async with world([FakeEngine("a"), FakeEngine("b", info_fields={"decode_rate": 99.0})]) as node:
        opening = Message(role="user", content="word " * 4000)
        await node.chat(task(messages=[opening], model="b"))
        followed = await node.chat(task(messages=[opening, Message(role="user", content="and?")]))
        assert of_kind(followed, PlanMade)[0].model == "b"
        fresh = await node.chat(task("something else"))
        assert of_kind(fresh, PlanMade)[0].model == "a"


@pytest.mark.parametrize(("classify", "asked"), [("auto", 1), ("always", 1), ("never", 0)])
async def test_an_ambiguous_text_asks_the_own_core_for_the_domain(classify: Any, asked: int):
    engine = FakeEngine(label="code", probability=0.9)
    async with world([engine], options=RouterOptions(classify=classify)) as node:
        seen = await node.chat(task("python derivative"))
        assert len(engine.classified) == asked
        assert any("label scoring" in reason for reason in of_kind(seen, PlanMade)[0].reasons) == bool(asked)
        await node.chat(task("python derivative", model="fake"))
        assert len(engine.classified) == asked


async def test_a_clear_text_asks_no_model_and_a_missing_core_is_no_obstacle():
    engine = FakeEngine()
    async with world([engine]) as node:
        await node.chat(task(CODE))
    assert engine.classified == []
    coder = FakeEngine("coder")
    async with world([], [(CODER, coder)], options=RouterOptions(classify="always")) as node:
        seen = await node.chat(task(CODE))
        assert any("no model was asked" in reason for reason in of_kind(seen, PlanMade)[0].reasons)
        assert text_of(seen)


async def test_more_requests_than_the_router_takes_are_refused_with_a_time():
    engine = FakeEngine(hold=trio.Event())
    async with world([engine], options=RouterOptions(max_running=1)) as node, trio.open_nursery() as nursery:
        nursery.start_soon(node.chat, task())
        await trio.testing.wait_all_tasks_blocked()
        _, error = await node.failure(task())
        assert isinstance(error, Overloaded)
        assert error.retry_after
        assert engine.hold is not None
        engine.hold.set()
    assert node.router.running == 0


# --- experts that cannot be trusted -----------------------------------------------------------------------------------

Tamper = Callable[[ChoiceDone], ChoiceDone]


def resigned(node: World, **changes: Any) -> Tamper:
    """The package with other fields, signed by the same expert."""

    def tamper(item: ChoiceDone) -> ChoiceDone:
        fields = {name: getattr(item.output, name) for name in type(item.output).model_fields}
        del fields["expert_signature"], fields["signer"]
        output = type(item.output).signed(node.node.signer, **{**fields, **changes})
        return item.model_copy(update={"output": output})

    return tamper


def unsigned(item: ChoiceDone) -> ChoiceDone:
    return item.model_copy(update={"output": item.output.model_copy(update={"answer": "changed"})})


class Wire:
    """The rpc as the router sees it, with somebody in the middle who changes packages."""

    def __init__(self, rpc: Rpc, tamper: Tamper) -> None:
        self._rpc, self._tamper = rpc, tamper
        self.call, self.offers, self.serve = rpc.call, rpc.offers, rpc.serve

    @asynccontextmanager
    async def stream(
        self, method: Any, request: Any, context: CallContext, *, peer: str | None = None
    ) -> AsyncGenerator[Any, None]:
        async with (
            self._rpc.stream(method, request, context, peer=peer) as items,
            aclosing(self._changed(items)) as mine,
        ):
            yield mine

    async def _changed(self, items: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        async for item in items:
            yield self._tamper(item) if isinstance(item, ChoiceDone) else item


async def run_with(node: World, tamper: Tamper) -> tuple[list[Event], GnusError]:
    """Asks a router whose only expert's packages pass through ``tamper``."""
    mine = frozenset({node.node.peer_id})
    view = Swarm(node.node.peer_id, mine, mine, frozenset({"core"}))
    router = Router(Wire(node.rpc, tamper), node.node, RpcDirectory(node.rpc), lambda: view)
    seen: list[Event] = []

    async def send(item: Event) -> None:
        seen.append(item)

    request = task()
    run = router.service().streams["run"]
    context = CallContext(request.generation.request_id, time.monotonic() + 60)
    with pytest.raises(GnusError) as caught:
        await run(request, context, send)
    return seen, caught.value


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"answer": "Rome"}, "answer"),
        ({"plan_hash": "sha256:" + "00" * 32}, "plan"),
        ({"expert_id": "other"}, "expert"),
        ({"artifact_hash": "sha256:" + "00" * 32}, "artifact"),
        ({"request_id": "11111111-1111-4111-8111-111111111111"}, "request"),
    ],
)
async def test_a_package_of_something_else_than_was_streamed_is_never_passed_on(changes: dict[str, Any], fault: str):
    async with world([FakeEngine()]) as node:
        seen, error = await run_with(node, resigned(node, **changes))
    assert isinstance(error, RecordRefused)
    assert fault in error.what
    assert not of_kind(seen, ChoiceDone)
    assert of_kind(seen, ChoiceDelta)


async def test_a_package_with_a_broken_signature_is_refused_and_told_of():
    async with world([FakeEngine()]) as node:
        seen, error = await run_with(node, unsigned)
        assert isinstance(error, RecordRefused)
        assert "bad_signature" in error.what
        assert not of_kind(seen, ChoiceDone)
        assert "record.refused" in [e.event.name for e in node.observer.bus.recent()]


async def test_a_service_that_ends_without_all_choices_is_refused():
    async with world() as node:

        async def mute(request: Any, context: CallContext, send: Any) -> None:
            return

        async def experts(request: Any, context: CallContext) -> Any:
            return ExpertList(experts=(card("core", peer=node.node.peer_id),))

        async with node.rpc.serve(Service("core", {"experts": experts}, {"draft": mute})):
            _, error = await node.failure(task())
    assert isinstance(error, RecordRefused)
    assert "0 of 1" in error.what
