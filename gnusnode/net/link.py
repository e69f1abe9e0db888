"""One rpc stream at work: a writer that takes turns between calls, a reader, and signs of life both ways."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from gnusnode.errors import GnusError, InternalError, PeerUnreachable, raised_at
from gnusnode.net import frames
from gnusnode.net.flow import Outbox
from gnusnode.net.port import MessageStream

_log = logging.getLogger(__name__)

PROTOCOL: Final = "/gnus/rpc/1"

_HIGH_WATER: Final = 4 * 1024 * 1024
"""Bytes that wait for the writer before those who make more of them wait too."""

_MAX_URGENT: Final = 1024
"""Urgent frames that wait before the reader does: a peer that asks without reading answers stops being read."""


@dataclass(frozen=True)
class RpcOptions:
    """How the swarm's rpc behaves.

    Attributes:
        window: bytes of items that a stream holds for a slow reader before its handler waits.
        alive_seconds: how often the calls that run are named to the other side.
        idle_seconds: a running call of which nothing was heard for so long has failed. More than two ``alive_seconds``.
        open_seconds: time to open a stream to a peer.
        max_calls: calls that one peer may have running here.
    """

    window: int = 256 * 1024
    alive_seconds: float = 10.0
    idle_seconds: float = 30.0
    open_seconds: float = 5.0
    max_calls: int = frames.MAX_CALLS


class Side(Protocol):
    """What is done with the frames of a link: the caller's side of it, or the callee's."""

    def take(self, frame: frames.Frame) -> None:
        """
        Raises:
            ProtocolViolation: no sound peer sends such a frame now.
        """
        ...

    def running(self) -> Collection[int]:
        """The calls that run on the link now."""
        ...

    def check(self, now: float) -> float:
        """Ends what is overdue; when to look again, at the latest.

        Raises:
            GnusError: the link is of no use any more.
        """
        ...


class Link:
    """A stream to a peer, shared by many calls."""

    def __init__(self, stream: MessageStream, options: RpcOptions) -> None:
        self.heard = trio.current_time()
        """When the peer last sent anything, by trio's clock."""
        self._stream = stream
        self._options = options
        self._outbox = Outbox()
        self._written = trio.lowlevel.ParkingLot()
        self._waiting = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()
        self._ended = False
        self._failure: GnusError | None = None

    @property
    def peer(self) -> str:
        return self._stream.peer

    async def run(self, side: Side) -> None:
        """Carries frames until the peer closes its side or ``fail`` is called. Call once.

        Raises:
            PeerUnreachable: the stream broke, or the peer fell silent.
            ProtocolViolation: the peer sent what it must not.
            GnusError: what ``fail`` was given.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._last, self._write)
                    nursery.start_soon(self._last, self._keep_alive, side)
                    await self._last(self._read, side)
        finally:
            self._ended = True
            self._waiting.unpark_all()
        if self._failure is not None:
            raise self._failure

    def put(self, call: int, encoded: bytes) -> None:
        """Queues a frame behind those of the same call."""
        self._outbox.put(call, encoded)
        self._written.unpark()

    def put_urgent(self, encoded: bytes) -> None:
        """Queues a frame before those of all calls."""
        self._outbox.put_urgent(encoded)
        self._written.unpark()

    def drop(self, call: int) -> int:
        """Takes back the frames of ``call`` that were not written; how many those were."""
        return self._outbox.drop(call)

    async def room(self) -> None:
        """Waits while too much waits for the writer.

        Raises:
            PeerUnreachable: the link has ended.
        """
        while self._outbox.size > _HIGH_WATER and not self._ended:
            await self._waiting.park()
        if self._ended:
            raise PeerUnreachable("the connection to the peer was lost", where=self.peer, retry_after=1.0)

    def fail(self, error: GnusError) -> None:
        """Ends the link at once."""
        self._failure = self._failure or error
        self._scope.cancel()

    async def _last(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Runs ``work``; with its end, good or bad, the link ends."""
        try:
            await work(*arguments)
        except GnusError as error:
            self._failure = self._failure or error
        except Exception as error:  # noqa: BLE001 - the fence: what a peer provokes must not end the node
            _log.error("rpc link failed: %s at %s", type(error).__name__, raised_at(error))
            self._failure = InternalError(f"the link failed unexpectedly ({type(error).__name__})", where=self.peer)
        self._scope.cancel()

    async def _write(self) -> None:
        while True:
            while not self._outbox:
                await self._written.park()
            await self._stream.send(self._outbox.take())
            if self._waiting:
                self._waiting.unpark_all()

    async def _read(self, side: Side) -> None:
        while (message := await self._stream.receive()) is not None:
            self.heard = trio.current_time()
            for frame in frames.decode(message):
                side.take(frame)
            while self._outbox.urgent > _MAX_URGENT:
                await self._waiting.park()

    async def _keep_alive(self, side: Side) -> None:
        while True:
            now = trio.current_time()
            due = side.check(now)
            if calls := side.running():
                self.put_urgent(frames.alive(sorted(calls)[: frames.MAX_CALLS]))
            await trio.sleep_until(min(now + self._options.alive_seconds, due))

    def due(self, heard: float) -> float:
        """Until when a running call that was heard of at ``heard`` may be silent."""
        return heard + self._options.idle_seconds
