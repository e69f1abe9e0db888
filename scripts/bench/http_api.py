"""The cost of the HTTP layer: CPU per request and per chunk, and how it bears clients that leave or do not read.

    python scripts/bench/http_api.py [--requests N] [--chunks N]

The server runs in a process of its own, whose CPU time is what counts: wall times mean little on a shared host. Clients
are plain sockets that keep their connection. Prints one JSON record a line.
"""

from __future__ import annotations

import argparse
import contextlib
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

    def rss(self) -> int:
        return self._process.memory_info().rss

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


def stuck(count: int = 50, seconds: float = 5.0) -> None:
    """Clients that ask for a stream and never read: the server's memory, and what another client notices."""
    server = Server(chunks=10**7, interval=0.0)
    body = json.dumps({**CHAT, "stream": True}).encode()
    with contextlib.ExitStack() as open_sockets:
        other = open_sockets.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        probe = head("GET", "/healthz")
        alone = sorted(_timed(other, probe) for _ in range(50))
        before = server.rss()
        for _ in range(count):
            sock = open_sockets.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(head("POST", "/v1/chat/completions", body))
        time.sleep(seconds)
        middle = server.rss()
        time.sleep(seconds)
        beside = sorted(_timed(other, probe) for _ in range(50))
        figures = {
            "streams": count,
            "rss_mib_before": before / 2**20,
            f"rss_mib_after_{seconds:g}_s": middle / 2**20,
            f"rss_mib_after_{2 * seconds:g}_s": server.rss() / 2**20,
            "other_client_ms_before": alone[25] * 1000,
            "other_client_ms_beside": beside[25] * 1000,
        }
    server.close()
    emit("streams that are never read", figures)


def _timed(sock: socket.socket, request: bytes) -> float:
    began = time.perf_counter()
    exchange(sock, request, b'{"status":"ok"}')
    return time.perf_counter() - began


def leaving(rounds: int = 20) -> None:
    """How long generation goes on after its client has left, and how long a stop takes with a stream open."""

    async def run() -> tuple[list[float], float]:
        node = ScriptedNode(Script(endless=True, interval=0.005))
        body = json.dumps({**CHAT, "stream": True}).encode()
        waits: list[float] = []
        async with trio.open_nursery() as nursery:
            options = ApiOptions(port=0)
            bound = await nursery.start(partial(serve_api, node, options, MemoryKeyStore(), node.observer))
            for _ in range(rounds):
                async with await trio.open_tcp_stream(*bound.tcp[0]) as stream:
                    await stream.send_all(head("POST", "/v1/chat/completions", body))
                    await node.begun(node.sent + 20)
                began = time.perf_counter()
                await node.settled()
                waits.append((time.perf_counter() - began) * 1000)
            stream = await trio.open_tcp_stream(*bound.tcp[0])
            await stream.send_all(head("POST", "/v1/chat/completions", body))
            await node.begun(node.sent + 20)
            began = time.perf_counter()
            node.stopping.set()
        stopped = time.perf_counter() - began
        await stream.aclose()
        return waits, stopped

    waits, stopped = trio.run(run)
    emit("client leaves a stream", {"ms_median": sorted(waits)[rounds // 2], "ms_max": max(waits)})
    emit("node stops with a stream that is not read", {"ms": stopped * 1000})


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
    leaving()
    stuck()


if __name__ == "__main__":
    main()
