"""``GET /gnus/v1/events``: the node's events with ids, so that a reader can go on after a pause."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import trio
from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gnusnode.api.envelope import error_object
from gnusnode.api.sse import COMMENT, body_message, data_event, start_message
from gnusnode.api.tasks import unless_gone
from gnusnode.errors import Cancelled, Unavailable
from gnusnode.observe.bus import Missed, Stamped
from gnusnode.observe.observer import Observer


class EventStream(Response):
    """An ASGI response that follows the node's events until the client leaves or the node stops.

    ``after``: the id behind which to begin; None: with the next event. Events that are no longer held are told as one
    ``missed`` event.
    """

    def __init__(self, observer: Observer, stopping: trio.Event, keepalive: float, *, after: int | None) -> None:
        super().__init__()
        self._observer = observer
        self._stopping = stopping
        self._keepalive = keepalive
        self._reader = observer.bus.follow(after)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        streams = self._observer.metrics.sse_streams.labels("events")
        # Leaving is how a reader ends this stream.
        with streams.track_inprogress(), suppress(Cancelled):
            await unless_gone(receive, partial(self._stream, send))

    async def _stream(self, send: Send) -> None:
        await send(start_message())
        # The first bytes tell the client that the stream is open, even if nothing happens for a while.
        await send(body_message(COMMENT))
        while not self._stopping.is_set():
            item = await self._next()
            await send(body_message(COMMENT if item is None else _encoded(item)))
        error = Unavailable("the node is shutting down", retry_after=5)
        await send(body_message(data_event(error_object(error)), more=False))

    async def _next(self) -> Stamped | Missed | None:
        """The next event; None after a quiet while, or when the node begins to stop."""
        item: Stamped | Missed | None = None
        with trio.move_on_after(self._keepalive) as waiting:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when, self._stopping, waiting)
                item = await anext(self._reader)
                nursery.cancel_scope.cancel()
        return item


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _encoded(item: Stamped | Missed) -> bytes:
    if isinstance(item, Missed):
        return b"id: %d\nevent: missed\ndata: %s\n\n" % (item.last_id, to_json({"last_id": item.last_id}))
    plain = to_json(item.to_plain())
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (item.id, item.event.name.encode(), plain)
