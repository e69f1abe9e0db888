"""One HTTP/1.1 connection: anycorn's protocol state machine on a trio stream, with patience of our own.

anycorn's own server lets one malformed request end the process, holds a stuck reader for ever, and speaks h2c and
websockets that we do not need. So only its HTTP/1.1 state machine is used; reading, writing, time limits and the task
that runs the application are here.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final

import h11
import trio
from anycorn.config import Config
from anycorn.events import Closed, Event, RawData, Updated
from anycorn.protocol import events as wire
from anycorn.protocol.h11 import STREAM_ID, H11Protocol
from anycorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from anycorn.typing import ConnectionState, TLSExtension
from anycorn.worker_context import WorkerContext
from starlette.types import ASGIApp

from gnusnode.api.envelope import error_bytes
from gnusnode.api.options import ApiOptions

log = logging.getLogger(__name__)

_RECEIVE: Final = 64 * 1024
_WRITE: Final = 64 * 1024
"""A client has ``stalled_write_seconds`` for each piece of this size."""
_INBOX: Final = 4
"""Body chunks read ahead of the application."""
_LINGER: Final = 0.25
"""Seconds that the work of a connection may go on after its client has left."""
_DISCARD: Final = 1.0
"""Seconds in which a refused client may still be sending, so that it gets to read our answer instead of a reset."""

Message = MutableMapping[str, Any]


class _Stream(HTTPStream):
    """anycorn's request to ASGI mapping; what it refuses by itself carries our envelope."""

    async def _send_error_response(self, status_code: int) -> None:
        self.state = ASGIHTTPState.CLOSED
        body = error_bytes(status_code)
        await self.send(wire.Response(stream_id=self.stream_id, headers=_error_headers(body), status_code=status_code))
        await self.send(wire.Body(stream_id=self.stream_id, data=body))
        await self.send(wire.EndBody(stream_id=self.stream_id))
        await self.send(wire.StreamClosed(stream_id=self.stream_id))


class _Http1(H11Protocol):
    """anycorn's HTTP/1.1 without protocol switches: ``Upgrade`` is ignored, as RFC 9110 allows."""

    async def handle(self, event: Event) -> None:
        try:
            await super().handle(event)
        except h11.RemoteProtocolError as error:
            await self._send_error_response(error.error_status_hint)
            await self.send(Closed())

    async def _check_protocol(self, event: h11.Request) -> None:
        if event.http_version not in (b"1.0", b"1.1"):
            raise h11.RemoteProtocolError("only HTTP/1.1 is spoken here", error_status_hint=505)
        names = [name for name, _ in event.headers]
        if b"transfer-encoding" in names and (b"content-length" in names or event.http_version == b"1.0"):
            # h11 takes the chunks and goes on; somebody before us may have taken the length, and so see another
            # request where we see a body, or the other way round.
            raise h11.RemoteProtocolError("a body of two lengths", error_status_hint=400)

    async def _create_stream(self, request: h11.Request) -> None:
        self.stream = _Stream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
            self.tls,
        )
        await self.stream.handle(
            wire.Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode("ascii"),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1

    async def _send_error_response(self, status_code: int) -> None:
        body = error_bytes(status_code)
        headers = [*_error_headers(body), *self.config.response_headers("h11")]
        answer = (h11.Response(status_code=status_code, headers=headers), h11.Data(data=body), h11.EndOfMessage())
        # In one piece: the application may be about to answer the same request.
        with suppress(h11.LocalProtocolError):
            await self.send(RawData(b"".join(self.connection.send(part) or b"" for part in answer)))

    @property
    def holds_part_of_a_head(self) -> bool:
        return self.connection.their_state is h11.IDLE and bool(self.connection.trailing_data[0])

    @property
    def awaits_body(self) -> bool:
        return self.connection.their_state is h11.SEND_BODY


def _error_headers(body: bytes) -> list[tuple[bytes, bytes]]:
    length = str(len(body)).encode("ascii")
    return [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close")]


def protocol_config(options: ApiOptions) -> Config:
    """anycorn's settings; the ones that are not named here belong to parts that we do not use."""
    config = Config()
    config.include_server_header = False
    config.h11_max_incomplete_size = 32 * 1024
    config.errorlog = log
    config.accesslog = None
    config.keep_alive_max_requests = 2**31
    config.keep_alive_timeout = options.keep_alive_seconds
    return config


class Connection:
    """Owns one accepted stream until ``run`` returns; the application's tasks live and die inside it.

    ``retire`` makes it end after the request that it is answering; cancelling ``run`` ends it at once.
    """

    def __init__(
        self,
        stream: trio.SocketStream | trio.SSLStream[trio.SocketStream],
        app: ASGIApp,
        config: Config,
        context: WorkerContext,
        options: ApiOptions,
        state: dict[str, Any],
    ) -> None:
        self._stream = stream
        self._app = app
        self._config = config
        self._context = context
        self._options = options
        self._state = state
        self._scope = trio.CancelScope()
        self._patience = trio.CancelScope()
        self._write_lock = trio.Lock()
        self._idle = True
        self._between = False
        """Between two requests: nothing of the next one has arrived."""
        self._closing = False
        self._nursery: trio.Nursery
        self._protocol: _Http1

    async def run(self) -> None:
        """Serves requests until the client leaves, stalls, or the protocol ends the connection.

        Raises:
            Exception: whatever a hostile client makes the protocol code raise; the caller's fence takes it.
        """
        raw = self._stream if isinstance(self._stream, trio.SocketStream) else self._stream.transport_stream
        client, server = _address(raw.socket.getpeername()), _address(raw.socket.getsockname())
        tls: TLSExtension | None = None if raw is self._stream else {}  # pyright: ignore[reportAssignmentType]
        with self._scope:
            async with trio.open_nursery() as self._nursery:
                self._protocol = _Http1(
                    _adapt(self._app),
                    self._config,
                    self._context,
                    self,  # pyright: ignore[reportArgumentType] - spawn_app is all that HTTP/1.1 asks of a task group
                    ConnectionState(self._state),
                    client,
                    server,
                    self._send,
                    tls,
                )
                await self._read()
                self._scope.deadline = trio.current_time() + _LINGER
                await self._protocol.handle(Closed())

    def retire(self) -> None:
        """No further request: an idle connection ends now, a busy one with the answer that is under way."""
        if self._idle:
            self._scope.cancel()

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        self._wait_for(self._options.header_seconds)
        with self._patience:
            while True:
                try:
                    data = await self._stream.receive_some(_RECEIVE)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return
                if not data:
                    return
                if self._closing:
                    continue
                await self._protocol.handle(RawData(bytes(data)))
                self._be_patient()

    def _be_patient(self) -> None:
        """Sets how long the next bytes may take, by what the protocol is waiting for."""
        if self._closing:
            return
        if self._between and self._protocol.holds_part_of_a_head:
            self._between = False
            self._wait_for(self._options.header_seconds)
        elif not self._idle and not self._protocol.awaits_body:
            # The application is working; the client may leave, but owes us nothing.
            self._patience.deadline = float("inf")

    def _wait_for(self, seconds: float) -> None:
        self._patience.deadline = trio.current_time() + seconds

    # --- what the protocol asks for -----------------------------------------------------------------------------------

    async def _send(self, event: Event) -> None:
        match event:
            case RawData(data=data) if data:
                await self._write(data)
            case RawData():
                pass
            case Updated(idle=True):
                self._idle = self._between = True
                self._wait_for(self._options.keep_alive_seconds)
            case Updated():
                self._idle = self._between = False
                self._wait_for(self._options.body_seconds)
            case Closed():
                self._finish_sending()
            case _:
                # anycorn grew an event that we do not know: losing it in silence would lose a reply
                raise NotImplementedError(f"HTTP/1.1 asks for {type(event).__name__}")

    async def _write(self, data: bytes) -> None:
        async with self._write_lock:
            try:
                for start in range(0, len(data), _WRITE):
                    with trio.fail_after(self._options.stalled_write_seconds):
                        await self._stream.send_all(data[start : start + _WRITE])
            except trio.TooSlowError:
                log.info("a client read nothing for %g s: connection aborted", self._options.stalled_write_seconds)
                self._scope.cancel()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._scope.cancel()
            except trio.Cancelled:
                # Part of the data may be out: nothing that is written after it would make sense.
                self._scope.cancel()
                raise

    def _finish_sending(self) -> None:
        """The last byte is written: say so, and let the client finish what it is sending.

        Does not wait: the task that sent the last byte is told of the end by ``http.disconnect``, and may be cancelled.
        """
        self._closing = True
        if isinstance(self._stream, trio.SocketStream):
            self._wait_for(_DISCARD)
            with suppress(OSError):
                self._stream.socket.shutdown(socket.SHUT_WR)
        else:
            # TLS cannot half-close; a client that was told "connection: close" leaves by itself.
            self._wait_for(_LINGER)

    # --- running the application: anycorn's TaskGroup protocol --------------------------------------------------------

    async def spawn_app(
        self, app: object, config: Config, scope: Message, send: Callable[[Message | None], Awaitable[None]]
    ) -> Callable[[Message], Awaitable[None]]:
        """Starts the application for one request; the result hands it the request's messages."""
        to_app, inbox = trio.open_memory_channel[Message](_INBOX)
        self._nursery.start_soon(self._run_app, scope, inbox, send)

        async def put(message: Message) -> None:
            # The application may have answered without reading everything.
            with suppress(trio.BrokenResourceError):
                await to_app.send(message)

        return put

    async def _run_app(
        self,
        scope: Message,
        inbox: trio.MemoryReceiveChannel[Message],
        send: Callable[[Message | None], Awaitable[None]],
    ) -> None:
        with inbox:
            try:
                await self._app(scope, inbox.receive, send)
            except Exception:
                # The gateway has a fence of its own; this one keeps a fault of the gateway inside its request.
                log.exception("a request handler failed")
        await send(None)


def _adapt(app: ASGIApp) -> Any:
    """anycorn hands the application to ``spawn_app`` only, which does not need its wrapper."""
    return app


def _address(name: Any) -> tuple[str, int] | None:
    # A unix socket has a path for a name.
    return None if isinstance(name, str | bytes) else (str(name[0]), int(name[1]))
