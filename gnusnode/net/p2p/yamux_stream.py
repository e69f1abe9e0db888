"""One stream of a connection: windows in both directions, an end that is told from a loss, and whole frames only."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

import trio
from libp2p.abc import IMuxedStream
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamError, MuxedStreamReset

from gnusnode.net.p2p.yamux_frames import (
    CHUNK,
    DATA,
    FIN,
    HALF_CLOSED_SECONDS,
    RST,
    WINDOW,
    WINDOW_UPDATE,
    WRITE_SECONDS,
)

if TYPE_CHECKING:
    from gnusnode.net.p2p.yamux import Yamux


class YamuxStream(IMuxedStream):
    """One stream. One task may read while another writes."""

    def __init__(self, conn: Yamux, number: int) -> None:
        self.muxed_conn = conn
        self.number = number
        self.dead: str | None = None
        """Why the stream cannot be used any more; what arrived before a lost connection may still be read."""
        self.refused = False
        """It was reset here while the peer still had something to say."""
        self._conn = conn
        self._buffer = bytearray()
        self._fin_sent = False
        self._fin_received = False
        self._send_window = WINDOW
        self._window = WINDOW
        self._granted = WINDOW
        self._consumed = 0
        self._credited_at = trio.current_time()
        self._touched_at = self._credited_at
        self._readable = trio.lowlevel.ParkingLot()
        self._writable = trio.lowlevel.ParkingLot()

    @property
    def inbound(self) -> bool:
        return self.number % 2 != self._conn.parity

    # --- reading ------------------------------------------------------------------------------------------------------

    async def read(self, n: int | None = None) -> bytes:
        """Up to ``n`` bytes, at least one; None or -1: what there is.

        Raises:
            MuxedStreamEOF: the peer closed its side, and everything was read.
            MuxedStreamReset: the stream or the connection is gone.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if n == 0:
            return b""
        while not self._buffer:
            if self._fin_received:
                raise MuxedStreamEOF("the peer closed the stream")
            if self.dead is not None:
                raise MuxedStreamReset(self.dead)
            await self._readable.park()
        size = len(self._buffer) if n is None or n < 0 else min(n, len(self._buffer))
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._conn.hold(-size)
        self._credit(size)
        return data

    def _credit(self, size: int) -> None:
        """Lets the peer send again, once half a window was read."""
        self._consumed += size
        if self._consumed * 2 < self._window or self._fin_received or self.dead is not None:
            return
        now = trio.current_time()
        grant = self._consumed
        if now - self._credited_at < 4 * self._conn.rtt and self._conn.may_grow(self._window):
            grant += self._window
            self._window *= 2
        self._consumed = 0
        self._granted += grant
        self._credited_at = now
        self._conn.post(WINDOW_UPDATE, 0, self.number, grant)

    def hold(self, size: int) -> None:
        """Counts bytes that were read and still wait for the rest of their message as if they were not read."""
        self._conn.hold(size)

    def deliver(self, data: bytes | bytearray) -> None:
        """Takes bytes from the wire; the connection has checked the window."""
        self._touched_at = trio.current_time()
        self._granted -= len(data)
        if self.dead is None:
            self._buffer += data
            self._conn.hold(len(data))
            self._readable.unpark_all()

    def exceeds_window(self, size: int) -> bool:
        return size > self._granted

    def deliver_end(self) -> None:
        self._fin_received = True
        self._readable.unpark_all()
        self._forget_if_done()

    # --- writing ------------------------------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[await self.write_some(view) :]

    async def write_some(self, data: memoryview) -> int:
        """Sends the beginning of ``data``, as much as fits; returns how much. Cancelled: nothing was sent.

        Raises:
            MuxedStreamReset: the stream or connection is gone, or the peer read nothing for ``WRITE_SECONDS``.
            MuxedStreamError: the stream was closed here.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self.dead is not None:
                raise MuxedStreamReset(self.dead)
            if self._fin_sent:
                raise MuxedStreamError("the stream was closed here")
            if self._send_window == 0:
                await self._wait_for_window()
            elif not self._conn.has_room:
                await self._conn.wait_for_room()
            else:
                break
        size = min(len(data), self._send_window, CHUNK)
        self._send_window -= size
        self._conn.post(DATA, 0, self.number, size, data[:size])
        return size

    async def _wait_for_window(self) -> None:
        with trio.move_on_after(WRITE_SECONDS):
            while self._send_window == 0 and self.dead is None:
                await self._writable.park()
        if self._send_window == 0 and self.dead is None:
            self.abort(f"the peer read nothing for {WRITE_SECONDS:g} seconds")

    def open_window(self, size: int) -> None:
        self._touched_at = trio.current_time()
        self._send_window += size
        self._writable.unpark_all()

    # --- ending -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Says that nothing more will be sent; the other direction stays open."""
        self.close_write()
        await trio.lowlevel.checkpoint()

    def close_write(self) -> None:
        if not self._fin_sent and self.dead is None:
            self._fin_sent = True
            self._touched_at = trio.current_time()
            self._conn.post(WINDOW_UPDATE, FIN, self.number, 0)
            self._forget_if_done()

    async def reset(self) -> None:
        if self.dead is None:
            self.refused = bool(self._buffer) or not self._fin_received
        self.abort("the stream was reset here")
        await trio.lowlevel.cancel_shielded_checkpoint()

    def abort(self, why: str) -> None:
        """Ends both directions at once and tells the peer."""
        if self.dead is None:
            if not (self._fin_sent and self._fin_received):
                self._conn.post(WINDOW_UPDATE, RST, self.number, 0)
            self.kill(why, drop=True)

    def kill(self, why: str, *, drop: bool) -> None:
        """The stream is gone; with ``drop``, so is what was not read yet."""
        if self.dead is None:
            self.dead = why
            if drop:
                self._conn.hold(-len(self._buffer))
                self._buffer.clear()
                self._fin_received = False
            self._conn.forget(self)
            self._readable.unpark_all()
            self._writable.unpark_all()

    def sweep(self, now: float) -> None:
        """Ends a stream that was closed here and that the peer leaves open without a word."""
        if self._fin_sent and now - self._touched_at > HALF_CLOSED_SECONDS:
            self.abort("the peer left the stream half-closed")

    def _forget_if_done(self) -> None:
        if self._fin_sent and self._fin_received:
            self._conn.forget(self)

    # --- for the library ----------------------------------------------------------------------------------------------

    def set_deadline(self, ttl: int) -> None:
        raise NotImplementedError("use a cancel scope")

    def get_remote_address(self) -> tuple[str, int] | None:
        return self._conn.get_remote_address()

    async def __aenter__(self) -> YamuxStream:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self.close_write()
