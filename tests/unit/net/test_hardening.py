"""The network against what py-libp2p dies of, and against hostile and broken peers."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from libp2p.custom_types import TProtocol
from libp2p.network.exceptions import SwarmException
from libp2p.network.swarm import Swarm
from multiaddr import Multiaddr

import gnusnode
from gnusnode.errors import CannotBind, ConfigError, PeerUnreachable, ProtocolViolation
from gnusnode.net.p2p import hardening, stream
from gnusnode.net.p2p.host import P2PNet
from gnusnode.net.p2p.swarm import HardenedSwarm
from gnusnode.net.port import Connected, Disconnected, MessageStream
from tests.unit.net import ailments
from tests.unit.net.worlds import RealWorld, pair, peer_id

ECHO = "/gnus/test-echo/1"
MULTISTREAM = b"\x13/multistream/1.0.0\n"


@pytest.fixture
def world() -> RealWorld:
    return RealWorld()


async def echo(stream: MessageStream) -> None:
    while (message := await stream.receive()) is not None:
        await stream.send(message)


async def answers(net: Any, peer: str) -> bool:
    """Whether the echo of ``peer`` works."""
    opened = await net.open_stream(peer, ECHO)
    await opened.send(b"hello")
    heard = await opened.receive()
    await opened.close()
    return heard == b"hello" and await opened.receive() is None


def port_of(net: Any) -> int:
    return int(net.addresses()[0].split("/")[4])


def internals(net: Any) -> P2PNet:
    assert isinstance(net, P2PNet)
    return net


# --- the cures of the library -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def diagnoses() -> dict[bool, dict[str, bool]]:
    """What ails the library, by whether it is cured; in processes of their own, because a cure is for good."""

    def ask(*arguments: str) -> dict[str, bool]:
        command = [sys.executable, "-m", "tests.unit.net.ailments", *arguments]
        root = Path(__file__).parents[3]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100, check=True)
        found: dict[str, bool] = json.loads(done.stdout)
        return found

    return {False: ask(), True: ask("cured")}


@pytest.mark.parametrize("cure", ailments.AILMENTS)
def test_the_library_has_the_fault_and_the_cure_ends_it(cure: str, diagnoses: dict[bool, dict[str, bool]]) -> None:
    assert not diagnoses[False][cure], "the fault is gone from the library: so may the cure be"
    assert diagnoses[True][cure]


def test_another_version_of_the_library_is_refused_with_what_to_do() -> None:
    hardening.require_version(hardening.VERSION)
    with pytest.raises(ConfigError, match=r"pip install 'libp2p==0\.8\.1'"):
        hardening.require_version("0.9.0")


def test_only_the_real_network_imports_the_library() -> None:
    """It costs most of a second and 80 MB, and nobody else may lean on it."""
    package = Path(gnusnode.__file__).parent
    imports = re.compile(r"^\s*(import|from) (libp2p|multiaddr)\b", re.MULTILINE)
    users = [path for path in package.rglob("*.py") if imports.search(path.read_text("utf-8"))]
    assert users
    assert all(path.parent == package / "net" / "p2p" for path in users)


# --- connections come and go ------------------------------------------------------------------------------------------


async def come_and_go(world: RealWorld, times: int, **options: Any) -> P2PNet:
    """One node connects to another and is cut off, again and again; the other, at the end."""
    async with world.join(1) as guest, world.join(2, **options) as host, host.serve(ECHO, echo):
        async with host.events() as events:
            for _ in range(times):
                await guest.connect(host.peer_id, host.addresses())
                assert isinstance(await anext(events), Connected)
                for connection in internals(guest)._living(internals(host)._host.get_id()):
                    connection.abort()
                assert await anext(events) == Disconnected(guest.peer_id)
            while guest.connected():
                await trio.sleep(0.01)
            await guest.connect(host.peer_id, host.addresses())
            assert await answers(guest, host.peer_id)
            assert host.statistics().connections == 1
            assert internals(host)._gates.inbound == 1
            assert host.statistics().inbound_refused == {}
        return internals(host)


@pytest.mark.slow
async def test_three_hundred_connections_later_a_node_still_accepts(world: RealWorld) -> None:
    await come_and_go(world, 300)


async def test_slots_come_back_however_few_there_are(world: RealWorld) -> None:
    await come_and_go(world, 20, max_connections=4)


async def test_the_library_alone_goes_deaf_after_as_many_connections_as_it_has_slots(
    world: RealWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HardenedSwarm, "_handle_inbound_connection", Swarm._handle_inbound_connection)
    with pytest.raises((PeerUnreachable, trio.TooSlowError)), trio.fail_after(5):
        await come_and_go(world, 20, max_connections=4)


async def fail(_: object) -> None:
    raise ValueError("a bug in a handler")


@pytest.mark.parametrize("cured", [True, False])
async def test_a_failing_handler_of_the_library_ends_its_own_stream(
    world: RealWorld, monkeypatch: pytest.MonkeyPatch, cured: bool
) -> None:
    if not cured:
        monkeypatch.setattr(HardenedSwarm, "set_stream_handler", Swarm.set_stream_handler)
    async with pair(world) as (a, b), b.serve(ECHO, echo):
        handler: Any = fail
        internals(b)._host.set_stream_handler(TProtocol("/gnus/bad/1"), handler)
        with trio.move_on_after(1), contextlib.suppress(PeerUnreachable):
            await (await a.open_stream(b.peer_id, "/gnus/bad/1")).receive()
        if cured:
            assert await answers(a, b.peer_id)
            assert b.statistics().library_faults == 1
        else:
            with pytest.raises((PeerUnreachable, trio.TooSlowError)), trio.fail_after(1):
                await answers(a, b.peer_id)


async def test_a_handler_of_the_library_that_only_returns_leaves_nobody_waiting(world: RealWorld) -> None:
    async def do_nothing(_: object) -> None:
        return

    async with pair(world) as (a, b):
        handler: Any = do_nothing
        internals(b)._host.set_stream_handler(TProtocol("/gnus/idle/1"), handler)
        opened = await a.open_stream(b.peer_id, "/gnus/idle/1")
        assert await opened.receive() is None


async def test_a_taken_port_is_an_error_that_names_it(world: RealWorld) -> None:
    async with world.join(1) as first:
        taken = f"/ip4/127.0.0.1/tcp/{port_of(first)}"
        with pytest.raises(CannotBind, match="in use"):
            async with world.join(2, listen=(taken,)):
                pass
        with pytest.raises(CannotBind, match=r"192\.0\.2\.1"):
            async with world.join(2, listen=("/ip4/192.0.2.1/tcp/0",)):
                pass
        with pytest.raises(ConfigError):
            async with world.join(2, listen=("nonsense",)):
                pass


async def test_a_node_that_listens_everywhere_announces_real_addresses() -> None:
    async with RealWorld(listen=("/ip4/0.0.0.0/tcp/0",)).join(1) as net:
        assert net.addresses()
        assert not any("/0.0.0.0/" in address for address in net.addresses())
    announce = ("/dns4/node.example/tcp/8478",)
    async with RealWorld(announce=announce).join(1) as net:
        assert net.addresses() == (f"{announce[0]}/p2p/{net.peer_id}",)


# --- dialling ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def mute_port() -> AsyncIterator[int]:
    """A port that accepts connections and says nothing."""

    async def hold(_: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, hold, 0)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def test_a_black_hole_and_a_mute_port_before_the_good_address_do_not_matter(world: RealWorld) -> None:
    async with mute_port() as mute, world.join(1) as a, world.join(2) as b:
        bootstrap = ["/ip6/100::1/tcp/8478", f"/ip4/127.0.0.1/tcp/{mute}", "/ip4/127.0.0.1/tcp/1", *b.addresses()]
        with trio.fail_after(5):
            await a.connect(b.peer_id, bootstrap)


async def test_a_mute_port_is_given_up_and_the_peer_can_be_dialled_at_once_after() -> None:
    async with mute_port() as mute, RealWorld(dial_seconds=0.2).join(1) as a, RealWorld().join(2) as b:
        with pytest.raises(PeerUnreachable, match=r"no answer within 0\.2 s"):
            await a.connect(b.peer_id, [f"/ip4/127.0.0.1/tcp/{mute}"])
        await a.connect(b.peer_id, b.addresses())  # the library would refuse for a minute


async def test_the_librarys_own_dials_try_all_addresses_and_leave_alone_who_has_just_left(world: RealWorld) -> None:
    async with world.join(1) as a, world.join(2) as b:
        swarm, target = internals(a)._swarm, internals(b)._host.get_id()
        with pytest.raises(SwarmException, match="no address"):
            await swarm.dial_peer(target)
        dead = Multiaddr("/ip4/127.0.0.1/tcp/1")
        swarm.peerstore.add_addrs(target, [dead, *(Multiaddr(address) for address in b.addresses())], 60)
        assert await swarm.dial_peer(target)
        await a.disconnect(b.peer_id)
        with pytest.raises(SwarmException, match="just left"):
            await swarm.dial_peer(target)
        await a.connect(b.peer_id, b.addresses())  # who is asked for by name is dialled


async def test_cancelled_dials_leave_neither_connections_nor_sockets(world: RealWorld) -> None:
    dice = random.Random(6)
    async with world.join(1) as a, world.join(2) as b, b.serve(ECHO, echo):
        for _ in range(40):
            with trio.move_on_after(dice.uniform(0, 0.02)):
                await a.connect(b.peer_id, b.addresses())
            await a.disconnect(b.peer_id)
        while b.connected() or internals(b)._gates.inbound:
            await trio.sleep(0.01)
        assert a.statistics().connections == b.statistics().connections == 0
        await a.connect(b.peer_id, b.addresses())
        assert await answers(a, b.peer_id)
        assert a.statistics().library_faults == b.statistics().library_faults == 0


async def test_two_that_dial_each_other_at_once_are_connected(world: RealWorld) -> None:
    async with world.join(1) as a, world.join(2) as b, a.serve(ECHO, echo), b.serve(ECHO, echo):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(a.connect, b.peer_id, b.addresses())
            nursery.start_soon(b.connect, a.peer_id, a.addresses())
        assert await answers(a, b.peer_id)
        assert await answers(b, a.peer_id)


@pytest.mark.parametrize("network_key", [None, bytes(32)])
async def test_a_node_that_nobody_can_dial_is_reached_through_a_relay(network_key: bytes | None) -> None:
    world = RealWorld(network_key=network_key, relay="client")
    async with (
        world.join(1, relay="server") as relay,
        world.join(2, listen=()) as hidden,
        world.join(3) as caller,
        hidden.serve(ECHO, echo),
        caller.events() as events,
    ):
        await hidden.connect(relay.peer_id, relay.addresses())
        while not hidden.addresses():
            await trio.sleep(0.02)
        await caller.connect(hidden.peer_id, hidden.addresses())
        seen = {await anext(events), await anext(events)}
        assert {(each.peer, each.relayed) for each in seen if isinstance(each, Connected)} == {
            (relay.peer_id, False),
            (hidden.peer_id, True),
        }
        assert await answers(caller, hidden.peer_id)


# --- strangers --------------------------------------------------------------------------------------------------------


async def raw(net: Any) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", port_of(net))


@pytest.mark.parametrize("security", ["/plaintext/2.0.0", "/tls/1.0.0", "/secio/1.0.0"])
async def test_nothing_but_noise_is_spoken(world: RealWorld, security: str) -> None:
    """With plaintext anybody may claim to be anybody; the library offers it by default."""
    async with world.join(1) as net, await raw(net) as socket:
        wanted = security.encode() + b"\n"
        await socket.send_all(MULTISTREAM + bytes([len(wanted)]) + wanted)
        heard = b""
        while len(heard) < len(MULTISTREAM) + 4:
            part = await socket.receive_some()
            assert part
            heard += part
        assert heard == MULTISTREAM + b"\x03na\n"


async def test_garbage_and_half_open_sockets_leave_a_node_that_accepts() -> None:
    dice = random.Random(4)
    world = RealWorld(max_per_address=60)
    async with world.join(1) as a, world.join(2) as b, b.serve(ECHO, echo):
        for _ in range(60):
            async with await raw(b) as socket:
                await socket.send_all(dice.randbytes(64))
        async with contextlib.AsyncExitStack() as half_open:
            while internals(b)._gates.inbound > 0:
                await trio.sleep(0.01)
            for _ in range(40):
                await half_open.enter_async_context(await raw(b))
            await a.connect(b.peer_id, b.addresses())
            assert await answers(a, b.peer_id)
        while internals(b)._gates.inbound > 1:
            await trio.sleep(0.01)
        assert b.statistics().library_faults == 0


async def test_one_address_gets_its_share_of_the_slots_and_no_more() -> None:
    world = RealWorld(max_per_address=3)
    async with world.join(1) as a, world.join(2) as b:
        async with contextlib.AsyncExitStack() as half_open:
            for _ in range(3):
                await half_open.enter_async_context(await raw(b))
            while internals(b)._gates.inbound < 3:
                await trio.sleep(0.01)
            with pytest.raises(PeerUnreachable):
                await a.connect(b.peer_id, b.addresses())
            assert b.statistics().inbound_refused == {"per-ip": 1}
        while internals(b)._gates.inbound:
            await trio.sleep(0.01)
        await a.connect(b.peer_id, b.addresses())


async def test_half_open_sockets_give_their_slots_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnusnode.net.p2p.swarm.HANDSHAKE_SECONDS", 0.2)
    async with RealWorld(max_per_address=1).join(1) as net, await raw(net) as socket:
        assert await socket.receive_some() != b"x"  # its greeting
        while await socket.receive_some():
            pass
        assert internals(net)._gates.inbound <= 1


async def test_denied_addresses_get_not_even_a_greeting() -> None:
    async with RealWorld(deny=("127.0.0.0/8",)).join(1) as net, await raw(net) as socket:
        with contextlib.suppress(trio.BrokenResourceError):
            assert await socket.receive_some() == b""
        assert net.statistics().inbound_refused == {"denied": 1}


async def test_only_nodes_with_the_network_key_connect() -> None:
    key, other = bytes(range(32)), bytes(range(1, 33))
    inside, outside, elsewhere = RealWorld(network_key=key), RealWorld(), RealWorld(network_key=other)
    async with inside.join(1) as a, inside.join(2) as b, b.serve(ECHO, echo):
        await a.connect(b.peer_id, b.addresses())
        assert await answers(a, b.peer_id)
        for world in (outside, elsewhere):
            async with world.join(3, dial_seconds=1.0) as c:
                with pytest.raises(PeerUnreachable):
                    await c.connect(b.peer_id, b.addresses())
        assert b.connected() == {a.peer_id}
    with pytest.raises(ConfigError):
        async with RealWorld(network_key=b"short").join(1):
            pass


# --- members that send anything ---------------------------------------------------------------------------------------


async def sent(net: Any, peer: str, protocol: str, data: bytes) -> None:
    """Sends raw bytes on a stream of ``protocol``, and waits until the peer has ended it."""
    connection = internals(net)._connection(peer)
    muxed = connection.open()
    await stream._select(muxed, protocol)
    await muxed.write(data)
    muxed.close_write()
    with trio.move_on_after(0.3), contextlib.suppress(Exception):
        while await muxed.read():
            pass
    await muxed.reset()


def prefixed(data: bytes) -> bytes:
    return stream._varint(len(data)) + data


@pytest.mark.parametrize(
    "protocol", ["/ipfs/id/push/1.0.0", "/ipfs/id/1.0.0", "/ipfs/ping/1.0.0", "/meshsub/1.1.0", "/meshsub/1.2.0"]
)
async def test_malformed_bytes_of_a_member_end_nothing_but_its_stream(world: RealWorld, protocol: str) -> None:
    dice = random.Random(5)
    attacks = [
        dice.randbytes(200),
        prefixed(b"\xff" * 60),
        b"\xff\xff\xff\xff\x7f" + bytes(100),
        b"\x05ab",
        prefixed(b"\x0a\x04\xff\xff\xff\xff"),
        b"",
    ]
    async with pair(world) as (a, b), b.serve(ECHO, echo):
        for attack in attacks:
            await sent(a, b.peer_id, protocol, attack)
            if not a.connected():
                await a.connect(b.peer_id, b.addresses())
            assert await answers(a, b.peer_id)
        # And gossip still works: its service is alive.
        async with b.subscribe("news", lambda _, __: True) as heard:
            while True:
                await a.publish("news", b"alive")
                with trio.move_on_after(0.2):
                    assert await anext(heard) == (a.peer_id, b"alive")
                    break


async def test_a_stream_that_negotiates_nonsense_ends_alone(world: RealWorld) -> None:
    async with pair(world) as (a, b), b.serve(ECHO, echo):
        for nonsense in (b"\xff\xff\xff\xff\x0f" + b"a" * 1000, b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00", b""):
            muxed = internals(a)._connection(b.peer_id).open()
            await muxed.write(nonsense)
            await muxed.reset()
        assert await answers(a, b.peer_id)


async def test_a_message_announced_over_the_limit_ends_its_stream(world: RealWorld) -> None:
    seen = trio.Event()

    async def receive(opened: MessageStream) -> None:
        with pytest.raises(ProtocolViolation):
            await opened.receive()
        seen.set()

    async with pair(world) as (a, b), b.serve("/gnus/big/1", receive), b.serve(ECHO, echo):
        muxed = internals(a)._connection(b.peer_id).open()
        await stream._select(muxed, "/gnus/big/1")
        await muxed.write(b"\xff\xff\xff\xff")
        await seen.wait()
        assert b.statistics().protocol_violations == 1
        assert await answers(a, b.peer_id)


async def test_a_peer_may_not_take_all_connections() -> None:
    """One identity in many processes."""
    world = RealWorld()
    async with world.join(2) as b, contextlib.AsyncExitStack() as twins:
        for _ in range(6):
            twin = await twins.enter_async_context(world.join(1))
            with contextlib.suppress(PeerUnreachable):
                await twin.connect(b.peer_id, b.addresses())
        while not b.statistics().inbound_refused.get("per-peer"):
            await trio.sleep(0.01)
        assert b.statistics().connections <= 4


# --- silence ----------------------------------------------------------------------------------------------------------


class Cable:
    """A proxy that can be pulled: it then moves nothing and closes nothing."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.whole = True
        self._changed = trio.lowlevel.ParkingLot()

    async def carry(self, here: trio.SocketStream) -> None:
        there = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with there, trio.open_nursery() as nursery:
            nursery.start_soon(self._copy, here, there)
            nursery.start_soon(self._copy, there, here)

    async def _copy(self, source: trio.SocketStream, target: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in source:
                while not self.whole:
                    await self._changed.park()
                await target.send_all(data)
            await target.send_eof()


@asynccontextmanager
async def cabled(world: RealWorld) -> AsyncIterator[tuple[Any, Any, Cable]]:
    """Two nodes, connected through a cable."""
    async with world.join(1) as a, world.join(2) as b, trio.open_nursery() as nursery:
        cable = Cable(port_of(b))
        listeners = await nursery.start(trio.serve_tcp, cable.carry, 0)
        address = f"/ip4/127.0.0.1/tcp/{listeners[0].socket.getsockname()[1]}"
        await a.connect(b.peer_id, [address])
        yield a, b, cable
        nursery.cancel_scope.cancel()


async def test_a_silent_peer_is_noticed_on_both_sides() -> None:
    async with cabled(RealWorld(ping_seconds=0.2)) as (a, b, cable), a.events() as at_a, b.events() as at_b:
        assert isinstance(await anext(at_a), Connected)
        assert isinstance(await anext(at_b), Connected)
        cable.whole = False
        assert await anext(at_a) == Disconnected(b.peer_id)
        assert await anext(at_b) == Disconnected(a.peer_id)


async def test_leaving_takes_a_moment_also_when_a_peer_is_stalled() -> None:
    async def never_read(_: MessageStream) -> None:
        await trio.sleep_forever()

    async with cabled(RealWorld()) as (a, b, cable), b.serve("/gnus/sink/1", never_read):
        opened = [await a.open_stream(b.peer_id, "/gnus/sink/1") for _ in range(4)]
        cable.whole = False
        with trio.move_on_after(0.3):
            async with trio.open_nursery() as nursery:
                for each in opened:
                    nursery.start_soon(each.send, bytes(4_000_000))
        with trio.fail_after(2):
            await internals(a)._host.close()
        assert a.connected() == frozenset()


async def test_leaving_leaves_no_open_socket() -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with pair(RealWorld()) as (a, b):
        assert len(os.listdir("/proc/self/fd")) > before
        assert a.connected() == {b.peer_id} == {peer_id(2)}
    assert len(os.listdir("/proc/self/fd")) <= before
