"""A node that is killed while it answers has lost nothing that it acknowledged; a chain that was changed says where."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import lmdb
import pytest

from tests.swarm.attacks import chat, eventually, post
from tests.swarm.harness import NodeProcess, gnusnode, running

KILLS = 20
CLIENTS = 3


class Model(BaseHTTPRequestHandler):
    """An OpenAI server that says one word: it is the node that is killed here, and its start should be cheap."""

    protocol_version = "HTTP/1.0"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for delta, finish in (({"role": "assistant", "content": "yes"}, None), ({}, "stop")):
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            event = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Says nothing."""


@pytest.fixture
def remote() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


def answer_until_killed(node: NodeProcess, answered: list[str]) -> None:
    """One client that asks again and again, and notes the tasks of the answers that it got whole."""
    while node.process.poll() is None:
        try:
            status, answer = post(node, chat(model="far"), timeout=10)
        except (OSError, ValueError, AssertionError, http.client.HTTPException):
            return
        assert status == 200, answer
        digits = answer["id"].removeprefix("chatcmpl-")
        answered.append("-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])))


@pytest.mark.slow
def test_a_node_that_is_killed_under_load_loses_nothing_that_it_answered(tmp_path: Path, remote: str) -> None:
    home, answered = tmp_path / "home", list[str]()
    gnusnode("init", "--home", str(home))
    config = home / "gnusnode.toml"
    config.write_text(config.read_text() + f'\n[[inference.remote]]\nname = "far"\nurl = "{remote}"\nmodel = "m"\n')
    for round_ in range(KILLS):
        with running(home, "--no-model", ready=False) as node:
            node.run_info()
            wanted = len(answered) + random.Random(round_).randint(1, 30)
            clients = [threading.Thread(target=answer_until_killed, args=(node, answered)) for _ in range(CLIENTS)]
            for client in clients:
                client.start()
            eventually(lambda wanted=wanted: len(answered) >= wanted, "some answers")
            node.process.kill()
            node.process.wait()
            for client in clients:
                client.join()
        if round_ % 4 == 3:
            verified = gnusnode("audit", "verify", "--home", str(home))
            assert verified.returncode == 0, (round_, verified.stderr)
    with running(home, "--no-model", ready=False) as node:
        node.run_info()
        for task in answered:
            status, body = node.get(f"/gnus/v1/plans/{task}")
            assert status == 200, task
            assert json.loads(body)["state"] == "done", body


@pytest.mark.parametrize("way", ["changed", "removed", "swapped", "cut off"])
def test_a_chain_that_was_tampered_with_says_where(tmp_path: Path, way: str) -> None:
    home = tmp_path / "home"
    for _ in range(3):
        with running(home, "--no-model"):
            pass
    with lmdb.open(str(home / "data"), max_dbs=32) as env:
        table = env.open_db(b"audit", create=False)
        with env.begin(table, write=True) as txn:
            entries = list(txn.cursor())
            assert len(entries) >= 4
            (key, value), (other, later) = entries[1], entries[2]
            if way == "changed":
                txn.put(key, value.replace(b"node", b"nope", 1))
            elif way == "removed":
                txn.delete(key)
            elif way == "swapped":
                txn.put(key, later)
                txn.put(other, value)
            else:
                txn.delete(entries[-1][0])
    verified = gnusnode("audit", "verify", "--home", str(home))
    assert verified.returncode == 6, (verified.stdout, verified.stderr)
    place = str(len(entries) - 1) if way == "cut off" else "1"
    assert place in verified.stdout + verified.stderr
