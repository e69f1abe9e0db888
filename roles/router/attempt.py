"""One draft by one expert under one plan: asked for, watched, and checked item by item before anybody sees it."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from gnusnode.contracts.generation import Sampling
from gnusnode.contracts.plan import ExecutionPlan
from gnusnode.contracts.services import (
    CORE_DRAFT,
    ELM_DRAFT,
    ChoiceDelta,
    ChoiceDone,
    DraftBeat,
    DraftRequest,
    ExpertCard,
    PlanMade,
)
from gnusnode.errors import GnusError, Overloaded, PeerUnreachable, RecordRefused
from gnusnode.net.rpc import CallContext, Rpc
from roles.answers import packaged
from roles.ports import RoleContext
from roles.router.choose import Candidate

DRAFT: Final = {"core": CORE_DRAFT, "elm": ELM_DRAFT}
"""The services that a router knows how to drive, each by the method that drafts."""

_UNCLAIMED_RETRY: Final = 5.0
"""Seconds for which an expert that did not take a job in time is taken for busy."""
_SURPLUS_TOKENS: Final = 16
"""An end-of-turn token, a last flush of text; more than that is an expert that does not stop."""

_TOKEN_CHARACTERS: Final = 512
"""More than the longest token of any vocabulary has."""


@dataclass(frozen=True)
class Patience:
    """Seconds of silence after which an expert is given up.

    Attributes:
        claim: until it says anything at all.
        first: from then on until its first word.
        idle: between two words.
        working: until its first word however often it says that it is at it; infinite where nobody else can be asked.
    """

    claim: float
    first: float
    idle: float
    working: float = math.inf


@dataclass(eq=False)
class Attempt:
    """What is asked of an expert, and how far it came.

    Attributes:
        made: the announcement of its plan.
        sampling: the sampler chain that the expert says it uses; None until it said so.
        first_ms: until its first word.
        scope: cancelling it ends the attempt.
        resumes: the choices of which the caller has a beginning.
    """

    made: PlanMade
    candidate: Candidate
    draft: DraftRequest
    patience: Patience
    sampling: Sampling | None = None
    first_ms: float | None = None
    done: list[ChoiceDone] = field(default_factory=list[ChoiceDone])
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    resumes: frozenset[int] = field(init=False)
    _tokens: dict[int, int] = field(init=False)
    _letters: dict[int, int] = field(default_factory=dict[int, int])
    _texts: dict[int, list[str]] = field(default_factory=dict[int, list[str]])

    def __post_init__(self) -> None:
        asked = {choice.index: len(choice.tokens) for choice in self.draft.resume}
        self._tokens = asked or dict.fromkeys(range(self.draft.choices), 0)
        self.resumes = frozenset(index for index, tokens in asked.items() if tokens)

    @property
    def plan(self) -> ExecutionPlan:
        return self.draft.plan

    @property
    def complete(self) -> bool:
        return len(self.done) == len(self._tokens)

    async def follow(
        self,
        rpc: Rpc,
        node: RoleContext,
        context: CallContext,
        take: Callable[[ChoiceDelta | ChoiceDone], Awaitable[None]],
    ) -> None:
        """Has the expert draft, and gives ``take`` what it says, once that is checked.

        Raises:
            Overloaded: it did not take the job in time.
            PeerUnreachable: it was silent for too long, or is gone.
            RecordRefused: what it says does not hold up.
            GnusError: what the expert ended with.
        """
        card, begin, silence = self.candidate.card, time.perf_counter(), trio.CancelScope()
        context = replace(context, plan_digest=self.plan.digest)
        silence.deadline = trio.current_time() + self.patience.claim
        word_by = math.inf
        with silence:
            async with rpc.stream(DRAFT[card.service], self.draft, context, peer=card.peer) as items:
                async for item in items:
                    silence.deadline = math.inf  # a caller that reads slowly is not the expert's fault
                    if isinstance(item, DraftBeat):
                        if self.sampling is None:
                            word_by = trio.current_time() + self.patience.working
                        self.sampling = item.sampling
                    else:
                        self.first_ms = self.first_ms or (time.perf_counter() - begin) * 1000
                        self._check(item, node)
                        await take(item)
                        if self.complete:
                            return
                    silence.deadline = trio.current_time() + self._allowed_silence
                    if self.first_ms is None:
                        silence.deadline = min(silence.deadline, word_by)
        if silence.cancelled_caught:
            raise self._silent()
        raise RecordRefused(f"{len(self.done)} of {len(self._tokens)} choices came", where=card.expert_id)

    @property
    def _allowed_silence(self) -> float:
        return self.patience.first if self.first_ms is None else self.patience.idle

    def _silent(self) -> GnusError:
        patience, where = self.patience, self.candidate.card.peer
        if self.first_ms is not None:
            return PeerUnreachable(f"the expert said nothing more for {patience.idle:.0f} s", where=where)
        if self.sampling is not None:
            return PeerUnreachable(f"the expert gave no first word within {patience.first:.0f} s", where=where)
        what = f"the expert did not take the job within {patience.claim:.1f} s"
        if patience.claim < patience.first:  # others were not waited for as long: it may just be busy
            return Overloaded(what, where=where, retry_after=_UNCLAIMED_RETRY)
        return PeerUnreachable(what, where=where)

    def _check(self, item: ChoiceDelta | ChoiceDone, node: RoleContext) -> None:
        """A package must be signed and say what was streamed; nothing may come that was not asked for.

        Raises:
            RecordRefused: it does not hold up.
        """
        card, index = self.candidate.card, item.index
        if index not in self._tokens or any(done.index == index for done in self.done):
            raise RecordRefused(f"choice {index} came unasked or twice", where=card.expert_id)
        if isinstance(item, ChoiceDelta):
            most = self.draft.generation.max_tokens + _SURPLUS_TOKENS
            self._tokens[index] += len(item.delta.tokens) or not item.delta.text  # what says nothing counts too
            self._letters[index] = self._letters.get(index, 0) + len(item.delta.text)
            if self._tokens[index] > most or self._letters[index] > most * _TOKEN_CHARACTERS:
                raise RecordRefused(f"choice {index} is longer than was asked for", where=card.expert_id)
            self._texts.setdefault(index, []).append(item.delta.text)
            return
        node.require(item.output)
        check_package(self.plan, card, item, "".join(self._texts.get(index, ())))
        self.done.append(item)


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
