"""One HTTP/1.1 exchange with the Docker Engine over its Unix socket. Knows requests and answers, not what they mean."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, Final

import h11
import trio

from gnusnode.errors import Conflict, DeadlineExceeded, GnusError, NotFound, ProtocolViolation, Unavailable

MAX_ANSWER: Final = 8 << 20
"""Longest answer that is held in memory, in bytes: the description of a daemon with many images."""
_READ: Final = 64 * 1024
_BY_STATUS: Final[dict[int, type[GnusError]]] = {404: NotFound, 409: Conflict}


class Exchange:
    """A connection that carries one request. ``opened`` makes and closes it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._http = h11.Connection(h11.CLIENT)

    async def ask(self, method: str, target: str, body: bytes | Iterable[bytes] = b"", *, upgrade: bool = False) -> int:
        """Sends a request and returns the status of the answer; 101 when the connection has become a raw stream.

        Args:
            body: at once, or in pieces whose sum is not known yet.

        Raises:
            Unavailable: the connection broke.
            ProtocolViolation: what came is not HTTP.
        """
        headers = [("Host", "docker"), ("Content-Type", "application/json")]
        headers += [("Connection", "Upgrade"), ("Upgrade", "tcp")] if upgrade else [("Connection", "close")]
        if isinstance(body, bytes):
            headers.append(("Content-Length", str(len(body))))
            body = (body,)
        else:
            headers.append(("Transfer-Encoding", "chunked"))
        await self._send(h11.Request(method=method, target=target, headers=headers))
        for piece in body:
            await self._send(h11.Data(data=piece))
        await self._send(h11.EndOfMessage())
        while True:
            event = await self._next()
            if isinstance(event, h11.Response) or (isinstance(event, h11.InformationalResponse) and upgrade):
                return event.status_code
            if not isinstance(event, h11.InformationalResponse):
                raise ProtocolViolation("the container engine closed the connection without an answer")

    async def pieces(self) -> AsyncGenerator[bytes]:
        """The body of the answer as it arrives."""
        while True:
            event = await self._next()
            if not isinstance(event, h11.Data):
                return
            yield bytes(event.data)

    async def read(self, most: int = MAX_ANSWER) -> bytes:
        """The whole body of the answer.

        Raises:
            ProtocolViolation: it is longer than ``most`` bytes.
        """
        found = bytearray()
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                found += piece
                if len(found) > most:
                    raise ProtocolViolation(f"an answer of more than {most} bytes from the container engine")
        return bytes(found)

    def early(self) -> bytes:
        """After an upgrade: the bytes of the raw stream that came with the answer."""
        return self._http.trailing_data[0]

    async def _send(self, event: h11.Event) -> None:
        if data := self._http.send(event):
            await self.stream.send_all(data)

    async def _next(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._http.receive_data(await self.stream.receive_some(_READ))


@asynccontextmanager
async def opened(socket: str) -> AsyncGenerator[Exchange]:
    """A new connection to the engine at the path ``socket``; closed at the end.

    Raises:
        Unavailable: nothing answers there, or the connection broke.
        ProtocolViolation: what answers does not speak HTTP.
    """
    with plainly(socket):
        stream = await trio.open_unix_socket(socket)
        async with stream:
            yield Exchange(stream)


@contextmanager
def plainly(socket: str) -> Generator[None]:
    """Turns what goes wrong on a connection to ``socket`` into our errors."""
    try:
        yield
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise Unavailable(
            f"the container engine does not answer: {getattr(error, 'strerror', None) or error}",
            where=socket,
            hint="is Docker running, and may this user open its socket?",
        ) from error
    except h11.ProtocolError as error:
        raise ProtocolViolation(f"the container engine does not speak HTTP: {error}", where=socket) from error


@contextmanager
def within(seconds: float, what: str) -> Generator[None]:
    """Ends the block after ``seconds``.

    Raises:
        DeadlineExceeded: it took longer; ``what`` says where.
    """
    try:
        with trio.fail_after(seconds):
            yield
    except trio.TooSlowError as error:
        raise DeadlineExceeded(f"the container engine did not answer within {seconds:g} s", where=what) from error


async def call(socket: str, method: str, target: str, body: Any = None, *, timeout: float) -> Any:
    """One call with a JSON answer, None for an empty one.

    Args:
        body: sent as JSON.
        timeout: seconds for all of it.

    Raises:
        NotFound, Conflict, Unavailable: the engine's own refusal, in its words, by status.
        DeadlineExceeded: it took too long.
        ProtocolViolation: the answer is none.
    """
    where = f"{method} {target.partition('?')[0]}"
    with within(timeout, where):
        async with opened(socket) as exchange:
            status = await exchange.ask(method, target, b"" if body is None else json.dumps(body).encode())
            answer = await exchange.read()
    if status >= 400:
        raise refusal(status, answer, where)
    return parse(answer) if answer.strip() else None


def parse(answer: bytes) -> Any:
    """The JSON value of an answer.

    Raises:
        ProtocolViolation: it is none.
    """
    try:
        return json.loads(answer)
    except ValueError as error:
        raise ProtocolViolation(f"the container engine's answer is not JSON: {error}") from error


def refusal(status: int, answer: bytes, where: str) -> GnusError:
    """The engine's refusal as one of our errors."""
    try:
        text = str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):
        text = answer[:200].decode("utf-8", "replace")
    return _BY_STATUS.get(status, Unavailable)(f"the container engine refused: {text[:500]}", where=where)
