"""The swarm's rpc: services of this node without the wire, those of others over one kept stream to each peer.

SwarmRpc ── local.py            handlers of this node, for callers here and for ``serving``
         ├─ calls.py            our calls, on streams that we opened
         ├─ serving.py          calls of peers, on streams that they opened
         └─ link.py             one stream: writer, reader, signs of life
              └─ flow.py, frames.py   whose turn it is, who may send how much; what stands on the wire
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import trio

from gnusnode.contracts.base import MalformedRecord, Record
from gnusnode.contracts.methods import Method, StreamMethod, UnaryMethod
from gnusnode.contracts.services import METHODS
from gnusnode.errors import DeadlineExceeded, PeerUnreachable, ProtocolViolation, Unavailable
from gnusnode.net import fence
from gnusnode.net.calls import Call, Links
from gnusnode.net.link import PROTOCOL, RpcOptions
from gnusnode.net.local import LocalRpc
from gnusnode.net.port import Disconnected, Net
from gnusnode.net.rpc import CallContext, Service
from gnusnode.net.serving import Accepts, Gate, Serving

Req = TypeVar("Req", bound=Record)
Res = TypeVar("Res", bound=Record)
Item = TypeVar("Item")

_DEFAULTS = RpcOptions()


@dataclass(frozen=True)
class RpcStatistics:
    """``links``, ``calling`` and ``running`` are gauges, the rest counts since start."""

    links: int
    """Streams that this node opened and keeps."""
    calling: int
    """Our calls that run elsewhere."""
    running: dict[str, int]
    """Calls of others that run here, by peer."""
    served: int
    """Requests that came by wire, refused ones included."""
    refused: int
    violations: int
    """Streams that were reset because the peer broke the protocol."""


class SwarmRpc:
    """``Rpc`` over the network. See ``gnusnode.net.rpc.Rpc`` for the contract.

    Args:
        net: the network; others reach this node's services while ``run`` runs.
        local: the services of this node, which the roles serve here or there.
        gate: asked for each incoming stream, for each request, and now and then while calls run.
        serving: the peers that serve a service now, best first.
        accepts: asked for each request that passed the gate.
        methods: what a peer may call by name.
    """

    def __init__(
        self,
        net: Net,
        local: LocalRpc,
        *,
        gate: Gate,
        serving: Callable[[str], Sequence[str]],
        accepts: Accepts,
        options: RpcOptions = _DEFAULTS,
        methods: Iterable[Method] = METHODS,
    ) -> None:
        self._net = net
        self._local = local
        self._serving_peers = serving
        self._options = options
        self._answering = Serving(local, methods, gate, accepts, options)
        self._links: Links | None = None
        self._violations = 0

    @property
    def peer_id(self) -> str:
        return self._local.peer_id

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps the streams to peers and serves theirs, until cancelled; then running calls both ways fail."""
        async with (
            self._net.serve(PROTOCOL, self._answering.handle),
            self._net.events() as events,
            trio.open_nursery() as nursery,
        ):
            links = self._links = Links(self._net, self._options, nursery, self._violated)
            try:
                task_status.started()
                async for event in events:
                    if isinstance(event, Disconnected):
                        links.lost(event.peer)
            finally:
                self._links = None
                nursery.cancel_scope.cancel()

    def serve(self, service: Service) -> AbstractAsyncContextManager[None]:
        return self._local.serve(service)

    def offers(self, service: str) -> bool:
        return self._local.offers(service) or bool(self._serving_peers(service))

    def statistics(self) -> RpcStatistics:
        counted = self._answering.statistics
        return RpcStatistics(
            links=len(self._links) if self._links is not None else 0,
            calling=self._links.running() if self._links is not None else 0,
            running=dict(self._answering.running()),
            served=counted.served,
            refused=counted.refused,
            violations=counted.violations + self._violations,
        )

    async def call(
        self, method: UnaryMethod[Req, Res], request: Req, context: CallContext, *, peer: str | None = None
    ) -> Res:
        peers = self._peers(method, peer)
        if not peers:
            return await self._local.call(method, request, context)
        async with self._remote(method, request, context, peers) as remote:
            data = await remote.receive()
        try:
            return fence.decode_response(method, data or b"")
        except MalformedRecord as error:
            raise self._wrong_answer(remote, error) from error

    def stream(
        self, method: StreamMethod[Req, Item], request: Req, context: CallContext, *, peer: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[Item]]:
        peers = self._peers(method, peer)
        if not peers:
            return self._local.stream(method, request, context)
        return self._stream(method, request, context, peers)

    @asynccontextmanager
    async def _stream(
        self, method: StreamMethod[Req, Item], request: Req, context: CallContext, peers: list[str]
    ) -> AsyncGenerator[AsyncIterator[Item], None]:
        async with self._remote(method, request, context, peers) as remote:
            yield _Items(method, remote, self._wrong_answer)

    def _peers(self, method: Method, peer: str | None) -> list[str]:
        """Whom to ask, in order; empty: this node."""
        if peer is not None:
            return [] if peer == self.peer_id else [peer]
        if self._local.offers(method.service):
            return []
        return [other for other in self._serving_peers(method.service) if other != self.peer_id][:2]

    @asynccontextmanager
    async def _remote(
        self, method: Method, request: Record, context: CallContext, peers: list[str]
    ) -> AsyncGenerator[_Remote, None]:
        remote = _Remote(self._begin, method, fence.encode_request(method, request), context, peers)
        try:
            await remote.begin()
            yield remote
        finally:
            remote.abandon()

    async def _begin(self, peer: str, method: Method, body: bytes, context: CallContext) -> Call:
        links = self._links
        if links is None:
            raise Unavailable("this node has no network now", where=peer, hint="try again", retry_after=1.0)
        with trio.move_on_after(context.remaining()):
            calls = await links.to(peer)
            return await calls.begin(method, body, context)
        raise DeadlineExceeded(f"{fence.method_name(method)} did not begin in time", where=context.request_id)

    def _wrong_answer(self, remote: _Remote, error: MalformedRecord) -> ProtocolViolation:
        self._violations += 1
        return ProtocolViolation(f"the peer gave a wrong answer: {error}", where=remote.peer)

    def _violated(self, peer: str) -> None:
        self._violations += 1


class _Remote:
    """A call elsewhere: at the first of ``peers``, and at the next one if that is lost before it answered anything."""

    def __init__(
        self,
        begin: Callable[[str, Method, bytes, CallContext], Awaitable[Call]],
        method: Method,
        body: bytes,
        context: CallContext,
        peers: list[str],
    ) -> None:
        self.peer = ""
        self._begin = begin
        self._method = method
        self._body = body
        self._context = context
        self._peers = peers
        self._call: Call | None = None
        self._answered = False

    async def begin(self) -> None:
        while True:
            self.peer = self._peers.pop(0)
            try:
                self._call = await self._begin(self.peer, self._method, self._body, self._context)
            except PeerUnreachable:
                if not self._peers:
                    raise
            else:
                return

    async def receive(self) -> bytes | None:
        while True:
            assert self._call is not None, "`begin` has been called"
            try:
                data = await self._call.receive()
            except PeerUnreachable:
                if self._answered or not self._peers:
                    raise
                await self.begin()
            else:
                self._answered = True
                return data

    def abandon(self) -> None:
        if self._call is not None:
            self._call.abandon()


class _Items(AsyncIterator[Item]):
    def __init__(
        self,
        method: StreamMethod[Any, Item],
        remote: _Remote,
        wrong: Callable[[_Remote, MalformedRecord], ProtocolViolation],
    ) -> None:
        self._method = method
        self._remote = remote
        self._wrong = wrong

    async def __anext__(self) -> Item:
        data = await self._remote.receive()
        if data is None:
            raise StopAsyncIteration
        try:
            return fence.decode_item(self._method, data)
        except MalformedRecord as error:
            raise self._wrong(self._remote, error) from error
