"""One choice of a draft: a tool proposal where one is wanted, else a free answer; in any case a signed package."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from gnusnode.contracts.dsse import Signer
from gnusnode.contracts.expert import ExpertOutput
from gnusnode.contracts.generation import Delta, Done, GenerateRequest, Started, Timing, TokenIds, Usage
from gnusnode.contracts.plan import ExecutionPlan
from gnusnode.contracts.services import ChoiceDelta, ChoiceDone, ToolSpec
from gnusnode.contracts.tools import ToolProposal
from gnusnode.errors import EngineFailed
from gnusnode.inference.engine import Engine
from roles.answers import packaged
from roles.experts import tools
from roles.experts.confidence import Confidence, confidence
from roles.experts.hosting import Expert

FinishReason = Literal["stop", "length", "tool_calls"]
Send = Callable[[ChoiceDelta | ChoiceDone], Awaitable[None]]


@dataclass(frozen=True)
class Drafter:
    """Makes choices for one admitted request.

    Attributes:
        generation: the request within the plan's budget.
        offered: the tools that may be proposed.
        must_call: whether an answer without a tool call is a failure.
    """

    expert: Expert
    engine: Engine
    signer: Signer
    now_ms: Callable[[], int]
    plan: ExecutionPlan
    plan_hash: str
    generation: GenerateRequest
    offered: tuple[ToolSpec, ...]
    must_call: bool

    async def choice(self, index: int, send: Send, delivered: TokenIds = ()) -> None:
        """Sends the deltas of choice ``index`` and its ``ChoiceDone``. Seeds differ by choice, so that answers may.

        Args:
            delivered: what the user has of it from another expert. Only the rest is made, streamed and signed; who got
                words already gets no tool call.

        Raises:
            EngineFailed: a tool call was demanded and the model did not make a valid one.
            GnusError: what the engine raises.
        """
        seed = (self.generation.sampling.seed + index - 1) % (2**32 - 1) + 1
        sampling = self.generation.sampling.model_copy(update={"seed": seed})
        request = self.generation.model_copy(update={"sampling": sampling, "resume_tokens": delivered})
        tried = await self._propose(request) if self.offered and not delivered else _NO_TOOL
        if tried.proposal is not None:
            sure = confidence(tried.mean_logprob, tried.probability)
            await send(self._done(index, "", "tool_calls", sure, tried.usage, tried.timing, (tried.proposal,)))
            return
        left = request.max_tokens - tried.usage.completion_tokens
        if left < 1:
            await send(self._done(index, "", "length", Confidence(0.0, 1.0), tried.usage, tried.timing))
            return
        await self._answer(index, request.model_copy(update={"max_tokens": left}), tried, send)

    async def _answer(self, index: int, request: GenerateRequest, tried: _Tried, send: Send) -> None:
        parts: list[str] = []
        async with self.engine.generate(request) as events:
            async for event in events:
                match event:
                    case Started():
                        continue
                    case Delta():
                        parts.append(event.text)
                        await send(ChoiceDelta(index=index, delta=event))
                    case Done():
                        sure = confidence(event.mean_logprob, tried.probability)
                        usage, timing = _sum(tried.usage, event.usage), _total(tried.timing, event.timing)
                        await send(self._done(index, "".join(parts), event.finish_reason, sure, usage, timing))
                        return
        raise EngineFailed("the engine ended a stream without saying so", where=self.expert.model)

    async def _propose(self, request: GenerateRequest) -> _Tried:
        """Pass one: which tool, or none. Pass two: its arguments."""
        tool, picked = await self._pick(request)
        if tool is None:
            return picked
        if tools.takes_no_arguments(tool):
            return replace(picked, proposal=tools.proposal(tool, "{}", picked.reason))
        text, done = await self._collect(tools.arguments_request(request, tool, request.max_tokens))
        made = tools.proposal(tool, text, picked.reason) if done.finish_reason == "stop" else None
        if made is None and self.must_call:
            raise EngineFailed(
                f"the model did not complete valid arguments for {tool.name!r}",
                where=self.expert.model,
                hint="raise max_tokens, simplify the tool's parameters, or use a larger model",
            )
        return _Tried(
            proposal=made,
            # An answer that follows an invalid call is not conditioned on it: the label decision says nothing of it.
            probability=picked.probability if made else None,
            mean_logprob=done.mean_logprob,
            usage=done.usage,
            timing=_total(picked.timing, done.timing),
        )

    async def _pick(self, request: GenerateRequest) -> tuple[ToolSpec | None, _Tried]:
        """The chosen tool; none when the model would rather answer."""
        may_decline = not self.must_call
        listed = tools.shortlist(self.offered, tools.messages_of(request), may_decline=may_decline)
        scoring = tools.choice_request(request, listed, may_decline=may_decline)
        if scoring is None:
            return listed[0], _Tried(reason="the request demands this tool")
        begin = time.perf_counter()
        scored = await self.engine.classify(scoring)
        timing = Timing(prefill_ms=(time.perf_counter() - begin) * 1000)  # label scoring is nothing but prefill
        place = scoring.labels.index(scored.label)
        probability = scored.probabilities[place]
        reason = f"label scoring chose it with probability {probability:.2f} among {len(listed)} offered"
        tried = _Tried(reason=reason, probability=probability, timing=timing)
        return (listed[place] if place < len(listed) else None), tried

    async def _collect(self, request: GenerateRequest) -> tuple[str, Done]:
        parts: list[str] = []
        async with self.engine.generate(request) as events:
            async for event in events:
                match event:
                    case Started():
                        continue
                    case Delta():
                        parts.append(event.text)
                    case Done():
                        return "".join(parts), event
        raise EngineFailed("the engine ended a stream without saying so", where=self.expert.model)

    def _done(
        self,
        index: int,
        answer: str,
        finish_reason: FinishReason,
        sure: Confidence,
        usage: Usage,
        timing: Timing,
        calls: tuple[ToolProposal, ...] = (),
    ) -> ChoiceDone:
        output = ExpertOutput.signed(
            self.signer,
            request_id=self.generation.request_id,
            expert_id=self.expert.expert_id,
            expert_version=self.expert.version,
            expert_role=self.expert.role,
            answer=packaged(answer),
            confidence=sure.value,
            uncertainty=sure.uncertainty,
            tool_calls=calls,
            plan_hash=self.plan_hash,
            artifact_hash=self.engine.info().artifact_hash,
            issued_at_ms=self.now_ms(),
        )
        return ChoiceDone(
            index=index, finish_reason=finish_reason, tool_calls=calls, output=output, usage=usage, timing=timing
        )


_NOTHING_USED: Final = Usage()
_NO_TIME: Final = Timing()


@dataclass(frozen=True)
class _Tried:
    """What the tool passes came to. ``probability`` is that of the label decision, None where none was made."""

    proposal: ToolProposal | None = None
    reason: str = ""
    probability: float | None = None
    mean_logprob: float | None = None
    usage: Usage = _NOTHING_USED
    timing: Timing = _NO_TIME


_NO_TOOL: Final = _Tried()


def _sum(a: Usage, b: Usage) -> Usage:
    """Tokens of both passes. The prompt is counted once: that of the answer."""
    return b.model_copy(update={"completion_tokens": a.completion_tokens + b.completion_tokens})


def _total(a: Timing, b: Timing) -> Timing:
    return Timing(
        queue_ms=a.queue_ms + b.queue_ms,
        prefill_ms=a.prefill_ms + b.prefill_ms,
        decode_ms=a.decode_ms + b.decode_ms,
    )
