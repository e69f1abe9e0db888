"""The called side of the swarm's rpc: requests on streams that peers opened, and who may ask what."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import trio

from gnusnode.contracts.methods import Method, StreamMethod
from gnusnode.errors import (
    DeadlineExceeded,
    GnusError,
    NoExpert,
    Overloaded,
    PeerUnreachable,
    ProtocolViolation,
    RequestError,
)
from gnusnode.net import fence, frames
from gnusnode.net.flow import Assembly, Window
from gnusnode.net.link import Link, RpcOptions
from gnusnode.net.local import LocalRpc, Running
from gnusnode.net.port import MessageStream
from gnusnode.net.rpc import CallContext
from gnusnode.observe import trace

Gate = Callable[[str], GnusError | None]
"""``(peer)``: why nothing of this peer is answered now; None: it may call."""

Accepts = Callable[[str, Method], GnusError | None]
"""``(peer, method)``: why this peer may not call this method; None: it may."""

MAX_STREAMS: Final = 4
"""Streams of one peer that are served: one, and those whose loss is not known here yet. Of one that may not call, one:
each holds a message that is not whole."""

MAX_UNFINISHED: Final = 32 * 1024 * 1024
"""Bytes of requests of one peer that have arrived in part."""


@dataclass
class ServingStatistics:
    """Counts since start."""

    served: int = 0
    refused: int = 0
    violations: int = 0


@dataclass(eq=False)
class _Peer:
    """What one peer uses here, over all its streams."""

    links: deque[Link] = field(default_factory=deque[Link])
    calls: int = 0
    unfinished: int = 0


class Serving:
    """Answers peers with the services of this node."""

    def __init__(
        self, local: LocalRpc, methods: Iterable[Method], gate: Gate, accepts: Accepts, options: RpcOptions
    ) -> None:
        self.statistics = ServingStatistics()
        self.gate = gate
        self.options = options
        self._max_calls = min(options.max_calls, frames.MAX_CALLS)  # more could not be named in one `alive`
        self._local = local
        self._methods = {(method.service, method.name): method for method in methods}
        self._accepts = accepts
        self._peers: dict[str, _Peer] = {}

    def running(self) -> Counter[str]:
        """Calls that run here, by peer."""
        return Counter({name: peer.calls for name, peer in self._peers.items() if peer.calls})

    async def handle(self, stream: MessageStream) -> None:
        """Serves one incoming stream to its end.

        Raises:
            ProtocolViolation: the peer sent what it must not; its calls have ended.
        """
        peer = self._peers.setdefault(stream.peer, _Peer())
        link = Link(stream, self.options)
        served = Served(self, self._local, link, peer)
        peer.links.append(link)
        if len(peer.links) > (MAX_STREAMS if self.gate(stream.peer) is None else 1):
            peer.links[0].fail(PeerUnreachable("the peer opened further streams instead", where=stream.peer))
        try:
            await link.run(served)
        except ProtocolViolation:
            self.statistics.violations += 1
            raise
        except GnusError:
            await stream.reset()  # the peer is gone or unwanted: no fault of this side's
        finally:
            served.close()
            peer.links.remove(link)
            self._forget_if_unused(stream.peer, peer)

    def release(self, name: str, peer: _Peer) -> None:
        """A call of the peer is through."""
        peer.calls -= 1
        self._forget_if_unused(name, peer)

    def _forget_if_unused(self, name: str, peer: _Peer) -> None:
        if not peer.links and not peer.calls and self._peers.get(name) is peer:
            del self._peers[name]

    def admit(self, peer: _Peer, head: frames.Request, context: CallContext) -> Method:
        """The method that ``head`` may call; the peer has passed the gate.

        Raises:
            GnusError: why not.
        """
        method = self._methods.get((head.service, head.method))
        if method is None:
            raise NoExpert(
                f"the peer does not know the method {head.service}.{head.method}",
                where=self._local.peer_id,
                hint="update the node that was asked",
            )
        if method.version != head.version:
            older = self._local.peer_id if method.version < head.version else context.caller
            raise NoExpert(
                f"{fence.method_name(method)} is asked for in version {head.version}, and there is {method.version}",
                where=self._local.peer_id,
                hint=f"update the node {older}: it is the older one",
            )
        refusal = self._accepts(context.caller, method)
        if refusal is not None:
            raise refusal
        if not self._local.offers(method.service):
            raise NoExpert(f"nobody serves {method.service!r}", where=self._local.peer_id)
        if peer.calls >= self._max_calls:
            raise Overloaded(
                f"{peer.calls} calls of this peer run here already", where=self._local.peer_id, retry_after=1.0
            )
        return method


class Served:
    """``Side`` of a stream that a peer opened."""

    def __init__(self, serving: Serving, local: LocalRpc, link: Link, peer: _Peer) -> None:
        self.link = link
        self._serving = serving
        self._local = local
        self._peer = peer
        self._answers: dict[int, _Answer] = {}
        self._last = 0
        self._patience = math.inf
        """Until when the stream of a peer that may not call is kept, by trio's clock."""

    def close(self) -> None:
        """Nobody waits for any of the calls any more."""
        for answer in list(self._answers.values()):
            self._drop(answer)

    def _gate(self) -> GnusError | None:
        """Why the peer may not call now, if so; then everything that runs for it ends, and it is told why.

        The stream stays for a while, so that it learns the reason of what it asked meanwhile, and may be admitted.
        """
        refusal = self._serving.gate(self.link.peer)
        if refusal is None:
            self._patience = math.inf
            return None
        self._patience = min(self._patience, trio.current_time() + self._serving.options.open_seconds)
        for answer in list(self._answers.values()):
            self._fail(answer, refusal)
        return refusal

    # --- Side ---------------------------------------------------------------------------------------------------------

    def running(self) -> Collection[int]:
        return self._answers.keys()

    def check(self, now: float) -> float:
        refusal = self._gate()
        if refusal is not None and now >= self._patience:
            raise refusal
        for answer in list(self._answers.values()):
            if answer.running is None and not answer.context.remaining():
                self._fail(answer, DeadlineExceeded("the request did not arrive in time", where=self.link.peer))
        if not self._answers:
            return self._patience
        due = self.link.due(self.link.heard)
        if now >= due:
            raise PeerUnreachable("the peer fell silent while its calls ran", where=self.link.peer)
        return due

    def take(self, frame: frames.Frame) -> None:
        match frame:
            case frames.Request():
                self._begin(frame)
            case frames.Alive():
                pass
            case frames.Part() | frames.Cancel() | frames.Credit():
                answer = self._answers.get(frame.call)
                if answer is not None:
                    self._continue(answer, frame)
                elif frame.call > self._last:
                    raise frames.violation("went on with a call that it never began")
                # Else it crossed with the end of the call.
            case _:
                raise frames.violation("answered on a stream that it calls on")

    def _begin(self, head: frames.Request) -> None:
        if head.call <= self._last:
            raise frames.violation("began a call twice")
        self._last = head.call
        self._serving.statistics.served += 1
        refusal = self._gate()
        if refusal is not None:
            self._refuse(head.call, refusal)
            return
        context = CallContext(
            request_id=head.request_id,
            deadline=time.monotonic() + head.remaining_ms / 1000,
            caller=self.link.peer,
            traceparent=head.trace if trace.parse(head.trace) else None,
            plan_digest=head.plan,
        )
        try:
            method = self._serving.admit(self._peer, head, context)
        except GnusError as error:
            self._refuse(head.call, error)
            return
        self._peer.calls += 1
        answer = self._answers[head.call] = _Answer(self, head, method, context)
        self._receive(answer, head.body, more=head.more)

    def _continue(self, answer: _Answer, frame: frames.Part | frames.Cancel | frames.Credit) -> None:
        match frame:
            case frames.Part():
                if answer.running is not None:
                    raise frames.violation("went on with a request after its end")
                self._receive(answer, frame.body, more=frame.more)
            case frames.Cancel():
                self._drop(answer)
            case frames.Credit():
                answer.grant(frame.amount)

    def _receive(self, answer: _Answer, part: bytes, *, more: bool) -> None:
        """Takes in a part of the request; with the last one its handler starts."""
        try:
            answer.request.add(part)
            if more:
                self._peer.unfinished += len(part)
                answer.unfinished += len(part)
                if self._peer.unfinished > MAX_UNFINISHED:
                    raise Overloaded("too many unfinished requests of this peer", retry_after=1.0)
                return
            data = answer.request.take()
            self._finished(answer)
            request = fence.decode_request(answer.method, data)
            answer.running = self._local.start(answer.method, request, answer.context, answer)
        except OverflowError as error:
            name = fence.method_name(answer.method)
            self._fail(answer, RequestError(f"the request of {name} cannot be carried: {error}"))
        except GnusError as error:
            self._fail(answer, error)

    def _fail(self, answer: _Answer, error: GnusError) -> None:
        """The call ends by this side's will."""
        self._drop(answer)
        self._refuse(answer.number, error)

    def _refuse(self, call: int, error: GnusError) -> None:
        self._serving.statistics.refused += 1
        self.link.put_urgent(frames.error(call, error))

    def _drop(self, answer: _Answer) -> None:
        """The call ends for its caller; its handler ends at its next checkpoint and holds its place until then."""
        del self._answers[answer.number]
        self.link.drop(answer.number)
        self._finished(answer)
        if answer.running is not None:
            answer.running.cancel()
        else:
            self._serving.release(self.link.peer, self._peer)

    def _finished(self, answer: _Answer) -> None:
        self._peer.unfinished -= answer.unfinished
        answer.unfinished = 0

    # --- for the handlers ---------------------------------------------------------------------------------------------

    def ended(self, answer: _Answer, error: GnusError | None) -> None:
        """The handler of ``answer`` is through."""
        self._serving.release(self.link.peer, self._peer)
        if self._answers.pop(answer.number, None) is None:
            return  # its caller is gone
        if error is not None:
            self.link.put(answer.number, frames.error(answer.number, error))
        elif answer.streams:
            self.link.put(answer.number, frames.end(answer.number))


class _Answer:
    """``Outlet`` of a call that came by wire."""

    def __init__(self, served: Served, head: frames.Request, method: Method, context: CallContext) -> None:
        self.number = head.call
        self.method = method
        self.context = context
        self.streams = isinstance(method, StreamMethod)
        self.request = Assembly(method.request.max_bytes)
        self.unfinished = 0
        """Bytes of the request, as long as more of it is to come."""
        self.running: Running | None = None
        self._served = served
        self._link = served.link
        self._window = Window(head.window)
        self._sending = False
        self._changed = trio.lowlevel.ParkingLot()

    def grant(self, amount: int) -> None:
        self._window.grant(amount)
        self._changed.unpark_all()

    async def send(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._sending:
            await self._changed.park()
        self._sending = True  # the parts of an item stay together
        try:
            await self._link.room()
            if self.streams:
                await self._send_item(data)
            else:
                for frame in frames.body_frames("res", self.number, data):
                    self._link.put(self.number, frame)
        finally:
            self._sending = False
            self._changed.unpark_all()

    def close(self, error: GnusError | None) -> None:
        self._served.ended(self, error)

    async def _send_item(self, data: bytes) -> None:
        kind, start = "item", 0
        while start < len(data):
            while not (part := self._window.next_part(len(data) - start)):
                await self._changed.park()
            self._window.use(part)
            stop = start + part
            self._link.put(self.number, frames.body_frame(kind, self.number, data[start:stop], more=stop < len(data)))
            kind, start = "part", stop
