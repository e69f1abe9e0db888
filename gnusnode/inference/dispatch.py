"""All jobs of one engine: those that wait, those that its child works on, and how they end.

Nothing here starts or reads a process; ``process`` feeds it with frames and with the news of a child's death.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from typing import Any, Final

import trio
from pydantic import ValidationError

from gnusnode.contracts.base import describe
from gnusnode.contracts.generation import (
    ClassifyResult,
    Delta,
    Done,
    EmbedResult,
    GenerateRequest,
    ScoreResult,
    Started,
)
from gnusnode.errors import Cancelled, EngineFailed, GnusError, Poisoned, TooLarge
from gnusnode.inference import frames
from gnusnode.inference.crashes import CrashLedger
from gnusnode.inference.jobs import EventStream, Job, Operation, Request, deadline_error, estimate
from gnusnode.inference.queue import FairQueue, QueueLimits, Rates

Post = Callable[[bytes], None]

_RESULTS: Final[dict[str, type[ClassifyResult | ScoreResult | EmbedResult]]] = {
    "classify": ClassifyResult,
    "score": ScoreResult,
    "embed": EmbedResult,
}
_FIRST_GUESS: Final = 256.0
"""Output tokens expected of a request before there is experience."""
_MEMORY: Final = 0.9
"""Weight of the past in the running mean of output lengths."""
_NO_PRIORITY: Final = 5


class Dispatcher:
    """Queue, slots and streams of an engine.

    With ``turns`` generations that had their turn are paused while others wait; each keeps its state in the child.
    """

    def __init__(
        self, slots: int, limits: QueueLimits, *, stream_bytes: int, stream_events: int, turns: bool = False
    ) -> None:
        self.rates = Rates()
        self._turns = turns
        self._without_room = 0
        self._owed_room = 0
        self._queue = FairQueue[Job](slots, limits)
        self._stream_bytes = stream_bytes
        self._stream_events = stream_events
        self._active: dict[int, Job] = {}
        self._numbers = count(1)
        self._post: Post | None = None
        self._usual_output = _FIRST_GUESS

    @property
    def waiting(self) -> int:
        """Jobs that wait for a slot, and those that have one but not yet the room in the child's memory."""
        return len(self._queue) + self._held_back

    @property
    def slots(self) -> int:
        return self._queue.slots

    @property
    def free_slots(self) -> int:
        """Slots in which a job could begin now: none while others wait for room."""
        return 0 if self._held_back else max(0, self._queue.free_slots)

    @property
    def _held_back(self) -> int:
        return min(self._without_room, self._queue.slots - self._queue.free_slots)

    @property
    def idle(self) -> bool:
        return not self._active and not len(self._queue)

    # --- the caller's side -------------------------------------------------------------------------------------------

    def submit(self, operation: Operation, request: Request) -> Job:
        """Lets a job wait for a slot.

        Raises:
            RateLimited, Overloaded: see ``FairQueue.offer``.
        """
        now = trio.current_time()
        deadline_ms = request.deadline_ms if isinstance(request, GenerateRequest) else None
        deadline = now + deadline_ms / 1000 if deadline_ms is not None else math.inf
        stream = EventStream(max_bytes=self._stream_bytes, max_events=self._stream_events, deadline=deadline)
        cost = estimate(request, self._usual_output)
        job = Job(operation, request, cost, deadline, stream)
        job.ticket = self._queue.offer(
            job,
            tenant=getattr(request, "tenant", "local"),
            priority=request.priority if isinstance(request, GenerateRequest) else _NO_PRIORITY,
            cost=job.next_turn if self._turns else cost,
            now=now,
            within=None if deadline == math.inf else deadline - now,
            rates=self.rates,
        )
        self._fill_slots()
        return job

    def abandon(self, job: Job) -> None:
        """The caller no longer reads: stops the job; ``job.over`` is set when its slot is free."""
        if job.over.is_set():
            return
        if job.number is None:
            self._finish(job)
        else:
            self._stop(job)

    # --- the child's side --------------------------------------------------------------------------------------------

    def attach(self, post: Post, slots: int) -> None:
        """A child is ready and takes frames."""
        self._post = post
        self._queue.slots = slots
        self._fill_slots()

    def told(self, rates: Rates, without_room: int) -> None:
        """The child's speed, and how many of its jobs had no room in its last step."""
        self.rates = rates
        self._owed_room = min(self._without_room, without_room)  # some wait for the end of a prefill only
        self._without_room = without_room

    def handle(self, frame: dict[str, Any]) -> None:
        """Takes a frame that belongs to jobs.

        Raises:
            FrameError: it breaks the protocol.
        """
        try:
            if frame.get("ev") == "step":
                for number, delta in frame["deltas"]:
                    self._deliver(number, Delta.model_validate(delta))
            else:
                self._one(frame["ev"], frame["id"], frame)
        except ValidationError as error:
            raise frames.FrameError(f"{frame.get('ev')}: {describe(error)}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise frames.FrameError(f"{frame.get('ev')!r} is malformed: {error!r}") from error

    def expire(self, now: float) -> float | None:
        """Fails what is past its deadline.

        Returns:
            The time at which the child was told to stop the job that it has not stopped for longest.
        """
        for job in [*self._active.values(), *self._queue]:
            if job.deadline <= now and job.stopping_since is None:
                job.stream.fail(deadline_error())
                if job.number is None:
                    self._finish(job)
                else:
                    self._stop(job)
        return min(
            (job.stopping_since for job in self._active.values() if job.stopping_since is not None), default=None
        )

    # --- the end of a child or of the engine -------------------------------------------------------------------------

    def suspects(self) -> list[str]:
        """Ids of the requests that the child works on, those not yet begun included."""
        return [job.request_id for job in self._active.values()]

    def child_died(self, reason: str, ledger: CrashLedger, *, rerun: bool) -> None:
        """Ends what the child had begun; with ``rerun`` what it was only handed waits again, unless poisoned."""
        self._post = None
        for job in list(self._active.values()):
            if ledger.poisoned(job.request_id):
                job.stream.fail(poisoned_error(reason))
            elif job.started or job.operation != "generate" or not rerun:
                job.stream.fail(EngineFailed(f"the engine died while it worked on this request: it {reason}"))
            elif job.stopping_since is None:
                del self._active[job.number or 0]
                job.number = None
                assert job.ticket is not None
                self._queue.put_back(job.ticket)
                continue
            self._finish(job)

    def fail_all(self, error: Callable[[], GnusError]) -> None:
        """Ends every job, waiting ones included."""
        self._post = None
        for job in [*self._active.values(), *self._queue]:
            job.stream.fail(error())
            self._finish(job)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _fill_slots(self) -> None:
        now = trio.current_time()
        while self._post is not None and (ticket := self._queue.take(now)) is not None:
            self._send(ticket.item, self._post, now)

    def _send(self, job: Job, post: Post, now: float) -> None:
        if self._turns and job.operation == "generate":
            job.begin_turn()
        if job.number is not None:
            post(frames.pack({"op": "resume", "id": job.number}))
            return
        request = job.request
        if isinstance(request, GenerateRequest) and request.deadline_ms is not None:
            left = max(1, int((job.deadline - now) * 1000))
            request = request.model_copy(update={"deadline_ms": left})
        number = next(self._numbers)
        try:
            frame = frames.pack({"op": job.operation, "id": number, "request": request.to_plain()})
        except frames.FrameError as error:
            job.stream.fail(TooLarge(f"the request is too large for the engine: {error}"))
            self._finish(job)
            return
        job.number = number
        self._active[number] = job
        post(frame)

    def _stop(self, job: Job) -> None:
        if job.stopping_since is None and self._post is not None:
            job.stopping_since = trio.current_time()
            self._post(frames.pack({"op": "cancel", "id": job.number}))

    def _end_turn(self, job: Job) -> None:
        """Pauses a job that had its turn, if anybody waits for a slot or for room."""
        now = trio.current_time()
        if job.stopping_since is not None or self._post is None or job.ticket is None:
            return
        if not self._queue.is_pressed(now, leaving=job.ticket.tenant):
            if not self._owed_room:
                return
            self._owed_room -= 1
        self._post(frames.pack({"op": "pause", "id": job.number}))
        job.turn_end = math.inf
        job.ticket = self._queue.end_turn(job.ticket, job.produced - job.turn_began, job.next_turn, now)
        self._fill_slots()

    def _one(self, kind: str, number: int, frame: dict[str, Any]) -> None:
        job = self._active.get(number)
        if job is None:
            raise ValueError(f"there is no job {number}")
        match kind:
            case "started" if job.operation == "generate" and not job.started:
                job.started = True
                self._deliver(number, Started.model_validate(frame["body"]))
            case "done" if job.started:
                done = Done.model_validate(frame["body"])
                self._usual_output = _MEMORY * self._usual_output + (1 - _MEMORY) * len(done.tokens)
                job.accept(done)
                self._finish(job)
            case "result" if job.operation in _RESULTS:
                job.accept(_RESULTS[job.operation].model_validate(frame["body"]))
                self._finish(job)
            case "error":
                error = GnusError.from_wire(frame["error"])
                if job.stopping_since is None or not isinstance(error, Cancelled):
                    job.stream.fail(error)
                self._finish(job)
            case _:
                raise ValueError(f"it makes no sense for job {number}, a {job.operation}")

    def _deliver(self, number: int, event: Started | Delta) -> None:
        job = self._active.get(number)
        if job is None or not job.started:
            raise ValueError(f"there is no generation {number} that has begun")
        if not job.accept(event):
            self._stop(job)
        elif job.produced >= job.turn_end:
            self._end_turn(job)

    def _finish(self, job: Job) -> None:
        """Nothing more comes for ``job``: its slot goes to the next."""
        if job.number is not None:
            self._active.pop(job.number, None)
        assert job.ticket is not None
        self._queue.release(job.ticket, job.produced - job.turn_began if self._turns else None)
        job.over.set()
        self._fill_slots()


def poisoned_error(reason: str = "crashed before") -> Poisoned:
    return Poisoned(
        f"this request was active in repeated engine crashes and is not tried again (the engine {reason})",
        hint="change the request; if it is harmless, report it as a bug of the engine",
    )
