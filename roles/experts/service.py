"""The service behind ``core`` and ``elm``: admits by plan, drafts, classifies, scores, embeds. It never acts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import trio

from gnusnode.contracts.generation import (
    ClassifyRequest,
    ClassifyResult,
    ContextProfile,
    EmbedRequest,
    EmbedResult,
    GenerateRequest,
    Sampling,
    ScoreResult,
)
from gnusnode.contracts.plan import ExecutionPlan
from gnusnode.contracts.services import (
    ROUTED,
    ChoiceResume,
    DraftBeat,
    DraftRequest,
    Empty,
    ExpertList,
    ModelCall,
    ToolSpec,
)
from gnusnode.errors import Forbidden, GnusError, ModelNotFound, Overloaded, RateLimited, RecordRefused, RequestError
from gnusnode.inference.artifacts.modelrecord import GenerationDefaults
from gnusnode.inference.engine import Engine
from gnusnode.net.rpc import CallContext, Service
from roles.experts import tools
from roles.experts.admit import Budget, admit, to_make
from roles.experts.beat import BEAT_SECONDS, Beating, beating
from roles.experts.draft import Drafter, Send
from roles.experts.hosting import Host
from roles.ports import RoleContext

DEFAULT: Final = "default"
"""The model name that stands for the first expert that can do what is asked."""

T = TypeVar("T")
Tenanted = TypeVar("Tenanted", GenerateRequest, ClassifyRequest, EmbedRequest)


class ExpertService:
    """Handlers of one expert service. Holds no state of a request outside the call that serves it.

    A draft is made for whoever signed its plan, if that is a router. Without a plan (classify, score, embed) only this
    node is served, and the peers that ``trusts`` names. All that one peer asks for counts as one tenant.
    """

    def __init__(
        self,
        host: Host,
        node: RoleContext,
        *,
        trusts: Callable[[str], bool] = lambda peer: False,
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        self._host = host
        self._node = node
        self._trusts = trusts
        self._beat_seconds = beat_seconds
        self.drafts = 0
        """Drafts being made now."""

    def service(self) -> Service:
        return Service(
            self._host.service,
            unary={
                "classify": self._classify,
                "score": self._score,
                "embed": self._embed,
                "experts": self._experts,
            },
            streams={"draft": self._draft},
        )

    # --- handlers -----------------------------------------------------------------------------------------------------

    async def _draft(self, request: DraftRequest, context: CallContext, send: Beating) -> None:
        self._check_router(request.plan, context.caller)
        expert, budget = admit(request, self._host)
        generation = self._for(context.caller, _within(_filled(request, expert.defaults), budget, context))
        self.drafts += 1
        try:
            async with beating(send, DraftBeat(sampling=generation.sampling), self._beat_seconds) as speak:
                offered = await _offered(request)
                drafter = Drafter(
                    expert=expert,
                    engine=await self._host.engines.engine(expert.model, request.generation.profile),
                    signer=self._node.signer,
                    now_ms=self._node.now_ms,
                    plan=request.plan,
                    plan_hash=request.plan.digest,
                    generation=generation,
                    offered=offered,
                    must_call=request.tool_choice not in ("auto", "none"),
                )
                await _all_choices(drafter, to_make(request), speak)
        except RateLimited as error:
            if self._is_own(context.caller):
                raise
            raise _full_for_peer(error) from error
        finally:
            self.drafts -= 1

    async def _classify(self, call: ModelCall, context: CallContext) -> ClassifyResult:
        self._check_planless(context.caller)
        request = self._for(context.caller, _given(call.classify, "classify"))
        return await (await self._engine(call, embeds=False)).classify(request)

    async def _score(self, call: ModelCall, context: CallContext) -> ScoreResult:
        self._check_planless(context.caller)
        return await (await self._engine(call, embeds=False)).score(_given(call.score, "score"))

    async def _embed(self, call: ModelCall, context: CallContext) -> EmbedResult:
        self._check_planless(context.caller)
        request = self._for(context.caller, _given(call.embed, "embed"))
        return await (await self._engine(call, embeds=True)).embed(request)

    async def _experts(self, request: Empty, context: CallContext) -> ExpertList:
        del request, context
        return ExpertList(experts=self._host.cards(self._node.peer_id))

    # --- who is served ------------------------------------------------------------------------------------------------

    def _is_own(self, caller: str) -> bool:
        return caller == self._node.peer_id

    def _check_router(self, plan: ExecutionPlan, caller: str) -> None:
        """A plan is the word of its signer to this node; somebody else who got hold of it has no use of it.

        Raises:
            RecordRefused: the plan is not to be believed, or was signed by another than who calls.
        """
        self._node.require(plan)
        if plan.signer != caller:
            raise RecordRefused(
                "the plan was signed by another node than the one that asks",
                where="execution-plan",
                hint="only the router that made a plan may have it carried out",
            )

    def _check_planless(self, caller: str) -> None:
        if not self._is_own(caller) and not self._trusts(caller):
            raise Forbidden("this node does not work without a plan for a peer of your tier", where=caller)

    def _for(self, caller: str, request: Tenanted) -> Tenanted:
        """The request, as one of the tenant that the peer who asks is; our own tenants stay who they are."""
        return request if self._is_own(caller) else request.model_copy(update={"tenant": f"peer:{caller}"})

    # --- parts --------------------------------------------------------------------------------------------------------

    async def _engine(self, call: ModelCall, *, embeds: bool) -> Engine:
        able = [expert for expert in self._host.experts if self._can(expert.model, embeds=embeds)]
        for expert in able:
            if call.model in (DEFAULT, *ROUTED, expert.expert_id, expert.model):
                return await self._host.engines.engine(expert.model, ContextProfile.THROUGHPUT)
        raise ModelNotFound(
            f"no model {call.model!r} here can {'compute embeddings' if embeds else 'score'}",
            param="model",
            hint=f"these can: {', '.join(expert.expert_id for expert in able) or 'none'}",
        )

    def _can(self, model: str, *, embeds: bool) -> bool:
        info = self._host.engines.info(model)
        return info.embeds if embeds else info.generates


async def _offered(request: DraftRequest) -> tuple[ToolSpec, ...]:
    """The tools that may be proposed, their schemas checked; others run between two of them."""
    offered = tools.offered(request.tools, request.tool_choice)
    names = {tool.name for tool in offered}
    for place, tool in enumerate(request.tools):
        if tool.name in names:
            tools.check_parameters(place, tool)
        await trio.lowlevel.checkpoint()
    return offered


async def _all_choices(drafter: Drafter, choices: Sequence[ChoiceResume], send: Send) -> None:
    """Makes all choices at once; the first that fails ends the others and is what the caller sees."""
    if len(choices) == 1:
        await drafter.choice(choices[0].index, send, choices[0].tokens)
        return
    failures: list[GnusError] = []

    async def one(choice: ChoiceResume, cancel: trio.CancelScope) -> None:
        try:
            await drafter.choice(choice.index, send, choice.tokens)
        except GnusError as error:
            failures.append(error)
            cancel.cancel()

    async with trio.open_nursery() as nursery:
        for choice in choices:
            nursery.start_soon(partial(one, choice, nursery.cancel_scope), name=f"choice {choice.index}")
    if failures:
        raise failures[0]


def _full_for_peer(error: RateLimited) -> Overloaded:
    """Too much of one peer waits here: its users did nothing wrong, and other nodes may have room."""
    return Overloaded(f"enough of this peer's requests wait here: {error.what}", retry_after=error.retry_after)


def _filled(request: DraftRequest, defaults: GenerationDefaults) -> GenerateRequest:
    """The request with the model's own sampling where the client left it open."""
    generation = request.generation
    own = {name: getattr(defaults, name, None) for name in request.open_sampling}
    update = {name: value for name, value in own.items() if value is not None and name in Sampling.model_fields}
    sampling = generation.sampling.model_copy(update=update)
    return generation.model_copy(update={"sampling": sampling})


def _within(request: GenerateRequest, budget: Budget, context: CallContext) -> GenerateRequest:
    """The request cut to what the plan and the caller's patience leave."""
    seconds = min(budget.wall_seconds, context.remaining())
    if request.deadline_ms is not None:
        seconds = min(seconds, request.deadline_ms / 1000)
    return request.model_copy(update={"max_tokens": budget.max_tokens, "deadline_ms": max(1, round(seconds * 1000))})


def _given(part: T | None, name: str) -> T:
    if part is None:
        raise RequestError(f"the call carries nothing to {name}", param=name, hint=f"fill in {name}")
    return part
