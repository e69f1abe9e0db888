"""Whoever can reach the port, and a member that means no good, against a running node: it lives, and gives back all."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

import psutil
import pytest
import trio

from gnusnode.errors import GnusError
from tests.swarm.evil import connected, knock
from tests.swarm.swarmlab import Member, Swarm, free_port, swarm

pytestmark = pytest.mark.timeout(180)

GROWTH = 48 * 2**20
"""Bytes of memory that a node may keep from an attack: caches and arenas, nothing that grows with the next one."""
SLACK = 12
"""Open files that may come and go meanwhile."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with swarm(tmp_path_factory.mktemp("attacks")) as made:
        made.found()
        made.join("honest", "--no-model")
        made.first.await_usable(1)
        yield made


@pytest.fixture
def target(lab: Swarm) -> Iterator[Member]:
    """The first node; afterwards it must live, have its memory and files back, and serve an honest member anew."""
    first, honest = lab.members[:2]
    process = psutil.Process(first.running.process.pid)
    files, memory = process.num_fds(), process.memory_info().rss
    yield first
    first.until(lambda: process.num_fds() <= files + SLACK, "closes what the attack left")
    assert process.memory_info().rss - memory < GROWTH
    honest.stop()
    honest.restart()
    first.await_usable(1)
    honest.await_usable(1)


# --- anybody ----------------------------------------------------------------------------------------------------------


def test_a_thousand_connections_that_come_and_go_leave_nothing(target: Member) -> None:
    for _ in range(1000):
        with contextlib.suppress(OSError):
            knock(target).close()


def test_garbage_before_the_handshake_ends_its_connection_only(target: Member) -> None:
    for _ in range(100):
        with contextlib.suppress(OSError), knock(target) as connection:
            connection.sendall(os.urandom(4096))
    multistream = b"\x13/multistream/1.0.0\n"
    for more in (b"\xff" * 64, multistream * 500, multistream + b"\x07/noise\n" + b"\xff\xff" + bytes(65535)):
        with contextlib.suppress(OSError), knock(target) as connection:
            connection.sendall(multistream + more)
            connection.recv(4096)


def test_silent_connections_do_not_keep_a_member_out(lab: Swarm, target: Member) -> None:
    silent = []
    for _ in range(60):
        with contextlib.suppress(OSError):
            silent.append(knock(target))
    honest = lab.members[1]
    honest.stop()
    honest.restart()
    target.await_usable(1)
    for connection in silent:
        connection.close()


def test_a_node_joins_although_the_first_addresses_it_tries_lead_nowhere(lab: Swarm) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", free_port()))
        mute.listen()
        port, peer = mute.getsockname()[1], lab.first.peer_id
        nowhere = [f"/ip6/100::1/tcp/4001/p2p/{peer}", f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}"]
        newcomer = lab.join("newcomer", "--no-model", *(word for address in nowhere for word in ("--peer", address)))
        newcomer.until(lambda: newcomer.status()["usable"] >= 1, "is in", patience=20)
        newcomer.stop()


# --- a member ---------------------------------------------------------------------------------------------------------

PROTOCOLS = ("/gnus/hello/1", "/gnus/rpc/1", "/gnus/roster/1", "/gnus/join/1", "/gnus/blob/1")
MESSAGES = (
    b"",
    b"\x00",
    b"\xff" * 200,
    bytes.fromhex("a1646b696e646167"),  # cut off
    bytes.fromhex("a1646b696e6467") + b"nothing",  # an unknown kind
    b"\x9f" * 5000,  # arrays without end
    b"\x5b" + struct.pack(">Q", 2**62),  # a text of 4 exabytes
    b"\x81" * 20_000 + b"\x00",  # nested
    bytes(1_000_000),
)


@pytest.fixture
def evil(lab: Swarm) -> Member:
    """A member whose key and network key an attacker uses with a program of its own."""
    name = "evil"
    found = [member for member in lab.members if member.name == name]
    if found:
        return found[0]
    made = lab.join(name, "--no-model")
    lab.first.until(lambda: made.peer_id in lab.first.peers(), "knows the member")
    made.stop()
    return made


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_messages_of_a_member_that_are_none_cost_it_its_stream_and_nobody_else_anything(
    evil: Member, target: Member, protocol: str
) -> None:
    async with connected(evil, target) as net:
        for message in MESSAGES:
            with contextlib.suppress(GnusError), trio.move_on_after(10):
                stream = await net.open_stream(target.peer_id, protocol)
                await stream.send(message)
                assert await stream.receive() != message
        assert target.request("GET", "/healthz")[0] == 200


async def test_a_thousand_streams_at_once_are_bounded(evil: Member, target: Member) -> None:
    async with connected(evil, target) as net:
        opened = []
        with trio.move_on_after(20), contextlib.suppress(GnusError):
            for _ in range(1000):
                opened.append(await net.open_stream(target.peer_id, "/gnus/hello/1"))
        assert len(opened) < 1000
        assert target.request("GET", "/healthz")[0] == 200


async def test_gossip_that_is_none_makes_no_peers_and_ends_nobody(lab: Swarm, evil: Member, target: Member) -> None:
    short_id = lab.first.status()["id"].removeprefix("sha256:")[:16]
    async with connected(evil, target) as net:
        for name in ("announce", "roster"):
            topic = f"gnus/{short_id}/{name}/1"
            async with net.subscribe(topic, lambda _, __: True):
                # The mesh of a topic forms at some heartbeat of both: what is said before is said again.
                for message in MESSAGES * 3:
                    with contextlib.suppress(GnusError):
                        await net.publish(topic, message[:150_000])
                    await trio.sleep(0.1)
    assert target.request("GET", "/healthz")[0] == 200
    assert set(target.peers()) <= {member.peer_id for member in lab.members}


async def test_a_former_member_that_still_has_the_network_key_overhears_nothing(lab: Swarm, target: Member) -> None:
    former = lab.join("former", "--no-model")
    target.until(lambda: target.peers().get(former.peer_id, {}).get("state") == "usable", "knows the member")
    former.stop()
    target.command("swarm", "revoke", former.peer_id)
    short_id = target.status()["id"].removeprefix("sha256:")[:16]
    async with connected(former, target) as net:
        for name in ("announce", "roster"):
            async with net.subscribe(f"gnus/{short_id}/{name}/1", lambda _, __: True) as heard:
                with trio.move_on_after(5):  # two heartbeats
                    raise AssertionError(f"overheard {await anext(heard)}")
