"""Server-sent events: a task's events as a paced, watched stream that ends either with ``[DONE]`` or with an error."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import trio
from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gnusnode.api.envelope import error_object
from gnusnode.api.facade import NodeFacade
from gnusnode.api.options import ApiOptions
from gnusnode.api.tasks import Event, Feed, Job, running, unless_gone
from gnusnode.contracts.services import ChoiceDelta, PlanMade
from gnusnode.errors import Cancelled, GnusError, InternalError

log = logging.getLogger(__name__)

DONE: Final = b"data: [DONE]\n\n"
COMMENT: Final = b": keep-alive\n\n"
HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
)


def data_event(content: Any) -> bytes:
    """One event without a name or an id."""
    return b"data: " + to_json(content) + b"\n\n"


def start_message() -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": list(HEADERS)}


def body_message(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


class Encoder(Protocol):
    """Turns task events into the chunks of one API dialect."""

    @property
    def node(self) -> str | None:
        """The node that answers, as far as ``feed`` was told."""
        ...

    def feed(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        """The chunks that these events make; may hold one back."""
        ...

    def finish(self) -> list[dict[str, Any]]:
        """The last chunks, once every task is done."""
        ...


class TaskStream(Response):
    """An ASGI response that runs its tasks. What fails before the first visible event is raised, and so gets its HTTP
    status; later failures are an error event after which the stream ends without ``[DONE]``.
    """

    def __init__(
        self, node: NodeFacade, options: ApiOptions, jobs: Sequence[Job], encoder: Encoder, headers: dict[str, str]
    ) -> None:
        """``headers`` are sent with the first byte: who answers is known by then and is added to them."""
        super().__init__()
        self._headers = headers
        self._node = node
        self._options = options
        self._jobs = jobs
        self._encoder = encoder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, partial(self._stream, send))
        except Cancelled:
            log.debug("a client left in the middle of a stream")

    async def _stream(self, send: Send) -> None:
        async with running(self._node, self._jobs) as feed:
            head = self._encoder.feed([*await self._until_visible(feed), *feed.ready()])
            if self._encoder.node is not None:
                self._headers["x-gnus-node"] = self._encoder.node
            await send(start_message())
            try:
                await self._write(feed, head, send)
                last = DONE
            except GnusError as error:
                last = data_event(error_object(error))
            except Exception:
                # The status is sent: a bug can only be told inside the stream.
                log.exception("a stream failed")
                last = data_event(error_object(InternalError("the node made a mistake", hint="see its log")))
            await send(body_message(last, more=False))

    async def _until_visible(self, feed: Feed) -> list[Event]:
        """The events up to the first that the client will see, or those of the first quiet seconds."""
        head: list[Event] = []
        with trio.move_on_after(self._options.sse_keepalive_seconds):
            while not head or isinstance(head[-1], PlanMade):
                head.append(await feed.next())
        return head

    async def _write(self, feed: Feed, chunks: list[dict[str, Any]], send: Send) -> None:
        """Paced: what is generated within an interval goes into one chunk. The end of a choice does not wait for it."""
        while True:
            if feed.finished:
                chunks += self._encoder.finish()
            if chunks:
                await send(body_message(b"".join(map(data_event, chunks))))
            if feed.finished:
                return
            due = trio.current_time() + self._options.sse_interval_seconds
            batch = [await self._next(feed, send)]
            if isinstance(batch[-1], ChoiceDelta):
                batch += await feed.until(due)
            chunks = self._encoder.feed([*batch, *feed.ready()])

    async def _next(self, feed: Feed, send: Send) -> Event:
        while True:
            with trio.move_on_after(self._options.sse_keepalive_seconds):
                return await feed.next()
            await send(body_message(COMMENT))
