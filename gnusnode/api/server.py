"""The accept loop: many connections, each behind its own fence, none of which can end the daemon."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio
from anycorn.worker_context import WorkerContext
from starlette.types import ASGIApp

from gnusnode.api.app import build_app
from gnusnode.api.connection import Connection, protocol_config
from gnusnode.api.envelope import error_bytes
from gnusnode.api.facade import NodeFacade, SwarmSurface
from gnusnode.api.keys import KeyStore
from gnusnode.api.options import ApiOptions, BoundAddresses, refuse_exposure, tls_context
from gnusnode.api.sockets import bound, peer_is_owner
from gnusnode.observe.metrics import NodeMetrics
from gnusnode.observe.observer import Observer

log = logging.getLogger(__name__)

_UNIX_CONNECTIONS: Final = 64
"""Kept apart, so that ``gnusnode stop`` works while the network side is full."""


async def serve_api(
    node: NodeFacade,
    options: ApiOptions,
    keys: KeyStore,
    observer: Observer,
    swarm: SwarmSurface | None = None,
    *,
    task_status: trio.TaskStatus[BoundAddresses] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves the API until ``node.stopping`` is set; then open streams end with an error event, and stuck clients are
    cut off after ``grace_seconds``. Starts with the addresses that were bound. Cancelling it ends everything at once.

    Raises:
        ConfigError: the address would expose the node without a key and TLS, or the certificate is unusable.
        CannotBind: an address is taken or not ours.
    """
    refuse_exposure(options, has_keys=bool(keys.list()))
    context = tls_context(options)
    app = build_app(node, options, keys, observer, swarm)
    async with bound(options) as listeners:
        server = _Server(app, options, context, observer.metrics)
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                for listener in listeners.tcp:
                    accepting.start_soon(
                        partial(trio.serve_listeners, server.accept_tcp, [listener], handler_nursery=connections)
                    )
                if listeners.unix is not None:
                    accepting.start_soon(
                        partial(trio.serve_listeners, server.accept_unix, [listeners.unix], handler_nursery=connections)
                    )
                task_status.started(listeners.addresses)
                await node.stopping.wait()
                accepting.cancel_scope.cancel()
            await server.retire()
            connections.cancel_scope.deadline = trio.current_time() + options.grace_seconds


class _Server:
    """What connections share."""

    def __init__(self, app: ASGIApp, options: ApiOptions, context: ssl.SSLContext | None, metrics: NodeMetrics) -> None:
        self._app = app
        self._options = options
        self._tls = context
        self._metrics = metrics
        self._config = protocol_config(options)
        self._worker = WorkerContext(None)
        self._open: set[Connection] = set()
        self._tcp_count = 0
        self._unix_count = 0

    async def retire(self) -> None:
        """From now on each connection ends with the answer that it is giving."""
        await self._worker.terminated.set()
        for connection in tuple(self._open):
            connection.retire()

    async def accept_tcp(self, stream: trio.SocketStream) -> None:
        await self._fenced(stream, self._serve_tcp)

    async def accept_unix(self, stream: trio.SocketStream) -> None:
        await self._fenced(stream, self._serve_unix)

    async def _fenced(self, stream: trio.SocketStream, serve: Callable[[trio.SocketStream], Awaitable[None]]) -> None:
        """Whatever one client provokes ends its own connection and nothing else; the stream is closed in any case."""
        try:
            await serve(stream)
        except Exception as error:
            # Cancelled is no Exception and passes.
            self._metrics.http_faults.inc()
            log.info("connection ended: %r", error, exc_info=log.isEnabledFor(logging.DEBUG))
        finally:
            await trio.aclose_forcefully(stream)

    async def _serve_tcp(self, stream: trio.SocketStream) -> None:
        if self._tcp_count >= self._options.max_connections:
            self._metrics.http_refused.labels("full").inc()
            await self._turn_away(stream)
            return
        self._tcp_count += 1
        try:
            secured = await self._secured(stream)
            if secured is None:
                self._metrics.http_refused.labels("tls").inc()
                return
            await self._serve(secured, unix=False)
        finally:
            self._tcp_count -= 1

    async def _serve_unix(self, stream: trio.SocketStream) -> None:
        foreign = not peer_is_owner(stream.socket)
        if foreign or self._unix_count >= _UNIX_CONNECTIONS:
            self._metrics.http_refused.labels("foreign" if foreign else "full").inc()
            return
        self._unix_count += 1
        try:
            await self._serve(stream, unix=True)
        finally:
            self._unix_count -= 1

    async def _secured(self, stream: trio.SocketStream) -> trio.SocketStream | trio.SSLStream[trio.SocketStream] | None:
        """The stream to speak HTTP on; None when the client did not manage a TLS handshake in time."""
        if self._tls is None:
            return stream
        secure = trio.SSLStream(stream, self._tls, server_side=True, https_compatible=True)
        try:
            with trio.fail_after(self._options.header_seconds):
                await secure.do_handshake()
        except (trio.BrokenResourceError, trio.TooSlowError):
            return None
        return secure

    async def _serve(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream], *, unix: bool) -> None:
        connection = Connection(stream, self._app, self._config, self._worker, self._options, {"unix": unix})
        self._open.add(connection)
        try:
            with self._metrics.http_connections.track_inprogress():
                await connection.run()
        finally:
            self._open.discard(connection)

    async def _turn_away(self, stream: trio.SocketStream) -> None:
        """Says 503 in one small write that fits any socket buffer, where the transport is plain."""
        if self._tls is not None:
            return
        body = error_bytes(503)
        head = (
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        with trio.move_on_after(1):
            await stream.send_all(head.encode("ascii") + body)
            await stream.send_eof()
