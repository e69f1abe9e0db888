"""Streams over one secured connection: the yamux protocol, with the semantics that the port promises.

Our own, because the faults of the library's lie in its structure (each has a test in ``test_hardening.py``):

- cancelling a read, a write or an opening could leave half a frame on the wire, and with it a dead connection that
  still counts as connected. Here every frame is put whole into the outbox in one step, and one task writes;
- a lost connection looked like an orderly end. Here only the peer's FIN is an end, and what arrived is still read;
- a peer that ignored the window filled the memory; 1,500 streams on one connection were accepted. Both are bounded;
- a silent peer was never noticed. Here any frame is a sign of life, and pings ask for one;
- each read cost an encrypted frame, each wait polled. Here credit goes back by half windows, and frames leave together.

Wire format: https://github.com/hashicorp/yamux/blob/master/spec.md
"""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import contextlib
import logging
from collections import deque

import trio
from libp2p.abc import IMuxedConn, ISecureConn
from libp2p.connection_types import ConnectionType
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable
from multiaddr import Multiaddr

from gnusnode.net.p2p.yamux_frames import (
    ACK,
    BATCH,
    CLOSE_SECONDS,
    DATA,
    FIN,
    GO_AWAY,
    HANDLER_GRACE,
    HEADER,
    MAX_GROWTH,
    MAX_INBOUND_STREAMS,
    MAX_OUTBOX,
    MAX_WINDOW,
    OUTBOX,
    PING,
    RST,
    SYN,
    WINDOW_UPDATE,
    Openings,
    YamuxOptions,
    lost_by,
)
from gnusnode.net.p2p.yamux_stream import YamuxStream

_log = logging.getLogger(__name__)


class Yamux(IMuxedConn):
    """One connection. ``start`` runs it and returns when it is over; ``close`` and ``abort`` end it."""

    def __init__(self, secured: ISecureConn, peer_id: ID, options: YamuxOptions) -> None:
        self.peer_id = peer_id
        self.event_started = trio.Event()
        self.ended = trio.Event()
        """Set when the connection cannot be used any more."""
        self.parity = 1 if secured.is_initiator else 0
        self.rtt = 0.001
        """Seconds of the last round trip."""
        self._secured = secured
        self._options = options
        self._why = "the connection is gone"
        self._scope = trio.CancelScope()
        self._streams: dict[int, YamuxStream] = {}
        self._inbound = 0
        self._openings = Openings(trio.current_time())
        self._next = 1 if secured.is_initiator else 2
        self._arrived: deque[YamuxStream] = deque()
        self._arrival = trio.lowlevel.ParkingLot()
        self._outbox = bytearray()
        self._filled = trio.lowlevel.ParkingLot()
        self._emptied = trio.lowlevel.ParkingLot()
        self._held = 0
        self._growth = 0
        self._unread = bytearray()
        self._body_stream: YamuxStream | None = None
        self._body_flags = 0
        self._body_left = 0
        self._heard_at = trio.current_time()
        self._pings: dict[int, trio.Event] = {}
        self._ping_number = 0
        self._handlers: set[trio.CancelScope] = set()

    # --- the connection's life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Runs the connection until it ends. Raises nothing but the caller's own cancellation."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write_loop)
                    nursery.start_soon(self._read_loop)
                    nursery.start_soon(self._watch)
                    self.event_started.set()
        finally:
            self._end("the connection was closed here")
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                await self._close_socket()

    async def close(self) -> None:
        """Ends the connection in order: what was sent leaves first, if it does within ``CLOSE_SECONDS``."""
        try:
            if not self.ended.is_set() and self.event_started.is_set():
                self.post(GO_AWAY, 0, 0, 0)
                with trio.move_on_after(CLOSE_SECONDS):
                    while self._outbox and not self.ended.is_set():
                        await self._emptied.park()
        finally:
            self.abort()
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                await self._close_socket()

    def abort(self, why: str = "the connection was closed here") -> None:
        """Ends the connection at once."""
        self._end(why)
        self._scope.cancel()

    def _end(self, why: str) -> None:
        if self.ended.is_set():
            return
        self.ended.set()
        self._options.holdings.total -= self._held  # what is left goes with the connection
        self._why = why
        for stream in list(self._streams.values()):
            stream.kill(why, drop=False)
        for scope in self._handlers:
            scope.deadline = min(scope.deadline, trio.current_time() + HANDLER_GRACE)
        for lot in (self._arrival, self._filled, self._emptied):
            lot.unpark_all()
        for event in self._pings.values():
            event.set()

    async def _close_socket(self) -> None:
        try:
            await self._secured.close()
        except Exception as error:  # noqa: BLE001 - the socket is given up either way; the library raises anything
            _log.debug("closing the socket of %s: %r", self.peer_id, error)

    def _violation(self, what: str) -> None:
        self._options.statistics.protocol_violations += 1
        _log.debug("the peer %s %s", self.peer_id, what)
        self.abort(f"the peer {what}")

    # --- writing ------------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return len(self._outbox) < OUTBOX

    async def wait_for_room(self) -> None:
        while not self.has_room and not self.ended.is_set():
            await self._emptied.park()

    def post(self, kind: int, flags: int, stream: int, length: int, body: memoryview | bytes = b"") -> None:
        """Puts one whole frame into the outbox. Never waits: callers that send bodies wait for room before."""
        if self.ended.is_set():
            return
        if len(self._outbox) > MAX_OUTBOX:
            self._violation("causes answers and does not read them")
            return
        self._outbox += HEADER.pack(0, kind, flags, stream, length)
        self._outbox += body
        self._filled.unpark()

    async def _write_loop(self) -> None:
        try:
            while True:
                while not self._outbox:
                    await self._filled.park()
                batch = bytes(self._outbox[:BATCH])
                await self._secured.write(batch)
                del self._outbox[: len(batch)]
                self._options.statistics.bytes_out += len(batch)
                self._emptied.unpark_all()
        except Exception as error:  # noqa: BLE001 - any fault of socket or cipher is the end of this connection only
            self.abort(lost_by(error))

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _read_loop(self) -> None:
        try:
            while True:
                chunk = await self._secured.read(None)
                if not chunk:
                    self.abort("the peer closed the connection")
                    return
                self._heard_at = trio.current_time()
                self._options.statistics.bytes_in += len(chunk)
                self._unread += chunk
                while not self.ended.is_set() and self._step():
                    pass
        except Exception as error:  # noqa: BLE001 - any fault of socket or cipher is the end of this connection only
            self.abort(lost_by(error))

    def _step(self) -> bool:
        """Takes one header, or a part of a body, of what was received; False: more must arrive first."""
        data = self._unread
        if self._body_left:
            part = data[: self._body_left]
            del data[: len(part)]
            self._body_left -= len(part)
            if part and self._body_stream is not None:
                self._body_stream.deliver(part)
            if self._body_left:
                return False
            self._flags(self._body_stream, self._body_flags)
            return True
        if len(data) < HEADER.size:
            return False
        header = HEADER.unpack_from(data)
        del data[: HEADER.size]
        self._frame(*header)
        return True

    def _frame(self, version: int, kind: int, flags: int, number: int, length: int) -> None:
        """Acts on one header; a body may follow it."""
        if version != 0 or kind > GO_AWAY:
            self._violation("sent a frame that is none")
        elif kind == PING:
            self._ping_frame(flags, length)
        elif kind == GO_AWAY:
            self.abort("the peer closed the connection")
        else:
            stream = self._opened(number) if flags & SYN else self._streams.get(number)
            if kind == DATA and length:
                if length > MAX_WINDOW or (stream is not None and stream.exceeds_window(length)):
                    self._violation("ignores the window of a stream")
                self._body_stream, self._body_flags, self._body_left = stream, flags, length
                return
            if kind == WINDOW_UPDATE and stream is not None:
                stream.open_window(length)
            self._flags(stream, flags)

    def _flags(self, stream: YamuxStream | None, flags: int) -> None:
        if stream is not None:
            if flags & RST:
                stream.kill("the peer reset the stream", drop=True)
            elif flags & FIN:
                stream.deliver_end()

    def _ping_frame(self, flags: int, number: int) -> None:
        if flags & SYN:
            self.post(PING, ACK, 0, number)
        elif number in self._pings:
            self._pings[number].set()

    def _opened(self, number: int) -> YamuxStream | None:
        """The stream that the peer opens; None where it may not."""
        if number % 2 == self.parity or number == 0 or number in self._streams:
            self._violation("opened a stream under a number that is not free")
            return None
        if self._inbound >= MAX_INBOUND_STREAMS or not self._openings.take(trio.current_time()):
            self._options.statistics.streams_refused += 1
            self.post(WINDOW_UPDATE, RST, number, 0)
            return None
        stream = self._streams[number] = YamuxStream(self, number)
        self._inbound += 1
        self.post(WINDOW_UPDATE, ACK, number, 0)
        self._arrived.append(stream)
        self._arrival.unpark()
        return stream

    # --- signs of life ------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Asks a quiet peer for a sign of life, ends a silent connection, sweeps what was left half-closed."""
        period = self._options.ping_seconds
        # One side's pings are signs of life for both: the other asks only when they fail to come.
        quiet = period / 2 if self.is_initiator else 1.25 * period
        ask = True
        while True:
            now = trio.current_time()
            gone_at = self._heard_at + 3 * period
            if now >= gone_at:
                self.abort(f"the peer was silent for {3 * period:g} seconds")
                return
            for stream in list(self._streams.values()):
                stream.sweep(now)
            again_at = min(now + period, gone_at)
            if ask:
                with trio.move_on_at(again_at), contextlib.suppress(MuxedConnUnavailable):
                    await self.ping()
            await trio.sleep_until(again_at)
            ask = trio.current_time() - self._heard_at >= quiet

    async def ping(self) -> float:
        """Seconds for a round trip.

        Raises:
            MuxedConnUnavailable: the connection ended before the answer.
        """
        self._ping_number = self._ping_number % 0xFFFF_FFFF + 1
        number, event = self._ping_number, trio.Event()
        self._pings[number] = event
        sent = trio.current_time()
        try:
            self.post(PING, SYN, 0, number)
            await event.wait()
        finally:
            del self._pings[number]
        if self.ended.is_set():
            raise MuxedConnUnavailable(self._why)
        self.rtt = trio.current_time() - sent
        return self.rtt

    # --- streams ------------------------------------------------------------------------------------------------------

    def open(self) -> YamuxStream:
        """A new stream. Never waits.

        Raises:
            MuxedConnUnavailable: the connection is gone.
        """
        if self.ended.is_set():
            raise MuxedConnUnavailable(self._why)
        number, self._next = self._next, self._next + 2
        stream = self._streams[number] = YamuxStream(self, number)
        self.post(WINDOW_UPDATE, SYN, number, 0)
        return stream

    async def open_stream(self) -> YamuxStream:
        await trio.lowlevel.checkpoint()
        return self.open()

    async def accept_stream(self) -> YamuxStream:
        """The next stream that the peer opened.

        Raises:
            MuxedConnUnavailable: the connection is gone.
        """
        while True:
            while self._arrived:
                if (stream := self._arrived.popleft()).dead is None:  # else it was opened and reset in one breath
                    return stream
            if self.ended.is_set():
                raise MuxedConnUnavailable(self._why)
            await self._arrival.park()

    def forget(self, stream: YamuxStream) -> None:
        if self._streams.pop(stream.number, None) is not None and stream.inbound:
            self._inbound -= 1

    def hold(self, size: int) -> None:
        """Counts bytes that wait for their reader, here or in a message that is not whole yet."""
        self._held += size
        if not self.ended.is_set() and self._options.holdings.overdrawn(self._held, size):
            self._violation("fills streams faster than they are read")

    def may_grow(self, size: int) -> bool:
        """Whether the window of a stream may grow by ``size``; takes it from the budget if so."""
        if size * 2 > MAX_WINDOW or self._growth + size > MAX_GROWTH:
            return False
        self._growth += size
        return True

    def end_with(self, scope: trio.CancelScope) -> None:
        """Cancels ``scope`` shortly after the connection has ended."""
        self._handlers.add(scope)
        if self.ended.is_set():
            scope.deadline = min(scope.deadline, trio.current_time() + HANDLER_GRACE)

    def release(self, scope: trio.CancelScope) -> None:
        self._handlers.discard(scope)

    # --- for the library ----------------------------------------------------------------------------------------------

    @property
    def is_direct(self) -> bool:
        """Whether no relay is between the two ends."""
        return self.get_connection_type() != ConnectionType.RELAYED

    @property
    def is_initiator(self) -> bool:
        return self.parity == 1

    @property
    def is_established(self) -> bool:
        return self.event_started.is_set() and not self.ended.is_set()

    @property
    def is_closed(self) -> bool:
        return self.ended.is_set()

    def get_transport_addresses(self) -> list[Multiaddr]:
        return self._secured.get_transport_addresses()

    def get_connection_type(self) -> ConnectionType:
        return self._secured.get_connection_type()

    def get_remote_address(self) -> tuple[str, int] | None:
        return self._secured.get_remote_address()
