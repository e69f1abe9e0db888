"""Streams of the in-memory network: bytes wait in bounded pipes, and a reader takes them when they are due."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from gnusnode.errors import PeerUnreachable
from gnusnode.net.streams import Direction, check_size

if TYPE_CHECKING:
    from gnusnode.net.memory import MemoryNet

WINDOW: Final = 256 * 1024
"""Bytes of a direction that wait for a reader before the writer does."""

WRITE_SECONDS: Final = 5.0
"""Seconds that a writer waits for a reader that takes nothing."""


SILENCE_SECONDS: Final = 15.0
"""Seconds after which a silent connection is given up: three missed pings."""


@dataclass(eq=False)
class Link:
    """A connection between two nodes of the memory network, and the weather on it."""

    delay: Callable[[], float]
    muted: bool = False
    late: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    changed: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    """Unparked whenever a reader or writer on the link may go on."""

    def tell(self, news: Callable[[], None]) -> None:
        """Lets the other side know, now or when the link can be heard again."""
        if self.muted:
            self.late.append(news)
        else:
            news()
        self.changed.unpark_all()

    def mute(self) -> None:
        self.muted = True

    def unmute(self) -> None:
        self.muted = False
        late, self.late = self.late, []
        for news in late:
            news()
        self.changed.unpark_all()


@dataclass(eq=False)
class Pipe:
    """One direction of a stream: whole messages and when each is due; None stands for the end."""

    items: deque[tuple[float, bytes | None]] = field(default_factory=deque[tuple[float, bytes | None]])
    waiting: int = 0


@dataclass(eq=False)
class End:
    """One node's side of a connection."""

    net: MemoryNet
    peer: str
    link: Link
    address: str
    inbound: bool
    streams: set[MemoryStream] = field(default_factory=set["MemoryStream"])
    open: bool = True


class MemoryStream:
    """``MessageStream`` over two pipes. See the port for its contract."""

    def __init__(self, end: End, protocol: str, incoming: Pipe, outgoing: Pipe) -> None:
        self._end = end
        self._protocol = protocol
        self._in = incoming
        self._out = outgoing
        self._twin: MemoryStream = self
        self._dead: str | None = None
        self._closed = False
        self._ended = False
        self._sending = Direction(protocol)
        self._receiving = Direction(protocol)
        end.streams.add(self)

    @classmethod
    def pair(cls, near: End, far: End, protocol: str) -> tuple[MemoryStream, MemoryStream]:
        """Both sides of a new stream."""
        there, back = Pipe(), Pipe()
        ours, theirs = cls(near, protocol, back, there), cls(far, protocol, there, back)
        ours._twin, theirs._twin = theirs, ours
        return ours, theirs

    @property
    def peer(self) -> str:
        return self._end.peer

    @property
    def protocol(self) -> str:
        return self._protocol

    async def send(self, message: bytes) -> None:
        check_size(message, self.protocol)
        with self._sending:
            await trio.lowlevel.checkpoint()
            self._check_sendable()
            link, out = self._end.link, self._out
            out.items.append((trio.current_time() + link.delay(), bytes(message)))
            out.waiting += len(message)
            self._end.net.sent(len(message))
            link.changed.unpark_all()
            while out.waiting > WINDOW:
                await self._wait_for_reader()

    async def receive(self) -> bytes | None:
        with self._receiving:
            await trio.lowlevel.checkpoint_if_cancelled()
            while True:
                if self._dead is not None:
                    raise self._gone()
                if self._ended:
                    return None
                due = self._next_due()
                if due <= trio.current_time():
                    return self._take()
                with trio.move_on_at(due):
                    await self._end.link.changed.park()

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed or self._dead is not None:
            return
        self._closed = True
        self._out.items.append((trio.current_time() + self._end.link.delay(), None))
        self._end.link.changed.unpark_all()
        self._forget_if_done()

    async def reset(self) -> None:
        if self._dead is None and not (self._closed and self._ended):
            twin = self._twin
            self.die("the stream was reset here")
            self._end.link.tell(lambda: twin.die("the peer reset the stream"))
        await trio.lowlevel.cancel_shielded_checkpoint()

    def die(self, why: str) -> None:
        """The stream is gone, as this side sees it; what waited for its reader is lost."""
        if self._dead is None and not (self._closed and self._ended):
            self._dead = why
            self._in.items.clear()
            self._in.waiting = 0
            self._end.streams.discard(self)
            self._end.link.changed.unpark_all()

    def _next_due(self) -> float:
        if self._end.link.muted or not self._in.items:
            return float("inf")
        return self._in.items[0][0]

    def _take(self) -> bytes | None:
        _, message = self._in.items.popleft()
        if message is None:
            self._ended = True
            self._forget_if_done()
            return None
        self._in.waiting -= len(message)
        self._end.net.received(len(message))
        self._end.link.changed.unpark_all()
        return message

    async def _wait_for_reader(self) -> None:
        waiting = self._out.waiting
        with trio.move_on_after(WRITE_SECONDS):
            while self._dead is None and self._out.waiting == waiting:
                await self._end.link.changed.park()
        if self._dead is None and self._out.waiting == waiting:
            await self.reset()
            raise PeerUnreachable(
                f"the peer read nothing for {WRITE_SECONDS:g} seconds", where=self.peer, hint="the stream was reset"
            )
        if self._dead is not None:
            raise self._gone()

    def _check_sendable(self) -> None:
        if self._dead is not None:
            raise self._gone()
        if self._closed:
            raise PeerUnreachable("the stream was closed here", where=self.peer)

    def _forget_if_done(self) -> None:
        if self._closed and self._ended:
            self._end.streams.discard(self)

    def _gone(self) -> PeerUnreachable:
        return PeerUnreachable(self._dead or "the stream is gone", where=self.peer, hint="open another one")


class Connection:
    """A link and its two ends."""

    def __init__(
        self, links: set[Connection], caller: MemoryNet, target: MemoryNet, delay: Callable[[], float], number: int
    ) -> None:
        self._links = links
        self._link = Link(delay)
        source = "/".join(caller.bare[0].split("/")[:3]) + f"/tcp/{32_768 + number % 28_000}"
        self.near = End(caller, target.peer_id, self._link, target.bare[0], inbound=False)
        self.far = End(target, caller.peer_id, self._link, source, inbound=True)
        links.add(self)
        for end in (self.far, self.near):
            end.net.attach(end, self)

    def other(self, end: End) -> End:
        return self.far if end is self.near else self.near

    def leave(self, end: End, why: str) -> None:
        """``end`` closes; the other side learns it as far as the link can be heard."""
        other = self.other(end)
        end.net.detach(end, "the connection was closed here")
        self._link.tell(lambda: other.net.detach(other, why))
        if not (self.near.open or self.far.open):
            self._links.discard(self)

    def end(self, why: str) -> None:
        for end in (self.near, self.far):
            end.net.detach(end, why)
        self._links.discard(self)

    def mute(self) -> None:
        if not self._link.muted:
            self._link.mute()
            for end in (self.near, self.far):
                end.net.start(self._notice, end)

    def unmute(self) -> None:
        self._link.unmute()

    async def _notice(self, end: End) -> None:
        with trio.move_on_after(SILENCE_SECONDS):
            while self._link.muted and end.open:
                await self._link.changed.park()
        if self._link.muted and end.open:
            self.leave(end, "the connection was lost")

    def muted(self) -> bool:
        return self._link.muted

    async def heard(self, seconds: float) -> bool:
        """Waits for one round trip; False: none within ``seconds``."""
        with trio.move_on_after(seconds):
            while self._link.muted:
                await self._link.changed.park()
            await trio.sleep(2 * self._link.delay())
            return not self._link.muted
        return False
