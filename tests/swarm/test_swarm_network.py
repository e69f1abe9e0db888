"""Two hosts in network namespaces, and a network between them that fails in every way that networks do."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from scripts.lab.lab import Host, LabUnavailable, lab, why_not
from tests.swarm.swarmlab import Member, Streamed, Swarm, chat, stream, swarm

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(240)]

NOTICED = 15.0
"""Seconds, with the shortened times of the lab, after which a stream over a dead network must have ended."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    if reason := why_not():
        pytest.skip(f"no namespace lab on this machine: {reason}")
    try:
        with lab(2) as found:
            yield found
    except LabUnavailable as error:
        pytest.skip(f"no namespace lab on this machine: {error}")


@pytest.fixture(scope="module")
def made(hosts: list[Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """The first node on one host, a worker with the model on the other."""
    with swarm(tmp_path_factory.mktemp("network")) as nodes:
        nodes.found(host=hosts[0])
        nodes.join("worker", host=hosts[1]).await_ready()
        nodes.first.await_answer()
        yield nodes


@pytest.fixture
def first(made: Swarm, hosts: list[Host]) -> Iterator[Member]:
    """The first node; afterwards the network is whole again."""
    yield made.first
    hosts[1].mend()
    hosts[1].shape()
    hosts[1].up()
    made.first.await_usable(1)
    made.first.await_answer()


@pytest.mark.parametrize("fault", ["cut", "down"])
def test_a_cable_that_is_gone_ends_the_stream_with_a_typed_error_and_heals(
    first: Member, hosts: list[Host], fault: str
) -> None:
    broken: list[float] = []

    def break_it(_: Streamed) -> None:
        getattr(hosts[1], fault)()
        broken.append(time.monotonic())

    seen = stream(first, chat(max_tokens=400), at=10, then=break_it, silence=45)
    assert seen.end == "error", seen
    assert seen.error["code"] in {"peer_unreachable", "engine_failed", "unavailable", "deadline_exceeded"}
    assert seen.ended - broken[0] < NOTICED
    first.until(lambda: first.status()["usable"] == 0, "gave up the worker", patience=NOTICED)


def test_a_round_trip_of_300_ms_changes_the_time_and_not_the_text(first: Member, hosts: list[Host]) -> None:
    near = stream(first, chat(max_tokens=48))
    hosts[1].shape(delay=150)
    far = stream(first, chat(max_tokens=48))
    assert far.end == near.end == "done", far
    assert far.text == near.text
    # Tokens are pushed, not asked for one by one: the distance is paid a few times in all, and not for each of them.
    assert far.times[-1] - far.times[0] < near.times[-1] - near.times[0] + 10 * 0.3


def test_with_30_percent_loss_every_stream_comes_to_an_end(first: Member, hosts: list[Host]) -> None:
    expected = stream(first, chat(max_tokens=24))
    hosts[1].shape(loss=0.3)
    for _ in range(3):
        seen = stream(first, chat(max_tokens=24), silence=45)
        assert seen.end in {"done", "error"}, seen
        if seen.end == "done":
            assert seen.text == expected.text
        else:
            assert seen.error["code"]


def test_nodes_of_a_lan_find_each_other_by_multicast_alone(made: Swarm, first: Member, hosts: list[Host]) -> None:
    """Both get new ports, so that every address that they remember is wrong."""
    worker = made.members[1]
    worker.stop()
    first.stop()
    for member, host in zip(made.members, hosts, strict=True):
        member.env["GNUSNODE_NET__MDNS"] = "true"
        member.listen = f"/ip4/{host.address}/tcp/9100"
        member.start()
    first.await_usable(1)
    assert "mdns" in first.peers()[worker.peer_id]["sources"]
