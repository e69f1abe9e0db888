"""Real nodes in real processes, each in a home of its own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "gnusnode")
START_LIMIT = 60.0
"""Seconds after which a test gives up on a start; no test judges how fast it was."""


def environment(**more: str) -> dict[str, str]:
    """This process's environment without settings of a node."""
    return {key: value for key, value in os.environ.items() if not key.startswith("GNUSNODE_")} | more


def gnusnode(
    *arguments: str, env: dict[str, str] | None = None, timeout: float = 60, prefix: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        [*prefix, *COMMAND, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=timeout,
        env=environment(**(env or {})),
        check=False,
    )


class NodeProcess:
    """A daemon; ``stop`` or the end of ``running`` ends it."""

    def __init__(self, home: Path, *flags: str, env: dict[str, str] | None = None, prefix: Sequence[str] = ()) -> None:
        """``prefix``: a command that becomes ours, such as ``ip netns exec NAME``."""
        self.home = home
        self.log = home.parent / f"{home.name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*prefix, *COMMAND, "start", "--home", str(home), "--api", "127.0.0.1:0", *flags],
                stdout=log,
                stderr=log,
                env=environment(**(env or {})),
            )

    def run_info(self) -> dict[str, Any]:
        """What the node wrote about itself; waits until it did."""
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline:
            with suppress(OSError, ValueError):
                info = json.loads((self.home / "run.json").read_text())
                if info["pid"] == self.process.pid:  # not what a killed predecessor left
                    return info
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.tail()}"
            time.sleep(0.02)
        raise AssertionError(f"no run.json: {self.tail()}")

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.run_info()["api"].removeprefix("http://").rpartition(":")
        return host, int(port)

    @property
    def url(self) -> str:
        return self.run_info()["api"]

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_LIMIT
        status, body = 0, b""
        while time.monotonic() < deadline:
            status, body = self.get("/readyz")
            if status == 200:
                return
            time.sleep(0.05)
        raise AssertionError(f"not ready: {status} {body!r} {self.tail()}")

    def get(self, path: str) -> tuple[int, bytes]:
        return self.request("GET", path)

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"Content-Type": "application/json"} if payload else {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def ask(self, **fields: Any) -> dict[str, Any]:
        """A chat completion; fails on any status but 200."""
        body = {"model": "gnus", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8} | fields
        status, answer = self.request("POST", "/v1/chat/completions", body)
        assert status == 200, answer
        return json.loads(answer)

    def children(self) -> list[int]:
        """Pids of its child processes."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def start_stream(self, client: socket.socket, tokens: int = 4000) -> bytes:
        """Asks for a long streamed answer over a raw connection; gives the first bytes of the response."""
        messages = [{"role": "user", "content": "Count."}]
        body = json.dumps({"model": "gnus", "stream": True, "max_tokens": tokens, "messages": messages}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        client.sendall(head.encode() + body)
        return client.recv(4096)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        """Asks it to end and gives its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(30)

    def tail(self) -> str:
        return self.log.read_text("utf-8", "replace")[-3000:]


@contextmanager
def running(home: Path, *flags: str, env: dict[str, str] | None = None, ready: bool = True) -> Iterator[NodeProcess]:
    """A node that is there while the context is open, and gone after it."""
    node = NodeProcess(home, *flags, env=env)
    try:
        if ready:
            node.wait_ready()
        yield node
    finally:
        try:
            node.stop()
        except subprocess.TimeoutExpired:
            node.process.kill()
            node.process.wait()
            raise


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
