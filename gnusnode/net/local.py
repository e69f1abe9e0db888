"""The in-memory twin of the swarm's rpc: services of this process, called exactly as if they were elsewhere.

Requests, responses and stream items cross as bytes (the encoding of the wire), errors as codes of the error tree, and a
stream holds at most ``buffer_bytes`` that its reader has not taken: a caller that works here works over the swarm.

Tasks: a handler runs in the nursery of the ``serve`` that offers it. It ends with its caller, with its deadline, or as
the service closes; a caller never returns while its handler still runs, and nothing outlives ``serve``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import trio

from gnusnode.contracts.base import Record
from gnusnode.contracts.methods import Method, StreamMethod, UnaryMethod
from gnusnode.errors import Conflict, DeadlineExceeded, GnusError, NoExpert, Unavailable
from gnusnode.net import fence
from gnusnode.net.rpc import CallContext, Service

Req = TypeVar("Req", bound=Record)
Res = TypeVar("Res", bound=Record)
Item = TypeVar("Item")

STREAM_BUFFER: Final = 256 * 1024
"""Bytes of items that a stream holds for a slow reader before its handler waits."""


class Outlet(Protocol):
    """Where the outcome of a handler goes: to a caller in this process, or onto the wire."""

    async def send(self, data: bytes) -> None:
        """Hands over an encoded item, or the response; waits while the caller is slow. Several tasks may call it."""
        ...

    def close(self, error: GnusError | None) -> None:
        """The handler has ended, ``error`` being why. Called exactly once, and nothing is sent after it."""
        ...


class Running:
    """A handler at work."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.ended = trio.Event()

    def cancel(self) -> None:
        """Nobody waits for the outcome any more."""
        self.scope.cancel()


@dataclass(eq=False)
class _Offer:
    """A service that is being served: its tasks and the scopes of the calls that run now."""

    service: Service
    nursery: trio.Nursery
    scopes: set[trio.CancelScope] = field(default_factory=set[trio.CancelScope])
    closed: bool = False

    def close(self) -> None:
        self.closed = True
        for scope in self.scopes:
            scope.cancel()

    def stopped(self) -> Unavailable:
        return Unavailable(
            f"the service {self.service.name!r} stopped during the call", retry_after=1.0, hint="try again"
        )


class LocalRpc:
    """``Rpc`` within one process. See ``gnusnode.net.rpc.Rpc`` for the contract."""

    def __init__(self, peer_id: str, *, buffer_bytes: int = STREAM_BUFFER) -> None:
        self.peer_id = peer_id
        self._buffer_bytes = buffer_bytes
        self._offers: dict[str, _Offer] = {}

    @asynccontextmanager
    async def serve(self, service: Service) -> AsyncGenerator[None, None]:
        """Offers ``service``; on leaving, its running calls fail with ``Unavailable`` and are waited for."""
        if service.name in self._offers:
            raise Conflict(f"the service {service.name!r} is already served by this node", where=self.peer_id)
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            offer = self._offers[service.name] = _Offer(service, nursery)
            try:
                yield
            except Exception as error:  # noqa: BLE001 - re-raised below, so that the caller sees it without a group
                failure = error
            finally:
                del self._offers[service.name]
                offer.close()
        if failure is not None:
            raise failure

    def offers(self, service: str) -> bool:
        return service in self._offers

    def statistics(self) -> dict[str, int]:
        """Calls that run now, by service."""
        return {name: len(offer.scopes) for name, offer in self._offers.items()}

    async def call(
        self, method: UnaryMethod[Req, Res], request: Req, context: CallContext, *, peer: str | None = None
    ) -> Res:
        self._check_peer(method, peer)
        async with self._answering(method, request, context) as pipe:
            data = await pipe.receive()
        assert data is not None, "a handler that ended well has sent its response"
        return fence.copy_response(method, data)

    @asynccontextmanager
    async def stream(
        self, method: StreamMethod[Req, Item], request: Req, context: CallContext, *, peer: str | None = None
    ) -> AsyncGenerator[AsyncIterator[Item], None]:
        self._check_peer(method, peer)
        async with self._answering(method, request, context) as pipe:
            yield _Items(method, pipe)

    def start(self, method: Method, request: Record, context: CallContext, outlet: Outlet) -> Running:
        """Starts the handler of ``method`` in the tasks of its service; ``request`` and ``context`` are the handler's.

        Raises:
            NoExpert: nobody serves the method here.
        """
        offer = self._find(method.service)
        work = _work(offer.service, method, request, context, outlet)
        running = Running()
        offer.nursery.start_soon(_run, offer, method, context, work, outlet, running, name=fence.method_name(method))
        return running

    @asynccontextmanager
    async def _answering(self, method: Method, request: Record, context: CallContext) -> AsyncGenerator[_Pipe, None]:
        """Runs a handler while the context is open; yields what it sends into."""
        self._find(method.service)
        received = fence.copy_request(method, request)
        pipe = _Pipe(self._buffer_bytes)
        running = self.start(method, received, replace(context, caller=self.peer_id), pipe)
        try:
            yield pipe
        finally:
            running.cancel()
            with trio.CancelScope(shield=True):
                # The handler ends at its next checkpoint; until then it may use what the caller is about to close.
                await running.ended.wait()

    def _check_peer(self, method: Method, peer: str | None) -> None:
        if peer is not None and peer != self.peer_id:
            raise NoExpert(f"the peer {peer} is not reachable from this node", where=method.service)

    def _find(self, service: str) -> _Offer:
        offer = self._offers.get(service)
        if offer is None:
            raise NoExpert(
                f"nobody serves {service!r}", where=self.peer_id, hint=f"start a node with the role {service!r}"
            )
        return offer


def _work(
    service: Service, method: Method, request: Record, context: CallContext, outlet: Outlet
) -> Callable[[], Awaitable[None]]:
    """The handler with its outlet.

    Raises:
        NoExpert: the service has no such method.
    """
    if isinstance(method, UnaryMethod):
        unary = service.unary.get(method.name)
        if unary is None:
            raise fence.no_method(method)

        async def answer() -> None:
            await outlet.send(fence.encode_response(method, await unary(request, context)))

        return answer
    stream = service.streams.get(method.name)
    if stream is None:
        raise fence.no_method(method)

    async def send(item: Record) -> None:
        await outlet.send(fence.encode_item(method, item))

    return partial(stream, request, context, send)


async def _run(
    offer: _Offer,
    method: Method,
    context: CallContext,
    work: Callable[[], Awaitable[None]],
    outlet: Outlet,
    running: Running,
) -> None:
    error: GnusError | None = offer.stopped()  # stands when the service's own nursery is cancelled
    try:
        with running.scope:
            error = await _outcome(offer, method, context, work)
    finally:
        outlet.close(error)
        running.ended.set()


async def _outcome(
    offer: _Offer, method: Method, context: CallContext, work: Callable[[], Awaitable[None]]
) -> GnusError | None:
    """Runs a handler to its end within deadline and service; the error it ended with, if any."""
    scope = trio.CancelScope(deadline=trio.current_time() + context.remaining())
    offer.scopes.add(scope)
    try:
        with scope:
            return await fence.outcome(method, context, work)
    finally:
        offer.scopes.discard(scope)
    if offer.closed:
        return offer.stopped()
    return DeadlineExceeded(f"{fence.method_name(method)} did not end in time", where=context.request_id)


class _Pipe:
    """Encoded items between a handler, whose tasks may all send, and its one reader; bounded in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[bytes] = deque()
        self._held = 0
        self._closed = False
        self._error: GnusError | None = None
        self._readable = trio.lowlevel.ParkingLot()
        self._writable = trio.lowlevel.ParkingLot()

    async def send(self, data: bytes) -> None:
        """Hands over an encoded item; waits while the reader is ``limit`` bytes behind."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._held and self._held + len(data) > self._limit:
            await self._writable.park()
        self._items.append(data)
        self._held += len(data)
        self._readable.unpark()

    def close(self, error: GnusError | None) -> None:
        self._closed = True
        self._error = error
        self._readable.unpark()

    async def receive(self) -> bytes | None:
        """The next item; None at the end.

        Raises:
            GnusError: what the handler ended with, after its items.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._items:
            if self._closed:
                if self._error is not None:
                    raise GnusError.from_wire(self._error.to_wire())
                return None
            await self._readable.park()
        data = self._items.popleft()
        self._held -= len(data)
        self._writable.unpark_all()
        return data


class _Items(AsyncIterator[Item]):
    def __init__(self, method: StreamMethod[Any, Item], pipe: _Pipe) -> None:
        self._method = method
        self._pipe = pipe

    async def __anext__(self) -> Item:
        data = await self._pipe.receive()
        if data is None:
            raise StopAsyncIteration
        return fence.copy_item(self._method, data)
