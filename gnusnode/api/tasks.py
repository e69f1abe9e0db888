"""Running tasks for one HTTP request: bounded hand-over, the client's leaving, the node's stopping, the deadline."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar, cast

import trio
from starlette.types import Receive

from gnusnode.api.facade import NodeFacade
from gnusnode.contracts.services import ChoiceDelta, ChoiceDone, PlanMade, TaskDone, TaskRequest
from gnusnode.errors import Cancelled, DeadlineExceeded, EngineFailed, GnusError, InternalError, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")
Event = PlanMade | ChoiceDelta | ChoiceDone | TaskDone

_AHEAD: Final = 64
"""Events that a task may be ahead of its reader; a slow reader slows the task down."""
_DEADLINE_SLACK: Final = 1.0
"""Seconds in which the node should report its deadline by itself before we do."""


@dataclass(frozen=True)
class Job:
    """One task of an HTTP request. Its choices are numbered from ``first_index``."""

    request: TaskRequest
    deadline: float
    """Seconds from the start."""
    first_index: int = 0
    traceparent: str | None = None


class Feed:
    """The merged events of some tasks. A failure of one of them is raised in its place."""

    def __init__(self, events: trio.MemoryReceiveChannel[Event | GnusError], tasks: int) -> None:
        self._events = events
        self._running = tasks
        self._held: GnusError | None = None

    @property
    def finished(self) -> bool:
        """Whether the last event of every task has been taken."""
        return self._running == 0

    async def next(self) -> Event:
        """The next event; not to be called when ``finished``. May be cancelled without losing an event.

        Raises:
            GnusError: a task failed, or the node is stopping.
        """
        event = self._held or await self._events.receive()
        if isinstance(event, GnusError):
            raise event
        return self._count(event)

    def ready(self) -> list[Event]:
        """The events that are there already, up to the first failure."""
        found: list[Event] = []
        while self._held is None and not self.finished:
            try:
                event = self._events.receive_nowait()
            except trio.WouldBlock:
                break
            if isinstance(event, GnusError):
                self._held = event
            else:
                found.append(self._count(event))
        return found

    async def until(self, due: float) -> list[Event]:
        """The events that come before ``due`` (trio time), up to the first that is no text, or the first failure."""
        found: list[Event] = []
        with trio.move_on_at(due):
            while self._held is None and (not found or isinstance(found[-1], ChoiceDelta)):
                event = await self._events.receive()
                if isinstance(event, GnusError):
                    self._held = event
                else:
                    found.append(self._count(event))
        return found

    def _count(self, event: Event) -> Event:
        if isinstance(event, TaskDone):
            self._running -= 1
        return event


@asynccontextmanager
async def running(node: NodeFacade, jobs: Sequence[Job]) -> AsyncGenerator[Feed]:
    """Runs ``jobs`` side by side until the context is left."""
    send, receive = trio.open_memory_channel[Event | GnusError](_AHEAD)
    failure: GnusError | None = None
    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(_run, node, job, send)
        nursery.start_soon(_report_stop, node.stopping, send)
        with send, receive:
            try:
                yield Feed(receive, len(jobs))
            except GnusError as error:
                # Raised behind the nursery, which would wrap it into a group.
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _report_stop(stopping: trio.Event, send: trio.MemorySendChannel[Event | GnusError]) -> None:
    await stopping.wait()
    await send.send(Unavailable("the node is shutting down", hint="ask another node", retry_after=5))


async def _run(node: NodeFacade, job: Job, send: trio.MemorySendChannel[Event | GnusError]) -> None:
    try:
        with trio.fail_after(job.deadline + _DEADLINE_SLACK):
            await _forward(node, job, send)
    except GnusError as error:
        await send.send(error)
    except trio.TooSlowError:
        await send.send(DeadlineExceeded(f"no complete answer within {job.deadline:g} s"))
    except Exception as error:  # noqa: BLE001 - a bug below us is told to the client as a failure like any other
        await send.send(_failure(error))


def _failure(error: Exception) -> GnusError:
    """The expected failure inside ``error``: a facade with a nursery of its own wraps what it raises in groups."""
    sole: BaseException = error
    while isinstance(sole, BaseExceptionGroup):
        parts = list(cast("BaseExceptionGroup[BaseException]", sole).exceptions)
        if len(parts) != 1:
            break
        sole = parts[0]
    if isinstance(sole, GnusError):
        return sole
    log.error("a task failed", exc_info=error)
    return InternalError("the node made a mistake", hint="see its log")


async def _forward(node: NodeFacade, job: Job, send: trio.MemorySendChannel[Event | GnusError]) -> None:
    done = False
    deadline = time.monotonic() + job.deadline
    async with node.chat(job.request, deadline=deadline, traceparent=job.traceparent) as events:
        async for event in events:
            done = isinstance(event, TaskDone)
            await send.send(_renumbered(event, job.first_index))
    if not done:
        raise EngineFailed("the answer ended before it was complete")


def _renumbered(event: Event, first_index: int) -> Event:
    if first_index and isinstance(event, ChoiceDelta | ChoiceDone):
        return event.model_copy(update={"index": event.index + first_index})
    return event


async def unless_gone(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """What ``work`` returns or raises, unless the client leaves first: then ``work`` is cancelled.

    The request's body must have been read: what ``receive`` still brings is the client's leaving.

    Raises:
        Cancelled: the client left.
    """
    outcome: list[T] = []
    failure: GnusError = Cancelled("the client left")

    async def watch(scope: trio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, nursery.cancel_scope)
        try:
            outcome.append(await work())
        except GnusError as error:
            failure = error
        nursery.cancel_scope.cancel()
    if outcome:
        return outcome[0]
    raise failure
