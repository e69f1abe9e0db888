"""Clients that leave, that never read, and many of them: the engine is free again at once and the node stays small."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.swarm.attacks import (
    GENERATOR_ONLY,
    PATIENCE,
    Stream,
    chat,
    eventually,
    metric,
    post,
    resident_bytes,
    slots_are_free,
    unharmed,
)
from tests.swarm.harness import NodeProcess, running

pytestmark = pytest.mark.model

STOPPED = 0.5
"""Seconds within which generation stops after its client left: a promise of the product."""
GROWTH = 64 * 2**20
STUCK = 50
TURN = 2 * PATIENCE
"""Seconds in which all of them get a first turn, and one that came last its answer, on a slow machine too."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running(tmp_path_factory.mktemp("clients") / "home", env=GENERATOR_ONLY) as node:
        yield node


def is_busy(node: NodeProcess) -> bool:
    return not slots_are_free(node)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_generation_stops_when_the_client_leaves(node: NodeProcess, stream: bool) -> None:
    with unharmed(node):
        client = Stream(node, stream=stream)
        eventually(lambda: is_busy(node), "it generates")
        client.leave()
        eventually(lambda: slots_are_free(node), "its slot is free", within=STOPPED)


def test_generation_stops_when_the_client_leaves_during_a_long_prompt(node: NodeProcess) -> None:
    with unharmed(node):
        client = Stream(node, messages=[{"role": "user", "content": "x y z " * 2000}])
        eventually(lambda: is_busy(node), "it reads the prompt")
        client.leave()
        eventually(lambda: slots_are_free(node), "its slot is free", within=STOPPED)


def test_fifty_clients_that_never_read_cost_little_memory_and_nobody_elses_answer(node: NodeProcess) -> None:
    with unharmed(node):
        before = resident_bytes(node.process.pid)
        stuck = [Stream(node, max_tokens=2048) for _ in range(STUCK)]
        eventually(lambda: is_busy(node), "they are served")
        status, answer = post(node, chat(), timeout=TURN)
        assert status == 200, answer
        assert resident_bytes(node.process.pid) - before < GROWTH
        for client in stuck:
            client.leave()


def test_two_hundred_requests_that_are_given_up_leave_no_slot_task_or_descriptor_behind(node: NodeProcess) -> None:
    descriptors = Path(f"/proc/{node.process.pid}/fd")
    eventually(lambda: metric(node, "gnusnode_http_connections") <= 2, "a quiet node")
    before = len(os.listdir(descriptors))
    with unharmed(node):
        for number in range(200):
            client = Stream(node, stream=number % 2 == 0)
            if number % 10 == 0:
                client.begin()
            client.leave()
    eventually(lambda: metric(node, "gnusnode_requests_active") == 0, "no request is under way")
    eventually(lambda: metric(node, "gnusnode_http_connections") <= 2, "no connection is open")
    assert len(os.listdir(descriptors)) <= before + 2
