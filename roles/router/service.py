"""The router: classifies a request, signs its plan, has the chosen experts draft, reroutes while nothing was shown."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from gnusnode.contracts.generation import ClassifyRequest, Usage
from gnusnode.contracts.plan import ExecutionPlan, Platform, PrivacyMode
from gnusnode.contracts.services import (
    CORE_CLASSIFY,
    CORE_DRAFT,
    ELM_DRAFT,
    ROUTED,
    ChoiceDelta,
    ChoiceDone,
    DraftRequest,
    ExpertCard,
    ModelCall,
    PlanMade,
    TaskDone,
    TaskRequest,
)
from gnusnode.errors import (
    DataError,
    DeadlineExceeded,
    GnusError,
    Overloaded,
    Poisoned,
    RecordRefused,
    RequestError,
    Unavailable,
)
from gnusnode.net.rpc import CallContext, Rpc, Service
from gnusnode.observe import events
from gnusnode.observe.stage import Stage, StageTimer
from gnusnode.policy.envelopes import privacy_for
from roles.answers import packaged
from roles.ports import RoleContext, word
from roles.router.choose import Candidate, Swarm, choose_experts
from roles.router.classify import DOMAINS, Intent, Surroundings, classify, settle
from roles.router.directory import Directory
from roles.router.plan import Graph, Issue, choose_graph, make_plan
from roles.router.prefixes import PrefixMemory

Send = Callable[[PlanMade | ChoiceDelta | ChoiceDone | TaskDone], Awaitable[None]]

_ASK_MODEL_SECONDS: Final = 2.0
"""How long the router waits for a model's opinion on the domain; without it the words decide."""
_SHUN_SECONDS: Final = 60.0
"""How long an expert with a broken model or wrong records goes last; without it every request would try it first."""
_DRAFT: Final = {"core": CORE_DRAFT, "elm": ELM_DRAFT}
_DRIVEN: Final = frozenset(_DRAFT)
"""Services that this router knows how to drive; a plan promises no stage beyond them."""


@dataclass(frozen=True)
class RouterOptions:
    """Settings of the router.

    Attributes:
        classify: whether a model scores the domain: ``auto`` only where the words leave a margin below ``margin``.
        plan_ms: how long a plan holds.
        requeues: further experts that are tried before the first visible token.
        max_running: requests routed at a time; more are refused.
    """

    classify: Literal["auto", "always", "never"] = "auto"
    margin: float = 0.12
    plan_ms: int = 300_000
    requeues: int = 2
    max_running: int = 256
    platforms: tuple[Platform, ...] = ()


@dataclass
class _Attempt:
    """One draft under one plan, as far as it came."""

    plan: ExecutionPlan
    candidate: Candidate
    visible: bool = False
    """Whether the caller has seen anything of an answer."""
    texts: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    done: list[ChoiceDone] = field(default_factory=list[ChoiceDone])


@dataclass(frozen=True)
class _Decision:
    """What was decided before the first plan; rerouting keeps it."""

    intent: Intent
    privacy: PrivacyMode
    cards: tuple[ExpertCard, ...]
    ranked: tuple[Candidate, ...]


class Router:
    """The service ``router``. ``swarm`` says at any time who is a member, who is ours and which services there are."""

    def __init__(
        self,
        rpc: Rpc,
        node: RoleContext,
        directory: Directory,
        swarm: Callable[[], Swarm],
        options: RouterOptions | None = None,
    ) -> None:
        self._rpc = rpc
        self._node = node
        self._directory = directory
        self._swarm = swarm
        self._options = options or RouterOptions()
        self._prefixes = PrefixMemory()
        self._failed: dict[tuple[str, str], float] = {}
        """Experts that proved unusable, and until when (monotonic seconds) others go before them."""
        self.running = 0
        """Requests being routed now."""
        self.rerouted = 0
        """Attempts that were moved to another expert, since start."""

    def service(self) -> Service:
        return Service("router", unary={}, streams={"run": self._run})

    async def _run(self, request: TaskRequest, context: CallContext, send: Send) -> None:
        if self.running >= self._options.max_running:
            raise Overloaded(f"the router already routes {self.running} requests", retry_after=1.0, hint="try again")
        self.running += 1
        try:
            await self._route(request, context.within(request.policy.max_wall_ms / 1000), send)
        finally:
            self.running -= 1

    async def _route(self, request: TaskRequest, context: CallContext, send: Send) -> None:
        _check_limits(request)
        timer = self._node.timer(request.generation.request_id)
        with timer.stage(Stage.ROUTING):
            decision = await self._decide(request, context)
        notes: tuple[str, ...] = ()
        for place in range(1 + self._options.requeues):
            left = decision.ranked[place:]
            with timer.stage(Stage.ROUTING):
                graph = choose_graph(request, decision.intent, left, self._view())
                attempt = _Attempt(self._plan(request, decision, graph, context), left[0])
            await self._announce(attempt, decision.intent, (*decision.intent.reasons, *graph.reasons, *notes), send)
            try:
                await self._draft(request, attempt, context, timer, send)
                await send(self._finish(request, attempt, timer))
                return
            except GnusError as error:
                if not worth_elsewhere(error):
                    raise
                if isinstance(error, DataError | RecordRefused):  # a busy or restarting engine says so in its card
                    self._failed[left[0].key] = time.monotonic() + _SHUN_SECONDS
                if attempt.visible or place == self._options.requeues or len(left) == 1:
                    raise
                self.rerouted += 1
                notes = (*notes, f"rerouted from {left[0].card.expert_id}: {error.code}")

    # --- deciding -----------------------------------------------------------------------------------------------------

    async def _decide(self, request: TaskRequest, context: CallContext) -> _Decision:
        cards = await self._directory.cards(context)
        intent = await self._classified(request, context)
        privacy = privacy_for(request.policy, intent.risk)
        warm = self._prefixes.find(request.policy.tenant, request.generation.prompt.messages or ())
        ranked = choose_experts(cards, request, intent, privacy, self._view(), warm=warm, failed=self._shunned())
        return _Decision(intent, privacy, cards, tuple(ranked))

    async def _classified(self, request: TaskRequest, context: CallContext) -> Intent:
        text = asked(request)
        names = tuple(tool.name for tool in request.tools)
        structured = request.generation.json_schema is not None
        intent = classify(text, Surroundings(names, request.tool_choice, structured))
        unsure = self._options.classify == "always" or intent.margin < self._options.margin
        if self._options.classify == "never" or request.model not in ROUTED or not unsure or not text:
            return intent
        scoring = ClassifyRequest(
            request_id=request.generation.request_id,
            instruction=f"Name the subject of the text, one of {', '.join(DOMAINS)}.\n\nText: ",
            text=text[:2000],
            suffix="\nSubject:",
            labels=tuple(f" {domain}" for domain in DOMAINS),
            tenant=request.policy.tenant,
        )
        try:
            # Asked of this node's own core only: where the text may travel is not decided yet.
            scored = await self._rpc.call(
                CORE_CLASSIFY,
                ModelCall(classify=scoring),
                context.within(_ASK_MODEL_SECONDS),
                peer=self._node.peer_id,
            )
        except Unavailable as error:
            return replace(intent, reasons=(*intent.reasons, f"no model was asked for the domain: {error.code}"))
        return settle(intent, scored.model_copy(update={"label": scored.label.strip()}))

    def _shunned(self) -> frozenset[tuple[str, str]]:
        now = time.monotonic()
        self._failed = {key: until for key, until in self._failed.items() if until > now}
        return frozenset(self._failed)

    def _view(self) -> Swarm:
        swarm = self._swarm()
        return replace(swarm, services=swarm.services & _DRIVEN)

    def _plan(self, request: TaskRequest, decision: _Decision, graph: Graph, context: CallContext) -> ExecutionPlan:
        issue = Issue(
            signer=self._node.signer,
            swarm_id=self._node.swarm_id,
            now_ms=self._node.now_ms(),
            valid_ms=self._options.plan_ms,
            wall_ms=round(context.remaining() * 1000),
            nonce=secrets.token_hex(16),
            platforms=self._options.platforms,
        )
        return make_plan(request, decision.intent, decision.privacy, graph, decision.cards, issue)

    async def _announce(self, attempt: _Attempt, intent: Intent, reasons: tuple[str, ...], send: Send) -> None:
        card = attempt.candidate.card
        self._node.observer.bus.publish(
            events.PlanMade(
                request_id=attempt.plan.request_id,
                plan_digest=attempt.plan.digest,
                mode=attempt.plan.execution_graph.mode.value,
                expert=word(card.expert_id),
                confidence=intent.confidence,
            )
        )
        await send(PlanMade(plan=attempt.plan, model=card.expert_id, confidence=intent.confidence, reasons=reasons))

    # --- driving ------------------------------------------------------------------------------------------------------

    async def _draft(
        self, request: TaskRequest, attempt: _Attempt, context: CallContext, timer: StageTimer, send: Send
    ) -> None:
        """Has the expert draft and passes on what it says, once that is checked."""
        card = attempt.candidate.card
        draft = DraftRequest(
            plan=attempt.plan,
            expert_id=card.expert_id,
            expert_role=card.role,
            model=card.engine.model,
            generation=request.generation,
            choices=request.choices,
            tools=request.tools,
            tool_choice=request.tool_choice,
            open_sampling=request.open_sampling,
        )
        context = replace(context, plan_digest=attempt.plan.digest)
        begin = time.perf_counter()
        first_ms: float | None = None
        with timer.stage(Stage.COMPUTE):
            async with self._rpc.stream(_DRAFT[card.service], draft, context, peer=card.peer) as items:
                async for item in items:
                    if first_ms is None:
                        first_ms = (time.perf_counter() - begin) * 1000
                    self._take(attempt, item)
                    await send(item)
        if len(attempt.done) != request.choices:
            raise RecordRefused(f"{len(attempt.done)} of {request.choices} choices came", where=card.expert_id)
        timer.add(Stage.DISPATCH, (first_ms or 0.0) - min(_until_first_word(done) for done in attempt.done))

    def _take(self, attempt: _Attempt, item: ChoiceDelta | ChoiceDone) -> None:
        """Checks an item before anybody sees it; a package must be signed and say what was streamed.

        Raises:
            RecordRefused: it does not hold up.
        """
        if isinstance(item, ChoiceDelta):
            attempt.texts.setdefault(item.index, []).append(item.delta.text)
        else:
            self._node.require(item.output)
            check_package(attempt.plan, attempt.candidate.card, item, "".join(attempt.texts.get(item.index, ())))
            attempt.done.append(item)
        attempt.visible = True

    def _finish(self, request: TaskRequest, attempt: _Attempt, timer: StageTimer) -> TaskDone:
        self._failed.pop(attempt.candidate.key, None)
        messages = request.generation.prompt.messages or ()
        self._prefixes.remember(request.policy.tenant, messages, attempt.candidate.key)
        slowest = max(attempt.done, key=lambda done: done.timing.queue_ms + done.timing.prefill_ms)
        timer.add(Stage.QUEUE, slowest.timing.queue_ms)
        timer.add(Stage.PREFILL, slowest.timing.prefill_ms)
        timer.add(Stage.DECODE, max(done.timing.decode_ms for done in attempt.done))
        return TaskDone(
            usage=total_usage([done.usage for done in attempt.done]),
            node=attempt.candidate.card.peer,
            plan_digest=attempt.plan.digest,
            stages_ms={stage: round(elapsed, 3) for stage, elapsed in timer.elapsed_ms.items()},
        )


# --- pure parts -------------------------------------------------------------------------------------------------------


def asked(request: TaskRequest) -> str:
    """What the user said last; empty where the prompt is made of token ids."""
    prompt = request.generation.prompt
    if prompt.messages is None:
        return prompt.text or ""
    said = [message.content for message in prompt.messages if message.role == "user"]
    return said[-1] if said else prompt.messages[-1].content


def worth_elsewhere(error: GnusError) -> bool:
    """Whether another expert may do better: not when the request is at fault, poisonous, or out of time."""
    if isinstance(error, Poisoned | DeadlineExceeded):
        return False
    return isinstance(error, Unavailable | DataError | RecordRefused)


def check_package(plan: ExecutionPlan, card: ExpertCard, item: ChoiceDone, streamed: str) -> None:
    """Whether a package, whose signature was checked, belongs to this plan and says what was streamed.

    Raises:
        RecordRefused: it does not.
    """
    output = item.output
    wrong = {
        "request": output.request_id != plan.request_id,
        "plan": output.plan_hash != plan.digest,
        "expert": (output.expert_id, output.expert_role.value) != (card.expert_id, card.role),
        "signer": output.signer != card.peer,
        "artifact": output.artifact_hash != card.engine.artifact_hash,
        "answer": output.answer != packaged(streamed),
        "tool calls": output.tool_calls != item.tool_calls,
    }
    faults = [name for name, is_wrong in wrong.items() if is_wrong]
    if faults:
        raise RecordRefused(
            f"the package is of another {', '.join(faults)} than agreed",
            where="expert-output",
            hint="report the expert",
        )


def total_usage(parts: list[Usage]) -> Usage:
    """Tokens of all choices; their common prompt counts once."""
    return Usage(
        prompt_tokens=max(part.prompt_tokens for part in parts),
        cached_tokens=max(part.cached_tokens for part in parts),
        completion_tokens=sum(part.completion_tokens for part in parts),
    )


def _until_first_word(done: ChoiceDone) -> float:
    """Milliseconds that the engine itself took before a choice said anything."""
    timing = done.timing
    return timing.queue_ms + timing.prefill_ms + (timing.decode_ms if done.tool_calls else 0.0)


def _check_limits(request: TaskRequest) -> None:
    if request.policy.max_tokens < request.choices:
        raise RequestError(
            f"the policy allows {request.policy.max_tokens} tokens, less than one for each choice",
            param="n",
            hint="ask for fewer choices or allow more tokens",
        )
