"""Clients that mean no good, and what one needs to see whether they did any harm."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.swarm.harness import NodeProcess

GENERATOR_ONLY = {"GNUSNODE_MODELS__EMBEDDING": "none"}
PATIENCE = 60.0
"""Seconds after which a test gives up; no promise of the product."""
HI = [{"role": "user", "content": "Say hello."}]


def chat(**fields: Any) -> dict[str, Any]:
    """The body of a short chat request."""
    return {"model": "gnus", "messages": HI, "max_tokens": 4} | fields


LONG = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {"schema": {"type": "array", "items": {"type": "integer"}, "minItems": 256}},
    }
}
"""Makes an answer that cannot end before some hundred tokens, whatever the model would like to say."""


def post(
    node: NodeProcess, body: Any, path: str = "/v1/chat/completions", *, timeout: float = PATIENCE, **headers: str
) -> tuple[int, Any]:
    """Status and decoded JSON of the answer; ``body`` may be bytes that are no JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(*node.address, timeout=timeout)
    try:
        connection.request("POST", path, data, {"Content-Type": "application/json"} | headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def is_envelope(answer: Any) -> bool:
    """Whether a body is OpenAI's error object and nothing else, without anything of our insides."""
    error = answer.get("error", {})
    return (
        set(answer) == {"error"}
        and {"message", "type", "code", "param"} <= set(error)
        and "Traceback" not in str(answer)
    )


class Stream:
    """A chat answer that is read as it comes, over a socket of its own."""

    def __init__(self, node: NodeProcess, **fields: Any) -> None:
        self.socket = socket.create_connection(node.address, timeout=PATIENCE)
        body = json.dumps(chat(stream=True, max_tokens=600) | LONG | fields).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.socket.sendall(head.encode() + body)
        self.received = b""

    def begin(self) -> Stream:
        """Reads up to the first event; fails when the answer is no stream."""
        while b"data: " not in self.received:
            more = self.socket.recv(65536)
            assert more, self.received
            self.received += more
        assert b" 200 " in self.received.splitlines()[0], self.received
        return self

    def rest(self) -> bytes:
        """Everything up to the end of the answer."""
        while more := self.socket.recv(65536):
            self.received += more
        self.socket.close()
        return self.received

    def error(self) -> dict[str, Any]:
        """The error event in which the answer must end."""
        lines = [line for line in self.rest().splitlines() if line.startswith(b"data: ")]
        assert b"[DONE]" not in self.received
        return json.loads(lines[-1].removeprefix(b"data: "))["error"]

    def leave(self) -> None:
        self.socket.close()


def eventually(condition: Callable[[], Any], what: str, within: float = PATIENCE) -> Any:
    """What ``condition`` gives once it is true. The other side is another process: there is no event to wait for."""
    deadline = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        time.sleep(0.01)
    return found


def engine(node: NodeProcess) -> dict[str, Any]:
    """What the node says of its first engine."""
    return json.loads(node.get("/gnus/v1/status")[1])["models"][0]["info"]


def readiness(node: NodeProcess) -> tuple[int, dict[str, str]]:
    status, body = node.get("/readyz")
    return status, json.loads(body)["reasons"]


def slots_are_free(node: NodeProcess) -> bool:
    info = engine(node)
    return info["free_slots"] == info["slots"] and info["queued"] == 0


def metric(node: NodeProcess, name: str, **labels: str) -> float:
    """The sum of the samples of ``name`` that have these labels."""
    total = 0.0
    for line in node.get("/metrics")[1].decode().splitlines():
        sample, _, value = line.rpartition(" ")
        if sample.partition("{")[0] == name and all(f'{key}="{wanted}"' in sample for key, wanted in labels.items()):
            total += float(value)
    return total


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def status_of(pid: int) -> dict[str, str]:
    """The fields of ``/proc/<pid>/status``."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``."""
    try:
        own = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return own + [below for child in own for below in descendants(child)]


@contextmanager
def unharmed(node: NodeProcess) -> Iterator[None]:
    """The attack in this context costs no engine, leaves no slot taken and no bug in the log, and the node serves."""
    before, logged = node.children(), len(node.log.read_text("utf-8", "replace"))
    yield
    assert node.process.poll() is None, node.tail()
    assert node.children() == before, node.tail()
    eventually(lambda: slots_are_free(node), "all slots are free")
    log = node.log.read_text("utf-8", "replace")[logged:]
    assert "a task failed" not in log, log
    assert '"level": "error"' not in log, log
    assert node.ask()["choices"]
