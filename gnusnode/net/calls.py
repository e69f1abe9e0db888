"""The calling side of the swarm's rpc: one kept stream to each peer, opened by a call where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Final

import trio

from gnusnode.contracts.methods import Method, StreamMethod
from gnusnode.errors import (
    DeadlineExceeded,
    GnusError,
    PeerUnreachable,
    ProtocolViolation,
    RequestError,
    Unavailable,
)
from gnusnode.net import fence, frames
from gnusnode.net.flow import Inbox
from gnusnode.net.link import PROTOCOL, Link, RpcOptions
from gnusnode.net.port import MessageStream, Net
from gnusnode.net.rpc import CallContext

_RESET_SECONDS: Final = 1.0


class Call:
    """A call that runs on another node, or did: what came of it and was not read yet."""

    def __init__(self, calls: Calls, number: int, method: Method, context: CallContext, window: int) -> None:
        self.number = number
        self.streams = isinstance(method, StreamMethod)
        self.heard = trio.current_time()
        self.frames = 0
        """How many the request has."""
        limit = fence.MAX_ITEM if isinstance(method, StreamMethod) else method.response.max_bytes
        self.inbox = Inbox(window if self.streams else None, limit)
        self._calls = calls
        self._method = method
        self._context = context
        self._deadline = self.heard + context.remaining()
        self._ended = False
        self._error: GnusError | None = None
        self._readable = trio.lowlevel.ParkingLot()

    async def receive(self) -> bytes | None:
        """The next item, or the response; None: the stream ended well.

        Raises:
            PeerUnreachable: the peer is gone or silent.
            DeadlineExceeded: the call's time is over.
            GnusError: what the call ended with.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self.inbox and not self._ended:
            await self._wait()
        if not self.inbox:
            if self._error is not None:
                raise self._error
            return None
        item = self.inbox.take()
        self.grant()
        return item

    def grant(self) -> None:
        """Lets the peer send as much more as was read."""
        if not self._ended and (amount := self.inbox.to_grant()):
            self._calls.link.put_urgent(frames.credit(self.number, amount))

    def abandon(self) -> None:
        """The caller reads no further; the handler is told if it still runs."""
        if not self._ended:
            self._calls.cancel(self)

    def add(self, part: bytes, *, more: bool) -> None:
        self.inbox.add(part, more=more)
        if more:
            self.grant()
        else:
            self._readable.unpark()

    def end(self, error: GnusError | None) -> None:
        """Nothing more will come."""
        self._ended = True
        self._error = error
        self._readable.unpark()

    async def _wait(self) -> None:
        with trio.move_on_at(self._deadline) as scope:
            while not self.inbox and not self._ended:
                await self._readable.park()
        if scope.cancelled_caught:
            self.abandon()
            raise DeadlineExceeded(
                f"{fence.method_name(self._method)} did not end in time", where=self._context.request_id
            )


class Calls:
    """``Side`` of a stream that this node opened."""

    def __init__(self, link: Link, options: RpcOptions) -> None:
        self.link = link
        self._window = min(max(options.window, frames.MIN_WINDOW), frames.MAX_WINDOW)
        self._running: dict[int, Call] = {}
        self._last = 0

    @property
    def peer(self) -> str:
        return self.link.peer

    async def begin(self, method: Method, body: bytes, context: CallContext) -> Call:
        """Sends a request.

        Raises:
            PeerUnreachable: the link has ended.
            DeadlineExceeded: no time is left.
            RequestError: an id of the context cannot travel.
        """
        await self.link.room()
        remaining = min(int(context.remaining() * 1000), frames.MAX_REMAINING_MS)
        if remaining <= 0:
            raise DeadlineExceeded(f"no time is left for {fence.method_name(method)}", where=context.request_id)
        number = self._last + 1
        more = len(body) > frames.MAX_PART
        try:
            head = frames.request(
                frames.Request(
                    call=number,
                    service=method.service,
                    method=method.name,
                    version=method.version,
                    request_id=context.request_id,
                    remaining_ms=remaining,
                    window=self._window,
                    body=body[: frames.MAX_PART] if more else body,
                    more=more,
                    trace=context.traceparent,
                    plan=context.plan_digest,
                )
            )
        except ValueError as error:
            raise RequestError(f"a call of {fence.method_name(method)}: {error}", where=context.request_id) from error
        self._last = number
        call = self._running[number] = Call(self, number, method, context, self._window)
        rest = frames.body_frames("part", number, body[frames.MAX_PART :]) if more else ()
        for frame in (head, *rest):
            self.link.put(number, frame)
        call.frames = 1 + len(rest)
        return call

    def cancel(self, call: Call, error: GnusError | None = None) -> None:
        """Ends a running call from this side; ``error`` is what its reader is told."""
        if self._end(call, error):
            self.link.put_urgent(frames.cancel(call.number))

    def end_all(self, reason: Callable[[], GnusError]) -> None:
        """Every call fails with an error of its own."""
        running, self._running = self._running, {}
        for call in running.values():
            call.end(reason())

    # --- Side ---------------------------------------------------------------------------------------------------------

    def running(self) -> Collection[int]:
        return self._running.keys()

    def check(self, now: float) -> float:
        overdue = [call for call in self._running.values() if now >= self.link.due(call.heard)]
        if any(self.link.heard <= call.heard for call in overdue):
            raise PeerUnreachable("the peer fell silent", where=self.peer, retry_after=1.0)
        for call in overdue:
            self.cancel(call, PeerUnreachable("the peer lost the call", where=self.peer, retry_after=1.0))
        return self.link.due(min((call.heard for call in self._running.values()), default=math.inf))

    def take(self, frame: frames.Frame) -> None:
        match frame:
            case frames.Alive(numbers):
                for number in numbers:
                    if (call := self._running.get(number)) is not None:
                        call.heard = self.link.heard
            case frames.Request() | frames.Cancel() | frames.Credit():
                raise frames.violation("called on a stream that was opened to call it")
            case _:
                call = self._running.get(frame.call)
                if call is not None:
                    call.heard = self.link.heard
                    self._answer(call, frame)
                elif frame.call > self._last:
                    raise frames.violation("answered a call that was never made")
                # Else the answer crossed with our cancel.

    def _answer(
        self, call: Call, frame: frames.Part | frames.Response | frames.Item | frames.End | frames.Error
    ) -> None:
        partial = call.inbox.partial
        match frame:
            case frames.Error():
                self._end(call, GnusError.from_wire(frame.error))
            case frames.End() if call.streams and not partial:
                self._end(call, None)
            case frames.Part() if partial:
                call.add(frame.body, more=frame.more)
            case frames.Item() if call.streams and not partial:
                call.add(frame.body, more=frame.more)
            case frames.Response() if not call.streams and not partial:
                call.add(frame.body, more=frame.more)
            case _:
                raise frames.violation("sent an answer that does not fit the call")
        if not call.streams and call.inbox:
            self._end(call, None)

    def _end(self, call: Call, error: GnusError | None) -> bool:
        """Whether the peer has heard of the call."""
        del self._running[call.number]
        call.end(error)
        return self.link.drop(call.number) < call.frames


class _Slot:
    """The link to a peer, there or coming."""

    def __init__(self) -> None:
        self.settled = trio.Event()
        self.calls: Calls | None = None
        self.error: GnusError | None = None


class Links:
    """The kept streams to other nodes. They live in ``nursery``."""

    def __init__(self, net: Net, options: RpcOptions, nursery: trio.Nursery, violated: Callable[[str], None]) -> None:
        self._net = net
        self._options = options
        self._nursery = nursery
        self._violated = violated
        self._slots: dict[str, _Slot] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def running(self) -> int:
        """Calls that run elsewhere for this node."""
        return sum(len(slot.calls.running()) for slot in self._slots.values() if slot.calls is not None)

    async def to(self, peer: str) -> Calls:
        """The link to ``peer``; opened where there is none, once for all who wait for it.

        Raises:
            PeerUnreachable, UnsupportedProtocol: there is none to be had.
        """
        slot = self._slots.get(peer)
        if slot is None:
            slot = self._slots[peer] = _Slot()
            self._nursery.start_soon(self._keep, peer, slot, name=f"rpc link to {peer}")
        if slot.calls is None:
            await slot.settled.wait()
        if slot.calls is None:
            raise GnusError.from_wire((slot.error or _lost(peer)).to_wire())
        return slot.calls

    def lost(self, peer: str) -> None:
        """There is no connection to ``peer`` any more."""
        slot = self._slots.get(peer)
        if slot is not None and slot.calls is not None:
            slot.calls.link.fail(_lost(peer))

    async def _keep(self, peer: str, slot: _Slot) -> None:
        stream = None
        error: GnusError = Unavailable("this node leaves the network", retry_after=1.0)
        try:
            stream = await self._open(peer)
            error = await self._carry(stream, slot)
        except GnusError as failure:
            error = failure
        finally:
            del self._slots[peer]
            slot.error = error
            if slot.calls is not None:
                slot.calls.end_all(lambda: GnusError.from_wire(error.to_wire()))
            slot.settled.set()
            if stream is not None:
                with trio.move_on_after(_RESET_SECONDS, shield=True):
                    await stream.reset()

    async def _open(self, peer: str) -> MessageStream:
        with trio.move_on_after(self._options.open_seconds):
            return await self._net.open_stream(peer, PROTOCOL)
        raise PeerUnreachable("the peer opened no stream in time", where=peer, retry_after=1.0)

    async def _carry(self, stream: MessageStream, slot: _Slot) -> GnusError:
        """Carries calls until the stream ends; why it did."""
        link = Link(stream, self._options)
        slot.calls = Calls(link, self._options)
        slot.settled.set()
        try:
            await link.run(slot.calls)
        except ProtocolViolation:
            self._violated(stream.peer)
            raise
        return _lost(stream.peer)


def _lost(peer: str) -> PeerUnreachable:
    return PeerUnreachable("the connection to the peer was lost", where=peer, retry_after=1.0)
