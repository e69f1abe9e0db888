from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
from libp2p.custom_types import TProtocol
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.network.stream.exceptions import StreamError
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.utils.varint import encode_varint_prefixed
from multiaddr import Multiaddr

from gnusnode.net.p2p.dht import Dht, key_bytes, open_dht, protocol_of
from tests.fakes.p2phost import connect, open_host, options, until

KEY = "role/experts"


class Node:
    def __init__(self, host: Any, dht: Dht) -> None:
        self.host, self.dht = host, dht
        self.name = str(host.get_id())


@asynccontextmanager
async def nodes(*networks: str | None) -> AsyncIterator[list[Node]]:
    """One node per network name, all connected to the first."""
    async with AsyncExitStack() as stack:
        opened: list[Node] = []
        for name in networks:
            host = await stack.enter_async_context(open_host())
            dht = await stack.enter_async_context(open_dht(host, options(network_name=name)))
            opened.append(Node(host, dht))
        for node in opened[1:]:
            await connect(node.host, opened[0].host)
        yield opened


async def found(node: Node, key: str, *wanted: Node) -> None:
    """Looks until ``node`` finds exactly ``wanted``."""
    with trio.fail_after(30):
        while {each.peer for each in await node.dht.find(key)} != {each.name for each in wanted}:
            await trio.sleep(0.1)


async def test_a_provider_is_found_by_a_node_that_knows_only_a_third_one() -> None:
    async with nodes("n", "n", "n") as (hub, provider, seeker):
        await until(lambda: hub.name in provider.dht.known() and hub.name in seeker.dht.known())
        await provider.dht.provide(KEY)
        await found(seeker, KEY, provider)
        (hint,) = await seeker.dht.find(KEY)
        assert hint.addresses == tuple(str(each) for each in provider.host.get_addrs())
        assert await seeker.dht.find("role/nobody") == ()


async def test_routing_tables_fill_from_one_common_peer() -> None:
    async with nodes("n", "n", "n", "n") as opened:
        names = {node.name for node in opened}
        await until(lambda: all(node.dht.known() == names - {node.name} for node in opened))


async def test_a_key_provided_before_anybody_was_there_is_told_to_who_comes() -> None:
    async with nodes("n") as (early,), nodes("n") as (late,):
        await early.dht.provide(KEY)
        await connect(late.host, early.host)
        await found(late, KEY, early)


async def test_a_later_second_provider_is_found_too_and_nobody_finds_itself() -> None:
    async with nodes("n", "n", "n") as (hub, one, two):
        await one.dht.provide(KEY)
        await found(two, KEY, one)
        await two.dht.provide(KEY)
        # ``hub`` was told of one provider already; what it knew is no reason to stop looking.
        await found(hub, KEY, one, two)
        await found(one, KEY, two)
        await found(two, KEY, one)


async def test_looking_for_a_key_does_not_keep_its_dead_providers_alive() -> None:
    async with nodes("n", "n", "n") as (_, provider, seeker):
        await provider.dht.provide(KEY)
        await found(seeker, KEY, provider)
        records = seeker.dht._dht.provider_store.providers
        records.clear()
        await found(seeker, KEY, provider)
        # What was found is not kept, with a new date, to be handed to the next one who asks.
        assert records == {}


async def test_who_is_not_admitted_learns_of_no_provider_and_plants_none() -> None:
    async with (
        open_host() as host,
        open_host() as outsider_host,
        open_dht(host, options(network_name="n"), admits=lambda peer: peer == "nobody") as dht,
        open_dht(outsider_host, options(network_name="n")) as outsider,
    ):
        await connect(outsider_host, host)
        await until(lambda: str(host.get_id()) in outsider.known())
        await dht.provide(KEY)
        dht._dht.provider_store.add_provider(key_bytes(KEY), PeerInfo(host.get_id(), host.get_addrs()))
        assert await outsider.find(KEY) == ()
        await outsider.provide("role/false")
        assert key_bytes("role/false") not in dht._dht.provider_store.providers


async def test_networks_of_another_name_share_no_table() -> None:
    async with nodes("n", "other") as (one, two):
        await two.dht.provide(KEY)
        assert await one.dht.find(KEY) == ()
        assert two.name not in one.dht.known()


def test_without_a_name_the_table_is_the_one_of_all_of_libp2p() -> None:
    assert protocol_of(None) == "/ipfs/kad/1.0.0"
    assert protocol_of("a") != protocol_of("b")


@asynccontextmanager
async def attacked() -> AsyncIterator[tuple[Node, Any]]:
    async with nodes("n") as (victim,), open_host() as attacker:
        await connect(attacker, victim.host)
        yield victim, attacker


async def ask(attacker: Any, victim: Node, message: Message) -> bytes:
    stream = await attacker.new_stream(victim.host.get_id(), [TProtocol(protocol_of("n"))])
    await stream.write(encode_varint_prefixed(message.SerializeToString()))
    try:
        with trio.fail_after(10):
            return bytes(await stream.read(65536))
    except StreamError:
        return b""
    finally:
        await stream.reset()


async def test_a_peer_cannot_store_values() -> None:
    async with attacked() as (victim, attacker):
        for key in (b"/pk/x", b"plain", b"/gnus/x"):
            message = Message(type=Message.MessageType.PUT_VALUE, key=key)
            message.record.key, message.record.value = key, b"v" * 1000
            await ask(attacker, victim, message)
        assert victim.dht._dht.get_value_store_size() == 0


async def test_a_provider_record_keeps_few_and_short_addresses() -> None:
    async with attacked() as (victim, attacker):
        message = Message(type=Message.MessageType.ADD_PROVIDER, key=key_bytes(KEY))
        provider = message.providerPeers.add(id=attacker.get_id().to_bytes())
        provider.addrs.extend(Multiaddr(f"/ip4/10.0.0.1/tcp/{port}").to_bytes() for port in range(1000, 2000))
        provider.addrs.append(Multiaddr("/unix/" + "a" * 2000).to_bytes())
        await ask(attacker, victim, message)
        (hint,) = await victim.dht.find(KEY)
        assert hint.peer == str(attacker.get_id())
        assert len(hint.addresses) == 8


@pytest.mark.parametrize("garbage", [b"\x05\xff\xff\xff\xff\xff", b"\xff\xff\xff\xff\x7f" + bytes(64), b"\x00"])
async def test_bytes_that_are_no_message_end_their_stream_only(garbage: bytes) -> None:
    async with attacked() as (victim, attacker):
        stream = await attacker.new_stream(victim.host.get_id(), [TProtocol(protocol_of("n"))])
        await stream.write(garbage)
        await stream.close()
        answer = await ask(attacker, victim, Message(type=Message.MessageType.FIND_NODE, key=bytes(34)))
        assert answer


async def test_the_table_of_providers_is_bounded_per_peer() -> None:
    async with nodes("n") as (node,):
        store, stranger = node.dht._dht.provider_store, ID(bytes(34))
        for index in range(200):
            store.add_provider(key_bytes(f"spam {index}"), PeerInfo(stranger, [Multiaddr("/ip4/10.0.0.1/tcp/1")]))
        assert len(store.get_provided_keys(stranger)) == 64


async def test_a_peer_that_does_not_answer_is_dialled_once() -> None:
    async with nodes("n") as (node,), open_host(()) as gone:
        # A port where nobody listens.
        dead = gone.get_id()
        node.host.get_peerstore().add_addrs(dead, [Multiaddr("/ip4/127.0.0.1/tcp/9")], 3600)
        dials: list[Any] = []
        network, dial = node.host.get_network(), node.host.get_network().dial_peer

        async def counted(peer: Any) -> Any:
            dials.append(peer)
            return await dial(peer)

        network.dial_peer = counted
        for _ in range(3):
            assert await node.dht.find(KEY) == ()
        assert dials == [dead]


async def test_a_peer_that_was_sent_away_is_not_brought_back() -> None:
    async with nodes("n", "n") as (node, other):
        await until(lambda: other.name in node.dht.known() and node.name in other.dht.known())
        dials: list[Any] = []
        for host in (node.host, other.host):
            host.get_network().dial_peer = lambda peer: dials.append(peer) or trio.sleep_forever()
        await node.host.disconnect(other.host.get_id())
        await until(lambda: not node.dht.known() and not other.dht.known())
        assert await node.dht.find(KEY) == ()
        assert await other.dht.find(KEY) == ()
        assert dials == []
