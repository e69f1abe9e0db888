"""An answer on its way: decoded, counted and typed while it is read."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, cast

import httpx2
import trio

from gnusnode.web import decoding
from gnusnode.web.content import SNIFFED_BYTES, actual_type, declared_type
from gnusnode.web.exchange import Limits, WebRequest
from gnusnode.web.refusals import Reason, WebFailed, WebRefused
from gnusnode.web.urls import Url

_BODILESS: Final = (204, 304)
_CRUMBS: Final = 4096
"""Pieces after which a body counts as crumbs …"""
_CRUMB_BYTES: Final = 32
"""… if they are smaller than this on average: each costs us more than it costs the sender."""


class Answer:
    """Iterate over it once, inside the context that gave it: pieces of the decoded body.

    Raises while it is iterated over:
        WebRefused: BODY_TOO_LARGE, CONTENT_ENCODING.
        WebFailed: DEADLINE, PROTOCOL_ERROR.
    """

    def __init__(
        self,
        url: Url,
        hops: Sequence[str],
        request: WebRequest,
        response: httpx2.Response,
        *,
        limits: Limits,
        deadline: float,
    ) -> None:
        self.url = url
        self.hops = tuple(hops)
        self.status = response.status_code
        self.headers = tuple((name.lower(), value) for name, value in response.headers.multi_items())
        self.media_type = ""
        """What the body has to be treated as; empty where there is none."""
        self.charset: str | None = None
        self._where = str(url)
        self._types = request.types
        self._response = response
        self._has_body = request.method != "HEAD" and self.status not in _BODILESS
        self._chunks = aiter(cast("httpx2.AsyncByteStream", response.stream))
        self._decoder = decoding.decoder_for(response.headers.get("content-encoding", ""), self._where)
        self._ready: deque[bytes] = deque()
        self._limits = limits
        self._deadline = deadline
        self._arrived = 0
        self._pieces = 0
        self._decoded = 0
        self._begun = False
        self._over = not self._has_body

    async def begin(self) -> None:
        """Reads as far as the type shows.

        Raises:
            WebRefused: HEADERS_TOO_LARGE, CONTENT_TYPE, and what iterating raises.
            WebFailed: see the class.
        """
        size = sum(len(name) + len(value) + 4 for name, value in self._response.headers.raw)
        if size > self._limits.header_bytes:
            raise self._refused(Reason.HEADERS_TOO_LARGE, f"{size} bytes of headers")
        announced = self._response.headers.get("content-length", "")
        if self._has_body and announced.isdecimal() and int(announced[:18]) > self._limits.body_bytes:
            raise self._refused(Reason.BODY_TOO_LARGE, f"{announced[:18]} bytes are announced")
        head = b""
        while self._has_body and len(head) < SNIFFED_BYTES and (piece := await self._piece()) is not None:
            self._ready.append(piece)
            head += piece
        if head:
            self._settle_type(head)
        await trio.lowlevel.checkpoint()

    def _settle_type(self, head: bytes) -> None:
        header = self._response.headers.get("content-type", "")
        if self._types is None:
            self.media_type = header.partition(";")[0].strip().lower()[:128]
            return
        declared, self.charset = declared_type(header, self._types, self._where)
        self.media_type = actual_type(declared, head, self._where)
        if self.media_type not in self._types:
            raise self._refused(Reason.CONTENT_TYPE, f"declared as {declared}, but the bytes are {self.media_type}")

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> bytes:
        if self._ready:
            await trio.lowlevel.checkpoint()
            return self._ready.popleft()
        piece = await self._piece()
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def _piece(self) -> bytes | None:
        """The next piece that is not empty; None: the body is over."""
        while not self._over:
            chunk: bytes | None = None
            with until(self._deadline, self._where):
                self._begun = True
                await trio.lowlevel.checkpoint()  # what has arrived already is read without one
                chunk = await anext(self._chunks, None)
            if chunk is None:
                self._over = True
                self._decoder.finish()
                break
            if piece := self._decode(chunk):
                return piece
        await trio.lowlevel.checkpoint()
        return None

    def _decode(self, chunk: bytes) -> bytes:
        limit = self._limits.body_bytes
        self._arrived += len(chunk)
        self._pieces += 1
        if self._pieces > _CRUMBS and self._arrived < self._pieces * _CRUMB_BYTES:
            raise self._refused(Reason.BODY_TOO_LARGE, "it comes in crumbs")
        piece = self._decoder.feed(chunk, limit - self._decoded) if self._arrived <= limit else b""
        self._decoded += len(piece)
        if self._arrived > limit or self._decoded > limit:
            raise self._refused(Reason.BODY_TOO_LARGE, f"more than {limit} bytes")
        return piece

    async def aclose(self) -> None:
        """Ends the connection unless the body was read to its end.

        A cancelled read raises through the client library's nested generators, which closing the outer one would leave
        to the garbage collector.
        """
        with trio.CancelScope(shield=True):
            if self._begun and not self._over:
                self._over = True
                with suppress(httpx2.HTTPError), trio.CancelScope() as scope:
                    scope.cancel()
                    await _exhaust(self._chunks)
            await self._response.aclose()

    def _refused(self, reason: Reason, what: str) -> WebRefused:
        return WebRefused(reason, what, where=self._where)


async def _exhaust(chunks: AsyncIterator[bytes]) -> None:
    async for _ in chunks:
        pass


@contextmanager
def until(deadline: float, where: str) -> Generator[None]:
    """Errors of the transport, and of coming too late, as ours.

    Raises:
        WebFailed: DEADLINE, CONNECT_FAILED or PROTOCOL_ERROR.
    """
    try:
        with trio.move_on_at(deadline) as scope:
            yield
    except httpx2.TimeoutException as error:
        raise WebFailed(Reason.DEADLINE, "the server does not answer in time", where=where) from error
    except httpx2.ConnectError as error:
        raise WebFailed(Reason.CONNECT_FAILED, f"no connection: {error}"[:500], where=where) from error
    except httpx2.HTTPError as error:
        raise WebFailed(Reason.PROTOCOL_ERROR, f"the connection broke: {error}"[:500], where=where) from error
    if scope.cancelled_caught:
        raise WebFailed(Reason.DEADLINE, "the exchange takes too long", where=where)
