"""The service behind ``core`` and ``elm``: admits by plan, drafts, classifies, scores, embeds. It never acts."""

from __future__ import annotations

from functools import partial
from typing import Final, TypeVar

import trio

from gnusnode.contracts.generation import (
    ClassifyResult,
    ContextProfile,
    EmbedResult,
    GenerateRequest,
    Sampling,
    ScoreResult,
)
from gnusnode.contracts.services import ROUTED, DraftRequest, Empty, ExpertList, ModelCall, ToolSpec
from gnusnode.errors import GnusError, ModelNotFound, RequestError
from gnusnode.inference.artifacts.modelrecord import GenerationDefaults
from gnusnode.inference.engine import Engine
from gnusnode.net.rpc import CallContext, Service
from roles.experts import tools
from roles.experts.admit import Budget, admit
from roles.experts.draft import Drafter, Send
from roles.experts.hosting import Host
from roles.ports import RoleContext

DEFAULT: Final = "default"
"""The model name that stands for the first expert that can do what is asked."""

T = TypeVar("T")


class ExpertService:
    """Handlers of one expert service. Holds no state of a request outside the call that serves it."""

    def __init__(self, host: Host, node: RoleContext) -> None:
        self._host = host
        self._node = node
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

    async def _draft(self, request: DraftRequest, context: CallContext, send: Send) -> None:
        self._node.require(request.plan)
        expert, budget = admit(request, self._host)
        offered = await _offered(request)
        engine = await self._host.engines.engine(expert.model, request.generation.profile)
        drafter = Drafter(
            expert=expert,
            engine=engine,
            signer=self._node.signer,
            now_ms=self._node.now_ms,
            plan=request.plan,
            plan_hash=request.plan.digest,
            generation=_within(_filled(request, expert.defaults), budget, context),
            offered=offered,
            must_call=request.tool_choice not in ("auto", "none"),
        )
        self.drafts += 1
        try:
            if request.choices == 1:
                await drafter.choice(0, send)
            else:
                await _together(drafter, request.choices, send)
        finally:
            self.drafts -= 1

    async def _classify(self, call: ModelCall, context: CallContext) -> ClassifyResult:
        del context  # the transport keeps the deadline
        return await (await self._engine(call, embeds=False)).classify(_given(call.classify, "classify"))

    async def _score(self, call: ModelCall, context: CallContext) -> ScoreResult:
        del context
        return await (await self._engine(call, embeds=False)).score(_given(call.score, "score"))

    async def _embed(self, call: ModelCall, context: CallContext) -> EmbedResult:
        del context
        return await (await self._engine(call, embeds=True)).embed(_given(call.embed, "embed"))

    async def _experts(self, request: Empty, context: CallContext) -> ExpertList:
        del request, context
        return ExpertList(experts=self._host.cards(self._node.peer_id))

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


async def _together(drafter: Drafter, choices: int, send: Send) -> None:
    """Makes all choices at once; the first that fails ends the others and is what the caller sees."""
    failures: list[GnusError] = []

    async def one(index: int, cancel: trio.CancelScope) -> None:
        try:
            await drafter.choice(index, send)
        except GnusError as error:
            failures.append(error)
            cancel.cancel()

    async with trio.open_nursery() as nursery:
        for index in range(choices):
            nursery.start_soon(partial(one, index, nursery.cancel_scope), name=f"choice {index}")
    if failures:
        raise failures[0]


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
