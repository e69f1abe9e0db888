"""One holder of a file, as the one who fetches sees it: the slow are told from the refusing and the lying."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import trio

from gnusnode.contracts.artifacts import ChunkManifest
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.roster import Roster
from gnusnode.contracts.verify import verify_bytes
from gnusnode.errors import (
    GnusError,
    ProtocolViolation,
    RateLimited,
    RequestError,
    Unavailable,
    UnsupportedProtocol,
)
from gnusnode.inference.artifacts.chunked import ChunkLayout
from gnusnode.net.blobs import wire
from gnusnode.net.port import MessageStream, Net
from gnusnode.net.text import printable

_CLOSE_SECONDS: Final = 1.0
_MAX_REASON: Final = 300
_MAX_WAITS: Final = 1000
_BACKWARDS: Final = frozenset({Outcome.MALFORMED, Outcome.BAD_SIGNATURE})
"""What no sound signer sends; the other outcomes are a matter of trust or time."""


@dataclass(frozen=True)
class Patience:
    """How long a source may take. Times in seconds, rates in bytes per second."""

    answer: float = 15.0
    """For the first word of an answer."""
    hashing: float = 1800.0
    """For a manifest that has to be made, while the source says that it is at it."""
    window: float = 15.0
    min_rate: int = 256
    """A source that sends fewer than ``min_rate * window`` bytes in ``window`` is left for a while. Little, because one
    that limits its bandwidth and serves many is slow and sound."""


class SourceFailed(Exception):
    """Why a source brings nothing more; the text follows its name. It may quote the peer: only printable signs stay."""

    def __init__(self, reason: str, *, retry_after: float = 0.0) -> None:
        super().__init__(printable(reason[:_MAX_REASON]))
        self.retry_after = retry_after


class Lost(SourceFailed):
    """It cannot go on now; later it may."""


class Refused(SourceFailed):
    """It does not give this file to us."""


class Lied(SourceFailed):
    """It sent what no sound holder sends."""


class Source:
    """One stream to a holder. Made by ``open_source``. All methods raise ``Lost``, ``Refused`` and ``Lied``."""

    def __init__(self, stream: MessageStream, patience: Patience) -> None:
        self._stream = stream
        self._patience = patience
        self.owed = 0
        """Answers that were asked for and have not come whole."""

    async def have(self, digest: str) -> wire.Held:
        await self._ask(wire.Have(hash=digest))
        held = await self._within(self._patience.answer)
        if not isinstance(held, wire.Held):
            raise Lied(f"answers {held.kind!r} where 'held' is due")
        self.owed -= 1
        return held

    async def layout(self, digest: str, roster: Roster, at_ms: int) -> ChunkLayout:
        """How the holder says that the file of ``digest`` is cut. Its signature and authority are checked."""
        await self._ask(wire.WantManifest(hash=digest))
        with trio.move_on_after(self._patience.hashing):
            for _ in range(_MAX_WAITS):
                reply = await self._within(self._patience.answer)
                if isinstance(reply, wire.Manifest):
                    self.owed -= 1
                    return await self._checked(reply.record, digest, roster, at_ms)
                if not isinstance(reply, wire.Wait):
                    raise Lied(f"answers {reply.kind!r} where 'manifest' is due")
            raise Lied("says without end that it is hashing the file")
        raise Lost("is still hashing the file")

    async def ask(self, digest: str, chunk: int, rate: int) -> None:
        """Asks for a chunk. Several may be asked for ahead; ``take`` gives them in this order."""
        await self._ask(wire.Get(hash=digest, first=chunk, count=1, rate=rate))

    async def take(self, into: memoryview, arrived: Callable[[int], None], rate: int) -> None:
        """Receives the chunk asked for first into ``into``, which has its size.

        Args:
            arrived: told the bytes that came.
            rate: what was asked for; a source is not called slow for keeping to it.
        """
        patience, at, since = self._patience, 0, 0
        quota = patience.window * (min(patience.min_rate, rate // 4) if rate else patience.min_rate)
        with trio.move_on_after(patience.window) as waiting:
            while at < len(into):
                part = await self._reply()
                if not isinstance(part, wire.Bytes):
                    raise Lied(f"sends {at} bytes of a chunk that has {len(into)}")
                size = len(part.data)
                if at + size > len(into):
                    raise Lied(f"sends more than the {len(into)} bytes of a chunk")
                into[at : at + size] = part.data
                at, since = at + size, since + size
                arrived(size)
                if since >= quota:
                    since, waiting.deadline = 0, trio.current_time() + patience.window
            if not isinstance(await self._reply(), wire.End):
                raise Lied("sends more than was asked for")
            self.owed -= 1
            return
        raise Lost(f"sent less than {max(1, int(quota))} bytes in {patience.window:g} s")

    async def _checked(self, record: bytes, digest: str, roster: Roster, at_ms: int) -> ChunkLayout:
        # In a thread: the manifest of a large file takes some tens of milliseconds.
        verdict = await trio.to_thread.run_sync(verify_bytes, ChunkManifest, record, at_ms, roster)
        manifest = verdict.record
        if verdict.outcome in _BACKWARDS:
            raise Lied(f"its chunk manifest is {verdict.outcome}")
        if manifest is None:
            raise Refused(f"its chunk manifest is not to be believed: {verdict.outcome}")
        if (manifest.signer, manifest.artifact_hash) != (self._stream.peer, digest):
            raise Lied("its chunk manifest is another's, or of another file")
        return ChunkLayout(digest, manifest.size, manifest.chunk_bytes, manifest.chunks)

    async def _within(self, seconds: float) -> wire.Reply:
        with trio.move_on_after(seconds):
            return await self._reply()
        raise Lost(f"did not answer within {seconds:g} s")

    async def _ask(self, request: wire.Request) -> None:
        self.owed += 1
        with _explained():
            await self._stream.send(wire.encode(request))

    async def _reply(self) -> wire.Reply:
        with _explained():
            data = await self._stream.receive()
            if data is None:
                raise Lost("closed the stream")
            reply = wire.reply(data)
        if isinstance(reply, wire.Refusal):
            error = GnusError.from_wire(reply.error)
            if isinstance(error, RequestError) and not isinstance(error, RateLimited):
                raise Refused(error.what)
            raise Lost(error.what, retry_after=min(error.retry_after or 0.0, 60.0))
        return reply


@contextmanager
def _explained() -> Generator[None]:
    """Turns the port's errors into those of a source."""
    try:
        yield
    except ProtocolViolation as error:
        raise Lied(error.what) from error
    except UnsupportedProtocol as error:
        raise Refused("gives no files") from error
    except Unavailable as error:
        raise Lost(error.what) from error


@asynccontextmanager
async def open_source(net: Net, peer: str, patience: Patience) -> AsyncGenerator[Source]:
    """A stream to ``peer``; it ends with the context.

    Raises:
        Lost, Refused.
    """
    with _explained():
        stream = await net.open_stream(peer, wire.PROTOCOL)
    source, in_order = Source(stream, patience), False
    try:
        yield source
        in_order = source.owed == 0
    finally:
        with trio.move_on_after(_CLOSE_SECONDS, shield=True), suppress(GnusError):
            await (stream.close() if in_order else stream.reset())
