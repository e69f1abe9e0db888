from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
from libp2p.connection_types import ConnectionType
from libp2p.custom_types import TProtocol
from libp2p.network.stream.exceptions import StreamEOF, StreamError
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, PeerId, StopMessage

from gnusnode.errors import PeerUnreachable
from gnusnode.net.p2p import relaywire
from gnusnode.net.p2p.relay import Relay, open_relay
from gnusnode.net.p2p.relayhop import RelayLimits
from gnusnode.net.port import NetStatistics
from tests.fakes.p2phost import connect, open_host, options, until

ECHO = TProtocol("/gnus/test/echo/1")


class Node:
    def __init__(self, host: Any, relay: Relay, stats: NetStatistics) -> None:
        self.host, self.relay, self.stats = host, relay, stats
        self.name = str(host.get_id())

    def kinds(self, other: Node) -> list[ConnectionType]:
        """How ``other`` is connected."""
        return [each.get_connection_type() for each in self.host.get_network().get_connections(other.host.get_id())]


async def echo(stream: Any) -> None:
    try:
        while True:
            await stream.write(await stream.read(65536))
    except StreamEOF:
        await stream.close()
    except StreamError:
        await stream.reset()


@asynccontextmanager
async def node(role: str, *, listens: bool = True, psk: str | None = None, **more: Any) -> AsyncIterator[Node]:
    stats = NetStatistics()
    async with open_host(psk=psk) if listens else open_host((), psk=psk) as host:
        host.set_stream_handler(ECHO, echo)
        async with open_relay(host, options(relay=role), stats, **more) as relay:
            yield Node(host, relay, stats)


@asynccontextmanager
async def swarm(*, psk: str | None = None, **server: Any) -> AsyncIterator[tuple[Node, Node, Node]]:
    """A relay, a node that nobody can dial and that holds a reservation, and a caller that knows nobody."""
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(node("server", psk=psk, **server))
        hidden = await stack.enter_async_context(node("client", listens=False, psk=psk))
        caller = await stack.enter_async_context(node("client", listens=False, psk=psk))
        await connect(hidden.host, relay.host)
        yield relay, hidden, caller


async def roundtrip(one: Node, other: Node, data: bytes) -> bytes:
    stream = await one.host.new_stream(other.host.get_id(), [ECHO])
    got = b""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.write, data)
            while len(got) < len(data):
                got += await stream.read(65536)
    await stream.reset()
    return got


@pytest.mark.parametrize("psk", [None, "ab" * 32])
async def test_a_node_that_nobody_can_dial_serves_through_a_relay(psk: str | None) -> None:
    async with swarm(psk=psk) as (relay, hidden, caller):
        await until(lambda: bool(hidden.relay.addresses()))
        (address, *_) = hidden.relay.addresses()
        assert address == f"{relay.host.get_addrs()[0]}/p2p-circuit/p2p/{hidden.name}"
        await caller.relay.dial(address, hidden.name)
        assert caller.kinds(hidden) == [ConnectionType.RELAYED]
        data = bytes(range(256)) * 4096
        assert await roundtrip(caller, hidden, data) == data
        await until(lambda: hidden.kinds(caller) == [ConnectionType.RELAYED])
        # The connection serves both ways.
        assert await roundtrip(hidden, caller, b"back") == b"back"


async def test_one_circuit_ending_leaves_the_others_of_the_same_target_alone() -> None:
    async with swarm() as (relay, hidden, one), node("client", listens=False) as two:
        await until(lambda: bool(hidden.relay.addresses()))
        (address, *_) = hidden.relay.addresses()
        for caller in (one, two):
            await caller.relay.dial(address, hidden.name)
        await one.host.disconnect(hidden.host.get_id())
        await until(lambda: not hidden.kinds(one))
        assert await roundtrip(two, hidden, b"still") == b"still"
        await two.host.disconnect(hidden.host.get_id())
        await until(lambda: not hidden.kinds(two))
        del relay


async def test_a_reservation_ends_with_the_connection_to_the_relay_and_comes_back_with_it() -> None:
    async with swarm() as (relay, hidden, caller):
        await until(lambda: bool(hidden.relay.addresses()))
        (address, *_) = hidden.relay.addresses()
        await hidden.host.disconnect(relay.host.get_id())
        await until(lambda: hidden.relay.addresses() == ())
        await until(lambda: not relay.kinds(hidden))
        with pytest.raises(PeerUnreachable, match="no reservation"):
            await caller.relay.dial(address, hidden.name)
        await connect(hidden.host, relay.host)
        await until(lambda: bool(hidden.relay.addresses()))
        await caller.relay.dial(address, hidden.name)


async def test_a_reservation_is_renewed_before_it_ends() -> None:
    async with swarm() as (relay, hidden, _):
        await until(lambda: bool(hidden.relay.addresses()))
        (first,) = hidden.relay._reservations.values()
        object.__setattr__(first, "renew_at", 0.0)
        hidden.relay._comings.rung.set()
        await until(lambda: all(each is not first for each in hidden.relay._reservations.values()))
        (second,) = hidden.relay._reservations.values()
        assert second.renew_at > trio.current_time()
        assert relay.stats.streams_refused == 0


async def test_a_full_relay_refuses_and_says_so() -> None:
    async with swarm(limits=RelayLimits(reservations=1)) as (relay, hidden, caller):
        await until(lambda: bool(hidden.relay.addresses()))
        await connect(caller.host, relay.host)
        await until(lambda: relay.stats.streams_refused == 1)
        assert caller.relay.addresses() == ()


async def test_circuits_of_one_peer_are_limited() -> None:
    async with swarm(limits=RelayLimits(circuits_per_peer=1)) as (_, hidden, one), node("client") as two:
        await until(lambda: bool(hidden.relay.addresses()))
        (address, *_) = hidden.relay.addresses()
        await one.relay.dial(address, hidden.name)
        with pytest.raises(PeerUnreachable, match="full"):
            await two.relay.dial(address, hidden.name)


async def test_a_circuit_ends_at_its_limit_of_bytes() -> None:
    async with swarm(limits=RelayLimits(circuit_bytes=200_000)) as (_, hidden, caller):
        await until(lambda: bool(hidden.relay.addresses()))
        await caller.relay.dial(hidden.relay.addresses()[0], hidden.name)
        with pytest.raises((StreamError, trio.TooSlowError, ExceptionGroup)):
            await roundtrip(caller, hidden, bytes(1_000_000))
        await until(lambda: not caller.kinds(hidden))


async def test_a_relay_serves_only_whom_it_admits() -> None:
    async with swarm(admits=lambda _peer: False) as (relay, hidden, _):
        await until(lambda: relay.stats.streams_refused == 1)
        assert hidden.relay.addresses() == ()


async def ask(host: Any, peer: Any, protocol: TProtocol, message: Any, answer: Any) -> Any:
    stream = await host.new_stream(peer, [protocol])
    await relaywire.write(stream, message)
    with trio.fail_after(10):
        return await relaywire.read(stream, answer)


async def test_nobody_can_reserve_in_the_name_of_another() -> None:
    async with node("server") as relay, open_host(()) as attacker, open_host(()) as victim:
        await connect(attacker, relay.host)
        named = HopMessage(type=HopMessage.RESERVE, peer=PeerId(id=victim.get_id().to_bytes()))
        assert (await ask(attacker, relay.host.get_id(), relaywire.HOP, named, HopMessage)).status == relaywire.OK
        call = HopMessage(type=HopMessage.CONNECT, peer=PeerId(id=victim.get_id().to_bytes()))
        answer = await ask(attacker, relay.host.get_id(), relaywire.HOP, call, HopMessage)
        assert answer.status == relaywire.NO_RESERVATION


async def test_a_peer_that_is_not_our_relay_cannot_bring_callers() -> None:
    async with node("client") as target, open_host(()) as attacker:
        await connect(attacker, target.host)
        call = StopMessage(type=StopMessage.CONNECT, peer=PeerId(id=attacker.get_id().to_bytes()))
        answer = await ask(attacker, target.host.get_id(), relaywire.STOP, call, StopMessage)
        assert answer.status == relaywire.DENIED
        assert target.stats.streams_refused == 1


@pytest.mark.parametrize("garbage", [b"\x05\xff\xff\xff\xff\xff", b"\xff\xff\xff\xff\x7f" + bytes(64), b"\x02\x08\x07"])
async def test_bytes_that_are_no_request_end_their_stream_only(garbage: bytes) -> None:
    async with swarm() as (relay, hidden, caller):
        await connect(caller.host, relay.host)
        stream = await caller.host.new_stream(relay.host.get_id(), [relaywire.HOP])
        await stream.write(garbage)
        await stream.close()
        await until(lambda: bool(hidden.relay.addresses()))
        await caller.relay.dial(hidden.relay.addresses()[0], hidden.name)


async def test_an_address_that_leads_elsewhere_is_refused() -> None:
    async with node("client") as caller, node("client") as other:
        own = caller.name
        for address in ("", "/ip4/127.0.0.1/tcp/1", f"/ip4/127.0.0.1/tcp/1/p2p/{own}/p2p-circuit/p2p/{other.name}"):
            with pytest.raises(PeerUnreachable, match="not an address"):
                await caller.relay.dial(address, own)
        with pytest.raises(PeerUnreachable, match="relayed dial failed"):
            await caller.relay.dial(f"/ip4/127.0.0.1/tcp/9/p2p/{own}/p2p-circuit/p2p/{other.name}", other.name)


async def test_a_target_that_does_not_speak_stop_is_said_to_be_unreachable() -> None:
    async with node("server") as relay, open_host(()) as mute, node("client", listens=False) as caller:
        await connect(mute, relay.host)
        reserve = HopMessage(type=HopMessage.RESERVE)
        assert (await ask(mute, relay.host.get_id(), relaywire.HOP, reserve, HopMessage)).status == relaywire.OK
        address = f"{relay.host.get_addrs()[0]}/p2p-circuit/p2p/{mute.get_id()}"
        with pytest.raises(PeerUnreachable, match="could not reach"):
            await caller.relay.dial(address, str(mute.get_id()))
