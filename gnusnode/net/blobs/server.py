"""Gives model files to members: a bounded number of streams, fair between peers, within a bandwidth."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from gnusnode.contracts.artifacts import CHUNK_BYTES
from gnusnode.contracts.dsse import Signer
from gnusnode.errors import DataError, GnusError, NotFound, Overloaded, PeerUnreachable
from gnusnode.inference.artifacts.models import ModelStore
from gnusnode.net.blobs import wire
from gnusnode.net.blobs.bandwidth import TokenBucket
from gnusnode.net.blobs.holdings import Holdings, OpenFile
from gnusnode.net.port import MessageStream, Net

_log = logging.getLogger(__name__)

_SMALL_PART: Final = 4 * 1024
_BUSY_SECONDS: Final = 5.0
"""After which a refused peer may come again; also how often a waiting one hears that we are still at it."""


@dataclass(frozen=True)
class ServeLimits:
    """How much a node gives. Times in seconds."""

    streams: int = 16
    streams_per_peer: int = 4
    bytes_per_second: int = 0
    """Of all peers together; 0: no limit."""
    idle: float = 30.0
    """A stream without a request for so long is closed: somebody else may want its place."""
    send: float = 30.0
    """Time that a peer has to take one part."""


@dataclass
class ServeStatistics:
    """Counts since start."""

    bytes_sent: int = 0
    chunks_sent: int = 0
    refused: dict[str, int] = field(default_factory=dict[str, int])
    """Streams, by reason: ``gate``, ``busy``."""
    streams: int = 0
    """Now."""


class BlobServer:
    """Serves ``/gnus/blob/1``. Made by ``serve_blobs``."""

    def __init__(self, holdings: Holdings, gate: Callable[[str], GnusError | None], limits: ServeLimits) -> None:
        self._holdings = holdings
        self._gate = gate
        self._limits = limits
        self._bucket = TokenBucket(limits.bytes_per_second)
        self._streams: Counter[str] = Counter()
        self._turns: dict[str, trio.Lock] = {}
        self.statistics = ServeStatistics()

    async def handle(self, stream: MessageStream) -> None:
        """One stream to its end.

        Raises:
            ProtocolViolation, PeerUnreachable: the peer's fault or end; the port resets the stream.
        """
        peer = stream.peer
        if (refusal := self._refusal(peer)) is not None:
            await stream.send(wire.encode(wire.Refusal(error=refusal.to_wire())))
            return
        self._streams[peer] += 1
        self.statistics.streams += 1
        session = _Session(self, stream)
        try:
            await session.run()
        finally:
            session.close()
            self.statistics.streams -= 1
            self._streams[peer] -= 1
            if not self._streams[peer]:
                del self._streams[peer]
                self._turns.pop(peer, None)

    def _refusal(self, peer: str) -> GnusError | None:
        refusal = self._gate(peer)
        reason = "gate"
        if refusal is None:
            reason, limits = "busy", self._limits
            full = self.statistics.streams >= limits.streams
            if full or self._streams[peer] >= limits.streams_per_peer:
                refusal = Overloaded("this node gives files to as many as it can", retry_after=_BUSY_SECONDS)
        if refusal is not None:
            self.statistics.refused[reason] = self.statistics.refused.get(reason, 0) + 1
        return refusal

    # --- for the sessions ---------------------------------------------------------------------------------------------

    @property
    def limits(self) -> ServeLimits:
        return self._limits

    @property
    def holdings(self) -> Holdings:
        return self._holdings

    def part_bytes(self, rate: int) -> int:
        """A part takes at most about a second at the rate asked for, or two at our own with all streams in use."""
        own = self._bucket.rate * 2 // self._limits.streams
        slowest = min((limit for limit in (own, rate) if limit), default=wire.PART_BYTES)
        return max(_SMALL_PART, min(wire.PART_BYTES, slowest))

    async def send(self, stream: MessageStream, message: wire.Reply, size: int) -> None:
        """Sends a part in its turn: of one peer one part is under way at a time, however many streams it has.

        Raises:
            PeerUnreachable: gone, or too slow.
        """
        async with self._turns.setdefault(stream.peer, trio.Lock()):
            await self._bucket.take(size)
            with trio.move_on_after(self._limits.send) as patience:
                await stream.send(wire.encode(message))
            if patience.cancelled_caught:
                raise PeerUnreachable("the peer takes the file too slowly", where=stream.peer)
        self.statistics.bytes_sent += size


class _Session:
    """The requests of one stream. Its file stays open between them."""

    def __init__(self, server: BlobServer, stream: MessageStream) -> None:
        self._server = server
        self._stream = stream
        self._file: OpenFile | None = None

    async def run(self) -> None:
        while True:
            data = None
            with trio.move_on_after(self._server.limits.idle):
                data = await self._stream.receive()
            if data is None:
                return  # it closed its side, or it only holds the place
            request = wire.request(data)
            try:
                await self._answer(request)
            except DataError as error:
                # A path of this machine is nothing for others.
                _log.warning("a file could not be given to a peer: %s", error)
                await self._refuse(NotFound("this node cannot give it now", where=request.hash))
            except NotFound as error:
                await self._refuse(NotFound(error.what, where=request.hash))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    async def _refuse(self, error: GnusError) -> None:
        await self._stream.send(wire.encode(wire.Refusal(error=error.to_wire())))

    async def _answer(self, request: wire.Request) -> None:
        holdings = self._server.holdings
        await trio.lowlevel.checkpoint()
        match request:
            case wire.Have():
                await self._stream.send(wire.encode(await holdings.held(request.hash)))
            case wire.WantManifest():
                await self._manifest(request.hash)
            case wire.Get():
                await self._get(request)

    async def _manifest(self, digest: str) -> None:
        while True:
            with trio.move_on_after(_BUSY_SECONDS):
                vouched = await self._server.holdings.vouched(digest)
                break
            await self._stream.send(wire.encode(wire.Wait()))
        await self._server.send(self._stream, wire.Manifest(record=vouched.record), len(vouched.record))

    async def _get(self, request: wire.Get) -> None:
        if self._file is None or self._file.manifest.artifact_hash != request.hash:
            self.close()
            self._file = await self._server.holdings.open(request.hash)
        file, manifest = self._file, self._file.manifest
        if request.first + request.count > len(manifest.chunks):
            raise NotFound(f"the file has {len(manifest.chunks)} chunks", where=request.hash)
        pace, most = TokenBucket(request.rate), self._server.part_bytes(request.rate)
        for chunk in range(request.first, request.first + request.count):
            await self._chunk(file, chunk, pace, most)
        await self._stream.send(wire.encode(wire.End()))

    async def _chunk(self, file: OpenFile, chunk: int, pace: TokenBucket, most: int) -> None:
        manifest = file.manifest
        at = chunk * manifest.chunk_bytes
        end = min(at + manifest.chunk_bytes, manifest.size)
        await trio.lowlevel.checkpoint()
        while at < end:
            size = min(most, end - at)
            data = await trio.to_thread.run_sync(file.read, at, size)
            await pace.take(size)
            await self._server.send(self._stream, wire.Bytes(data=data), size)
            at += size
        self._server.statistics.chunks_sent += 1


@asynccontextmanager
async def serve_blobs(
    net: Net,
    store: ModelStore,
    signer: Signer,
    *,
    gate: Callable[[str], GnusError | None],
    limits: ServeLimits = ServeLimits(),
    chunk_bytes: int = CHUNK_BYTES,
) -> AsyncGenerator[BlobServer]:
    """Gives the files of ``store`` to the peers that ``gate`` lets through, while the context is open.

    Args:
        gate: asked for each stream; an error is why the peer gets nothing, and is told to it.
    """
    async with trio.open_nursery() as nursery:
        server = BlobServer(Holdings(store, signer, nursery, chunk_bytes=chunk_bytes), gate, limits)
        async with net.serve(wire.PROTOCOL, server.handle):
            yield server
        nursery.cancel_scope.cancel()
