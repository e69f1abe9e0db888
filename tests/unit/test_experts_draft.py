"""The services core and elm: what they take on, what they hand back, and that they act on nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio
import trio.testing

from gnusnode.contracts.base import SignedRecord
from gnusnode.contracts.generation import ClassifyRequest, Delta, EmbedRequest, ScoreRequest, Usage
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.plan import AttestationRequirements as Requirements
from gnusnode.contracts.plan import (
    Constraints,
    ElmRole,
    ExecutionGraph,
    ExecutionPlan,
    ExpertRole,
    MemoryMode,
    Mode,
    Platform,
    PrivacyMode,
    SandboxProfile,
    SelectedCore,
    SelectedElm,
    Stage,
    Topology,
)
from gnusnode.contracts.roster import Roster
from gnusnode.contracts.services import (
    CORE_CLASSIFY,
    CORE_DRAFT,
    CORE_EMBED,
    CORE_EXPERTS,
    CORE_SCORE,
    ELM_DRAFT,
    ChoiceDelta,
    ChoiceDone,
    DraftBeat,
    DraftRequest,
    Empty,
    ModelCall,
    TaskRequest,
    ToolSpec,
)
from gnusnode.contracts.swarm import Role
from gnusnode.contracts.tools import ToolPolicy
from gnusnode.contracts.verify import verify
from gnusnode.errors import (
    EngineFailed,
    ModelNotFound,
    Poisoned,
    RecordRefused,
    RequestError,
    SchemaRefused,
)
from gnusnode.identity import NodeIdentity
from gnusnode.net.local import LocalRpc
from gnusnode.net.rpc import CallContext
from gnusnode.observe.observer import Observer
from roles.experts.hosting import Host
from roles.experts.service import ExpertService
from roles.ports import RoleContext
from tests.fakes.world import FakeEngine, FakeEngines, expert, task

NOW = 1_790_000_000_000
WEATHER = ToolSpec(
    name="get_weather",
    description="Weather of a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)
TIME = ToolSpec(name="get_time", description="Time of day.")
ELM = expert("coder", ExpertRole.DOMAIN_EXPERT, domains=("code",))


@dataclass
class Bench:
    """A node that offers core and elm, and the router's key that signs plans for it."""

    rpc: LocalRpc
    router: NodeIdentity
    roster: Roster
    observer: Observer

    def plan(self, request: TaskRequest, **changes: Any) -> ExecutionPlan:
        fields: dict[str, Any] = {
            "request_id": request.generation.request_id,
            "query_hash": request.generation.prompt.digest,
            "selected_core": SelectedCore(core_id="fake", version="1"),
            "selected_elms": (SelectedElm(elm_id="coder", version="1", role=ElmRole.DOMAIN_EXPERT),),
            "execution_graph": ExecutionGraph(mode=Mode.SINGLE_NODE, topology=Topology.SINGLE, stages=(Stage.DRAFT,)),
            "constraints": Constraints(max_tokens=100, max_wall_ms=10_000, max_spend=0.0),
            "privacy_mode": PrivacyMode.RESTRICTED,
            "attestation_requirements": Requirements(),
            "tool_policy": ToolPolicy(),
            "memory_mode": MemoryMode.OFF,
            "sandbox_profile": SandboxProfile(platform=Platform.SERVER_NAMESPACES),
            "swarm_id": self.roster.swarm_id,
            "policy_hash": request.policy.digest,
            "issued_at_ms": NOW,
            "expires_at_ms": NOW + 60_000,
            "nonce": "ab" * 16,
        }
        return ExecutionPlan.signed(self.router, **{**fields, **changes})

    async def draft(
        self, request: TaskRequest, plan: ExecutionPlan | None = None, method: Any = CORE_DRAFT, **changes: Any
    ) -> list[ChoiceDelta | ChoiceDone]:
        fields: dict[str, Any] = {
            "plan": plan or self.plan(request),
            "expert_id": "fake",
            "expert_role": "semantic_core",
            "model": "fake",
            "generation": request.generation,
            "choices": request.choices,
            "tools": request.tools,
            "tool_choice": request.tool_choice,
        }
        context = CallContext(request.generation.request_id, time.monotonic() + 60)
        async with self.rpc.stream(method, DraftRequest(**{**fields, **changes}), context) as items:
            return [item async for item in items if not isinstance(item, DraftBeat)]

    async def call(self, method: Any, call: Any) -> Any:
        return await self.rpc.call(method, call, CallContext("r", time.monotonic() + 60))


@asynccontextmanager
async def bench(
    *engines: FakeEngine, coder: FakeEngine | None = None, now: int = NOW, roles: tuple[Role, ...] = tuple(Role)
) -> AsyncGenerator[Bench, None]:
    identity = NodeIdentity(bytes(range(32)))
    roster = Roster.solo(identity.peer_id, roles)
    observer = Observer.create()

    def judge(record: SignedRecord) -> Outcome:
        return verify(record, now, roster)

    node = RoleContext(identity, lambda: roster.swarm_id, judge, lambda: now, observer)
    rpc = LocalRpc(identity.peer_id)
    given = engines or (FakeEngine(),)
    core = Host("core", [expert(e.model) for e in given], FakeEngines({e.model: e for e in given}))
    elms = Host("elm", [ELM], FakeEngines({"coder": coder or FakeEngine("coder")}))
    async with rpc.serve(ExpertService(core, node).service()), rpc.serve(ExpertService(elms, node).service()):
        yield Bench(rpc, identity, roster, observer)


def done(items: list[ChoiceDelta | ChoiceDone], index: int = 0) -> ChoiceDone:
    [last] = [item for item in items if isinstance(item, ChoiceDone) and item.index == index]
    return last


# --- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G-EX-3")
async def test_a_draft_streams_its_text_and_ends_with_a_signed_package_of_it():
    async with bench() as node:
        request = task()
        plan = node.plan(request)
        *deltas, last = await node.draft(request, plan)
        assert isinstance(last, ChoiceDone)
        assert "".join(d.delta.text for d in deltas if isinstance(d, ChoiceDelta)) == last.output.answer
        assert verify(last.output, NOW, node.roster) is Outcome.OK
        output = last.output
        assert (output.expert_id, output.expert_version, output.expert_role) == ("fake", "1", ExpertRole.SEMANTIC_CORE)
        assert (output.request_id, output.plan_hash) == (plan.request_id, plan.digest)
        assert output.confidence == pytest.approx(0.904837)
        assert last.finish_reason == "stop"


async def test_a_truncated_structured_answer_says_so():
    engine = FakeEngine(says_json='{"a": 1', json_finish_reason="length")
    async with bench(engine) as node:
        last = done(await node.draft(task(json_schema={"type": "object"})))
    assert (last.finish_reason, last.output.answer) == ("length", '{"a": 1')
    assert engine.requests[0].json_schema == {"type": "object"}


async def test_choices_differ_by_seed_and_each_has_its_package():
    engine = FakeEngine()
    async with bench(engine) as node:
        items = await node.draft(task(choices=3))
    assert sorted(r.sampling.seed for r in engine.requests) == [1, 2, 3]
    for index in range(3):
        streamed = "".join(i.delta.text for i in items if isinstance(i, ChoiceDelta) and i.index == index)
        assert streamed == done(items, index).output.answer != ""


async def test_seeds_wrap_around_and_never_become_zero():
    engine = FakeEngine()
    async with bench(engine) as node:
        await node.draft(task(choices=2, sampling={"seed": 2**32 - 1}))
    assert sorted(r.sampling.seed for r in engine.requests) == [1, 2**32 - 1]


async def test_one_failing_choice_ends_the_draft_with_its_error_and_stops_the_others():
    engine = FakeEngine(fails=Poisoned("twice crashed"), fails_after=2)
    async with bench(engine) as node:
        with pytest.raises(Poisoned):
            await node.draft(task(choices=3))
    assert engine.running == 0


async def test_leaving_a_draft_stops_its_generation():
    engine = FakeEngine(hold=trio.Event())
    async with bench(engine) as node:
        request = task()
        draft = DraftRequest(
            plan=node.plan(request),
            expert_id="fake",
            expert_role="semantic_core",
            model="fake",
            generation=request.generation,
        )
        async with node.rpc.stream(CORE_DRAFT, draft, CallContext("r", time.monotonic() + 60)) as items:
            await anext(aiter(items))
            assert engine.running == 1
        assert engine.running == 0


async def test_an_engine_that_just_stops_is_a_failure():
    class Mute(FakeEngine):
        async def _events(self, request: Any) -> AsyncGenerator[Any, None]:
            yield Delta(text="half", tokens=(1,))

    async with bench(Mute()) as node:
        with pytest.raises(EngineFailed):
            await node.draft(task())


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_the_engine_gets_no_more_than_the_plan_allows_for_each_choice():
    engine = FakeEngine()
    async with bench(engine) as node:
        request = task(max_tokens=500, choices=3)
        await node.draft(request)
        limits = Constraints(max_tokens=1000, max_wall_ms=2_000, max_spend=0)
        await node.draft(request, node.plan(request, constraints=limits))
    assert [r.max_tokens for r in engine.requests] == [33, 33, 33, 333, 333, 333]
    assert all(r.deadline_ms is not None and r.deadline_ms <= 10_000 for r in engine.requests)
    assert all(r.deadline_ms is not None and r.deadline_ms <= 2_000 for r in engine.requests[3:])


async def test_a_plan_with_fewer_tokens_than_choices_is_refused():
    async with bench() as node:
        request = task(choices=8)
        limits = Constraints(max_tokens=7, max_wall_ms=1, max_spend=0)
        with pytest.raises(RecordRefused, match="less than one"):
            await node.draft(request, node.plan(request, constraints=limits))


# --- authority --------------------------------------------------------------------------------------------------------


async def test_a_forged_plan_starts_no_work_and_is_told_of():
    engine = FakeEngine()
    async with bench(engine) as node:
        request = task()
        forged = node.plan(request).model_copy(update={"nonce": "cd" * 16})
        with pytest.raises(RecordRefused, match="bad_signature"):
            await node.draft(request, forged)
        assert [e.event.name for e in node.observer.bus.recent()] == ["record.refused"]
    assert engine.requests == []


async def test_a_plan_of_somebody_who_is_no_router_starts_no_work():
    engine = FakeEngine()
    async with bench(engine, roles=(Role.CORE, Role.ELM)) as node:
        with pytest.raises(RecordRefused, match="role_not_granted"):
            await node.draft(task())
    assert engine.requests == []


async def test_an_expired_plan_starts_no_work():
    engine = FakeEngine()
    async with bench(engine, now=NOW + 60_001) as node:
        with pytest.raises(RecordRefused, match="expired"):
            await node.draft(task())
    assert engine.requests == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"request_id": "11111111-1111-4111-8111-111111111111"}, "another request"),
        ({"query_hash": "sha256:" + "00" * 32}, "another query"),
        ({"selected_core": SelectedCore(core_id="fake", version="2")}, "does not select"),
        ({"selected_core": SelectedCore(core_id="other", version="1")}, "does not select"),
        (
            {"execution_graph": ExecutionGraph(mode=Mode.SWARM, topology=Topology.SINGLE, stages=(Stage.VERIFY,))},
            "not ask for a draft",
        ),
    ],
)
async def test_a_plan_for_something_else_starts_no_work(changes: dict[str, Any], why: str):
    engine = FakeEngine()
    async with bench(engine) as node:
        request = task()
        with pytest.raises(RecordRefused, match=why):
            await node.draft(request, node.plan(request, **changes))
    assert engine.requests == []


@pytest.mark.requirement("G-EX-2")
async def test_an_elm_drafts_only_in_the_role_for_which_the_plan_selects_it():
    asked: dict[str, Any] = {"method": ELM_DRAFT, "expert_id": "coder", "model": "coder"}
    async with bench() as node:
        request = task()
        last = done(await node.draft(request, expert_role="domain_expert", **asked))
        assert last.output.expert_role is ExpertRole.DOMAIN_EXPERT
        with pytest.raises(ModelNotFound):
            await node.draft(request, expert_role="verifier", **asked)
        as_verifier = (SelectedElm(elm_id="coder", version="1", role=ElmRole.VERIFIER),)
        plan = node.plan(request, selected_elms=as_verifier)
        with pytest.raises(RecordRefused, match="does not select"):
            await node.draft(request, plan, expert_role="domain_expert", **asked)


# --- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G-EX-7", "G-TGT-5")
async def test_a_chosen_tool_comes_back_as_a_signed_proposal_and_nothing_runs():
    engine = FakeEngine(label="get_weather", says_json='{"city": "Rome"}')
    async with bench(engine) as node:
        [last] = await node.draft(task(tools=[TIME, WEATHER]))
        assert isinstance(last, ChoiceDone)
        [call] = last.tool_calls
        assert (call.tool_name, call.arguments) == ("get_weather", {"city": "Rome"})
        assert last.output.tool_calls == last.tool_calls
        assert verify(last.output, NOW, node.roster) is Outcome.OK
    assert (last.finish_reason, last.output.answer) == ("tool_calls", "")
    assert last.output.confidence == pytest.approx(0.9 * 0.904837, abs=1e-5)
    assert last.output.uncertainty is not None
    [arguments] = engine.requests
    assert arguments.json_schema == WEATHER.parameters


async def test_a_tool_whose_arguments_cannot_be_generated_is_refused_before_the_model_is_asked():
    engine = FakeEngine(label="get_time")
    odd = ToolSpec(name="odd", parameters={"oneOf": [{"type": "object"}]})
    async with bench(engine) as node:
        with pytest.raises(SchemaRefused) as refused:
            await node.draft(task(tools=[TIME, odd]))
        assert refused.value.param == "tools.1.function.parameters"
        assert engine.requests == []
        [last] = await node.draft(task(tools=[TIME, odd], tool_choice="get_time"))
    assert isinstance(last, ChoiceDone)
    assert last.finish_reason == "tool_calls"


async def test_none_is_answered_freely_and_the_decision_lowers_the_confidence():
    engine = FakeEngine(label="none", probability=0.8)
    async with bench(engine) as node:
        items = await node.draft(task(tools=[WEATHER]))
    assert done(items).finish_reason == "stop"
    assert done(items).output.confidence == pytest.approx(0.8 * 0.904837, abs=1e-5)
    assert [r.json_schema for r in engine.requests] == [None]


async def test_without_a_choice_to_make_no_label_is_scored():
    engine = FakeEngine(says_json='{"city": "Rome"}')
    async with bench(engine) as node:
        named = done(await node.draft(task(tools=[TIME, WEATHER], tool_choice="get_weather")))
        only = done(await node.draft(task(tools=[TIME], tool_choice="required")))
        free = done(await node.draft(task(tools=[TIME], tool_choice="none")))
    assert engine.classified == []
    assert [d.finish_reason for d in (named, only, free)] == ["tool_calls", "tool_calls", "stop"]
    assert only.tool_calls[0].arguments == {}


@pytest.mark.parametrize(
    ("text", "reason"), [('{"city": "Ro', "length"), ('{"city": "Rome"}', "length"), ("nonsense", "stop")]
)
async def test_invalid_arguments_become_a_free_answer_within_the_same_budget(text: str, reason: str):
    engine = FakeEngine(label="get_weather", says_json=text, json_finish_reason=reason)
    async with bench(engine) as node:
        last = done(await node.draft(task(tools=[WEATHER], max_tokens=64)))
    spent = len(text.split(" "))
    assert (last.finish_reason, last.tool_calls) == ("stop", ())
    assert engine.requests[1].max_tokens == 64 - spent
    assert last.usage == Usage(prompt_tokens=3, completion_tokens=6 + spent)
    assert last.output.confidence == pytest.approx(0.904837)


async def test_a_budget_eaten_by_invalid_arguments_is_an_honest_length():
    engine = FakeEngine(label="get_weather", says_json="{ } { }", json_finish_reason="length")
    async with bench(engine) as node:
        last = done(await node.draft(task(tools=[WEATHER], max_tokens=4)))
    assert (last.finish_reason, last.output.answer, last.output.confidence) == ("length", "", 0.0)


async def test_a_demanded_call_that_the_model_cannot_make_is_an_error():
    engine = FakeEngine(says_json='{"city": "Ro', json_finish_reason="length")
    async with bench(engine) as node:
        with pytest.raises(EngineFailed, match="get_weather"):
            await node.draft(task(tools=[WEATHER], tool_choice="required"))


# --- the other methods ------------------------------------------------------------------------------------------------


async def test_models_classify_score_and_embed_by_name_or_default():
    rid = task().generation.request_id
    embedder = FakeEngine("minilm", embeds=True)
    classify = ClassifyRequest(request_id=rid, instruction="i", text="t", labels=("a", "b"))
    async with bench(FakeEngine(), embedder) as node:
        assert (await node.call(CORE_CLASSIFY, ModelCall(model="fake", classify=classify))).label == "a"
        score = ScoreRequest(request_id=rid, prompt_tokens=(1,), answer_tokens=(2, 3))
        assert len((await node.call(CORE_SCORE, ModelCall(score=score))).ranks) == 2
        embed = EmbedRequest(request_id=rid, texts=("a", "b"))
        assert len((await node.call(CORE_EMBED, ModelCall(embed=embed))).vectors) == 2
        with pytest.raises(ModelNotFound, match="fake"):
            await node.call(CORE_EMBED, ModelCall(model="fake", embed=embed))
        with pytest.raises(RequestError):
            await node.call(CORE_SCORE, ModelCall(classify=classify))


async def test_the_experts_of_a_service_are_listed_with_their_engines():
    async with bench(FakeEngine(), FakeEngine("second")) as node:
        listed = (await node.call(CORE_EXPERTS, Empty())).experts
    assert [(c.expert_id, c.service, c.role, c.engine.model) for c in listed] == [
        ("fake", "core", "semantic_core", "fake"),
        ("second", "core", "semantic_core", "second"),
    ]
    assert {c.peer for c in listed} == {NodeIdentity(bytes(range(32))).peer_id}
