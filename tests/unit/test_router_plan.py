"""What the router plans: mode, topology, stages, limits, isolation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gnusnode.contracts.plan import ExecutionPlan, MemoryMode, Mode, Platform, PrivacyMode, Stage, Topology
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.services import ExpertCard, TaskRequest, ToolSpec
from gnusnode.contracts.swarm import swarm_id
from gnusnode.contracts.tools import ToolPolicy
from gnusnode.identity import NodeIdentity
from gnusnode.policy.envelopes import privacy_for
from roles.router.choose import Inquiry, choose_experts
from roles.router.classify import Surroundings, classify
from roles.router.plan import NO_CORE, Graph, Issue, choose_graph, make_plan
from tests.fakes.cards import HERE, card, elm, swarm
from tests.fakes.world import task

SIGNER = NodeIdentity(bytes([1] * 32))
NOW = 1_790_000_000_000
RISKY = "What dosage of this medication, and is my password safe?"
FETCH = ToolSpec(name="web_fetch", description="Fetches a page.")
EVERYTHING = ("memory", "grounding", "verifier", "intermediary")


def planned(
    request: TaskRequest, cards: Sequence[ExpertCard], *services: str, platforms: tuple[Platform, ...] = ()
) -> tuple[ExecutionPlan, Graph]:
    messages = request.generation.prompt.messages
    assert messages is not None
    names = tuple(tool.name for tool in request.tools)
    intent = classify(messages[-1].content, Surroundings(names, request.tool_choice))
    view = swarm(*services)
    privacy = privacy_for(request.policy, intent.risk)
    graph = choose_graph(request, intent, choose_experts(cards, request, Inquiry(intent, privacy), view), view)
    issue = Issue(SIGNER, swarm_id(SIGNER.peer_id), NOW, 300_000, 60_000, "ab" * 16, platforms)
    return make_plan(request, intent, privacy, graph, cards, issue), graph


@pytest.mark.requirement("G-RT-2")
def test_each_mode_is_chosen_where_it_serves_best():
    core, other, coder = card("core"), card("other"), elm("coder", "code")
    cases: list[tuple[TaskRequest, list[ExpertCard], tuple[str, ...], Mode, Topology]] = [
        (task("hello"), [core], (), Mode.SINGLE_NODE, Topology.SINGLE),
        (task("Fix this Python function"), [core, coder], (), Mode.ELM_ASSISTED, Topology.SINGLE),
        (task(RISKY), [core, other], ("verifier",), Mode.SWARM, Topology.PARALLEL_WITH_ARBITER),
        (task("Fetch the page", tools=[FETCH]), [core], ("intermediary",), Mode.AGENT, Topology.SEQUENTIAL),
    ]
    for request, cards, services, mode, topology in cases:
        plan, _ = planned(request, cards, *services)
        assert (plan.execution_graph.mode, plan.execution_graph.topology) == (mode, topology)


@pytest.mark.requirement("G-GOAL-1")
def test_one_expert_suffices_unless_several_can_be_arbitrated():
    def drafters(request: TaskRequest, *services: str) -> int:
        return len(planned(request, [card("core"), card("other"), elm("coder", "code")], *services)[1].drafters)

    assert drafters(task("hello"), *EVERYTHING) == 1
    assert drafters(task("Fix this Python function"), *EVERYTHING) == 1
    assert drafters(task(RISKY)) == 1
    assert drafters(task(RISKY), "verifier") == 3


def test_drafts_of_the_same_weights_are_no_second_opinion():
    same = {"artifact_hash": "sha256:" + "ab" * 32}
    plan, graph = planned(task(RISKY), [card("a", **same), card("b", **same)], "verifier")
    assert plan.execution_graph.mode is Mode.SINGLE_NODE
    assert len(graph.drafters) == 1


@pytest.mark.requirement("G-RT-3")
@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("hello", [Stage.DRAFT]),
        ("Write a poem", [Stage.MEMORY, Stage.DRAFT]),
        ("What does this contract clause mean?", [Stage.MEMORY, Stage.DRAFT, Stage.GROUND]),
        (RISKY, [Stage.MEMORY, Stage.DRAFT, Stage.GROUND, Stage.VERIFY]),
    ],
)
def test_memory_grounding_and_verification_are_planned_where_they_are_needed(text: str, stages: list[Stage]):
    plan, _ = planned(task(text), [card("core")], *EVERYTHING)
    assert list(plan.execution_graph.stages) == stages


def test_a_need_that_nobody_serves_is_said_and_not_promised():
    plan, graph = planned(task(RISKY), [card("core")])
    assert plan.execution_graph.stages == (Stage.DRAFT,)
    assert [reason for reason in graph.reasons if reason.startswith("without")] == [
        "without grounding: nobody serves it",
        "without memory: nobody serves it",
        "without verifier: nobody serves it",
    ]


def test_without_an_intermediary_tool_calls_stay_proposals_to_the_client():
    plan, graph = planned(task("Fetch the page", tools=[FETCH]), [card("core")])
    assert plan.execution_graph.mode is Mode.SINGLE_NODE
    assert "proposals" in " ".join(graph.reasons)
    assert plan.tool_policy.capability_whitelist == ()


@pytest.mark.requirement("G-RT-4")
def test_limits_are_those_of_the_policy_the_request_and_the_deadline():
    policy = PolicyEnvelope(max_tokens=100, max_wall_ms=9_000, max_spend=0.01, memory_mode=MemoryMode.OFF)
    plan, _ = planned(task("hello", max_tokens=40, choices=2, policy=policy), [card("core")])
    assert (plan.constraints.max_tokens, plan.constraints.max_wall_ms) == (80, 9_000)
    assert plan.constraints.max_spend == 0.01
    assert plan.memory_mode is MemoryMode.OFF
    wide, _ = planned(task("hello", max_tokens=400, choices=2, policy=policy), [card("core")])
    assert wide.constraints.max_tokens == 100
    patient, _ = planned(task("hello", policy=PolicyEnvelope(max_wall_ms=600_000)), [card("core")])
    assert patient.constraints.max_wall_ms == 60_000
    assert (plan.issued_at_ms, plan.expires_at_ms) == (NOW, NOW + 300_000)


@pytest.mark.requirement("G-RL-6")
def test_high_stakes_tighten_privacy_memory_and_tools():
    policy = PolicyEnvelope(
        privacy_mode=PrivacyMode.PLAINTEXT,
        tool_policy=ToolPolicy(capability_whitelist=("tool:web.fetch.readonly",)),
    )
    request = task(RISKY + " Fetch the page.", tools=[FETCH], tool_choice="required", policy=policy)
    plan, _ = planned(request, [card("core")], *EVERYTHING)
    assert plan.privacy_mode is PrivacyMode.RESTRICTED
    assert plan.memory_mode is MemoryMode.TRUSTED_ONLY
    assert plan.tool_policy.human_approval
    calm, _ = planned(task("hello", policy=policy), [card("core")])
    assert (calm.privacy_mode, calm.memory_mode) == (PrivacyMode.PLAINTEXT, MemoryMode.POLICY_SCOPED)
    assert not calm.tool_policy.human_approval


@pytest.mark.parametrize(
    ("capabilities", "step_by_step", "asks"),
    [
        (("tool:web.fetch.readonly", "memory.retrieve"), False, False),
        (("tool:web.fetch.readonly",), True, True),
        (("tool:fs.write",), False, True),
    ],
)
def test_a_person_is_asked_before_anything_that_does_not_only_read(
    capabilities: tuple[str, ...], step_by_step: bool, asks: bool
):
    policy = PolicyEnvelope(tool_policy=ToolPolicy(capability_whitelist=capabilities), step_by_step=step_by_step)
    request = task("Fetch the page", tools=[FETCH], policy=policy)
    plan, _ = planned(request, [card("core")], "intermediary")
    assert plan.tool_policy.human_approval is asks
    assert plan.tool_policy.capability_whitelist == capabilities


@pytest.mark.requirement("G-RT-7")
@pytest.mark.parametrize(
    ("text", "proven", "demanded"),
    [
        ("hello", (), Platform.SERVER_NAMESPACES),
        ("hello", (Platform.SERVER_CONTAINER, Platform.SERVER_FIRECRACKER), Platform.SERVER_FIRECRACKER),
        ("Should I invest in stocks?", (Platform.SERVER_NAMESPACES,), Platform.SERVER_CONTAINER),
        (RISKY, (Platform.SERVER_NAMESPACES,), Platform.SERVER_GVISOR),
        (RISKY, (Platform.SERVER_FIRECRACKER,), Platform.SERVER_FIRECRACKER),
    ],
)
def test_the_sandbox_is_the_strongest_proven_and_never_weaker_than_the_risk_demands(
    text: str, proven: tuple[Platform, ...], demanded: Platform
):
    plan, _ = planned(task(text), [card("core")], platforms=proven)
    assert plan.sandbox_profile.platform is demanded
    assert plan.sandbox_profile.default_deny


def test_a_plan_names_the_drafting_expert_with_the_capabilities_that_the_policy_grants():
    policy = PolicyEnvelope(tool_policy=ToolPolicy(capability_whitelist=("memory.retrieve",)))
    coder = elm("coder", "code", capabilities=("memory.retrieve", "tool:web.fetch"))
    plan, _ = planned(task("Fix this Python function", policy=policy), [card("core"), coder])
    [selected] = plan.selected_elms
    assert (selected.elm_id, selected.capabilities) == ("coder", ("memory.retrieve",))
    assert plan.selected_core.core_id == "core"


def test_a_swarm_without_a_core_is_planned_without_one():
    plan, _ = planned(task("Fix this Python function"), [elm("coder", "code")])
    assert plan.selected_core == NO_CORE
    assert [selected.elm_id for selected in plan.selected_elms] == ["coder"]


@pytest.mark.requirement("G-RT-6")
def test_the_plan_has_the_fields_of_the_specification_and_the_routers_signature():
    fields: set[Any] = {
        "request_id", "query_hash", "selected_core", "selected_elms", "execution_graph", "constraints", "privacy_mode",
        "attestation_requirements", "tool_policy", "memory_mode", "sandbox_profile", "plan_signature",
    }  # fmt: skip
    request = task("hello")
    plan, _ = planned(request, [card("core")])
    assert fields <= set(plan.to_plain())
    assert plan.signer == HERE
    assert plan.signature_is_valid()
    assert plan.query_hash == request.generation.prompt.digest
    assert plan.policy_hash == request.policy.digest
