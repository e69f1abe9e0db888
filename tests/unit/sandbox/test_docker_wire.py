"""Talking to an engine: its refusals are our errors, and what is not an engine is noticed."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gnusnode.errors import (
    ConfigError,
    Conflict,
    DataError,
    DeadlineExceeded,
    GnusError,
    NotFound,
    ProtocolViolation,
    Unavailable,
    UnsupportedProtocol,
)
from sandbox.run.docker import images, wire
from sandbox.run.docker.engine import Engine

VERSION = {"ApiVersion": "1.41", "MinAPIVersion": "1.12"}
Answer = Callable[[bytes], bytes]


def http(status: int, body: object, *, chunked: bool = False) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    if not chunked:
        return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(data), data)
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(data[i : i + 3]), data[i : i + 3]) for i in range(0, len(data), 3))
    return b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n%s0\r\n\r\n" % (status, pieces)


async def request_head(stream: trio.SocketStream) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head:
        head += await stream.receive_some(4096)
    return head


@asynccontextmanager
async def listening(path: str, serve: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncGenerator[None]:
    with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM) as socket:
        await socket.bind(path)
        socket.listen()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(socket)])
            yield
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def engine(tmp_path: Path, answer: Answer, version: object = VERSION) -> AsyncGenerator[Engine]:
    """An engine that answers every call but the one for its version with ``answer(request line)``."""

    async def serve(stream: trio.SocketStream) -> None:
        line = (await request_head(stream)).split(b"\r\n")[0]
        await stream.send_all(http(200, version) if line.startswith(b"GET /version") else answer(line))
        await stream.aclose()

    path = str(tmp_path / "s")
    async with listening(path, serve):
        yield Engine(path)


async def test_the_version_is_settled_before_the_first_call(tmp_path: Path) -> None:
    lines: list[bytes] = []
    async with engine(tmp_path, lambda line: lines.append(line) or http(200, {"a": 1}, chunked=True)) as found:
        assert await found.info() == {"a": 1}
    assert lines == [b"GET /v1.41/info HTTP/1.1"]


@pytest.mark.parametrize(
    "version",
    [
        {"ApiVersion": "1.40", "MinAPIVersion": "1.12"},
        {"ApiVersion": "1.99", "MinAPIVersion": "1.90"},
        {"ApiVersion": "text", "MinAPIVersion": ""},
        {},
    ],
)
async def test_an_engine_of_an_unknown_version_is_refused(tmp_path: Path, version: object) -> None:
    async with engine(tmp_path, lambda line: http(200, {}), version) as found:
        with pytest.raises(UnsupportedProtocol):
            await found.info()


@pytest.mark.parametrize(("status", "kind"), [(404, NotFound), (409, Conflict), (500, Unavailable), (403, Unavailable)])
async def test_a_refusal_has_the_engine_s_words(tmp_path: Path, status: int, kind: type[GnusError]) -> None:
    async with engine(tmp_path, lambda line: http(status, {"message": "no such thing"})) as found:
        with pytest.raises(kind, match="no such thing"):
            await found.start("x")


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-x\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", http(200, b"<html>")]
)
async def test_what_is_no_engine_is_a_violation(tmp_path: Path, answer: bytes) -> None:
    async with engine(tmp_path, lambda line: answer) as found:
        with pytest.raises((ProtocolViolation, Unavailable)):
            await found.info()


async def test_an_endless_answer_is_not_read_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire.Exchange.read, "__defaults__", (1000,))
    async with engine(tmp_path, lambda line: http(200, b" " * 5000)) as found:
        with pytest.raises(ProtocolViolation, match="more than"):
            await found.info()


async def test_nobody_at_the_socket_is_said_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="is Docker running"):
        await Engine(str(tmp_path / "none")).version()


async def test_an_engine_that_never_answers_is_given_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    async def silent(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with listening(str(tmp_path / "s"), silent):
        with pytest.raises(DeadlineExceeded, match="10 s"):
            await Engine(str(tmp_path / "s")).version()


async def test_a_warning_at_creation_is_a_refusal(tmp_path: Path) -> None:
    answer = http(201, {"Id": "x", "Warnings": ["Your kernel does not support swap limit capabilities"]})
    async with engine(tmp_path, lambda line: answer) as found:
        with pytest.raises(Unavailable, match="swap limit"):
            await found.create("x", {})


@pytest.mark.parametrize("status", [404, 409])
async def test_removing_what_is_gone_or_being_removed_is_no_error(tmp_path: Path, status: int) -> None:
    async with engine(tmp_path, lambda line: http(status, {"message": "no such container"})) as found:
        await found.remove("x")


REFERENCE = "python@sha256:" + "a" * 64


@pytest.mark.parametrize(
    "reference", ["python:3.12", "python", "python@sha256:" + "a" * 63, "-x@sha256:" + "a" * 64, ""]
)
async def test_an_image_that_is_not_pinned_by_digest_is_refused(reference: str) -> None:
    with pytest.raises(ConfigError, match="pin"):
        await images.fetch(Engine("/nowhere"), reference)


async def test_a_pinned_image_that_the_engine_has_is_not_fetched_again(tmp_path: Path) -> None:
    async with engine(tmp_path, lambda line: http(200, {"Id": "sha256:1", "RepoDigests": [REFERENCE]})) as found:
        assert await images.fetch(found, REFERENCE) == "sha256:1"


async def test_a_missing_image_is_pulled_by_its_digest(tmp_path: Path) -> None:
    lines: list[bytes] = []

    def answer(line: bytes) -> bytes:
        lines.append(line)
        if line.startswith(b"POST"):
            return http(200, b'{"status":"Pulling"}\n{"status":"Done"}\n', chunked=True)
        return http(404, {}) if len(lines) == 1 else http(200, {"Id": "sha256:1", "RepoDigests": [REFERENCE]})

    async with engine(tmp_path, answer) as found:
        assert await images.fetch(found, REFERENCE) == "sha256:1"
    assert b"fromImage=python&tag=sha256%3A" + b"a" * 64 in lines[1]


async def test_a_failed_pull_and_another_digest_are_errors(tmp_path: Path) -> None:
    def failing(line: bytes) -> bytes:
        error = b'{"status":"Pulling"}\n{"error":"manifest unknown"}\n'
        return http(200, error, chunked=True) if line.startswith(b"POST") else http(404, {})

    async with engine(tmp_path, failing) as found:
        with pytest.raises(Unavailable, match="manifest unknown"):
            await images.fetch(found, REFERENCE)
    (tmp_path / "s").unlink()
    async with engine(
        tmp_path, lambda line: http(200, {"Id": "x", "RepoDigests": ["python@sha256:" + "b" * 64]})
    ) as found:
        with pytest.raises(DataError, match="digest"):
            await images.fetch(found, REFERENCE)
