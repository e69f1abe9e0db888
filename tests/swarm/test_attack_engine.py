"""Engine children that are shot, frozen and looked into while a real node serves."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.swarm.attacks import (
    GENERATOR_ONLY,
    Stream,
    chat,
    descendants,
    engine,
    eventually,
    metric,
    post,
    readiness,
    status_of,
)
from tests.swarm.harness import NodeProcess, alive, running

pytestmark = pytest.mark.model

QUICK = GENERATOR_ONLY | {
    "GNUSNODE_INFERENCE__WATCHDOG_SECONDS": "2",
    "GNUSNODE_INFERENCE__QUARANTINE_CRASHES": "6",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running(tmp_path_factory.mktemp("engine") / "home", env=QUICK) as node:
        yield node


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGSTOP])
def test_streams_of_a_dead_engine_end_with_a_typed_error_and_the_next_engine_serves(
    node: NodeProcess, number: signal.Signals
) -> None:
    streams = [Stream(node).begin() for _ in range(3)]
    (child,) = node.children()
    below = descendants(child)
    restarts, counted = engine(node)["restarts"], metric(node, "gnusnode_engine_restarts_total")
    os.kill(child, number)
    assert [stream.error()["code"] for stream in streams] == ["engine_failed"] * 3
    status, reasons = readiness(node)
    assert status == 200 or "killed" in str(reasons)
    eventually(lambda: readiness(node)[0] == 200, "ready again")
    assert node.ask()["choices"][0]["finish_reason"] in ("stop", "length")
    assert engine(node)["restarts"] == restarts + 1
    assert metric(node, "gnusnode_engine_restarts_total") == counted + 1
    assert not any(alive(pid) for pid in (child, *below))


ENVIRONMENT = {
    b"LANG", b"LC_ALL", b"PYTHONPATH", b"PYTHONUTF8", b"OMP_WAIT_POLICY", b"GGML_NO_BACKTRACE", b"GLIBC_TUNABLES",
}  # fmt: skip
"""All that an engine finds in its environment: how it runs, nothing of whose it is."""


def test_an_engine_keeps_nothing_of_the_node_but_its_pipes(node: NodeProcess) -> None:
    (child,) = node.children()
    status = status_of(child)
    assert (status["Seccomp"], status["NoNewPrivs"], status["CapEff"]) == ("2", "1", "0000000000000000")
    assert os.readlink(f"/proc/{child}/ns/net") != os.readlink("/proc/self/ns/net")
    for pid in (child, *descendants(child)):
        proc = Path("/proc") / str(pid)
        names = {entry.partition(b"=")[0] for entry in (proc / "environ").read_bytes().split(b"\0") if entry}
        assert names <= ENVIRONMENT
        opened = {os.readlink(entry) for entry in (proc / "fd").iterdir()}
        assert all(name.startswith("pipe:") or name == "/dev/null" for name in opened), opened


def test_what_an_engine_starts_is_as_confined_as_itself(node: NodeProcess) -> None:
    (child,) = node.children()
    below = descendants(child)
    assert below
    for pid in below:
        assert status_of(pid)["Seccomp"] == "2"
        assert status_of(pid)["NoNewPrivs"] == "1"
        assert status_of(pid)["CapEff"] == "0000000000000000"
        assert os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")


def test_a_node_whose_engine_dies_again_and_again_says_so_and_stops_trying(tmp_path: Path) -> None:
    env = QUICK | {"GNUSNODE_INFERENCE__QUARANTINE_CRASHES": "2"}
    with running(tmp_path / "home", env=env) as node:
        for _ in range(2):
            eventually(lambda: readiness(node)[0] == 200, "ready")
            (child,) = node.children()
            os.kill(child, signal.SIGKILL)
            eventually(lambda child=child: not alive(child), "the child is gone")
            eventually(lambda: readiness(node)[0] == 503, "not ready")
        status, reasons = eventually(
            lambda: (found := readiness(node))[1] and "2 times" in str(found) and found, "the quarantine is told"
        )
        assert status == 503, reasons
        assert engine(node)["state"] == "quarantined"
        assert node.children() == []
        answered, answer = post(node, chat())
        assert answered in (502, 503)
        assert "quarantine" in answer["error"]["message"]
        assert node.get("/healthz")[0] == 200


def test_an_engine_killed_while_it_loads_is_told_and_loaded_again_without_being_asked(tmp_path: Path) -> None:
    with running(tmp_path / "home", env=QUICK, ready=False) as node:
        node.run_info()
        child = eventually(node.children, "an engine starts")[0]
        os.kill(child, signal.SIGKILL)
        eventually(lambda: "SIGKILL" in str(readiness(node)), "the reason is told")
        assert readiness(node)[0] == 503
        eventually(lambda: readiness(node)[0] == 200, "the next load makes the node ready")
        assert node.ask()["choices"]
