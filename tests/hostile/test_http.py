"""Malformed HTTP, over plain sockets and TLS, with every way of hanging up: nothing of it ends the node."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from gnusnode.api.options import BoundAddresses
from tests.hostile.http_inputs import HOSTILE
from tests.unit.api.scripted import ScriptedNode
from tests.unit.api.serving import dial, read_all, serving

HEALTHY = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
Hang = Callable[[trio.SocketStream, trio.abc.Stream, bytes], Awaitable[None]]


async def close_at_once(raw: trio.SocketStream, stream: trio.abc.Stream, data: bytes) -> None:
    await stream.send_all(data)


async def read_the_answer(raw: trio.SocketStream, stream: trio.abc.Stream, data: bytes) -> None:
    await stream.send_all(data)
    with trio.move_on_after(0.05):
        await read_all(stream)


async def reset(raw: trio.SocketStream, stream: trio.abc.Stream, data: bytes) -> None:
    await stream.send_all(data)
    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def half_close(raw: trio.SocketStream, stream: trio.abc.Stream, data: bytes) -> None:
    await stream.send_all(data)
    await raw.send_eof()
    with trio.move_on_after(0.05):
        await read_all(raw)


async def in_pieces(raw: trio.SocketStream, stream: trio.abc.Stream, data: bytes) -> None:
    for start in range(0, min(len(data), 600), 17):
        await stream.send_all(data[start : start + 17])
        await trio.lowlevel.checkpoint()
    with trio.move_on_after(0.05):
        await read_all(stream)


WAYS: tuple[Hang, ...] = (close_at_once, read_the_answer, reset, half_close, in_pieces)


@pytest.fixture
def node() -> ScriptedNode:
    return ScriptedNode()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def batched(items: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    rest = list(items)
    while rest:
        yield rest[:size]
        del rest[:size]


async def answers(bound: BoundAddresses, trust: ssl.SSLContext | None) -> bool:
    with trio.fail_after(20):
        async with await dial(bound) as raw:
            stream = await secured(raw, trust)
            await stream.send_all(HEALTHY)
            return (await read_all(stream)).startswith(b"HTTP/1.1 200")


async def secured(raw: trio.SocketStream, trust: ssl.SSLContext | None) -> trio.abc.Stream:
    if trust is None:
        return raw
    return trio.SSLStream(raw, trust, server_hostname="127.0.0.1", https_compatible=True)


async def attack(bound: BoundAddresses, trust: ssl.SSLContext | None, data: bytes, hang: Hang) -> None:
    async with await dial(bound) as raw:
        # The node may hang up first.
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await hang(raw, await secured(raw, trust), data)


def tls_files(authority: trustme.CA, folder: Path) -> tuple[dict[str, Path], ssl.SSLContext]:
    certificate = authority.issue_cert("127.0.0.1")
    cert, key = folder / "cert.pem", folder / "key.pem"
    certificate.cert_chain_pems[0].write_to_path(cert)
    certificate.private_key_pem.write_to_path(key)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    return {"tls_cert": cert, "tls_key": key}, trust


@pytest.mark.parametrize("hang", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("layer", ["plain", "tls", "plain-to-tls"])
async def test_no_malformed_request_ends_the_node(
    node: ScriptedNode, tmp_path: Path, authority: trustme.CA, layer: str, hang: Hang
) -> None:
    files, trust = tls_files(authority, tmp_path)
    options: dict[str, Any] = {} if layer == "plain" else files
    inside = trust if layer == "tls" else None
    async with serving(node, header_seconds=1.0, body_seconds=1.0, **options) as bound:
        for some in batched(HOSTILE.values(), 16):
            async with trio.open_nursery() as nursery:
                for data in some:
                    nursery.start_soon(attack, bound, inside, data, hang)
            assert await answers(bound, trust if options else None)
        assert not node.running


@pytest.mark.parametrize("name", sorted(HOSTILE))
async def test_what_is_answered_to_a_malformed_request_is_http(node: ScriptedNode, name: str) -> None:
    async with serving(node, header_seconds=0.2, body_seconds=0.2, keep_alive_seconds=0.1) as bound:
        with trio.fail_after(10):
            async with await dial(bound) as stream:
                with contextlib.suppress(trio.BrokenResourceError):  # refused before everything was sent
                    await stream.send_all(HOSTILE[name])
                answer = await read_all(stream)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 "), answer[:80]
        if answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")):
            assert b'{"error":{"message":' in answer
        assert not answer.startswith(b"HTTP/1.1 500"), answer
