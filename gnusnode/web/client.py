"""The client that tools, grounding and memory fetch with: every hop is checked, every size and time is bounded."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Final

import httpx2
import trio

from gnusnode.web.answer import Answer, until
from gnusnode.web.backend import Place, Resolve
from gnusnode.web.exchange import READING, Limits, Page, WebRequest, headers_for
from gnusnode.web.pacing import Pacer
from gnusnode.web.refusals import Reason, WebRefused
from gnusnode.web.robots import Robots
from gnusnode.web.transport import GuardedTransport
from gnusnode.web.urls import Url, join

_REDIRECTS: Final = (301, 302, 303, 307, 308)

Leaks = Callable[[str, Iterable[tuple[str, str]], bytes], Collection[object]]
"""The credentials that a request would carry out, of its URL, headers and body: ``sanitize.secrets.leaks``."""


class WebClient:
    """Asks public web servers. Made by ``open_client``; may be used by many tasks at once.

    Nothing is remembered between requests but connections, robots.txt and rates: no cookies, no credentials.
    """

    def __init__(self, transport: GuardedTransport, *, limits: Limits, pacer: Pacer, leaks: Leaks) -> None:
        self._transport = transport
        self._limits = limits
        self._pacer = pacer
        self._leaks = leaks
        self._robots = Robots(self.stream)

    async def fetch(self, request: WebRequest) -> Page:
        """The whole answer to ``request``.

        Raises:
            WebRefused, WebFailed: see ``stream`` and ``Answer``.
        """
        body = bytearray()
        async with self.stream(request) as answer:
            async for piece in answer:
                body += piece
        return Page(
            url=answer.url,
            hops=answer.hops,
            status=answer.status,
            headers=answer.headers,
            media_type=answer.media_type,
            charset=answer.charset,
            body=bytes(body),
        )

    @asynccontextmanager
    async def stream(self, request: WebRequest) -> AsyncGenerator[Answer]:
        """The answer to ``request``, after redirects, its type settled and the rest of its body unread.

        Raises:
            WebRefused: a rule forbids the request, one of its hops or the answer.
            WebFailed: name, network, server, rate or time.
        """
        deadline = trio.current_time() + self._limits.total
        url, hops = request.url, list[str]()
        while True:
            hops.append(str(url))
            outgoing = await self._admit(request, url, deadline)
            with until(deadline, str(url)):
                response = await self._transport.handle_async_request(outgoing)
            location = response.headers.get("location")
            if location is not None and response.status_code in _REDIRECTS and request.method in READING:
                await response.aclose()
                url = self._next_hop(url, location, len(hops))
                continue
            try:
                answer = Answer(url, hops, request, response, limits=self._limits, deadline=deadline)
            except WebRefused:
                await response.aclose()
                raise
            try:
                await answer.begin()
                yield answer
            finally:
                await answer.aclose()
            return

    def judge(self, request: WebRequest) -> None:
        """Everything about ``request`` that can be told without asking anybody; nothing is sent. Pure.

        Raises:
            WebRefused: it would be refused.
        """
        self._judge(request, request.url)

    def _judge(self, request: WebRequest, url: Url) -> dict[str, str]:
        self._transport.judge(url, request.domains)
        headers = headers_for(request, url)
        if self._leaks(str(url), tuple(headers.items()), request.body):
            raise WebRefused(Reason.CREDENTIAL_LEAK, "the request would carry out a credential", where=url.origin)
        return headers

    async def _admit(self, request: WebRequest, url: Url, deadline: float) -> httpx2.Request:
        """The request as it goes to ``url``, once that may be asked and it is its turn."""
        headers = self._judge(request, url)
        limits = self._limits
        with until(deadline, str(url)):
            pause = await self._robots.require(url, request.domains) if request.robots else 0.0
            await self._pacer.turn(url.host, longest=limits.wait, interval=pause)
        return httpx2.Request(
            request.method,
            str(url),
            headers=headers,
            content=request.body or None,
            extensions={
                "timeout": {
                    "connect": limits.connect,
                    "read": limits.idle,
                    "write": limits.idle,
                    "pool": limits.connect,
                }
            },
        )

    def _next_hop(self, url: Url, location: str, hops: int) -> Url:
        if hops > self._limits.redirects:
            raise WebRefused(Reason.REDIRECT_LIMIT, f"more than {self._limits.redirects} redirects", where=str(url))
        target = join(url, location)
        if url.scheme == "https" and target.scheme != "https":
            raise WebRefused(Reason.REDIRECT_DOWNGRADE, "a redirect from https to plain http", where=str(url))
        return target


@asynccontextmanager
async def open_client(
    *,
    leaks: Leaks,
    limits: Limits | None = None,
    pacer: Pacer | None = None,
    allowed: Collection[Place] = (),
    resolve: Resolve | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> AsyncGenerator[WebClient]:
    """A client, whose connections end with the context.

    Args:
        leaks: asked before every hop; what it finds stops the request.
        allowed, resolve, ssl_context: see ``GuardedTransport``.
    """
    transport = GuardedTransport(allowed=allowed, resolve=resolve, ssl_context=ssl_context)
    try:
        yield WebClient(transport, limits=limits or Limits(), pacer=pacer or Pacer(), leaks=leaks)
    finally:
        with trio.CancelScope(shield=True):
            await transport.aclose()
