"""``gnusnode devnet``: a whole swarm by one command, and nothing left after Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.swarm.harness import COMMAND, alive, environment

PROMISED = 5.0
"""Seconds within which one Ctrl-C ends all nodes: a promise of the product."""


@pytest.mark.timeout(180)
def test_a_devnet_comes_up_can_lose_a_node_and_ends_without_orphans(tmp_path: Path) -> None:
    with (tmp_path / "said").open("wb") as said:
        command = subprocess.Popen(
            [*COMMAND, "devnet", "3", "--no-model", "--json", "--dir", str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env=environment(),
        )
    assert command.stdout is not None
    try:
        nodes = [json.loads(line) for line in (command.stdout.readline() for _ in range(3)) if line]
        assert len(nodes) == 3, (tmp_path / "said").read_text()
        assert nodes[0]["name"] == "node-1"
        assert {node["name"] for node in nodes} == {"node-1", "node-2", "node-3"}
        assert len({node["peer_id"] for node in nodes}) == len({node["api"] for node in nodes}) == 3
        everybody = [*(node["pid"] for node in nodes), *children(command.pid)]
        psutil.Process(nodes[2]["pid"]).kill()
        await_text(tmp_path / "said", f"{nodes[2]['name']} ended with code -9")
        assert alive(nodes[0]["pid"])
        began = time.monotonic()
        command.send_signal(signal.SIGINT)
        assert command.wait(30) == 0
        assert time.monotonic() - began < PROMISED
        assert not any(alive(pid) for pid in everybody)
    finally:
        command.kill()
        command.wait()
        command.stdout.close()


def children(pid: int) -> list[int]:
    """Every process below ``pid``."""
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def await_text(file: Path, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in file.read_text():
        assert time.monotonic() < deadline, file.read_text()
        time.sleep(0.05)  # another process writes it
