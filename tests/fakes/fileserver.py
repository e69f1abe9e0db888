"""An HTTP server of one file that can misbehave in every way a download must survive."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import trio


@dataclass
class FileServer:
    """Attributes may be changed between and during requests. ``address`` is set by ``serve``."""

    data: bytes
    etag: str | None = '"v1"'
    last_modified: str | None = None
    ranges: bool = True
    honour_if_range: bool = True
    length: int | None = None
    """What Content-Length claims instead of the truth."""
    announce: bool = True
    """Whether there is a Content-Length at all; without it the body ends with the connection."""
    cuts: list[int] = field(default_factory=list)
    """For each request to come, after how many bytes of the body the connection breaks."""
    statuses: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Answers, with headers, that come before any file."""
    headers: dict[str, str] = field(default_factory=dict)
    content_range: str | None = None
    stall_after: int | None = None
    """Bytes after which the server says nothing more but keeps the connection."""
    address: str = ""
    requests: list[dict[str, str]] = field(default_factory=list)
    """Lower-case headers of each request, and its ``path``."""

    @property
    def url(self) -> str:
        return f"{self.address}/models/tiny%20model.gguf"

    async def handle(self, stream: trio.SocketStream) -> None:
        async with stream:
            try:
                await self._answer(stream)
            except trio.BrokenResourceError:
                return  # the client left

    async def _answer(self, stream: trio.SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            data = await stream.receive_some(4096)
            if not data:
                return
            head += data
        lines = head.decode().split("\r\n")
        request = {key.lower(): text for key, _, text in (line.partition(": ") for line in lines[1:] if line)}
        self.requests.append(request | {"path": lines[0].split(" ")[1]})
        if self.statuses:
            status, headers = self.statuses.pop(0)
            await stream.send_all(_head(status, {**headers, "Content-Length": "0"}))
            return
        await self._send(stream, *self._reply(request))

    def _reply(self, request: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        headers = dict(self.headers)
        if self.etag:
            headers["ETag"] = self.etag
        if self.last_modified:
            headers["Last-Modified"] = self.last_modified
        start = int(request.get("range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        same = request.get("if-range") in (None, self.etag, self.last_modified) or not self.honour_if_range
        if "range" not in request or not self.ranges or not same:
            return 200, headers, self.data
        if start >= len(self.data):
            return 416, {"Content-Range": f"bytes */{len(self.data)}"}, b""
        span = f"bytes {start}-{len(self.data) - 1}/{len(self.data)}"
        headers["Content-Range"] = self.content_range or span
        return 206, headers, self.data[start:]

    async def _send(self, stream: trio.SocketStream, status: int, headers: dict[str, str], body: bytes) -> None:
        if self.announce:
            headers["Content-Length"] = str(len(body) if self.length is None else self.length)
        await stream.send_all(_head(status, headers))
        if self.cuts:
            body = body[: self.cuts.pop(0)]
        if self.stall_after is None:
            await stream.send_all(body)
        else:
            await stream.send_all(body[: self.stall_after])
            while await stream.receive_some(4096):
                pass


@asynccontextmanager
async def serve(server: FileServer) -> AsyncGenerator[FileServer]:
    """Runs ``server`` on a free port of the loopback interface."""
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, server.handle, 0, host="127.0.0.1"))
        host, port = listeners[0].socket.getsockname()
        server.address = f"http://{host}:{port}"
        yield server
        nursery.cancel_scope.cancel()


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} X", "Connection: close", *(f"{key}: {text}" for key, text in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()
