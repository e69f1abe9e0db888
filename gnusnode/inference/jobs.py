"""A job of an engine and the stream of its events: bounded, with one reader."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal

import trio

from gnusnode.contracts.generation import (
    ClassifyRequest,
    ClassifyResult,
    Delta,
    Done,
    EmbedRequest,
    EmbedResult,
    GenerateRequest,
    ScoreRequest,
    ScoreResult,
    Started,
)
from gnusnode.errors import Cancelled, DeadlineExceeded, GnusError
from gnusnode.inference.queue import Cost, Ticket

Request = GenerateRequest | ClassifyRequest | ScoreRequest | EmbedRequest
Result = ClassifyResult | ScoreResult | EmbedResult
Event = Started | Delta | Done | Result
Operation = Literal["generate", "classify", "score", "embed"]

_BYTES_PER_TOKEN: Final = 3
"""Fewer than most text has, so that the estimate errs on the long side."""
_TOKENS_PER_MESSAGE: Final = 8
_EVENT_BYTES: Final = 128
_LOGPROB_BYTES: Final = 96
_FIRST_TURN: Final = 64
"""Tokens of the shortest turn: so that new requests begin soon, even behind a long line."""
_TURN_GROWTH: Final = 4
"""A turn is so many times as long as all before it."""
_SURPLUS_TOKENS: Final = 16
"""An end-of-turn token, a last flush of text; more than that is a child that does not stop."""


class EventStream:
    """Events between a producer that never waits and one reader.

    What waits is bounded by ``max_bytes`` and ``max_events``. The reader gets events until ``Done`` or a result, or the
    error; after the end iteration stops.
    """

    def __init__(self, *, max_bytes: int, max_events: int, deadline: float = math.inf) -> None:
        self._max_bytes = max_bytes
        self._max_events = max_events
        self._deadline = deadline
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._error: GnusError | None = None
        self._changed = trio.Event()
        self._over = False

    def put(self, event: Event) -> bool:
        """Appends an event; False: the reader is too slow, nothing was appended."""
        size = _size(event)
        last = not isinstance(event, Started | Delta)
        if not last and (len(self._events) >= self._max_events or self._bytes + size > self._max_bytes):
            return False
        self._events.append(event)
        self._bytes += size
        self._changed.set()
        return True

    def fail(self, error: GnusError) -> None:
        """Ends the stream: what waits is dropped and the reader gets ``error``. The first error stays."""
        self._error = self._error or error
        self._events.clear()
        self._bytes = 0
        self._changed.set()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Event:
        if self._over:
            raise StopAsyncIteration
        while not self._events and self._error is None:
            self._changed = trio.Event()
            with trio.move_on_at(self._deadline) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                self._error = deadline_error()
        if self._error is not None:
            self._over = True
            raise self._error
        event = self._events.popleft()
        self._bytes -= _size(event)
        self._over = not isinstance(event, Started | Delta)
        return event


@dataclass(eq=False)
class Job:
    """A request on its way through an engine.

    Attributes:
        deadline: trio time after which the answer is of no use.
        ticket: its place in the queue.
        number: its id on the pipe of the child that has it; None: it waits.
        started: the child said that it began.
        stopping_since: trio time at which the child was told to stop it.
        produced: tokens that came.
        turn_began, turn_end: ``produced`` when it got its slot, and that from which on it gives way to others.
        over: set when nothing more will come and its slot is free.
    """

    operation: Operation
    request: Request
    cost: Cost
    deadline: float
    stream: EventStream
    ticket: Ticket[Job] | None = None
    number: int | None = None
    started: bool = False
    stopping_since: float | None = None
    produced: int = 0
    turn_began: int = 0
    turn_end: float = math.inf
    over: trio.Event = field(default_factory=trio.Event)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def turn_tokens(self) -> int:
        """Length of its next turn: such that all that is fed again between turns is little beside what they make."""
        return max(_FIRST_TURN, self.cost.prompt + _TURN_GROWTH * self.produced)

    @property
    def next_turn(self) -> Cost:
        """What its next turn is expected to take: everything up to here is fed, then tokens are made."""
        left = max(self.cost.output - self.produced, _FIRST_TURN if self.produced else 0)
        return Cost(self.cost.prompt + self.produced, min(left, self.turn_tokens))

    def begin_turn(self) -> None:
        self.turn_began = self.produced
        self.turn_end = self.produced + self.turn_tokens

    def accept(self, event: Event) -> bool:
        """Takes an event from the child.

        Returns:
            False when the reader is too slow: its stream has failed and the job should be stopped.

        Raises:
            ValueError: the child gives more than was asked for.
        """
        if isinstance(event, Delta):
            self.produced += max(1, len(event.tokens))
            assert isinstance(self.request, GenerateRequest), "only generations begin"
            if self.produced > self.request.max_tokens + _SURPLUS_TOKENS:
                raise ValueError(f"{self.produced} tokens came where {self.request.max_tokens} were asked for")
        if self.stopping_since is not None or self.stream.put(event):
            return True
        self.stream.fail(Cancelled("the reader of this stream is too slow: its buffer is full", hint="read faster"))
        return False


def deadline_error() -> DeadlineExceeded:
    return DeadlineExceeded("the answer did not come within the request's deadline")


def estimate(request: Request, usual_output: float) -> Cost:
    """Tokens that ``request`` will take, guessed before it is tokenised."""
    match request:
        case GenerateRequest():
            prompt = request.prompt
            if prompt.tokens is not None:
                tokens = len(prompt.tokens)
            elif prompt.text is not None:
                tokens = _text_tokens(prompt.text)
            else:
                messages = prompt.messages or ()
                tokens = sum(_text_tokens(message.content) + _TOKENS_PER_MESSAGE for message in messages)
            return Cost(tokens + len(request.resume_tokens), min(request.max_tokens, round(usual_output)))
        case ClassifyRequest():
            text = request.instruction + request.text + request.suffix
            return Cost(_text_tokens(text) + _TOKENS_PER_MESSAGE * len(request.labels), 0)
        case ScoreRequest():
            return Cost(len(request.prompt_tokens) + len(request.answer_tokens), 0)
        case EmbedRequest():
            return Cost(sum(_text_tokens(text) for text in request.texts), 0)


def _text_tokens(text: str) -> int:
    return len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN + 1


def _size(event: Event) -> int:
    """Bytes that an event takes up while it waits, roughly."""
    if isinstance(event, Delta):
        logprobs = sum(1 + len(item.top) for item in event.logprobs)
        return _EVENT_BYTES + len(event.text) + 8 * len(event.tokens) + _LOGPROB_BYTES * logprobs
    return _EVENT_BYTES  # once a job, and as large as its request at most
