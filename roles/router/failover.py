"""One request on its way through experts: the next one where one fails, two at once where one is slow.

Before the first word another expert simply takes over. After it one that holds the same model file goes on from the
delivered tokens, where policy and sampling allow; where not, the request ends with the error. Nobody is asked for a
choice that is done, and nothing is passed on twice.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import trio

from gnusnode.contracts.generation import Sampling
from gnusnode.contracts.plan import ExecutionPlan, PrivacyMode
from gnusnode.contracts.services import (
    ChoiceDelta,
    ChoiceDone,
    DraftRequest,
    PlanMade,
    TaskDone,
    TaskRequest,
)
from gnusnode.errors import (
    DataError,
    DeadlineExceeded,
    EngineFailed,
    Forbidden,
    GnusError,
    InternalError,
    ModelNotFound,
    Overloaded,
    PeerUnreachable,
    Poisoned,
    ProtocolViolation,
    RecordRefused,
    RequestError,
    Unavailable,
    UnsupportedProtocol,
)
from gnusnode.net.rpc import CallContext
from gnusnode.observe import events
from gnusnode.observe.stage import Stage, StageTimer
from roles.ports import word
from roles.router.answer import Answer
from roles.router.attempt import Attempt, Patience
from roles.router.choose import Candidate
from roles.router.classify import Intent
from roles.router.desk import Decision, Desk, Send
from roles.router.health import Key

_CRASHES: Final = 2
"""Engines that may fail under a request; it is the likely cause by then, and nobody else is exposed to it."""
_ROUND_TRIPS: Final = 4
"""Round trips that a claim may take besides the expert's own time: a lost packet costs some."""


PlanFor: TypeAlias = "Callable[[Decision, Sequence[Candidate]], tuple[ExecutionPlan, tuple[str, ...]]]"
"""A signed plan under which the first of the candidates drafts, and its reasons."""


class Course:
    """Drives one request to its end. ``decide`` chooses experts anew, ``plan_for`` signs a plan for some."""

    def __init__(
        self,
        desk: Desk,
        request: TaskRequest,
        context: CallContext,
        timer: StageTimer,
        send: Send,
        *,
        decide: Callable[[], Awaitable[Decision]],
        plan_for: PlanFor,
    ) -> None:
        self._desk = desk
        self._request = request
        self._context = context
        self._timer = timer
        self._send = send
        self._decide = decide
        self._plan_for = plan_for
        self._answer = Answer(request.choices)
        self._attempts: list[Attempt] = []
        self._notes: tuple[str, ...] = ()
        self._lost: set[str] = set()
        """Peers that are gone."""
        self._failures: list[tuple[Attempt, GnusError]] = []
        self._requeued = 0
        self._resumed = False
        self._hedged = False
        self._leader: Attempt | None = None
        """The attempt whose words the caller gets."""
        self._told: Attempt | None = None
        """The attempt whose plan was announced last."""
        self._settled = trio.Event()
        """It is known who leads, or that nobody does."""

    @property
    def leader(self) -> Attempt:
        """Who answered, once ``run`` returned."""
        assert self._leader is not None, "a request that ended well was answered by somebody"
        return self._leader

    async def run(self) -> TaskDone:
        """Passes the answer on; returns the event that ends it.

        Raises:
            GnusError: nobody could answer, or nobody could go on.
        """
        with self._timer.stage(Stage.ROUTING):
            decision = await self._decide()
            attempt = self._attempt(decision, decision.ranked[0])
        while True:
            await self._announce(attempt, decision.intent)
            with self._timer.stage(Stage.COMPUTE):
                await self._play(attempt, decision)
            if self._answer.complete:
                return self._finished()
            with self._timer.stage(Stage.ROUTING):
                decision, attempt = await self._next(self._leader or attempt)

    # --- one round: an expert, and perhaps a second one beside it -----------------------------------------------------

    async def _play(self, attempt: Attempt, decision: Decision) -> None:
        """Follows an attempt to its end, good or bad; a failure is in ``_failures`` then."""
        self._leader, self._settled = None, trio.Event()
        rival = self._rival(attempt, decision)
        if rival is None:
            await self._try(attempt)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._try, attempt)
            with trio.move_on_after(self._hedge_after(attempt)) as quiet:
                await self._settled.wait()
            if quiet.cancelled_caught and self._leader is None:
                self._hedged = True
                self._desk.tally.hedged += 1
                beside = f"beside {attempt.candidate.card.expert_id}, which has said nothing yet"
                second = self._attempt(decision, rival, (beside,))
                await self._announce(second, decision.intent)
                nursery.start_soon(self._try, second)

    async def _try(self, attempt: Attempt) -> None:
        card, desk = attempt.candidate.card, self._desk
        with attempt.scope, desk.health.at_work(attempt.candidate.key):
            try:
                await attempt.follow(desk.rpc, desk.node, self._context, lambda item: self._take(attempt, item))
            except GnusError as error:
                if self._answer.complete:
                    return
                if attempt.resumes and isinstance(error, RequestError):
                    error = RecordRefused(f"what was streamed before is nothing to go on from: {error.what}")
                self._failures.append((attempt, error))
                if isinstance(error, PeerUnreachable) and card.peer != desk.node.peer_id:
                    self._lost.add(card.peer)
                if worth_elsewhere(error):
                    desk.note(attempt.candidate.key, error)
            else:
                desk.note(attempt.candidate.key, None)
        if self._leader is None:
            self._settled.set()

    async def _take(self, attempt: Attempt, item: ChoiceDelta | ChoiceDone) -> None:
        """Passes on a checked item; of two experts the first to speak goes on, and the other is stopped."""
        if self._leader is not attempt:
            if self._leader is not None:
                return
            self._leader = attempt
            self._settled.set()
            for other in self._attempts:
                if other is not attempt:
                    other.scope.cancel()
            if self._told is not attempt:
                self._told = attempt
                await self._send(attempt.made)
        self._answer.take(item)
        if isinstance(item, ChoiceDone) and item.index in attempt.resumes:
            item = item.model_copy(update={"resumed": True})
        await self._send(item)

    def _rival(self, attempt: Attempt, decision: Decision) -> Candidate | None:
        """Who may be asked at the same time: only for what anybody may read, and where little is at stake."""
        if self._hedged or self._answer.begun:
            return None
        if decision.privacy is not PrivacyMode.PLAINTEXT or decision.intent.risk != "low":
            return None
        peer = attempt.candidate.card.peer
        return next(
            (c for c in self._untried(decision) if c.card.peer != peer and not c.failed and not c.cramped), None
        )

    def _hedge_after(self, attempt: Attempt) -> float:
        return max(self._desk.options.hedge_seconds, 2 * attempt.candidate.estimate.until_first)

    # --- after a failure ----------------------------------------------------------------------------------------------

    async def _next(self, failed: Attempt) -> tuple[Decision, Attempt]:
        """Who goes on, after everybody who was asked has failed.

        Raises:
            GnusError: nobody, and why.
        """
        errors = [error for _, error in self._failures]
        error = next((error for attempt, error in self._failures if attempt is failed), errors[-1])
        hopeless = next((other for other in errors if not worth_elsewhere(other)), None)
        if hopeless is not None:
            raise hopeless
        crashes = sum(isinstance(other, EngineFailed) for other in errors)
        if self._requeued == self._desk.options.requeues or crashes >= _CRASHES or not self._context.remaining():
            raise self._verdict(error)
        why_not = self._why_no_resume(failed, error) if self._answer.begun else None
        if why_not is not None:
            raise _with_hint(error, f"the answer cannot go on elsewhere: {why_not}")
        try:
            decision = await self._decide()
        except GnusError:
            raise self._verdict(error) from None
        successor = next((c for c in self._untried(decision) if not self._answer.begun or _twins(c, failed)), None)
        if successor is None:
            raise self._verdict(error)
        return decision, self._successor(decision, successor, failed, error)

    def _successor(self, decision: Decision, candidate: Candidate, failed: Attempt, error: GnusError) -> Attempt:
        self._requeued += 1
        name = failed.candidate.card.expert_id
        if not self._answer.begun:
            self._desk.tally.rerouted += 1
            self._notes = (*self._notes, f"rerouted from {name}: {error.code}")
            return self._attempt(decision, candidate, self._notes)
        self._desk.tally.resumed += 1
        self._resumed = True
        tokens = sum(len(choice.tokens) for choice in self._answer.missing)
        self._notes = (*self._notes, f"resumed from {name} after {tokens} tokens: {error.code}")
        return self._attempt(decision, candidate, self._notes, sampling=self._disclosed(failed))

    def _why_no_resume(self, failed: Attempt, error: GnusError) -> str | None:
        """What forbids that another expert goes on in the middle; None: nothing."""
        if not self._request.policy.allow_resume:
            return "the policy forbids it"
        if not isinstance(error, Unavailable) or isinstance(error, ProtocolViolation | UnsupportedProtocol):
            return "what came so far may be wrong too"
        if self._disclosed(failed) is None or not self._answer.exact:
            return "the expert did not tell how it samples, or which tokens it made"
        if failed.candidate.card.engine.determinism == "C":
            return "this engine does not give the same answer twice"
        return None

    def _disclosed(self, attempt: Attempt) -> Sampling | None:
        """The whole sampler chain of an attempt: the expert's word counts only where the choice was the expert's."""
        draft = attempt.draft
        return attempt.sampling if draft.open_sampling else draft.generation.sampling

    def _verdict(self, error: GnusError) -> GnusError:
        """The error that the caller gets where nobody is left: of several that were too busy, the soonest counts."""
        if self._answer.begun:
            return _with_hint(error, "nobody else who could go on holds the same model file; ask again")
        waits = [
            other.retry_after for _, other in self._failures if isinstance(other, Overloaded) and other.retry_after
        ]
        if isinstance(error, Overloaded) and waits:
            error.retry_after = min(waits)
        return error

    def _untried(self, decision: Decision) -> list[Candidate]:
        tried: set[Key] = {attempt.candidate.key for attempt in self._attempts}
        return [c for c in decision.ranked if c.key not in tried and c.card.peer not in self._lost]

    # --- making attempts ----------------------------------------------------------------------------------------------

    def _attempt(
        self, decision: Decision, candidate: Candidate, notes: tuple[str, ...] = (), *, sampling: Sampling | None = None
    ) -> Attempt:
        """A signed plan for ``candidate``; with ``sampling`` it goes on where another one was cut off."""
        card, request = candidate.card, self._request
        others = [other for other in self._untried(decision) if other is not candidate]
        plan, reasons = self._plan_for(decision, [candidate, *others])
        generation, open_sampling = request.generation, request.open_sampling
        if sampling is not None:
            generation, open_sampling = generation.model_copy(update={"sampling": sampling}), ()
        attempt = Attempt(
            made=PlanMade(
                plan=plan,
                model=card.expert_id,
                confidence=decision.intent.confidence,
                reasons=(*decision.intent.reasons, *reasons, *notes),
                node=card.peer,
            ),
            candidate=candidate,
            draft=DraftRequest(
                plan=plan,
                expert_id=card.expert_id,
                expert_role=card.role,
                model=card.engine.model,
                generation=generation,
                choices=request.choices,
                tools=request.tools,
                tool_choice=request.tool_choice,
                open_sampling=open_sampling,
                resume=self._answer.missing if sampling is not None else (),
            ),
            patience=self._patience(candidate, last=not others or self._requeued == self._desk.options.requeues),
        )
        self._attempts.append(attempt)
        return attempt

    def _patience(self, candidate: Candidate, *, last: bool) -> Patience:
        options = self._desk.options
        first = options.first_seconds + candidate.estimate.until_first
        claim = options.claim_seconds + _ROUND_TRIPS * candidate.rtt_seconds
        near = candidate.card.peer == self._desk.node.peer_id
        # Giving up early is for those who have somebody else to ask; this node's own services need not be claimed.
        return Patience(
            claim=first if near or last else min(claim, first),
            first=first,
            idle=options.idle_seconds,
            working=math.inf if last else first,
        )

    async def _announce(self, attempt: Attempt, intent: Intent) -> None:
        plan = attempt.plan
        self._desk.node.observer.bus.publish(
            events.PlanMade(
                request_id=plan.request_id,
                plan_digest=plan.digest,
                mode=plan.execution_graph.mode.value,
                expert=word(attempt.candidate.card.expert_id),
                confidence=intent.confidence,
            )
        )
        self._told = attempt
        await self._send(attempt.made)

    def _finished(self) -> TaskDone:
        done, leader, timer = list(self._answer.done.values()), self.leader, self._timer
        slowest = max(done, key=lambda one: one.timing.queue_ms + one.timing.prefill_ms)
        timer.add(Stage.QUEUE, slowest.timing.queue_ms)
        timer.add(Stage.PREFILL, slowest.timing.prefill_ms)
        timer.add(Stage.DECODE, max(one.timing.decode_ms for one in done))
        timer.add(Stage.DISPATCH, (leader.first_ms or 0.0) - min(map(_until_first_word, leader.done), default=math.inf))
        return TaskDone(
            usage=self._answer.usage,
            node=leader.candidate.card.peer,
            plan_digest=leader.plan.digest,
            plan_digests=tuple(attempt.plan.digest for attempt in self._attempts),
            rerouted=self._requeued,
            resumed=self._resumed,
            stages_ms={stage: round(elapsed, 3) for stage, elapsed in timer.elapsed_ms.items()},
        )


def worth_elsewhere(error: GnusError) -> bool:
    """Whether another expert may do better: not when the request is at fault, poisonous, or out of time.

    An expert that is no longer there, or that does not work for this router, was chosen by old news.
    """
    if isinstance(error, Poisoned | DeadlineExceeded):
        return False
    return isinstance(error, Unavailable | DataError | RecordRefused | InternalError | ModelNotFound | Forbidden)


def _twins(candidate: Candidate, failed: Attempt) -> bool:
    """Whether a candidate's engine goes on where that of a failed attempt was: same file, same template."""
    mine, other = candidate.card.engine, failed.candidate.card.engine
    if mine.determinism == "C" or mine.artifact_hash != other.artifact_hash:
        return False
    return mine.template_hash == other.template_hash


def _until_first_word(done: ChoiceDone) -> float:
    """Milliseconds that the engine itself took before a choice said anything."""
    timing = done.timing
    return timing.queue_ms + timing.prefill_ms + (timing.decode_ms if done.tool_calls else 0.0)


def _with_hint(error: GnusError, hint: str) -> GnusError:
    """The error of a begun answer as the caller sees it. How to mend a connection is of no use to who only asked."""
    if isinstance(error, PeerUnreachable):
        return PeerUnreachable(f"the node that answered was lost: {error.what}", where=error.where, hint=hint)
    error.hint = error.hint or hint
    return error
