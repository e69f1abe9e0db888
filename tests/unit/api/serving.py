"""Ways to talk to the API in a test: in memory, and over real sockets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx2
import trio

from gnusnode.api.app import build_app
from gnusnode.api.keys import KeyStore, MemoryKeyStore, NewKey, Scope
from gnusnode.api.options import ApiOptions, BoundAddresses
from gnusnode.api.server import serve_api
from tests.unit.api.scripted import ScriptedNode

CHAT: dict[str, Any] = {"model": "gnus", "messages": [{"role": "user", "content": "hi"}]}


def client_of(
    node: ScriptedNode,
    keys: KeyStore | None = None,
    *,
    token: str | None = None,
    peer: str = "127.0.0.1",
    **options: Any,
) -> httpx2.AsyncClient:
    """A client of the application without any socket."""
    app = build_app(node, ApiOptions(**options), keys or MemoryKeyStore(), node.observer)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    transport = httpx2.ASGITransport(app=app, client=(peer, 40000))  # pyright: ignore[reportArgumentType]
    return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8477", headers=headers)


def make_key(keys: KeyStore, *scopes: Scope, **limits: Any) -> str:
    return keys.create(NewKey(name="someone", scopes=frozenset(scopes or (Scope.READ, Scope.CHAT)), **limits))[1]


@asynccontextmanager
async def serving(node: ScriptedNode, keys: KeyStore | None = None, **options: Any) -> AsyncGenerator[BoundAddresses]:
    """The API on real sockets; stopped in good order at the end."""
    async with trio.open_nursery() as nursery:
        chosen = ApiOptions(**{"port": 0, "grace_seconds": 1.0, **options})
        yield await nursery.start(partial(serve_api, node, chosen, keys or MemoryKeyStore(), node.observer))
        node.stopping.set()


async def dial(bound: BoundAddresses) -> trio.SocketStream:
    return await trio.open_tcp_stream(*bound.tcp[0])


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    """Everything up to the end; a reset counts as one."""
    data = b""
    try:
        async for part in stream:
            data += part
    except trio.BrokenResourceError:
        pass
    return data


async def read_until(stream: trio.abc.ReceiveStream, wanted: bytes) -> bytes:
    data = b""
    while wanted not in data:
        part = await stream.receive_some()
        assert part, f"the stream ended before {wanted!r}: {data!r}"
        data += part
    return data


def raw_request(method: str, path: str, body: bytes = b"", headers: Sequence[str] = ()) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body
