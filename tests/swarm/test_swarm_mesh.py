"""Nodes come, die, freeze and come back: the others keep a true picture of who is there. No models here."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.swarm.swarmlab import Member, Swarm, swarm

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """Four nodes that all know each other; whoever ended is started again for the next test."""
    with swarm(tmp_path_factory.mktemp("mesh")) as made:
        made.found()
        for name in ("b", "c", "d"):
            made.join(name, "--no-model")
        await_mesh(made.members)
        yield made


@pytest.fixture(autouse=True)
def complete(lab: Swarm) -> Iterator[None]:
    yield
    for member in lab.members:
        if member.running.process.poll() is not None:
            member.start()
    await_mesh(lab.members)


def await_mesh(members: list[Member]) -> None:
    """Until each of ``members`` counts all others usable, and nobody else."""
    with ThreadPoolExecutor(len(members)) as pool:
        list(pool.map(lambda member: member.await_usable(len(members) - 1), members))


def test_everybody_knows_everybody_from_one_bootstrap_address(lab: Swarm) -> None:
    everybody = {member.peer_id for member in lab.members}
    for member in lab.members:
        assert set(member.peers()) == everybody - {member.peer_id}
        status = member.status()
        assert status["discovered"] == status["authenticated"] == status["usable"] == 3


def test_the_rest_keeps_a_full_mesh_without_the_bootstrap_node_and_takes_it_back(lab: Swarm) -> None:
    founder, *rest = lab.members
    founder.kill()
    await_mesh(rest)
    # A restart of one of the rest shows that it did not live on old connections alone.
    rest[0].stop()
    rest[0].restart()
    await_mesh(rest)
    founder.restart()
    await_mesh(lab.members)


def test_a_killed_peer_is_no_longer_usable_at_once_and_gone_at_its_ttl(lab: Swarm) -> None:
    founder, victim = lab.members[0], lab.members[3]
    victim.kill()
    founder.until(lambda: founder.status()["usable"] == 2, "noticed the kill", patience=5)
    founder.until(lambda: victim.peer_id not in founder.peers(), "forgot it", patience=20)


def test_a_node_that_is_restarted_with_its_key_leaves_no_ghost(lab: Swarm) -> None:
    founder, restless = lab.members[0], lab.members[2]
    peer_id = restless.peer_id
    for ending in (Member.kill, Member.stop, Member.kill):
        ending(restless)
        restless.start()
        founder.until(
            lambda: founder.peers().get(peer_id, {}).get("state") == "usable" and founder.status()["usable"] == 3,
            "has it back",
        )
        restless.await_usable(3)
        assert len(founder.peers()) == 3


def test_a_frozen_node_is_noticed_and_taken_back_when_it_wakes(lab: Swarm) -> None:
    founder, frozen = lab.members[0], lab.members[1]
    with frozen.frozen():
        founder.until(lambda: founder.status()["usable"] == 2, "noticed the silence", patience=15)
        assert founder.request("GET", "/healthz")[0] == 200
    await_mesh(lab.members)


def test_the_commands_show_the_mesh(lab: Swarm) -> None:
    member = lab.members[1]
    listed = member.json("peers", "list")["data"]
    assert {entry["peer"] for entry in listed} == {other.peer_id for other in lab.members} - {member.peer_id}
    assert {entry["state"] for entry in listed} == {"usable"}
    named = member.json("swarm", "members")
    assert {entry["peer_id"] for entry in named} >= {other.peer_id for other in lab.members}
    shown = member.command("status")
    assert "lab" in shown
    checked = member.json("doctor")["swarm"]
    assert (checked["level"], "3 usable" in checked["found"]) == ("ok", True)


def test_a_node_that_leaves_is_gone_from_the_others_tables(lab: Swarm) -> None:
    founder = lab.members[0]
    guest = lab.join("guest", "--no-model")
    founder.await_usable(4)
    peer_id = guest.peer_id
    guest.stop()
    founder.until(lambda: founder.status()["usable"] == 3, "noticed the goodbye", patience=5)
    guest.command("swarm", "leave")
    assert not (guest.home / "swarm").exists()
    founder.until(lambda: peer_id not in founder.peers(), "forgot the guest", patience=20)
    lab.members.remove(guest)
