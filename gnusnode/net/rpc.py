"""The port through which roles call each other: services by name, here or anywhere in the swarm.

A *method* is declared once, beside its schemas (``gnusnode.contracts.services``), and is the only thing that caller and
callee share. ``Rpc`` has two implementations: ``net.local`` (this process) and ``net.swarmrpc`` (the swarm); the same
tests run on both, and a caller cannot tell them apart.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from gnusnode.contracts.base import Record
from gnusnode.contracts.methods import StreamMethod, UnaryMethod

Req = TypeVar("Req", bound=Record)
Res = TypeVar("Res", bound=Record)
Item = TypeVar("Item")


@dataclass(frozen=True)
class CallContext:
    """What travels with a call besides its request.

    Attributes:
        request_id: the user's request that this call serves.
        deadline: ``time.monotonic()`` of this process after which the caller no longer waits.
        caller: PeerID of the node that calls; set by the transport, never by the caller.
        traceparent: W3C trace context; untrusted when it comes from another node.
        plan_digest: digest of the signed plan under which the call runs, where there is one.
    """

    request_id: str
    deadline: float
    caller: str = ""
    traceparent: str | None = None
    plan_digest: str | None = None

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.deadline - time.monotonic())

    def within(self, seconds: float) -> CallContext:
        """The same call with at most ``seconds`` left."""
        return replace(self, deadline=min(self.deadline, time.monotonic() + seconds))


UnaryHandler = Callable[[Any, CallContext], Awaitable[Record]]
"""``async (request, context) -> response``; raises ``GnusError`` for expected failures."""

StreamHandler = Callable[[Any, CallContext, Callable[[Any], Awaitable[None]]], Awaitable[None]]
"""``async (request, context, send)``: awaits ``send(item)`` per item (which is the backpressure), returns at the end.

Several tasks of one handler may call ``send``.
"""


@dataclass(frozen=True)
class Service:
    """What a role offers: its handlers by method name.

    A unary method has a ``UnaryHandler``, a streaming one a ``StreamHandler``.
    """

    name: str
    unary: dict[str, UnaryHandler]
    streams: dict[str, StreamHandler]


class Rpc(Protocol):
    """Calls to services. Cancelling the caller cancels the handler, wherever it runs."""

    def serve(self, service: Service) -> AbstractAsyncContextManager[None]:
        """Offers ``service`` while the context is open.

        Raises:
            Conflict: the name is already served by this node.
        """
        ...

    def offers(self, service: str) -> bool:
        """Whether anybody that we can reach serves ``service`` now."""
        ...

    async def call(
        self, method: UnaryMethod[Req, Res], request: Req, context: CallContext, *, peer: str | None = None
    ) -> Res:
        """One request, one response.

        Raises:
            NoExpert: nobody serves the method. DeadlineExceeded: the context ran out.
            PeerUnreachable: the peer cannot be reached, or was lost during the call. ProtocolViolation: it is unsound.
            GnusError: what the handler raised, as the same class; a handler's bug comes as ``InternalError``.
        """
        ...

    def stream(
        self, method: StreamMethod[Req, Item], request: Req, context: CallContext, *, peer: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[Item]]:
        """One request, many items; the handler waits while the caller is slow. Errors as for ``call``."""
        ...
