"""Whatever is asked under whatever policy: the plan stays inside, verifies, and is the same again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnusnode.contracts.generation import Message
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.plan import AttestationRequirements, ExecutionPlan, MemoryMode, Platform, PrivacyMode
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.roster import Roster
from gnusnode.contracts.services import ExpertCard, TaskRequest, ToolSpec
from gnusnode.contracts.swarm import Role
from gnusnode.contracts.tools import ToolPolicy
from gnusnode.contracts.verify import verify
from gnusnode.errors import GnusError
from gnusnode.identity import NodeIdentity
from gnusnode.policy.envelopes import RISKS, effective_policy, privacy_for, workspace_policy
from gnusnode.policy.sandbox import STRENGTH, WEAKEST_ALLOWED
from roles.router import lexicon
from roles.router.choose import Inquiry, choose_experts
from roles.router.classify import DOMAINS, Intent, Surroundings, classify
from roles.router.plan import Issue, choose_graph, make_plan
from tests.fakes.cards import FAR, HERE, THERE, card, elm, swarm
from tests.fakes.world import task

SIGNER = NodeIdentity(bytes([1] * 32))
ROSTER = Roster.solo(SIGNER.peer_id)
NOW = 1_790_000_000_000
CAPABILITIES = ("memory.retrieve", "tool:web.fetch", "tool:web.fetch.readonly", "tool:fs.write")
WORDS = [
    term.strip() for table in (lexicon.INTENTS, lexicon.DOMAINS, lexicon.RISKS)
    for line in table.values() for term in line.replace("\n", " ").split(",")
]  # fmt: skip

texts = st.one_of(
    st.text(max_size=200),
    st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join),
    st.text(alphabet=st.characters(), max_size=60).map(lambda text: f"```{text}\n1+1={text}"),
)
some_capabilities = st.lists(st.sampled_from(CAPABILITIES), unique=True).map(tuple)
policies = st.builds(
    PolicyEnvelope,
    privacy_mode=st.sampled_from(PrivacyMode),
    max_tokens=st.integers(1, 10_000),
    max_wall_ms=st.integers(1, 1_000_000),
    max_spend=st.floats(0, 10),
    tool_policy=st.builds(
        ToolPolicy,
        human_approval=st.booleans(),
        capability_whitelist=some_capabilities,
        allowlisted_domains=st.lists(st.sampled_from(["docs.gnus.ai", "example.org"]), unique=True).map(tuple),
        allowlisted_paths=st.lists(st.sampled_from(["/data", "/tmp"]), unique=True).map(tuple),
    ),
    memory_mode=st.sampled_from(MemoryMode),
    attestation_requirements=st.builds(
        AttestationRequirements,
        require_task_attestation=st.booleans(),
        require_tool_attestation=st.booleans(),
        min_reputation=st.floats(0, 1),
    ),
    step_by_step=st.booleans(),
    allowed_models=st.none() | st.lists(st.sampled_from(["coder", "lawyer"]), unique=True).map(lambda m: ("core", *m)),
)
cards = st.lists(
    st.one_of(
        st.builds(card, st.sampled_from(["core", "other"]), peer=st.sampled_from([HERE, THERE, FAR])),
        st.builds(
            elm,
            st.sampled_from(["coder", "lawyer"]),
            st.sampled_from(DOMAINS),
            peer=st.sampled_from([HERE, THERE, FAR]),
            capabilities=some_capabilities,
            queued=st.integers(0, 5),
        ),
    ),
    max_size=6,
).map(lambda others: [card("core"), *others])


@st.composite
def requests(draw: st.DrawFn) -> TaskRequest:
    tools = tuple(ToolSpec(name=name) for name in draw(st.lists(st.sampled_from(["a", "b"]), unique=True)))
    text = draw(texts.filter(bool))
    return task(
        messages=[Message(role="user", content=text.encode("utf-8", "replace").decode())],
        model=draw(st.sampled_from(["gnus", "gnus", "gnus-auto", "core", "coder"])),
        policy=draw(policies),
        max_tokens=draw(st.integers(1, 5_000)),
        choices=draw(st.integers(1, 8)),
        tools=tools,
        tool_choice=draw(st.sampled_from(["auto", "none", "required"])),
    )


services = st.lists(st.sampled_from(["memory", "grounding", "verifier", "intermediary"]), unique=True)
platforms = st.lists(st.sampled_from(Platform), unique=True).map(tuple)


def plan_of(
    request: TaskRequest, offered: list[ExpertCard], names: list[str], proven: tuple[Platform, ...]
) -> tuple[ExecutionPlan, Intent] | None:
    """The plan and the classification behind it; None where nobody may serve the request."""
    messages = request.generation.prompt.messages
    assert messages is not None
    tools = tuple(tool.name for tool in request.tools)
    intent = classify(messages[-1].content, Surroundings(tools, request.tool_choice))
    view = swarm(*names, members=(HERE, THERE))
    privacy = privacy_for(request.policy, intent.risk)
    try:
        ranked = choose_experts(offered, request, Inquiry(intent, privacy), view)
    except GnusError:
        return None
    graph = choose_graph(request, intent, ranked, view)
    issue = Issue(SIGNER, ROSTER.swarm_id, NOW, 60_000, 30_000, "cd" * 16, proven)
    return make_plan(request, intent, privacy, graph, offered, issue), intent


def at_least(kind: Any, value: Any, least: Any) -> bool:
    strictness = list(kind)
    return strictness.index(value) >= strictness.index(least)


@pytest.mark.requirement("G-GOAL-5")
@given(requests(), cards, services, platforms)
def test_a_plan_is_never_wider_than_the_policy(
    request: TaskRequest, offered: list[ExpertCard], names: list[str], proven: tuple[Platform, ...]
):
    made = plan_of(request, offered, names, proven)
    if made is None:
        return
    plan, intent = made
    policy = request.policy
    assert plan.constraints.max_tokens <= policy.max_tokens
    assert plan.constraints.max_wall_ms <= policy.max_wall_ms
    assert plan.constraints.max_spend <= policy.max_spend
    assert at_least(PrivacyMode, plan.privacy_mode, policy.privacy_mode)
    assert at_least(MemoryMode, plan.memory_mode, policy.memory_mode)
    assert set(plan.tool_policy.capability_whitelist) <= set(policy.tool_policy.capability_whitelist)
    assert set(plan.tool_policy.allowlisted_domains) <= set(policy.tool_policy.allowlisted_domains)
    assert set(plan.tool_policy.allowlisted_paths) <= set(policy.tool_policy.allowlisted_paths)
    assert plan.tool_policy.human_approval >= (policy.tool_policy.human_approval or policy.step_by_step)
    granted = {capability for selected in plan.selected_elms for capability in selected.capabilities}
    assert granted <= set(policy.tool_policy.capability_whitelist)
    required, demanded = plan.attestation_requirements, policy.attestation_requirements
    assert required.require_task_attestation >= demanded.require_task_attestation
    assert required.require_tool_attestation >= demanded.require_tool_attestation
    assert required.min_reputation >= demanded.min_reputation
    weakest = WEAKEST_ALLOWED[intent.risk]
    assert STRENGTH.index(plan.sandbox_profile.platform) <= STRENGTH.index(weakest)
    assert plan.policy_hash == policy.digest


@given(requests(), cards, services, platforms)
def test_a_plan_verifies_for_who_may_sign_it_and_for_nobody_else(
    request: TaskRequest, offered: list[ExpertCard], names: list[str], proven: tuple[Platform, ...]
):
    made = plan_of(request, offered, names, proven)
    if made is None:
        return
    plan, _ = made
    assert verify(plan, NOW + 1, ROSTER) is Outcome.OK
    assert verify(plan, NOW + 60_001, ROSTER) is Outcome.EXPIRED
    without_router = Roster.solo(SIGNER.peer_id, tuple(set(Role) - {Role.ROUTER}))
    assert verify(plan, NOW + 1, without_router) is Outcome.ROLE_NOT_GRANTED
    assert ExecutionPlan.from_bytes(plan.to_bytes()) == plan


@given(requests(), cards, services, platforms)
def test_equal_inputs_give_the_same_plan_to_the_byte(
    request: TaskRequest, offered: list[ExpertCard], names: list[str], proven: tuple[Platform, ...]
):
    once = plan_of(request, offered, names, proven)
    again = plan_of(request.model_copy(), list(reversed(offered)), list(reversed(names)), proven)
    if once is None or again is None:
        assert once is again
        return
    assert once[1] == again[1]
    if len({(c.expert_id, c.peer) for c in offered}) == len(offered):
        assert once[0].to_bytes() == again[0].to_bytes()


@given(requests(), cards, services, platforms)
def test_only_experts_that_may_see_the_prompt_are_chosen(
    request: TaskRequest, offered: list[ExpertCard], names: list[str], proven: tuple[Platform, ...]
):
    made = plan_of(request, offered, names, proven)
    if made is None:
        return
    plan, intent = made
    inquiry = Inquiry(intent, plan.privacy_mode)
    ranked = choose_experts(offered, request, inquiry, swarm(*names, members=(HERE, THERE)))
    visible = {
        PrivacyMode.PLAINTEXT: {HERE, THERE, FAR},
        PrivacyMode.RESTRICTED: {HERE, THERE},
        PrivacyMode.PRIVATE_BOUNDARY: {HERE},
    }[plan.privacy_mode]
    assert {candidate.card.peer for candidate in ranked} <= visible
    if request.policy.allowed_models is not None:
        assert {candidate.card.expert_id for candidate in ranked} <= set(request.policy.allowed_models)


@given(
    st.text(alphabet=st.characters(codec=None), max_size=300) | texts,
    st.builds(
        Surroundings,
        tools=st.lists(st.text(max_size=5)).map(tuple),
        tool_choice=st.text(max_size=8),
        structured=st.booleans(),
    ),
)
def test_classification_is_total_and_deterministic(text: str, surroundings: Surroundings):
    found = classify(text, surroundings)
    assert found == classify(text, surroundings)
    assert found.intent in lexicon.INTENTS
    assert found.domain in DOMAINS
    assert found.risk in RISKS
    assert 0 < found.confidence <= 1
    assert 0 <= found.margin <= 1
    for reason in found.reasons:
        reason.encode("utf-8")  # lone surrogates of a request would not get through


@given(policies, st.sampled_from(["solo", "lan", "high-trust"]))
def test_the_effective_policy_is_inside_both_the_users_and_the_workspaces(user: PolicyEnvelope, profile: str):
    workspace = workspace_policy(profile, user.tenant)
    both = effective_policy(user, workspace)
    for outer in (user, workspace):
        assert both.max_tokens <= outer.max_tokens
        assert both.max_wall_ms <= outer.max_wall_ms
        assert both.max_spend <= outer.max_spend
        assert at_least(PrivacyMode, both.privacy_mode, outer.privacy_mode)
        assert at_least(MemoryMode, both.memory_mode, outer.memory_mode)
        assert set(both.tool_policy.capability_whitelist) <= set(outer.tool_policy.capability_whitelist)
        assert both.step_by_step >= outer.step_by_step
        assert both.tool_policy.human_approval >= outer.tool_policy.human_approval
    assert effective_policy(both, workspace) == both
