"""Ingress: policy, bounds, what is checked, what is kept, what is told."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from gnusnode.contracts.generation import EmbedRequest
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.plan import PrivacyMode
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.roster import Roster
from gnusnode.contracts.services import (
    INGRESS_CHAT,
    INGRESS_EMBED,
    INGRESS_PLAN,
    ChoiceDone,
    ModelCall,
    PlanMade,
    PlanQuery,
    PlanView,
    TaskRequest,
)
from gnusnode.contracts.swarm import Role
from gnusnode.contracts.tools import ToolPolicy
from gnusnode.contracts.verify import verify
from gnusnode.errors import (
    Conflict,
    EngineFailed,
    ModelNotFound,
    NoExpert,
    NotFound,
    Overloaded,
    RateLimited,
    RecordRefused,
    RequestError,
)
from gnusnode.net.local import LocalRpc
from gnusnode.net.rpc import CallContext, Service
from gnusnode.observe import events
from gnusnode.policy.envelopes import workspace_policy
from gnusnode.store.db import Store, open_store
from gnusnode.store.tables import OUTPUTS, PLANS
from roles.ingress.service import Ingress, IngressOptions
from roles.ingress.tasklog import MemoryTaskLog, StoreTaskLog, TaskLog
from tests.fakes.world import Event, FakeEngine, World, of_kind, task, text_of, world


async def kept(node: World, request_id: str) -> PlanView:
    return await node.rpc.call(INGRESS_PLAN, PlanQuery(request_id=request_id), CallContext("r", time.monotonic() + 60))


def told(node: World, kind: Any) -> list[Any]:
    return [stamped.event for stamped in node.observer.bus.recent() if isinstance(stamped.event, kind)]


# --- policy -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G-LAY-1")
async def test_a_request_runs_under_what_user_and_workspace_both_allow():
    wide = PolicyEnvelope(
        max_tokens=1_000_000,
        max_spend=1000,
        privacy_mode=PrivacyMode.PLAINTEXT,
        tool_policy=ToolPolicy(capability_whitelist=("tool:fs.write", "memory.retrieve")),
    )
    async with world([FakeEngine()]) as node:
        request = task(policy=wide, max_tokens=500_000)
        [made] = of_kind(await node.chat(request), PlanMade)
    assert made.plan.constraints.max_tokens == 32_768
    assert made.plan.constraints.max_spend == 1.0
    assert made.plan.policy_hash != request.policy.digest
    async with world([FakeEngine()], profile="high-trust") as node:
        [made] = of_kind(await node.chat(task(policy=wide)), PlanMade)
    assert made.plan.privacy_mode is PrivacyMode.PRIVATE_BOUNDARY
    assert made.plan.tool_policy.human_approval


async def test_the_engine_is_told_the_tenant_of_the_policy():
    engine = FakeEngine()
    async with world([engine]) as node:
        await node.chat(task(policy=PolicyEnvelope(tenant="acme")))
    assert engine.requests[0].tenant == "acme"


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G-ROLE-2")
@pytest.mark.parametrize(
    ("bounds", "second", "error"),
    [
        (IngressOptions(max_active_per_tenant=1), "a", RateLimited),
        (IngressOptions(max_active=1), "b", Overloaded),
    ],
)
async def test_too_many_requests_are_refused_at_once_and_leave_room_when_they_end(
    bounds: IngressOptions, second: str, error: type[Exception]
):
    engine = FakeEngine(hold=trio.Event())
    assert engine.hold is not None
    async with world([engine], bounds=bounds) as node:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.chat, task(policy=PolicyEnvelope(tenant="a")))
            await trio.testing.wait_all_tasks_blocked()
            _, raised = await node.failure(task(policy=PolicyEnvelope(tenant=second)))
            assert isinstance(raised, error)
            assert told(node, events.RequestRefused)[0].code == raised.code
            engine.hold.set()
        assert node.ingress.active == 0
        assert await node.chat(task(policy=PolicyEnvelope(tenant=second)))


async def test_one_tenant_at_its_bound_does_not_hold_up_another():
    engine = FakeEngine(hold=trio.Event())
    assert engine.hold is not None
    async with world([engine], bounds=IngressOptions(max_active_per_tenant=1)) as node, trio.open_nursery() as nursery:
        for tenant in ("a", "b"):
            nursery.start_soon(node.chat, task(policy=PolicyEnvelope(tenant=tenant)))
        await trio.testing.wait_all_tasks_blocked()
        assert node.ingress.active == 2
        engine.hold.set()


async def test_a_running_request_id_is_not_taken_twice():
    engine = FakeEngine(hold=trio.Event())
    assert engine.hold is not None
    async with world([engine]) as node, trio.open_nursery() as nursery:
        request = task()
        nursery.start_soon(node.chat, request)
        await trio.testing.wait_all_tasks_blocked()
        _, error = await node.failure(request)
        assert isinstance(error, Conflict)
        engine.hold.set()


# --- what is kept, in both logs ---------------------------------------------------------------------------------------


@asynccontextmanager
async def memory_log(path: Path, keep: int) -> AsyncGenerator[TaskLog, None]:
    del path
    yield MemoryTaskLog(keep)


@asynccontextmanager
async def store_log(path: Path, keep: int) -> AsyncGenerator[TaskLog, None]:
    async with open_store(path / "store") as store:
        yield await StoreTaskLog.open(store, keep)


@pytest.fixture(params=[memory_log, store_log], ids=["memory", "store"])
def any_log(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.requirement("G-ROLE-1", "G-LAY-2")
async def test_plan_and_outputs_of_a_request_can_be_fetched_and_verified(any_log: Any, tmp_path: Path):
    async with any_log(tmp_path, 10) as log, world([FakeEngine()], log=log) as node:
        request = task(choices=2)
        seen = await node.chat(request)
        view = await kept(node, request.generation.request_id)
        roster, now = Roster.solo(node.node.peer_id), node.node.now_ms()
        assert verify(view.plan, now, roster) is Outcome.OK
        assert [verify(output, now, roster) for output in view.outputs] == [Outcome.OK] * 2
        assert {output.plan_hash for output in view.outputs} == {view.plan.digest}
        assert [output.answer for output in view.outputs] == [text_of(seen)] * 2
        assert view.plan.query_hash == request.generation.prompt.digest
        assert (view.state, view.error) == ("done", None)
        assert view.stages_ms["routing"] > 0
        assert view.reasons == of_kind(seen, PlanMade)[0].reasons


async def test_a_failed_request_keeps_its_plan_and_why(any_log: Any, tmp_path: Path):
    async with any_log(tmp_path, 10) as log, world([FakeEngine(fails=EngineFailed("gone"))], log=log) as node:
        request = task()
        await node.failure(request)
        view = await kept(node, request.generation.request_id)
    assert view.state == "failed"
    assert view.error == EngineFailed("gone").to_wire()


async def test_a_caller_that_leaves_is_written_down_as_such(any_log: Any, tmp_path: Path):
    engine = FakeEngine(hold=trio.Event())
    async with any_log(tmp_path, 10) as log, world([engine], log=log) as node:
        request = task()
        context = CallContext(request.generation.request_id, time.monotonic() + 60)
        async with node.rpc.stream(INGRESS_CHAT, request, context) as items:
            assert isinstance(await anext(aiter(items)), PlanMade)
            assert (await kept(node, request.generation.request_id)).state == "running"
        view = await kept(node, request.generation.request_id)
        assert view.state == "failed"
        assert view.error is not None
        assert view.error["code"] == "cancelled"
        assert engine.running == 0
        assert told(node, events.RequestEnded)[0].outcome == "cancelled"


async def test_a_rerouted_request_keeps_the_plan_that_was_answered(any_log: Any, tmp_path: Path):
    engines = [FakeEngine("a", fails=EngineFailed("gone")), FakeEngine("b")]
    async with any_log(tmp_path, 10) as log, world(engines, log=log) as node:
        request = task()
        plans = of_kind(await node.chat(request), PlanMade)
        view = await kept(node, request.generation.request_id)
    assert len(plans) == 2
    assert view.plan == plans[1].plan
    assert view.former_plans == (plans[0].plan,)
    assert view.outputs[0].plan_hash == plans[1].plan.digest


async def test_a_plan_that_is_told_again_is_kept_once_and_holds_from_then_on(any_log: Any, tmp_path: Path):
    async with (
        any_log(tmp_path, 10) as log,
        world([FakeEngine("a", fails=EngineFailed("gone")), FakeEngine("b")]) as node,
    ):
        request = task()
        seen = await node.chat(request)
        first, second = of_kind(seen, PlanMade)
        rest = [event for event in seen if not isinstance(event, PlanMade)]
        await replay([second, first, second, *rest], request, node, log)
        view = await log.get(request.generation.request_id)
    assert view is not None
    assert (view.plan, view.former_plans, view.state) == (second.plan, (first.plan,), "done")


async def test_a_router_that_makes_plans_without_end_is_stopped():
    async with world([FakeEngine()]) as node:
        request = task()
        seen = await node.chat(request)
        [made] = of_kind(seen, PlanMade)
        signed = {name: getattr(made.plan, name) for name in type(made.plan).model_fields}
        del signed["plan_signature"], signed["signer"]
        plans = [type(made.plan).signed(node.node.signer, **{**signed, "nonce": f"{n:032x}"}) for n in range(9)]
        many = [made.model_copy(update={"plan": plan}) for plan in plans]
        with pytest.raises(RecordRefused, match="more than 8 plans"):
            await replay([*many, *seen], request, node)


async def test_an_id_that_is_used_again_keeps_nothing_of_its_first_use(any_log: Any, tmp_path: Path):
    async with any_log(tmp_path, 10) as log, world([FakeEngine()], log=log) as node:
        request = task(choices=3)
        await node.chat(request)
        await node.chat(request.model_copy(update={"choices": 1}))
        view = await kept(node, request.generation.request_id)
    assert [output.plan_hash for output in view.outputs] == [view.plan.digest]


async def test_only_the_latest_requests_are_kept(any_log: Any, tmp_path: Path):
    async with any_log(tmp_path, 2) as log, world([FakeEngine()], log=log) as node:
        requests = [task() for _ in range(4)]
        for request in requests:
            await node.chat(request)
        for request in requests[:2]:
            with pytest.raises(NotFound):
                await kept(node, request.generation.request_id)
        for request in requests[2:]:
            assert (await kept(node, request.generation.request_id)).state == "done"


async def test_a_request_without_a_plan_is_unknown_and_its_failure_harms_nothing(any_log: Any, tmp_path: Path):
    async with any_log(tmp_path, 2) as log, world(log=log) as node:
        request = task()
        _, error = await node.failure(request)
        assert isinstance(error, NoExpert)
        with pytest.raises(NotFound):
            await kept(node, request.generation.request_id)


async def interrupted(store: Store, count: int) -> list[TaskRequest]:
    """Requests in the store, the last of which a crash cut off."""
    requests = [task() for _ in range(count)]
    async with world([FakeEngine()], log=await StoreTaskLog.open(store)) as node:
        for request in requests:
            await node.chat(request)
    key = requests[-1].generation.request_id.encode()
    value = store.get(PLANS, key)
    assert value is not None
    view = PlanView.from_bytes(value).model_copy(update={"state": "running"})
    await store.put(PLANS, key, view.to_bytes())
    return requests


async def test_after_a_restart_the_log_is_there_and_what_was_running_has_failed(tmp_path: Path):
    async with open_store(tmp_path / "store") as store:
        requests = await interrupted(store, 3)
    async with open_store(tmp_path / "store") as store:
        log = await StoreTaskLog.open(store)
        views = [await log.get(request.generation.request_id) for request in requests]
        assert [view and view.state for view in views] == ["done", "done", "failed"]
        assert views[2] is not None
        assert views[2].error is not None
        assert "stopped" in views[2].error["what"]


async def test_a_restart_with_a_smaller_limit_forgets_the_oldest_with_their_outputs(tmp_path: Path):
    async with open_store(tmp_path / "store") as store:
        requests = await interrupted(store, 3)
        log = await StoreTaskLog.open(store, keep=1)
        assert [await log.get(request.generation.request_id) is not None for request in requests] == [
            False,
            False,
            True,
        ]
        assert (store.count(PLANS), store.count(OUTPUTS)) == (1, 1)


async def test_a_stored_plan_that_cannot_be_read_is_left_alone_and_hides_nothing(tmp_path: Path):
    async with open_store(tmp_path / "store") as store:
        [request] = await interrupted(store, 1)
        await store.put(PLANS, b"0000-damaged", b"\xff\x00")
        log = await StoreTaskLog.open(store)
        assert await log.get("0000-damaged") is None
        assert await log.get(request.generation.request_id) is not None
        assert store.get(PLANS, b"0000-damaged") == b"\xff\x00"


# --- what is not believed ---------------------------------------------------------------------------------------------


async def test_a_plan_of_somebody_without_the_role_router_is_not_passed_on():
    async with world([FakeEngine()], roster=lambda peer: Roster.solo(peer, (Role.CORE, Role.INGRESS))) as node:
        seen, error = await node.failure(task())
    assert isinstance(error, RecordRefused)
    assert "role_not_granted" in error.what
    assert seen == []


def forged_plan(seen: list[Event]) -> list[Event]:
    return [e.model_copy(update={"plan": _changed(e.plan)}) if isinstance(e, PlanMade) else e for e in seen]


def forged_output(seen: list[Event]) -> list[Event]:
    return [e.model_copy(update={"output": _changed(e.output)}) if isinstance(e, ChoiceDone) else e for e in seen]


def without_plan(seen: list[Event]) -> list[Event]:
    return [event for event in seen if not isinstance(event, PlanMade)]


def _changed(record: Any) -> Any:
    return record.model_copy(update={"issued_at_ms": record.issued_at_ms - 1})


async def replay(seen: list[Event], request: TaskRequest, by: World, log: TaskLog | None = None) -> list[Event]:
    """What an ingress passes on when its router says ``seen`` to ``request``."""
    rpc = LocalRpc(by.node.peer_id)

    async def run(task: TaskRequest, context: CallContext, send: Any) -> None:
        for event in seen:
            await send(event)

    ingress = Ingress(rpc, by.node, log or MemoryTaskLog(), lambda tenant: workspace_policy("solo", tenant))
    passed: list[Event] = []
    context = CallContext(request.generation.request_id, time.monotonic() + 60)
    async with (
        rpc.serve(Service("router", {}, {"run": run})),
        rpc.serve(ingress.service()),
        rpc.stream(INGRESS_CHAT, request, context) as items,
    ):
        async for item in items:
            passed.append(item)
    return passed


@pytest.mark.parametrize(
    ("tamper", "why"),
    [(forged_plan, "bad_signature"), (forged_output, "bad_signature"), (without_plan, "another plan")],
)
async def test_nothing_of_a_router_is_passed_on_unverified(tamper: Callable[[list[Event]], list[Event]], why: str):
    async with world([FakeEngine()]) as node:
        request = task()
        seen = await node.chat(request)
        assert await replay(seen, request, node) == seen
        with pytest.raises(RecordRefused, match=why):
            await replay(tamper(seen), request, node)


async def test_a_plan_for_another_request_or_a_wider_policy_is_refused():
    async with world([FakeEngine()]) as node:
        seen = await node.chat(task())
        with pytest.raises(RecordRefused, match="another request or policy"):
            await replay(seen, task(), node)
        request = task()
        seen = await node.chat(request)
        narrower = request.model_copy(update={"policy": PolicyEnvelope(max_tokens=10)})
        with pytest.raises(RecordRefused, match="another request or policy"):
            await replay(seen, narrower, node)


# --- what is told -----------------------------------------------------------------------------------------------------


async def test_start_and_end_of_a_request_are_told_with_measures_and_no_content():
    async with world([FakeEngine()]) as node:
        request = task("the secret question")
        await node.chat(request)
        [started], [ended] = told(node, events.RequestStarted), told(node, events.RequestEnded)
        assert started.request_id == ended.request_id == request.generation.request_id
        assert (ended.outcome, ended.tokens_in, ended.tokens_out) == ("ok", 3, 6)
        assert ended.total_ms >= ended.first_token_ms > 0
        assert "secret" not in str([stamped.to_plain() for stamped in node.observer.bus.recent()])


async def test_a_failure_is_told_with_its_code():
    async with world([FakeEngine(fails=EngineFailed("gone"))]) as node:
        await node.failure(task())
        [ended] = told(node, events.RequestEnded)
    assert (ended.outcome, ended.code) == ("failed", "engine_failed")


# --- embeddings -------------------------------------------------------------------------------------------------------


async def embed(node: World, **call: Any) -> Any:
    return await node.rpc.call(INGRESS_EMBED, ModelCall(**call), CallContext("r", time.monotonic() + 60))


async def test_embeddings_come_from_whoever_has_the_model():
    wanted = EmbedRequest(request_id=task().generation.request_id, texts=("a", "b"))
    async with world([FakeEngine(), FakeEngine("minilm", embeds=True)]) as node:
        for model in ("minilm", "default"):
            assert len((await embed(node, model=model, embed=wanted)).vectors) == 2
        assert told(node, events.RequestEnded)[0].tokens_in == 2
        with pytest.raises(ModelNotFound):
            await embed(node, model="other", embed=wanted)
        with pytest.raises(RequestError):
            await embed(node, model="minilm")
    async with world() as node:
        with pytest.raises(NoExpert):
            await embed(node, embed=wanted)


async def test_the_records_of_a_request_are_shown_to_its_tenant_and_the_operator_only():
    async with world([FakeEngine()]) as node:
        request = task(policy=PolicyEnvelope(tenant="acme"))
        await node.chat(request)
        request_id = request.generation.request_id
        context = CallContext("r", time.monotonic() + 60)
        for tenant in ("acme", None):
            view = await node.rpc.call(INGRESS_PLAN, PlanQuery(request_id=request_id, tenant=tenant), context)
            assert view.tenant == "acme"
        with pytest.raises(NotFound):
            await node.rpc.call(INGRESS_PLAN, PlanQuery(request_id=request_id, tenant="other"), context)
