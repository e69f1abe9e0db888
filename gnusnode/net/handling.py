"""Running the handlers of incoming streams; both twins of the port use it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from gnusnode.errors import Conflict, GnusError, raised_at
from gnusnode.net.port import MessageStream, NetStatistics, StreamHandler

LINGER: Final = 5.0
"""Seconds that a peer has to close its side after our handler returned; then the stream is reset."""

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Offer:
    handler: StreamHandler
    scopes: set[trio.CancelScope] = field(default_factory=set[trio.CancelScope])
    ended: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)


class Handlers:
    """The protocols that a node serves now, and the streams that their handlers work on.

    A handler runs in the task that calls ``run``; its fault ends its own stream and nothing else.
    """

    def __init__(self, statistics: NetStatistics) -> None:
        self._statistics = statistics
        self._offers: dict[str, _Offer] = {}

    def serves(self, protocol: str) -> bool:
        return protocol in self._offers

    @asynccontextmanager
    async def serve(self, protocol: str, handler: StreamHandler) -> AsyncGenerator[None, None]:
        """Offers ``protocol`` while the context is open; on leaving, running handlers are cancelled and waited for.

        Raises:
            Conflict: it is served already.
        """
        if protocol in self._offers:
            raise Conflict(f"the protocol {protocol} is served already")
        offer = self._offers[protocol] = _Offer(handler)
        try:
            yield
        finally:
            del self._offers[protocol]
            for scope in offer.scopes:
                scope.cancel()
            with trio.CancelScope(shield=True):
                # What a handler uses is closed after this context: it must have ended before.
                while offer.scopes:
                    await offer.ended.park()

    async def run(self, stream: MessageStream) -> None:
        """Serves one incoming stream to its end. Raises nothing but the caller's own cancellation."""
        offer = self._offers.get(stream.protocol)
        if offer is None:  # the protocol went away while the peer asked for it
            self._statistics.streams_refused += 1
            await stream.reset()
            return
        scope = trio.CancelScope()
        offer.scopes.add(scope)
        in_order = False
        try:
            with scope:
                in_order = await self._handle(offer.handler, stream)
        finally:
            if not in_order:
                with trio.move_on_after(1.0, shield=True):
                    await stream.reset()
            offer.scopes.discard(scope)
            offer.ended.unpark_all()

    async def _handle(self, handler: StreamHandler, stream: MessageStream) -> bool:
        """Whether both sides closed in order."""
        try:
            await handler(stream)
        except Exception as error:  # noqa: BLE001 - the fence: what a peer provokes must not end the node
            self._statistics.handler_failures += 1
            level = logging.DEBUG if isinstance(error, GnusError) else logging.ERROR
            # The message may quote what the peer sent: it stays out of the log.
            _log.log(level, "handler of %s failed: %s at %s", stream.protocol, type(error).__name__, raised_at(error))
            return False
        with trio.move_on_after(LINGER):
            try:
                await stream.close()
                while await stream.receive() is not None:
                    pass
            except GnusError:
                return False
            return True
        return False
