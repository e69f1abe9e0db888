"""The router: classifies a request, chooses experts, signs plans, and sees the answer through (``failover``)."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from gnusnode.contracts.generation import ClassifyRequest
from gnusnode.contracts.plan import ExecutionPlan, Platform
from gnusnode.contracts.services import CORE_CLASSIFY, ROUTED, ModelCall, TaskRequest
from gnusnode.errors import GnusError, Overloaded, RequestError, Unavailable
from gnusnode.net.rpc import CallContext, Rpc, Service
from gnusnode.policy.envelopes import privacy_for
from roles.ports import RoleContext
from roles.router.attempt import DRAFT
from roles.router.choose import Candidate, Inquiry, choose_experts
from roles.router.classify import DOMAINS, Intent, Surroundings, classify, settle
from roles.router.desk import Decision, Desk, FailoverOptions, Send, Tally
from roles.router.directory import Directory
from roles.router.facts import Swarm
from roles.router.failover import Course
from roles.router.health import Health, Key
from roles.router.plan import Issue, choose_graph, make_plan
from roles.router.prefixes import PrefixMemory

_ASK_MODEL_SECONDS: Final = 2.0
"""How long the router waits for a model's opinion on the domain; without it the words decide."""
_DRIVEN: Final = frozenset(DRAFT)
"""A plan promises no stage beyond these services."""
_RECENT: Final = 0.1
"""Weight of the newest request in the mean of how long they take."""
_LONGEST_RETRY: Final = 60.0


@dataclass(frozen=True)
class RouterOptions:
    """Settings of the router.

    Attributes:
        classify: whether a model scores the domain: ``auto`` only where the words leave a margin below ``margin``.
        plan_ms: how long a plan holds.
        explore: part of the suitable requests (plain text, little at stake) that newcomers get, to prove themselves.
        max_running: requests routed at a time; more are refused. Another node's ingress gets at most half of them.
    """

    classify: Literal["auto", "always", "never"] = "auto"
    margin: float = 0.12
    plan_ms: int = 300_000
    explore: float = 0.1
    max_running: int = 256
    platforms: tuple[Platform, ...] = ()
    failover: FailoverOptions = field(default_factory=FailoverOptions)


class Router:
    """The service ``router``.

    Args:
        swarm: says at any time who is a member, who is ours, which services there are, and what is known of peers.
        report: is told how each draft of another node's expert ended: with an error, or None for well.
    """

    def __init__(
        self,
        rpc: Rpc,
        node: RoleContext,
        directory: Directory,
        swarm: Callable[[], Swarm],
        options: RouterOptions | None = None,
        *,
        report: Callable[[Key, GnusError | None], None] = lambda key, error: None,
    ) -> None:
        self._rpc = rpc
        self._node = node
        self._directory = directory
        self._swarm = swarm
        self._options = options or RouterOptions()
        self._prefixes = PrefixMemory()
        self._health = Health(time.monotonic)
        self.tally = Tally()
        self._desk = Desk(rpc, node, self._options.failover, self._health, self.tally, report)
        self._running: Counter[str] = Counter()
        self._usual_seconds = 1.0

    def service(self) -> Service:
        return Service("router", unary={}, streams={"run": self._run})

    @property
    def running(self) -> int:
        """Requests being routed now."""
        return self._running.total()

    async def _run(self, request: TaskRequest, context: CallContext, send: Send) -> None:
        with self._admitted(context.caller):
            await self._route(request, context.within(request.policy.max_wall_ms / 1000), send)

    @contextmanager
    def _admitted(self, caller: str) -> Generator[None]:
        """Counts a request in and out.

        Raises:
            Overloaded: too many run, or too many of another node's.
        """
        most, running = self._options.max_running, self.running
        foreign = caller not in ("", self._node.peer_id)
        if running >= most or (foreign and self._running[caller] >= max(1, most // 2)):
            raise Overloaded(
                f"the router already routes {running} requests",
                retry_after=min(max(1.0, self._usual_seconds / max(1, running)), _LONGEST_RETRY),
                hint="try again",
            )
        self._running[caller] += 1
        begin = time.monotonic()
        try:
            yield
        finally:
            self._usual_seconds += _RECENT * (time.monotonic() - begin - self._usual_seconds)
            self._running[caller] -= 1
            self._running += Counter()  # forgets callers without requests

    async def _route(self, request: TaskRequest, context: CallContext, send: Send) -> None:
        _check_limits(request)
        intent: Intent | None = None

        async def decide() -> Decision:
            nonlocal intent
            intent = intent or await self._classified(request, context)
            return await self._decide(request, intent, context)

        course = Course(
            self._desk,
            request,
            context,
            self._node.timer(request.generation.request_id),
            send,
            decide=decide,
            plan_for=lambda decision, ranked: self._plan(request, decision, ranked, context),
        )
        done = await course.run()
        messages = request.generation.prompt.messages or ()
        self._prefixes.remember(request.policy.tenant, messages, course.leader.candidate.key)
        await send(done)

    # --- deciding -----------------------------------------------------------------------------------------------------

    async def _decide(self, request: TaskRequest, intent: Intent, context: CallContext) -> Decision:
        cards = await self._directory.cards(context)
        privacy = privacy_for(request.policy, intent.risk)
        tenant, messages = request.policy.tenant, request.generation.prompt.messages or ()
        swarm = self._swarm()
        view = replace(swarm, services=swarm.services & _DRIVEN)
        inquiry = Inquiry(
            intent,
            privacy,
            warm=self._prefixes.find(tenant, messages),
            experience=self._health.now(),
            patience=context.remaining(),
            explore=self._options.explore,
        )
        return Decision(intent, privacy, cards, tuple(choose_experts(cards, request, inquiry, view)), view)

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

    def _plan(
        self, request: TaskRequest, decision: Decision, ranked: Sequence[Candidate], context: CallContext
    ) -> tuple[ExecutionPlan, tuple[str, ...]]:
        graph = choose_graph(request, decision.intent, ranked, decision.swarm)
        issue = Issue(
            signer=self._node.signer,
            swarm_id=self._node.swarm_id,
            now_ms=self._node.now_ms(),
            valid_ms=self._options.plan_ms,
            wall_ms=round(context.remaining() * 1000),
            nonce=secrets.token_hex(16),
            platforms=self._options.platforms,
        )
        plan = make_plan(request, decision.intent, decision.privacy, graph, decision.cards, issue)
        return plan, graph.reasons


# --- pure parts -------------------------------------------------------------------------------------------------------


def asked(request: TaskRequest) -> str:
    """What the user said last; empty where the prompt is made of token ids."""
    prompt = request.generation.prompt
    if prompt.messages is None:
        return prompt.text or ""
    said = [message.content for message in prompt.messages if message.role == "user"]
    return said[-1] if said else prompt.messages[-1].content


def _check_limits(request: TaskRequest) -> None:
    if request.policy.max_tokens < request.choices:
        raise RequestError(
            f"the policy allows {request.policy.max_tokens} tokens, less than one for each choice",
            param="n",
            hint="ask for fewer choices or allow more tokens",
        )
