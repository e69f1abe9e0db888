"""What the HTTP layer costs by itself: CPU per request and per chunk, with a node that answers by a script.

    python scripts/bench/http_api.py [--requests N] [--chunks N]

The server runs in a process of its own, whose CPU time is what counts: wall times mean little on a shared host. Clients
are plain sockets that keep their connection. Prints one JSON record a line.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import trio

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

import record  # noqa: E402  # lies beside this file

from gnusnode.api.keys import MemoryKeyStore  # noqa: E402  # the path has to be set first
from gnusnode.api.options import ApiOptions  # noqa: E402
from gnusnode.api.server import serve_api  # noqa: E402
from tests.unit.api.scripted import Script, ScriptedNode  # noqa: E402

CHAT = {"model": "gnus", "messages": [{"role": "user", "content": "hi"}]}


def serve(chunks: int, interval: float) -> None:
    """The child: answers until its parent closes its input."""

    async def run() -> None:
        node = ScriptedNode(Script(pieces=(" word",) * chunks, interval=interval))
        # Every token is a chunk of its own, so that chunks can be counted.
        options = ApiOptions(port=0, sse_interval_seconds=0.0)
        async with trio.open_nursery() as nursery:
            bound = await nursery.start(partial(serve_api, node, options, MemoryKeyStore(), node.observer))
            print(bound.tcp[0][1], flush=True)
            await trio.to_thread.run_sync(sys.stdin.read)
            node.stopping.set()

    trio.run(run)


class Server:
    def __init__(self, chunks: int = 3, interval: float = 0.0) -> None:
        self._child = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(chunks), str(interval)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._child.stdout is not None
        self.port = int(self._child.stdout.readline())
        self._process = psutil.Process(self._child.pid)

    def cpu(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def close(self) -> None:
        self._child.communicate("", timeout=10)


def head(method: str, path: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([*lines, "", ""]).encode() + body


def exchange(sock: socket.socket, request: bytes, end: bytes) -> bytes:
    sock.sendall(request)
    data = b""
    while end not in data[-200:]:
        part = sock.recv(1 << 16)
        assert part, "the server hung up"
        data += part
    return data


def requests(name: str, request: bytes, end: bytes, count: int) -> None:
    server = Server()
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        for _ in range(50):
            exchange(sock, request, end)
        cpu, wall = server.cpu(), time.perf_counter()
        for _ in range(count):
            exchange(sock, request, end)
        cpu, wall = server.cpu() - cpu, time.perf_counter() - wall
    server.close()
    emit(name, {"requests": count, "cpu_us_per_request": cpu / count * 1e6, "wall_us_per_request": wall / count * 1e6})


def stream(chunks: int) -> None:
    """A stream whose tokens come one by one, and one whose node never makes a pause."""
    body = json.dumps({**CHAT, "stream": True}).encode()
    for name, interval in (("stream, a token a millisecond", 0.001), ("stream, tokens without a pause", 0.0)):
        server = Server(chunks, interval)
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            exchange(sock, head("GET", "/healthz"), b"}")
            cpu = server.cpu()
            data = exchange(sock, head("POST", "/v1/chat/completions", body), b"[DONE]\n\n\r\n0\r\n\r\n")
            cpu = server.cpu() - cpu
        server.close()
        seen = data.count(b'"content":" word')
        emit(
            name,
            {
                "tokens": chunks,
                "chunks": seen,
                "cpu_us_per_chunk": cpu / seen * 1e6,
                "cpu_us_per_token": cpu / chunks * 1e6,
            },
        )


def emit(name: str, figures: dict[str, Any]) -> None:
    record.emit(f"http: {name}", {key: round(value, 1) for key, value in figures.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--chunks", type=int, default=2000)
    parser.add_argument("--serve", nargs=2, metavar=("CHUNKS", "INTERVAL"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(int(given.serve[0]), float(given.serve[1]))
        return
    requests("GET /healthz", head("GET", "/healthz"), b'{"status":"ok"}', given.requests)
    requests("GET /v1/models", head("GET", "/v1/models"), b'"state":"ready"}}]}', given.requests)
    requests(
        "POST /v1/chat/completions",
        head("POST", "/v1/chat/completions", json.dumps(CHAT).encode()),
        b'"stages_ms":{"draft":1.5}}}',
        given.requests,
    )
    stream(given.chunks)


if __name__ == "__main__":
    main()
