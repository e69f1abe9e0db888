"""From a classified request to a signed execution plan. Pure but for the signature; never wider than the policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gnusnode.contracts.dsse import Signer
from gnusnode.contracts.plan import (
    Constraints,
    ElmRole,
    ExecutionGraph,
    ExecutionPlan,
    MemoryMode,
    Mode,
    Platform,
    PrivacyMode,
    SelectedCore,
    SelectedElm,
    Stage,
    Topology,
)
from gnusnode.contracts.services import ExpertCard, TaskRequest
from gnusnode.policy.envelopes import attestations_for, memory_for
from gnusnode.policy.sandbox import sandbox_for
from gnusnode.policy.tools import tool_policy_for
from roles.router.choose import Candidate
from roles.router.classify import ACTION, Intent
from roles.router.facts import Swarm

NO_CORE: Final = SelectedCore(core_id="none", version="none")
"""What a plan names as its core where the swarm has none: no expert answers to it."""

SWARM_WIDTH: Final = 3
"""Most drafts that are compared in swarm mode."""

_FACTUAL: Final = ("answer", "explain", "summarise")
_NEEDS_SOURCES: Final = ("science", "legal", "finance", "operations", "customer_support")


@dataclass(frozen=True)
class Graph:
    """Mode, topology, stages and drafting experts of a plan, with reasons."""

    graph: ExecutionGraph
    drafters: tuple[Candidate, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Issue:
    """What a plan needs besides the decision: who signs, when, and for how long it holds.

    Attributes:
        wall_ms: what is left of the request's deadline.
        nonce: 32 hex digits, fresh for each plan.
        platforms: sandbox backends that passed their self-test.
    """

    signer: Signer
    swarm_id: str
    now_ms: int
    valid_ms: int
    wall_ms: int
    nonce: str
    platforms: tuple[Platform, ...] = ()


def choose_graph(request: TaskRequest, intent: Intent, ranked: Sequence[Candidate], swarm: Swarm) -> Graph:
    """The smallest set of services that serves the request well, out of what the swarm offers.

    One expert drafts, unless much is at stake and somebody can arbitrate between several.
    """
    mode, why = _mode(request, intent, ranked, swarm)
    drafters = tuple(_distinct(ranked)[:SWARM_WIDTH]) if mode is Mode.SWARM else (ranked[0],)
    stages, notes = _stages(request, intent, mode, swarm)
    best = ranked[0]
    return Graph(
        graph=ExecutionGraph(mode=mode, topology=_topology(mode, stages), stages=stages),
        drafters=drafters,
        reasons=(f"mode {mode.value}: {why}", *notes, f"expert {best.card.expert_id}: {'; '.join(best.reasons)}"),
    )


def make_plan(
    request: TaskRequest,
    intent: Intent,
    privacy: PrivacyMode,
    graph: Graph,
    cards: Sequence[ExpertCard],
    issue: Issue,
) -> ExecutionPlan:
    """Signs the plan under which ``graph`` runs. Equal arguments give equal plans.

    ``max_tokens`` bounds the output of the whole request, all choices together.
    """
    policy = request.policy
    asked = request.generation.max_tokens * request.choices
    tools = graph.graph.mode is Mode.AGENT
    return ExecutionPlan.signed(
        issue.signer,
        request_id=request.generation.request_id,
        query_hash=request.generation.prompt.digest,
        selected_core=_core(graph.drafters, cards),
        selected_elms=_elms(graph.drafters, set(policy.tool_policy.capability_whitelist)),
        execution_graph=graph.graph,
        constraints=Constraints(
            max_tokens=min(policy.max_tokens, asked),
            max_wall_ms=max(1, min(policy.max_wall_ms, issue.wall_ms)),
            max_spend=policy.max_spend,
        ),
        privacy_mode=privacy,
        attestation_requirements=attestations_for(policy, intent.risk),
        tool_policy=tool_policy_for(policy, intent.risk, needs_tools=tools),
        memory_mode=memory_for(policy, intent.risk),
        sandbox_profile=sandbox_for(issue.platforms, intent.risk),
        swarm_id=issue.swarm_id,
        policy_hash=policy.digest,
        issued_at_ms=issue.now_ms,
        expires_at_ms=issue.now_ms + issue.valid_ms,
        nonce=issue.nonce,
    )


def _mode(request: TaskRequest, intent: Intent, ranked: Sequence[Candidate], swarm: Swarm) -> tuple[Mode, str]:
    wants_tools = bool(request.tools) and request.tool_choice != "none"
    if wants_tools and (intent.intent == ACTION or request.tool_choice != "auto") and "intermediary" in swarm.services:
        return Mode.AGENT, "the request asks for actions, and an intermediary can check them"
    if intent.risk == "high" and len(_distinct(ranked)) > 1 and "verifier" in swarm.services:
        return Mode.SWARM, "much is at stake, and several drafts can be arbitrated"
    if ranked[0].fits:
        return Mode.ELM_ASSISTED, f"an expert for {intent.domain} is ready"
    if wants_tools:
        return Mode.SINGLE_NODE, "one expert suffices; its tool calls go back to the client as proposals"
    return Mode.SINGLE_NODE, "one expert suffices"


def _stages(
    request: TaskRequest, intent: Intent, mode: Mode, swarm: Swarm
) -> tuple[tuple[Stage, ...], tuple[str, ...]]:
    """The stages that are needed and offered; a need that nobody serves is a reason line."""
    memory = request.policy.memory_mode is not MemoryMode.OFF and intent.intent != "chat"
    sources = intent.intent in _FACTUAL and (intent.domain in _NEEDS_SOURCES or intent.risk != "low")
    needs = (
        (memory, Stage.MEMORY, "memory"),
        (True, Stage.DRAFT, None),
        (mode is Mode.AGENT, Stage.TOOL, "intermediary"),
        (sources, Stage.GROUND, "grounding"),
        (intent.risk == "high" or mode is Mode.SWARM, Stage.VERIFY, "verifier"),
        (mode in (Mode.SWARM, Mode.AGENT), Stage.SYNTHESIZE, "verifier"),
    )
    stages = tuple(stage for needed, stage, by in needs if needed and (by is None or by in swarm.services))
    missing = sorted({by for needed, _, by in needs if needed and by is not None and by not in swarm.services})
    return stages, tuple(f"without {by}: nobody serves it" for by in missing)


def _topology(mode: Mode, stages: tuple[Stage, ...]) -> Topology:
    if mode is Mode.SWARM:
        return Topology.PARALLEL_WITH_ARBITER
    return Topology.SEQUENTIAL if len(stages) > 1 else Topology.SINGLE


def _distinct(ranked: Sequence[Candidate]) -> list[Candidate]:
    """One candidate per artifact: drafts of the same weights do not check each other."""
    seen: set[str] = set()
    kept: list[Candidate] = []
    for candidate in ranked:
        if candidate.card.engine.artifact_hash not in seen:
            seen.add(candidate.card.engine.artifact_hash)
            kept.append(candidate)
    return kept


def _core(drafters: Sequence[Candidate], cards: Sequence[ExpertCard]) -> SelectedCore:
    """The drafting core; else, beside an ELM, the core that would take over; else none."""
    drafting = [candidate.card for candidate in drafters if candidate.card.service == "core"]
    others = sorted((card for card in cards if card.service == "core"), key=lambda card: (card.expert_id, card.peer))
    for card in (*drafting, *others):
        return SelectedCore(core_id=card.expert_id, version=card.version)
    return NO_CORE


def _elms(drafters: Sequence[Candidate], granted: set[str]) -> tuple[SelectedElm, ...]:
    return tuple(
        SelectedElm(
            elm_id=card.expert_id,
            version=card.version,
            role=ElmRole(card.role),
            capabilities=tuple(sorted(granted & set(card.capabilities))),
        )
        for card in (candidate.card for candidate in drafters)
        if card.service == "elm"
    )
