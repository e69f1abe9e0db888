"""The in-memory twin of the swarm's rpc: services of this process, called exactly as if they were elsewhere.

Requests, responses and stream items cross as bytes (the encoding of the wire), errors as codes of the error tree, and a
stream holds at most ``buffer_bytes`` that its reader has not taken: a caller that works here works over the swarm.

Tasks: a handler runs in the nursery of the ``serve`` that offers it. It ends with its caller, with its deadline, or as
the service closes; a caller never returns while its handler still runs, and nothing outlives ``serve``.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import trio
from pydantic import ValidationError

from gnusnode.contracts import canonical
from gnusnode.contracts.base import MalformedRecord, Record, describe
from gnusnode.contracts.methods import StreamMethod, UnaryMethod
from gnusnode.errors import Conflict, DeadlineExceeded, GnusError, InternalError, NoExpert, RequestError, Unavailable
from gnusnode.net.rpc import CallContext, Service

Req = TypeVar("Req", bound=Record)
Res = TypeVar("Res", bound=Record)
Item = TypeVar("Item")
_Method: TypeAlias = UnaryMethod[Any, Any] | StreamMethod[Any, Any]

STREAM_BUFFER: Final = 256 * 1024
"""Bytes of items that a stream holds for a slow reader before its handler waits."""

MAX_ITEM: Final = 8 * 1024 * 1024
"""Largest encoding of one stream item."""

_log = logging.getLogger(__name__)


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
        offer = self._find(method.service, peer)
        handler = offer.service.unary.get(method.name)
        if handler is None:
            raise _no_method(method)
        received = _received(method, request)

        async def work(pipe: _Pipe) -> None:
            await pipe.send(await handler(received, replace(context, caller=self.peer_id)))

        async with self._running(offer, method, context, work) as pipe:
            data = await pipe.receive()
        try:
            return method.response.from_bytes(data or b"")
        except MalformedRecord as error:
            raise InternalError(f"{_name(method)} gave a wrong response: {error}") from error

    @asynccontextmanager
    async def stream(
        self, method: StreamMethod[Req, Item], request: Req, context: CallContext, *, peer: str | None = None
    ) -> AsyncGenerator[AsyncIterator[Item], None]:
        offer = self._find(method.service, peer)
        handler = offer.service.streams.get(method.name)
        if handler is None:
            raise _no_method(method)
        received = _received(method, request)

        async def work(pipe: _Pipe) -> None:
            await handler(received, replace(context, caller=self.peer_id), pipe.send)

        async with self._running(offer, method, context, work) as pipe:
            yield _Items(method, pipe)

    @asynccontextmanager
    async def _running(
        self, offer: _Offer, method: _Method, context: CallContext, work: Callable[[_Pipe], Awaitable[None]]
    ) -> AsyncGenerator[_Pipe, None]:
        """Runs ``work`` in the service's nursery while the context is open; yields what it sends into."""
        pipe = _Pipe(self._buffer_bytes)
        leaving = trio.CancelScope()
        ended = trio.Event()

        async def task() -> None:
            error: GnusError | None = offer.stopped()  # stands when the service's own nursery is cancelled
            try:
                with leaving:
                    error = await _outcome(offer, method, context, partial(work, pipe))
            finally:
                pipe.close(error)
                ended.set()

        offer.nursery.start_soon(task, name=f"rpc {_name(method)}")
        try:
            yield pipe
        finally:
            leaving.cancel()
            with trio.CancelScope(shield=True):
                # The handler ends at its next checkpoint; until then it may use what the caller is about to close.
                await ended.wait()

    def _find(self, service: str, peer: str | None) -> _Offer:
        if peer is not None and peer != self.peer_id:
            raise NoExpert(f"the peer {peer} is not reachable from this node", where=service)
        offer = self._offers.get(service)
        if offer is None:
            raise NoExpert(
                f"nobody serves {service!r}", where=self.peer_id, hint=f"start a node with the role {service!r}"
            )
        return offer


async def _outcome(
    offer: _Offer, method: _Method, context: CallContext, work: Callable[[], Awaitable[None]]
) -> GnusError | None:
    """Runs a handler to its end within deadline and service; the error it ended with, if any."""
    scope = trio.CancelScope(deadline=trio.current_time() + context.remaining())
    offer.scopes.add(scope)
    try:
        with scope:
            await work()
            return None
    except GnusError as error:
        return error
    except Exception as error:  # noqa: BLE001 - the fence: a handler's bug must not end the node
        return _bug(method, context, error)
    finally:
        offer.scopes.discard(scope)
    if offer.closed:
        return offer.stopped()
    return DeadlineExceeded(f"{_name(method)} did not end in time", where=context.request_id)


class _Pipe:
    """Encoded items between a handler, whose tasks may all send, and its one reader; bounded in bytes."""

    def __init__(self, limit: int) -> None:
        self.ended = trio.Event()
        self._limit = limit
        self._items: deque[bytes] = deque()
        self._held = 0
        self._closed = False
        self._error: GnusError | None = None
        self._readable = trio.lowlevel.ParkingLot()
        self._writable = trio.lowlevel.ParkingLot()

    async def send(self, item: Record) -> None:
        """Hands over ``item``; waits while the reader is ``limit`` bytes behind."""
        await trio.lowlevel.checkpoint_if_cancelled()
        data = item.to_bytes()
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
        try:
            return decode_item(self._method, data)
        except MalformedRecord as error:
            raise InternalError(f"{_name(self._method)} sent a wrong item: {error}") from error


def decode_item(method: StreamMethod[Any, Item], data: bytes) -> Item:
    """The stream item that ``data`` encodes.

    Raises:
        MalformedRecord: not canonical, or not one of the records that the method sends.
    """
    name = _name(method)
    try:
        item = method.items.validate_python(canonical.decode(data, max_bytes=MAX_ITEM))
    except canonical.NotCanonical as error:
        raise MalformedRecord(f"{name}: {error}") from error
    except ValidationError as error:
        raise MalformedRecord(f"{name}: {describe(error)}") from error
    if not isinstance(item, Record) or canonical.encode_known(item.to_plain()) != data:
        raise MalformedRecord(f"{name}: a field is missing or of another type than its schema says")
    return item


def _received(method: UnaryMethod[Req, Any] | StreamMethod[Req, Any], request: Req) -> Req:
    """The request as its handler gets it."""
    try:
        return method.request.from_bytes(request.to_bytes())
    except (MalformedRecord, canonical.NotCanonical) as error:
        raise RequestError(
            f"the request of {_name(method)} cannot be carried: {error}", hint="send shallower data and smaller numbers"
        ) from error


def _name(method: _Method) -> str:
    return f"{method.service}.{method.name}"


def _no_method(method: _Method) -> NoExpert:
    return NoExpert(f"nobody serves the method {_name(method)!r}", hint="update the older of the two nodes")


def _bug(method: _Method, context: CallContext, error: Exception) -> InternalError:
    """Logs where the bug is. The message may quote a prompt, so only its digest leaves the process."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}" if trace is not None else "unknown"
    digest = hashlib.sha256(str(error).encode("utf-8", "backslashreplace")).hexdigest()[:16]
    name = _name(method)
    _log.error(
        "rpc handler failed: %s raised %s at %s, message digest %s, request %s",
        name,
        type(error).__name__,
        place,
        digest,
        context.request_id,
    )
    return InternalError(
        f"{name} failed unexpectedly ({type(error).__name__})", hint="see the log of the node that ran it"
    )
