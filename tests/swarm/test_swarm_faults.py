"""Each fault that kills, deafens or bloats a naive libp2p node, against a running one: it lives, and counts it."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import trio

from gnusnode.contracts.swarm import short_id
from gnusnode.errors import GnusError
from tests.swarm.evil import (
    connect,
    connected,
    connection_to,
    counts,
    eventually,
    introduced,
    knock,
    moved,
    peer_of,
    prefixed,
    raw_stream,
    send_frames,
    until_ended,
)
from tests.swarm.swarmlab import Member, Swarm, swarm

pytestmark = pytest.mark.timeout(180)

GROWTH = 48 * 2**20
"""Bytes of memory that a node may keep from an attack: caches and arenas, nothing that grows with the next one."""
PEAK = 96 * 2**20
"""Bytes that it may take while the attack lasts."""
SLACK = 12
"""Open files that may come and go meanwhile."""
FAULTS, REFUSED = "gnusnode_network_faults_total", "gnusnode_peer_connections_refused_total"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """A first node with all that the network can do, an honest member, and one that an attacker has taken."""
    with swarm(tmp_path_factory.mktemp("faults")) as made:
        made.found(env={"GNUSNODE_NET__DHT": "true", "GNUSNODE_NET__RELAY": "server"})
        made.join("honest", "--no-model")
        evil = made.join("evil", "--no-model")
        made.first.await_usable(2)
        evil.stop()
        made.first.await_usable(1)
        yield made


@pytest.fixture
def evil(lab: Swarm) -> Member:
    return lab.members[2]


@pytest.fixture
def target(lab: Swarm) -> Iterator[Member]:
    """The first node; afterwards it must live, have memory and files back, and welcome a member that comes anew."""
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


def kad(target: Member) -> str:
    from gnusnode.net.p2p.dht import protocol_of

    return protocol_of(short_id(target.status()["id"]))


GARBAGE = (
    b"",
    b"\x00",
    random.Random(8).randbytes(300),
    prefixed(b"\xff" * 60),
    b"\xff\xff\xff\xff\x0f" + bytes(1000),  # announces 4 GB
    b"\xff" * 40,  # a length without end
    b"\x85\x01ab",  # cut off
    prefixed(b"\x0a\x04\xff\xff\xff\xff"),
    prefixed(b"\x12\xff\xff\xff\xff\x0f"),
    prefixed(random.Random(9).randbytes(100_000)),
)


async def say(net: Any, target: Member, protocol: str, data: bytes) -> None:
    """Sends bytes on a stream of ``protocol``, and waits a moment for its end."""
    await connect(net, target)
    with contextlib.suppress(Exception):  # it may be cut off at any byte
        muxed = await raw_stream(net, target, protocol)
        await muxed.write(data)
        await until_ended(muxed, 0.3)
        await muxed.reset()


# --- streams of the library -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "kind"),
    [
        ("/meshsub/1.1.0", "library"),
        ("/meshsub/1.2.0", "library"),
        ("/ipfs/id/push/1.0.0", "library"),
        ("/ipfs/ping/1.0.0", "stream"),  # whose bytes mean nothing, but of which no peer gets more than two
        ("kad", "stream"),
        ("/libp2p/circuit/relay/0.2.0/hop", "stream"),
        ("/libp2p/circuit/relay/0.2.0/stop", "stream"),
    ],
)
async def test_garbage_on_a_protocol_of_the_library_ends_its_own_stream(
    evil: Member, target: Member, protocol: str, kind: str
) -> None:
    before = counts(target)
    spoken = kad(target) if protocol == "kad" else protocol
    async with introduced(evil, target) as net, trio.open_nursery() as nursery:
        for garbage in GARBAGE:
            nursery.start_soon(say, net, target, spoken, garbage)
    assert target.request("GET", "/healthz")[0] == 200
    assert moved(target, before)[f'{FAULTS}{{kind="{kind}"}}'] >= 3


async def test_gossip_with_keys_that_are_none_ends_nobody_and_is_counted(
    lab: Swarm, evil: Member, target: Member
) -> None:
    from libp2p.pubsub.pb import rpc_pb2

    before = counts(target)
    topic = f"gnus/{short_id(target.status()['id'])}/announce/1"
    async with introduced(evil, target) as net:
        own = bytes.fromhex("002408011220") + bytes(32)
        async with trio.open_nursery() as nursery:
            for key, sender in ((b"", b"x"), (b"\xff" * 40, own), (b"\x08\x01\x12\x20", own), (bytes(3000), bytes(34))):
                rpc = rpc_pb2.RPC()
                for number in range(5):
                    seqno = number.to_bytes(8, "big")
                    message = {"from_id": sender, "seqno": seqno, "data": b"x", "topicIDs": [topic], "key": key}
                    rpc.publish.add(**message, signature=bytes(64))
                nursery.start_soon(say, net, target, "/meshsub/1.1.0", prefixed(rpc.SerializeToString()))
    assert moved(target, before)[f'{FAULTS}{{kind="gossip"}}'] >= 10


async def test_streams_that_negotiate_nonsense_end_alone_and_are_counted(evil: Member, target: Member) -> None:
    before = counts(target)
    nonsense = (b"\xff\xff\xff\xff\x0f" + b"a" * 1000, b"GET / HTTP/1.1\r\n\r\n", bytes(3), b"\x13/multistream/9.9.9\n")
    async with connected(evil, target) as net:
        for each in nonsense:
            muxed = connection_to(net, target).open()
            await muxed.write(each)
            await until_ended(muxed, 1)
            await muxed.reset()
        with pytest.raises(GnusError):
            await net.open_stream(peer_of(target), "/gnus/no-such-protocol/1")
        assert peer_of(target) in net.connected()
    assert moved(target, before)[f'{FAULTS}{{kind="stream"}}'] >= 2


# --- frames of a connection -------------------------------------------------------------------------------------------

FRAMES = {
    "a version that is none": struct.pack("!BBHII", 7, 0, 0, 1, 0),
    "a kind that is none": struct.pack("!BBHII", 0, 99, 0, 1, 0),
    "four gigabytes on a new stream": struct.pack("!BBHII", 0, 0, 1, 0x7001, 0xFFFF_FFFF),
    "four gigabytes on no stream": struct.pack("!BBHII", 0, 0, 0, 0x7001, 0xFFFF_FFFF),
    "a stream of the other side": struct.pack("!BBHII", 0, 1, 1, 0x7002, 0),
    "a stream without a number": struct.pack("!BBHII", 0, 1, 1, 0, 0),
    "a stream twice": struct.pack("!BBHII", 0, 1, 1, 0x7001, 0) * 2,
    "noise": b"\xff" * 4096,
}


async def test_frames_that_are_none_cost_their_connection_and_are_counted(evil: Member, target: Member) -> None:
    before = counts(target)
    async with connected(evil, target) as net:
        for frames in FRAMES.values():
            await connect(net, target)
            connection = connection_to(net, target)
            await send_frames(connection, frames)
            with trio.fail_after(10):
                await connection.ended.wait()
            await net.disconnect(peer_of(target))
    assert moved(target, before)[f'{FAULTS}{{kind="protocol"}}'] == len(FRAMES)


async def test_a_peer_that_ignores_the_window_is_cut_off_long_before_150_mb(evil: Member, target: Member) -> None:
    before, process = counts(target), psutil.Process(target.running.process.pid)
    memory, sent = process.memory_info().rss, 0
    async with introduced(evil, target) as net:
        muxed = await raw_stream(net, target, "/meshsub/1.1.0")  # read at a megabyte a second
        connection, frame = connection_to(net, target), bytes(16 * 1024)
        with trio.move_on_after(30):
            while sent < 150_000_000 and not connection.ended.is_set():
                await connection.wait_for_room()
                connection.post(0, 0, muxed.number, len(frame), frame)
                sent += len(frame)
        with trio.fail_after(10):
            await connection.ended.wait()
    assert process.memory_info().rss - memory < PEAK
    assert moved(target, before)[f'{FAULTS}{{kind="protocol"}}'] >= 1


async def test_answers_that_nobody_reads_are_not_kept_for_ever(evil: Member, target: Member) -> None:
    before, process = counts(target), psutil.Process(target.running.process.pid)
    memory = process.memory_info().rss
    async with connected(evil, target) as net:
        connection = connection_to(net, target)
        connection._secured.read = _never
        pings = struct.pack("!BBHII", 0, 2, 1, 0, 7) * 1000
        with trio.move_on_after(30):
            while not connection.ended.is_set():
                await send_frames(connection, pings)
        assert connection.ended.is_set()
    assert process.memory_info().rss - memory < PEAK
    assert moved(target, before)[f'{FAULTS}{{kind="protocol"}}'] == 1


async def _never(_: object = None) -> bytes:
    await trio.sleep_forever()
    raise AssertionError


async def test_fifteen_hundred_streams_on_one_connection_are_capped_and_counted(evil: Member, target: Member) -> None:
    before = counts(target)
    async with connected(evil, target) as net:
        connection = connection_to(net, target)
        opened = [connection.open() for _ in range(1500)]
        await eventually(target, lambda: len(moved(target, before)) > 0, "counts them")
        for stream in opened:
            await stream.reset()
        assert (await net.ping(peer_of(target))) > 0
    assert moved(target, before)[f'{FAULTS}{{kind="stream"}}'] >= 1500 - 512


# --- connections ------------------------------------------------------------------------------------------------------


async def test_260_connections_one_after_the_other_leave_a_node_that_hears(evil: Member, target: Member) -> None:
    before = counts(target)
    async with connected(evil, target) as net:
        for _ in range(260):
            await net.disconnect(peer_of(target))
            await connect(net, target)
        assert await net.ping(peer_of(target)) > 0
    assert not [name for name in moved(target, before) if name.startswith(REFUSED)]


@pytest.mark.parametrize("number", [200, 400])
def test_half_open_connections_keep_no_member_out_for_longer_than_their_handshake(
    lab: Swarm, target: Member, number: int
) -> None:
    before, silent = counts(target), list[Any]()
    for each in range(number):
        with contextlib.suppress(OSError):
            silent.append(knock(target, f"127.0.1.{each % 40 + 1}"))
    honest = lab.members[1]
    honest.stop()
    honest.restart()
    target.await_usable(1)
    for connection in silent:
        connection.close()
    target.until(lambda: moved(target, before).get(f'{REFUSED}{{reason="handshake"}}', 0) > 0, "counts them")


def test_garbage_in_the_place_of_a_handshake_is_counted_and_no_more(target: Member) -> None:
    before, dice = counts(target), random.Random(7)
    for each in range(200):
        with contextlib.suppress(OSError), knock(target, f"127.0.2.{each % 40 + 1}") as connection:
            connection.sendall(dice.randbytes(4096))
    target.until(lambda: moved(target, before).get(f'{REFUSED}{{reason="handshake"}}', 0) >= 150, "counts them")
