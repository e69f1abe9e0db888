"""A web server on the loopback that answers what a test says, and a client that may reach it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from gnusnode.web.client import WebClient, open_client
from gnusnode.web.exchange import WebRequest
from gnusnode.web.pacing import Pacer
from gnusnode.web.urls import parse


@dataclass(frozen=True)
class Endless:
    """An answer that never ends: ``piece`` again and again."""

    head: bytes
    piece: bytes


Replies = Mapping[str, bytes | Endless]


@dataclass
class Site:
    """Answers by path; unknown ones get 404. ``asked`` holds each request's head, in order."""

    port: int
    asked: list[str] = field(default_factory=list)

    def url(self, path: str, host: str = "site.test") -> str:
        return f"http://{host}:{self.port}{path}"

    def paths(self) -> list[str]:
        return [head.split()[1] for head in self.asked]


def answer(body: bytes = b"", *headers: str, status: int = 200, kind: str = "text/plain") -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def site(replies: Replies, *, ssl_context: Any = None, hold: bool = False) -> AsyncGenerator[Site]:
    """A site. With ``hold`` connections stay open after an answer that says nothing of its end."""

    async def serve(stream: trio.abc.Stream) -> None:
        if ssl_context is not None:
            stream = trio.SSLStream(stream, ssl_context, server_side=True)
        received = b""
        try:
            while data := await stream.receive_some():
                received += data
                while b"\r\n\r\n" in received:
                    head, _, received = received.partition(b"\r\n\r\n")
                    found.asked.append(head.decode())
                    path = head.split()[1].decode()
                    reply = replies.get(path, answer(status=404))
                    while isinstance(reply, Endless):
                        await stream.send_all(reply.head + reply.piece * 100)
                        reply = Endless(b"", reply.piece)
                    await stream.send_all(reply)
                    if b"content-length" not in reply.lower() and not hold:
                        return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            with trio.move_on_after(1, shield=True):
                await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(lambda **kw: trio.serve_tcp(serve, 0, host="127.0.0.1", **kw))
        found = Site(listeners[0].socket.getsockname()[1])
        yield found
        nursery.cancel_scope.cancel()


def names(**hosts: Sequence[str]) -> Callable[[str, int], Any]:
    """A resolver that knows only these names, with dots as underscores."""
    known = {name.replace("_", "."): answers for name, answers in hosts.items()}

    async def resolve(host: str, port: int) -> Sequence[str]:
        await trio.lowlevel.checkpoint()
        if host not in known:
            raise OSError("no such name")
        return known[host]

    return resolve


@asynccontextmanager
async def client_for(
    *sites: Site, hosts: Sequence[str] = ("site.test", "other.test"), **settings: Any
) -> AsyncGenerator[WebClient]:
    """A client for which the sites are named by the operator, under every name of ``hosts``."""
    settings.setdefault("leaks", lambda url, headers, body: ())
    settings.setdefault("pacer", Pacer(interval=0))
    settings.setdefault("resolve", names(**{host.replace(".", "_"): ["127.0.0.1"] for host in hosts}))
    allowed = [(host, entry.port) for host in hosts for entry in sites]
    async with open_client(allowed=allowed, **settings) as client:
        yield client


def get(url: str, **fields: Any) -> WebRequest:
    fields.setdefault("robots", False)
    return WebRequest(parse(url), **fields)
