"""Continuous batching: every step serves all running jobs with one decode.

Running answers come first with a token each, so they keep their pace; what room is left goes to prompts, shortest
first, each with its fair share. Where answers are cheaper one by one than together, they alternate. There is no context
shift.

Jobs wait in order of arrival until the KV cache has cells for them. One whose answer may be long begins with a part of
what it may need and grows; when no cell is left, the job that was admitted last gives all of its cells back, waits as
the first in line, and is fed again up to where it was. The oldest is never interrupted by others, so there is always
progress. In the canonical profile jobs begin with all they may need, and a prompt is fed alone and in fixed chunks, so
that no other job's presence can touch its bits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from gnusnode.errors import Cancelled, ContextTooLong, EngineFailed, GnusError, InternalError
from gnusnode.inference.child.calibrate import Speed
from gnusnode.inference.child.channel import Outbox
from gnusnode.inference.child.jobs import Job
from gnusnode.inference.child.kv import KvCache, Lease
from gnusnode.inference.child.native import Batch, Context, NativeError, Outcome
from gnusnode.inference.child.width import BatchWidth

_STEP_SECONDS: Final = 0.1
"""Aimed length of a step that feeds prompts while answers run: their longest pause, and that of a cancel."""
_LEAST_PREFILL: Final = 32
_HEADROOM: Final = 256
"""Cells for an answer to begin with, if it may become so long."""
_PIECE: Final = 64
"""Cells by which a lease grows."""
_RATE_WEIGHT: Final = 0.1
"""Weight of the newest step in the moving averages of speed."""


class Scheduler:
    """Owns the jobs of a context from ``submit`` to their last event. Single-threaded, but for ``aborts_for``."""

    def __init__(
        self,
        context: Context,
        cache: KvCache,
        outbox: Outbox,
        speed: Speed,
        *,
        slots: int,
        batch: int,
        prefill_per_step: int,
        canonical: bool,
    ) -> None:
        self._prefill_rate, self._decode_rate = speed.prefill, speed.decode
        self._width = BatchWidth(1 / speed.decode)
        self._decodes = 0
        self._slots = slots
        self._context = context
        self._cache = cache
        self._outbox = outbox
        self._batch = Batch(batch)
        self._prefill_per_step = min(prefill_per_step, batch)
        self._canonical = canonical
        self._waiting: deque[Job] = deque()
        self._active: list[Job] = []
        """In the order of their admission."""
        self._paused: dict[int, Job] = {}
        self._left_waiting = 0
        self._feeding: frozenset[int] = frozenset()
        self._fed_last = False

    @property
    def speed(self) -> Speed:
        return Speed(self._prefill_rate, self._decode_rate)

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def queued(self) -> int:
        """Jobs for which there was no room in the last step."""
        return self._left_waiting

    @property
    def busy(self) -> bool:
        return bool(self._active or self._waiting)

    def require_room(self, prompt: int, answer: int) -> None:
        """Call before a job of so many tokens is made.

        Raises:
            ContextTooLong: it could never be admitted.
        """
        limit = self._cache.limit
        if prompt + answer > limit:
            raise ContextTooLong(
                f"this request needs {prompt + answer} tokens of context, {prompt} for the prompt and {answer} for the"
                f" answer; the model has {limit} for one request",
                param="messages",
                hint="shorten the prompt or lower max_tokens",
            )

    def submit(self, job: Job) -> None:
        """Take over a job for which there is room, now or later."""
        assert job.total <= self._cache.limit
        self._waiting.append(job)

    def cancel(self, number: int) -> None:
        """End a job; unknown numbers are those that ended a moment ago."""
        if job := self._find(number):
            self._end(job, Cancelled("the caller left"))

    def pause(self, number: int) -> None:
        """Take a job's cells until ``resume``; unknown numbers are those that ended a moment ago."""
        job = self._find(number)
        if job is None or number in self._paused:
            return
        if job in self._active:
            self._suspend(job)
        else:
            self._waiting.remove(job)
        self._paused[number] = job

    def resume(self, number: int) -> None:
        """Let a paused job wait for its turn again."""
        if job := self._paused.pop(number, None):
            self._waiting.append(job)

    def aborts_for(self, number: int) -> bool:
        """Whether the step at hand is a prefill of this job, so that a cancel should abort it. From any thread."""
        return number in self._feeding

    def step(self) -> None:
        """One decode for all jobs that have room. Jobs that fail in it end with an error, the others go on."""
        self._admit()
        self._grow()
        jobs = self._fill()
        if not jobs:
            return
        decoding = not self._feeding
        start = time.perf_counter()
        outcome = self._decode()
        elapsed = time.perf_counter() - start
        if outcome is Outcome.OK:
            self._commit(jobs)
            self._learn(decoding, elapsed)
        else:
            for job in jobs:
                job.undo(self._context)
            if outcome is Outcome.NO_SLOT:
                for job in jobs:
                    self._end(job, EngineFailed("the KV cache has no room for a step that was budgeted"))

    def _decode(self) -> Outcome:
        outcome = self._context.decode(self._batch)
        self._feeding = frozenset()
        return outcome

    def _admit(self) -> None:
        while self._waiting and len(self._active) < self._slots:
            job = self._waiting[0]
            lease = self._lease(job)
            if lease is None:
                break
            self._waiting.popleft()
            self._active.append(job)
            self._guarded(job, lambda job=job, lease=lease: job.admitted(lease))
            if job.finished:
                self._end(job)
        self._left_waiting = len(self._waiting)

    def _lease(self, job: Job) -> Lease | None:
        """Cells to begin with, if all running jobs can then go on as long as this one; None: not yet.

        One that was interrupted gets cells for at least as many tokens as have to be fed again: this bounds the waste.
        """
        piece = job.total - len(job.tokens)
        if job.elastic:
            piece = min(piece, max(_HEADROOM, len(job.tokens) if job.interrupted else 0))
        ahead = max(piece, _PIECE)
        spare = sum(
            max(0, min(len(other.tokens) + ahead, other.total) - len(other.lease.cells))
            for other in self._active
            if other.lease is not None
        )
        return self._cache.acquire(job.shareable, len(job.tokens) + piece, spare=spare)

    def _grow(self) -> None:
        """Cells for the next token of every answer, the oldest first."""
        for job in list(self._active):
            while (lease := job.lease) is not None and len(job.tokens) > len(lease.cells):
                if not self._cache.grow(lease, min(_PIECE, job.total - len(lease.cells))):
                    last = self._active[-1]
                    self._suspend(last)
                    self._waiting.appendleft(last)

    def _suspend(self, job: Job) -> None:
        assert job.lease is not None
        self._active.remove(job)
        self._cache.release(job.lease, job.tokens)
        job.suspended()

    def _find(self, number: int) -> Job | None:
        jobs = (*self._active, *self._waiting, *self._paused.values())
        return next((job for job in jobs if job.number == number), None)

    def _fill(self) -> list[Job]:
        """Put this step's tokens into the batch; the jobs they belong to."""
        self._batch.clear()
        answers = [job for job in self._active if job.decodes]
        if len(answers) == len(self._active):  # most steps
            return self._fill_with_answers(answers)
        prompts = [job for job in self._active if not job.decodes]
        if self._canonical and prompts:
            self._fed_last = not (self._fed_last and answers)
            answers, prompts = ([], prompts[:1]) if self._fed_last else (answers, [])
        for job in answers:
            job.put(self._batch, 1)
        room = min(self._prefill_room(bool(answers)), self._batch.capacity - self._batch.size)
        fed: list[Job] = []
        for place, job in enumerate(sorted(prompts, key=lambda job: len(job.tokens) - job.fed)):
            share = room // (len(prompts) - place)
            if share and (count := job.put(self._batch, share)):
                room -= count
                fed.append(job)
        self._feeding = frozenset(job.number for job in fed)
        return [*answers, *fed]

    def _fill_with_answers(self, answers: list[Job]) -> list[Job]:
        """A token for each answer, or for as many as is cheapest: those whose last one is longest ago."""
        width = self._width.choose(len(answers)) if answers else 0
        if width < len(answers):
            answers = sorted(answers, key=lambda job: job.served)[:width]
        self._decodes += 1
        for job in answers:
            job.served = self._decodes
            job.put(self._batch, 1)
        return answers

    def _prefill_room(self, answers_run: bool) -> int:
        if self._canonical or not answers_run:
            return self._prefill_per_step
        paced = int(self._prefill_rate * _STEP_SECONDS)
        return min(self._prefill_per_step, max(_LEAST_PREFILL, paced))

    def _commit(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._guarded(job, lambda job=job: job.commit(self._context))
            if job.finished:
                self._end(job)

    def _guarded(self, job: Job, action: Callable[[], None]) -> None:
        """What fails in one job's own work ends that job only."""
        try:
            action()
        except GnusError as error:
            self._end(job, error)
        except NativeError as error:
            self._end(job, EngineFailed(str(error)))
        except Exception as error:  # noqa: BLE001 - a bug met by one job must not end the others
            self._end(job, InternalError(f"{type(error).__name__}: {error}"))

    def _end(self, job: Job, error: GnusError | None = None) -> None:
        if job in self._active:
            self._active.remove(job)
        elif job in self._waiting:
            self._waiting.remove(job)
        elif self._paused.pop(job.number, None) is not job:
            return
        job.close(self._cache)
        if job.lease is not None:
            self._cache.release(job.lease, job.tokens)
        if error is not None:
            self._outbox.error(job.number, error)

    def _learn(self, decoding: bool, seconds: float) -> None:
        """Update the measured speed from a step of one kind; mixed steps say little about either."""
        if decoding:
            self._width.learn(self._batch.size, seconds)
            self._decode_rate += _RATE_WEIGHT * (self._batch.size / seconds - self._decode_rate)
        elif self._batch.size >= _LEAST_PREFILL:
            self._prefill_rate += _RATE_WEIGHT * (self._batch.size / seconds - self._prefill_rate)
