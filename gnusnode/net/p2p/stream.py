"""Messages over a stream: a length of four bytes, big endian, and the message. Own loops: the library's give up."""

from __future__ import annotations

from typing import Final

import trio
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable, MuxedStreamEOF, MuxedStreamError

from gnusnode.errors import PeerUnreachable, ProtocolViolation, UnsupportedProtocol
from gnusnode.net.p2p.yamux import Yamux
from gnusnode.net.p2p.yamux_stream import YamuxStream
from gnusnode.net.port import MAX_MESSAGE, NetStatistics
from gnusnode.net.streams import Direction, check_size

READ_AHEAD: Final = 64 * 1024
NEGOTIATE_SECONDS: Final = 5.0

_LENGTH: Final = 4
_MULTISTREAM: Final = b"\x13/multistream/1.0.0\n"
_MAX_ANSWER: Final = 256


class P2PStream:
    """``MessageStream`` over a muxed stream. See the port for its contract."""

    def __init__(
        self, muxed: YamuxStream, peer: str, protocol: str, statistics: NetStatistics, received: bytes = b""
    ) -> None:
        self._muxed = muxed
        self._peer = peer
        self._protocol = protocol
        self._statistics = statistics
        self._received = bytearray(received)
        self._unsent = memoryview(b"")
        self._sending = Direction(protocol)
        self._receiving = Direction(protocol)
        muxed.hold(len(received))

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def protocol(self) -> str:
        return self._protocol

    async def send(self, message: bytes) -> None:
        check_size(message, self.protocol)
        with self._sending:
            await self._flush()
            whole = memoryview(len(message).to_bytes(_LENGTH, "big") + message)
            self._unsent = whole
            try:
                await self._flush()
            finally:
                if len(self._unsent) == len(whole):
                    # Not a byte of it is on its way: it may be forgotten. Else the rest leaves before what comes next.
                    self._unsent = memoryview(b"")

    async def _flush(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[await self._muxed.write_some(self._unsent) :]
        except MuxedStreamError as error:
            raise self._gone(error) from error

    async def receive(self) -> bytes | None:
        with self._receiving:
            if not await self._fill(_LENGTH):
                return None
            size = int.from_bytes(self._received[:_LENGTH], "big")
            if size > MAX_MESSAGE:
                await self.reset()
                self._statistics.protocol_violations += 1
                raise ProtocolViolation(
                    f"the peer announced a message of {size} bytes; {MAX_MESSAGE} are allowed", where=self.peer
                )
            await self._fill(_LENGTH + size)
            message = bytes(self._received[_LENGTH : _LENGTH + size])
            del self._received[: _LENGTH + size]
            self._muxed.hold(-_LENGTH - size)
            return message

    async def _fill(self, size: int) -> bool:
        """Reads until ``size`` bytes are there; False: the peer closed the stream, in order, before the first."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while len(self._received) < size:
            try:
                chunk = await self._muxed.read(max(size - len(self._received), READ_AHEAD))
            except MuxedStreamEOF as error:
                if not self._received:
                    return False
                self._drop()
                self._muxed.abort("the stream ended within a message")
                raise PeerUnreachable("the stream ended within a message", where=self.peer) from error
            except MuxedStreamError as error:
                self._drop()
                raise self._gone(error) from error
            self._received += chunk
            self._muxed.hold(len(chunk))
        return True

    async def close(self) -> None:
        try:
            await self._flush()
        except PeerUnreachable:
            return  # what is gone needs no goodbye
        await self._muxed.close()

    async def reset(self) -> None:
        self._drop()
        await self._muxed.reset()

    def _drop(self) -> None:
        self._muxed.hold(-len(self._received))
        self._received.clear()

    def _gone(self, error: MuxedStreamError) -> PeerUnreachable:
        return PeerUnreachable(str(error), where=self.peer, hint="open another stream, or connect again")


async def open_stream(connection: Yamux, peer: str, protocol: str, statistics: NetStatistics) -> P2PStream:
    """A new stream for ``protocol``. One round trip: the protocol is asked for without waiting for the greeting.

    Raises:
        PeerUnreachable: the connection is gone, or the peer did not answer within ``NEGOTIATE_SECONDS``.
        UnsupportedProtocol: the peer does not serve ``protocol``.
    """
    muxed: YamuxStream | None = None
    agreed = False
    try:
        with trio.fail_after(NEGOTIATE_SECONDS):
            muxed = connection.open()
            received = await _select(muxed, protocol)
        if received is None:
            raise UnsupportedProtocol(f"the peer does not serve {protocol}", where=peer, hint="update the older node")
        agreed = True
        return P2PStream(muxed, peer, protocol, statistics, received)
    except trio.TooSlowError:
        raise PeerUnreachable(f"no answer to a new stream within {NEGOTIATE_SECONDS:g} s", where=peer) from None
    except (MuxedStreamError, MuxedConnUnavailable) as error:
        raise PeerUnreachable(f"no stream: {error}", where=peer, hint="connect again") from error
    finally:
        if muxed is not None and not agreed:
            muxed.abort("the protocol was not agreed on")


async def _select(muxed: YamuxStream, protocol: str) -> bytes | None:
    """Agrees on ``protocol`` by multistream-select; bytes that came after the agreement, or None: it was refused."""
    wanted = protocol.encode() + b"\n"
    await muxed.write(_MULTISTREAM + _varint(len(wanted)) + wanted)
    received = bytearray()
    for expected in (_MULTISTREAM[1:], wanted):
        answer = await _delimited(muxed, received)
        if answer == b"na\n" and expected == wanted:
            return None
        if answer != expected:
            raise MuxedStreamError("the peer does not speak multistream-select")
    return bytes(received)


async def _delimited(muxed: YamuxStream, received: bytearray) -> bytes:
    """Takes one message with its length before it off ``received``, reading what is missing."""
    while True:
        prefix = 2 if received and received[0] & 0x80 else 1
        if len(received) >= prefix:
            size = received[0] & 0x7F | (received[1] << 7 if prefix == 2 else 0)
            if size > _MAX_ANSWER:
                raise MuxedStreamError("the peer does not speak multistream-select")
            if len(received) >= prefix + size:
                answer = bytes(received[prefix : prefix + size])
                del received[: prefix + size]
                return answer
        received += await muxed.read()


def _varint(value: int) -> bytes:
    """``value`` below 16,384 in the encoding of multiformats."""
    return bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80, value >> 7))
