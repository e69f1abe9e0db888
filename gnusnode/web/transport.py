"""The guard as a transport of ``httpx2``: whoever uses it, directly or in a client, passes every check at every hop."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterable, AsyncIterator, Collection, Generator
from contextlib import contextmanager
from typing import Any, Final, cast

import httpcore2
import httpx2

from gnusnode.web.backend import GuardedBackend, Place, Resolve
from gnusnode.web.refusals import Reason, WebRefused
from gnusnode.web.urls import Url, parse, require_domain, require_public

_CONNECTIONS: Final = 32
_IDLE_CONNECTIONS: Final = 8
_KEEPALIVE: Final = 15.0
"""Seconds; then the name is resolved again."""


def default_ssl_context() -> ssl.SSLContext:
    """Certificates of the system's authorities; nothing from the environment."""
    return httpx2.create_ssl_context(trust_env=False)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends requests to public web servers and to the places that the operator named; HTTP/1.1, no proxy.

    Args:
        allowed: places (host as in ``Url``, port) that may be anywhere: servers out of the operator's configuration.
            They hold for everything that uses this transport, so one that follows addresses out of pages has none.
        resolve: see ``GuardedBackend``.
        ssl_context: None: ``default_ssl_context``.
    """

    def __init__(
        self,
        *,
        allowed: Collection[Place] = (),
        resolve: Resolve | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed = frozenset(allowed)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl_context or default_ssl_context(),
            max_connections=_CONNECTIONS,
            max_keepalive_connections=_IDLE_CONNECTIONS,
            keepalive_expiry=_KEEPALIVE,
            network_backend=GuardedBackend(allowed=allowed, resolve=resolve),
        )

    def judge(self, url: Url, domains: Collection[str] | None = None) -> None:
        """What can be told of ``url`` without asking anybody: see ``require_public``, which named places need not pass.

        Raises:
            WebRefused: it may not be reached.
        """
        if (url.host, url.port) not in self._allowed:
            require_public(url, domains)
        else:
            require_domain(url, domains)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer to ``request``, its body unread.

        Raises:
            WebRefused: a rule forbids the request; nothing was sent.
            WebFailed: the name has no address.
            httpx2.TransportError: the network or the server failed.
        """
        url = parse(str(request.url))
        self.judge(url)
        headers = _honest_headers(request, url)
        with _mapped():
            answer = await self._pool.handle_async_request(
                httpcore2.Request(
                    method=request.method,
                    # Of our own parts: no second parser decides where this goes.
                    url=httpcore2.URL(
                        scheme=url.scheme.encode(),
                        host=url.host.encode(),
                        port=url.port,
                        target=url.target.encode(),
                    ),
                    headers=headers,
                    content=cast("AsyncIterable[bytes]", request.stream),
                    extensions=request.extensions,
                )
            )
        body = _Body(cast("AsyncIterable[bytes]", answer.stream), answer)
        extensions = cast("dict[str, Any]", cast("Any", answer).extensions)
        return httpx2.Response(
            answer.status, headers=answer.headers, stream=body, extensions=extensions, request=request
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, chunks: AsyncIterable[bytes], answer: httpcore2.Response) -> None:
        self._chunks = chunks
        self._answer = answer

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Chunks(aiter(self._chunks))

    async def aclose(self) -> None:
        await self._answer.aclose()


class _Chunks:
    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        with _mapped():
            return await anext(self._chunks)


def _honest_headers(request: httpx2.Request, url: Url) -> list[tuple[bytes, bytes]]:
    """The headers with a ``Host`` that says what the URL says.

    Raises:
        WebRefused: HEADER_NOT_ALLOWED, an extension names another server or target than the URL.
    """
    if request.extensions.keys() & {"sni_hostname", "target"}:
        raise WebRefused(Reason.HEADER_NOT_ALLOWED, "another server or target than the URL's", where=str(url))
    others = [(name, value) for name, value in request.headers.raw if name.lower() != b"host"]
    return [(b"Host", url.authority.encode()), *others]


@contextmanager
def _mapped() -> Generator[None]:
    """Errors of ``httpcore2`` under their names in ``httpx2``."""
    try:
        yield
    except (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
        named = getattr(httpx2, type(error).__name__, httpx2.TransportError)
        raise named(str(error)) from error
