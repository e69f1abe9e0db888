"""``POST /gnus/v1/models/pull``: fetches a model from peers, and tells how far it is as server-sent events."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final

import trio
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gnusnode.api.bodies import read_body
from gnusnode.api.document import body_of
from gnusnode.api.envelope import error_object
from gnusnode.api.facade import PullFacade
from gnusnode.api.options import ApiOptions
from gnusnode.api.sse import COMMENT, DONE, body_message, data_event, start_message
from gnusnode.api.tasks import unless_gone
from gnusnode.contracts.ids import PeerId
from gnusnode.errors import Cancelled, GnusError, InternalError, Unavailable, Unprocessable
from gnusnode.net.blobs import Pulled

log = logging.getLogger(__name__)

INTERVAL: Final = 0.2
"""Seconds between two reports of the progress."""


class PullOrder(BaseModel):
    """What to fetch. Nothing else than a content address: other sources are the command's own work."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    """``cid://…`` or ``sha256:…``."""
    name: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None
    peers: Annotated[tuple[PeerId, ...], Field(max_length=16)] = ()
    """Fetch from these only; empty: from whoever holds it."""
    replace: bool = False


def pull_routes(puller: Callable[[], PullFacade | None], stopping: trio.Event, options: ApiOptions) -> APIRouter:
    """``puller`` is None while the node takes part in no network."""
    router = APIRouter(prefix="/gnus/v1/models", tags=["gnus"])

    @router.post("/pull", openapi_extra=body_of(PullOrder), summary="Fetch a model from peers by content address")
    async def pull(request: Request) -> Response:
        order = await read_body(request, PullOrder, shape_error=Unprocessable)
        found = puller()
        if found is None:
            raise Unavailable(
                "this node takes part in no network",
                where="net.enabled",
                hint="join a swarm with `gnusnode swarm join TOKEN`, or set net.enabled to on",
            )
        return PullStream(found, order, stopping, options.sse_keepalive_seconds)

    return router


class PullStream(Response):
    """An ASGI response that runs a pull. A client that leaves ends it; what came is kept for the next one.

    Events are ``{"done": bytes, "total": bytes}`` and at the end ``{"pulled": {…}}`` and ``[DONE]``. What fails before
    the first progress is raised, and so gets its HTTP status; a later failure is an error event.
    """

    def __init__(self, puller: PullFacade, order: PullOrder, stopping: trio.Event, keepalive: float) -> None:
        super().__init__()
        self._puller = puller
        self._order = order
        self._stopping = stopping
        self._keepalive = keepalive
        self._progress: dict[str, Any] | None = None
        self._news = trio.Event()
        self._ended = trio.Event()
        self._outcome: Pulled | GnusError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, partial(self._run, send))
        except Cancelled:
            log.debug("a client left in the middle of a pull")

    async def _run(self, send: Send) -> None:
        await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pull)
            nursery.start_soon(self._watch)
            with trio.move_on_after(self._keepalive):
                await self._news.wait()
            refused = self._progress is None and isinstance(self._outcome, GnusError)
            if not refused:
                await self._report(send)
            nursery.cancel_scope.cancel()
        if refused and isinstance(self._outcome, GnusError):
            raise self._outcome

    async def _pull(self) -> None:
        order = self._order
        await trio.lowlevel.checkpoint()
        try:
            pulled = await self._puller.pull(
                order.source, name=order.name, peers=order.peers, replace=order.replace, progress=self._arrived
            )
            self._end(pulled)
        except GnusError as error:
            self._end(error)
        except Exception:
            # The status may be sent: a bug can only be told inside the stream.
            log.exception("a pull failed")
            self._end(InternalError("the node made a mistake", hint="see its log"))

    async def _watch(self) -> None:
        await self._stopping.wait()
        self._end(Unavailable("the node is shutting down", hint="pull again later: it goes on where it stopped"))

    def _end(self, outcome: Pulled | GnusError) -> None:
        if self._outcome is None:
            self._outcome = outcome
            self._ended.set()
            self._news.set()

    def _arrived(self, done: int, total: int | None) -> None:
        self._progress = {"done": done, "total": total}
        self._news.set()

    async def _report(self, send: Send) -> None:
        await send(start_message())
        told: dict[str, Any] | None = None
        while (outcome := self._outcome) is None:
            self._news, progress = trio.Event(), self._progress
            await send(body_message(COMMENT if progress in (None, told) else data_event(progress)))
            told = progress
            with trio.move_on_after(INTERVAL):
                await self._ended.wait()
            with trio.move_on_after(self._keepalive):
                await self._news.wait()
        if isinstance(outcome, GnusError):
            await send(body_message(data_event(error_object(outcome)), more=False))
            return
        await send(body_message(data_event({"pulled": _plain(outcome)})))
        await send(body_message(DONE, more=False))


def _plain(pulled: Pulled) -> dict[str, Any]:
    return {
        "model": pulled.model.model_dump(mode="json"),
        "expert": pulled.expert,
        "received": pulled.received,
    }
