"""The processes of a devnet, with small programs in the place of nodes: who starts, who ends, and that nobody stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from gnusnode.cli import nodes
from gnusnode.devnet import NodePlan, UsableNode, lay_out
from gnusnode.errors import NotRunning
from tests.swarm.harness import alive

PROGRAM = """
import http.server, json, os, pathlib, signal, socket, socketserver, sys
words, home = sys.argv[1:-2], pathlib.Path(sys.argv[-1])
with (home.parent / "commands").open("a") as file:
    file.write(f"{home.name}: {' '.join(words)}\\n")
if words[0] == "swarm":
    if words[1] == "join" and (home.parent / "refuse").exists():
        sys.exit("error: the token is used up")
    print(json.dumps({"token": f"token-{len((home.parent / 'commands').read_text())}"}))
    (home / "swarm").mkdir(exist_ok=True)
    if words[1] != "invite":
        (home / "swarm" / "swarm.json").write_text("{}")
    sys.exit(0)
if (home / "broken").exists():
    print("error: no room for the model\\n  next:  make some", file=sys.stderr)
    sys.exit(6)
if (home.parent / "stubborn").exists():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"swarm": {"peers": {"usable": 1}}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def address_string(self):
        return ""
    def log_message(self, *_):
        pass

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

place = f"{home}/api.sock"
pathlib.Path(place).unlink(missing_ok=True)
with Server(place, Answer) as server:
    run = {"pid": os.getpid(), "peer_id": f"peer of {home.name}", "socket": place, "api": "http://127.0.0.1:1"}
    (home / "run.json").write_text(json.dumps(run))
    server.serve_forever()
"""


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "node.py"
    script.write_text(PROGRAM)
    monkeypatch.setattr(nodes, "_program", lambda: [sys.executable, "-S", "-E", str(script)])
    monkeypatch.setattr(nodes, "LOOK_SECONDS", 0.02)


def unexpected(plan: NodePlan, code: int) -> None:
    raise AssertionError(f"{plan.name} ended with {code}")


async def test_the_first_founds_and_invites_and_the_others_join_before_they_start(tmp_path: Path) -> None:
    told: list[UsableNode] = []
    async with nodes.run_devnet(lay_out(3, tmp_path), told=told.append, ended=unexpected):
        assert told[0].plan.name == "node-1"
        assert {node.peer_id for node in told} == {f"peer of node-{number}" for number in (1, 2, 3)}
        assert all(alive(node.pid) for node in told)
    assert not any(alive(node.pid) for node in told)
    said = (tmp_path / "commands").read_text().splitlines()
    assert said[:2] == ["node-1: swarm init devnet", "node-1: start"]
    assert said[2] == "node-1: swarm invite --roles core,elm --uses 2 --json"
    assert len([line for line in said if " join " in line]) == 2
    for name in ("node-2", "node-3"):
        assert [line.split()[1] for line in said if line.startswith(f"{name}:")] == ["swarm", "start"]


async def test_a_second_run_on_the_same_folder_founds_and_joins_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        async with nodes.run_devnet(lay_out(2, tmp_path), told=lambda _: None, ended=unexpected):
            pass
    said = (tmp_path / "commands").read_text().splitlines()
    assert sorted(said[-2:]) == ["node-1: start", "node-2: start"]
    assert sum(" join " in line for line in said) == 1


async def test_a_node_that_cannot_start_ends_the_others_and_its_last_words_are_told(tmp_path: Path) -> None:
    plans = lay_out(2, tmp_path)
    plans[1].home.mkdir()
    (plans[1].home / "broken").touch()
    told: list[UsableNode] = []
    with pytest.raises(NotRunning, match="node-2 ended with code 6: error: no room for the model") as caught:
        async with nodes.run_devnet(plans, told=told.append, ended=unexpected):
            raise AssertionError
    assert caught.value.where == str(plans[1].log)
    assert [node.plan.name for node in told] == ["node-1"]
    assert not alive(told[0].pid)


async def test_a_command_that_fails_is_named_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "refuse").touch()
    with pytest.raises(NotRunning, match="`gnusnode swarm join` failed: error: the token is used up"):
        async with nodes.run_devnet(lay_out(2, tmp_path), told=lambda _: None, ended=unexpected):
            raise AssertionError


async def test_a_node_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "GRACE_SECONDS", 0.1)
    (tmp_path / "stubborn").touch()
    told: list[UsableNode] = []
    async with nodes.run_devnet(lay_out(2, tmp_path), told=told.append, ended=unexpected):
        pass
    assert len(told) == 2
    assert not any(alive(node.pid) for node in told)


async def test_a_node_that_dies_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    told: list[UsableNode] = []
    send, receive = trio.open_memory_channel[tuple[str, int]](2)
    async with nodes.run_devnet(
        lay_out(2, tmp_path), told=told.append, ended=lambda plan, code: send.send_nowait((plan.name, code))
    ):
        os.kill(told[1].pid, signal.SIGKILL)
        with trio.fail_after(20):
            assert await receive.receive() == (told[1].plan.name, -signal.SIGKILL)
        assert alive(told[0].pid)
    assert not alive(told[0].pid)


def test_ctrl_c_ends_the_command_and_every_node(tmp_path: Path) -> None:
    """The whole command, with nodes that are the small program."""
    code = (
        "import sys\nfrom gnusnode.cli import nodes\nfrom gnusnode.cli.app import app\n"
        f"nodes._program = lambda: [sys.executable, '-S', '-E', {str(tmp_path / 'node.py')!r}]\n"
        f"app(['devnet', '2', '--json', '--dir', {str(tmp_path)!r}])"
    )
    command = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert command.stdout is not None
        found = [json.loads(command.stdout.readline()) for _ in range(2)]
        assert {node["name"] for node in found} == {"node-1", "node-2"}
        assert all(alive(node["pid"]) for node in found)
        command.send_signal(signal.SIGINT)
        assert command.wait(30) == 0
        assert not any(alive(node["pid"]) for node in found)
    finally:
        command.kill()
        command.wait()
        assert command.stdout is not None
        command.stdout.close()
