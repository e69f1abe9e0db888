from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.rsa import create_new_key_pair as create_rsa_key_pair
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11
from libp2p.pubsub.pb import rpc_pb2
from libp2p.utils.varint import encode_varint_prefixed

from gnusnode.errors import TooLarge
from gnusnode.net.p2p.gossip import Budgets, Gossip, Rate, Subscription, open_gossip
from gnusnode.net.port import MAX_GOSSIP, NetStatistics
from tests.fakes.p2phost import connect, open_host, options, until

TOPIC = "gnus/0123456789abcdef/announce/1"


def everything(_publisher: str, _data: bytes) -> bool:
    return True


class Node:
    def __init__(self, host: Any, gossip: Gossip, stats: NetStatistics) -> None:
        self.host, self.gossip, self.stats = host, gossip, stats
        self.name = str(host.get_id())


@asynccontextmanager
async def nodes(count: int) -> AsyncIterator[list[Node]]:
    """Gossiping nodes, each connected to the next one."""
    async with AsyncExitStack() as stack:
        opened: list[Node] = []
        for _ in range(count):
            stats = NetStatistics()
            host = await stack.enter_async_context(open_host())
            gossip = await stack.enter_async_context(open_gossip(host, options(), stats))
            opened.append(Node(host, gossip, stats))
        for one, other in pairwise(opened):
            await connect(one.host, other.host)
        yield opened


async def meshed(*pairs: tuple[Node, Node]) -> None:
    await until(lambda: all(b.name in a.gossip.mesh(TOPIC) and a.name in b.gossip.mesh(TOPIC) for a, b in pairs))


def signed(keys: Any, *, topic: str = TOPIC, data: bytes = b"x", seqno: bytes = bytes(8)) -> rpc_pb2.Message:
    sender = ID.from_pubkey(keys.public_key).to_bytes()
    message = rpc_pb2.Message(data=data, topicIDs=[topic], from_id=sender, seqno=seqno)
    message.signature = keys.private_key.sign(b"libp2p-pubsub:" + message.SerializeToString())
    return message


async def send_raw(attacker: Any, victim: Node, *payloads: bytes) -> Any:
    stream = await attacker.new_stream(victim.host.get_id(), [PROTOCOL_ID_V11])
    for payload in payloads:
        await stream.write(payload)
    return stream


async def test_a_message_reaches_a_node_two_hops_away_and_names_its_publisher() -> None:
    async with (
        nodes(3) as (a, b, c),
        a.gossip.subscribe(TOPIC, everything) as own,
        b.gossip.subscribe(TOPIC, everything),
        c.gossip.subscribe(TOPIC, everything) as heard,
    ):
        await meshed((a, b), (b, c))
        await a.gossip.publish(TOPIC, b"hello")
        with trio.fail_after(10):
            assert await anext(heard) == (a.name, b"hello")
        await c.gossip.publish(TOPIC, b"back")
        with trio.fail_after(10):
            # The publisher's own message does not come back to it: the first thing it hears is the other's.
            assert await anext(own) == (c.name, b"back")


async def test_what_a_subscriber_does_not_accept_is_neither_delivered_nor_passed_on() -> None:
    def picky(_publisher: str, data: bytes) -> bool:
        if data == b"bomb":
            raise RuntimeError("a validator with a fault")
        return data.startswith(b"good")

    async with (
        nodes(3) as (a, b, c),
        a.gossip.subscribe(TOPIC, everything),
        b.gossip.subscribe(TOPIC, picky) as near,
        c.gossip.subscribe(TOPIC, everything) as far,
    ):
        await meshed((a, b), (b, c))
        for data in (b"bad", b"bomb", b"good 1"):
            await a.gossip.publish(TOPIC, data)
        with trio.fail_after(10):
            assert await anext(near) == (a.name, b"good 1")
            assert await anext(far) == (a.name, b"good 1")
        assert b.stats.gossip_refused == 2


async def test_forged_malformed_and_foreign_messages_are_refused_and_the_node_lives() -> None:
    keys, rsa = create_new_key_pair(), create_rsa_key_pair()
    forged = signed(keys)
    forged.data = b"changed on the way"
    impostor = signed(keys)
    two_topics = signed(keys)
    two_topics.topicIDs.append(TOPIC)
    unsigned = signed(keys)
    unsigned.ClearField("signature")
    bad_key = signed(keys, data=b"bad key")
    bad_key.from_id = bytes.fromhex("1220") + bytes(32)
    bad_key.key = b"\xff\xff garbage"
    async with nodes(1) as (victim,), open_host(()) as attacker:
        impostor.from_id = victim.host.get_id().to_bytes()
        bad = [forged, impostor, two_topics, unsigned, bad_key, signed(rsa), signed(keys, seqno=b"1")]
        async with victim.gossip.subscribe(TOPIC, everything) as heard:
            await connect(attacker, victim.host)
            rpc = rpc_pb2.RPC(publish=[*bad, signed(keys, topic="elsewhere")])
            good = rpc_pb2.RPC(publish=[signed(keys, data=b"genuine", seqno=b"8 octets")])
            await send_raw(
                attacker, victim, *(encode_varint_prefixed(each.SerializeToString()) for each in (rpc, good))
            )
            with trio.fail_after(10):
                assert (await anext(heard))[1] == b"genuine"
            # The one for a topic that nobody here reads is not even looked at.
            assert victim.stats.gossip_refused == len(bad)
            assert victim.stats.library_faults == 0


@pytest.mark.parametrize("garbage", [b"\x0a" + b"\xff" * 10, b"\xff\xff\xff\xff\x7f" + b"x" * 100, b"\x05ab"])
async def test_bytes_that_are_no_message_end_their_stream_only(garbage: bytes) -> None:
    keys = create_new_key_pair()
    async with (
        nodes(1) as (victim,),
        open_host(()) as attacker,
        victim.gossip.subscribe(TOPIC, everything) as heard,
    ):
        await connect(attacker, victim.host)
        stream = await send_raw(attacker, victim, garbage)
        await stream.close()
        good = rpc_pb2.RPC(publish=[signed(keys, data=b"still here")])
        await send_raw(attacker, victim, encode_varint_prefixed(good.SerializeToString()))
        with trio.fail_after(10):
            assert (await anext(heard))[1] == b"still here"


async def test_control_messages_about_foreign_topics_leave_nothing_behind() -> None:
    async with nodes(1) as (victim,), open_host(()) as attacker, victim.gossip.subscribe(TOPIC, everything) as heard:
        await connect(attacker, victim.host)
        flood = rpc_pb2.RPC()
        for index in range(500):
            flood.control.ihave.add(topicID=f"made-up-{index}", messageIDs=[b"ab"])
            flood.control.graft.add(topicID=f"made-up-{index}")
            flood.control.prune.add(topicID=f"made-up-{index}", backoff=2**63)
        flood.control.iwant.add(messageIDs=[b"zz", b"ab"] * 2000)
        good = rpc_pb2.RPC(publish=[signed(create_new_key_pair(), data=b"after")])
        payloads = (encode_varint_prefixed(each.SerializeToString()) for each in (flood, good))
        await send_raw(attacker, victim, *payloads)
        with trio.fail_after(10):
            assert (await anext(heard))[1] == b"after"
        router = victim.gossip._router
        tables = (router.back_off, router.ihave_message_limits[attacker.get_id()], router.mesh)
        assert not [topic for table in tables for topic in table if topic.startswith("made-up")]


async def test_a_publisher_that_floods_is_cut_to_its_budget() -> None:
    keys = create_new_key_pair()
    async with (
        nodes(1) as (victim,),
        open_host(()) as attacker,
        victim.gossip.subscribe(TOPIC, everything) as heard,
    ):
        await connect(attacker, victim.host)
        flood = [signed(keys, data=b"spam", seqno=index.to_bytes(8, "big")) for index in range(1000)]
        other = signed(create_new_key_pair(), data=b"somebody else")
        rpcs = [rpc_pb2.RPC(publish=flood[:500]), rpc_pb2.RPC(publish=flood[500:]), rpc_pb2.RPC(publish=[other])]
        await send_raw(attacker, victim, *(encode_varint_prefixed(each.SerializeToString()) for each in rpcs))
        spam = 0
        with trio.fail_after(20):
            while (await anext(heard))[1] == b"spam":
                spam += 1
        assert 0 < spam < 800
        assert victim.stats.gossip_refused >= 200


async def test_a_topic_can_be_left_and_joined_again() -> None:
    async with nodes(2) as (a, b), a.gossip.subscribe(TOPIC, everything):
        async with b.gossip.subscribe(TOPIC, everything):
            await meshed((a, b))
        await until(lambda: b.name not in a.gossip.mesh(TOPIC))
        async with b.gossip.subscribe(TOPIC, everything) as heard:
            await until(lambda: b.host.get_id() in a.gossip._pubsub.peer_topics.get(TOPIC, ()))
            await a.gossip.publish(TOPIC, b"welcome back")
            with trio.fail_after(20):
                assert await anext(heard) == (a.name, b"welcome back")


async def test_too_large_a_message_is_refused_before_it_is_sent() -> None:
    async with nodes(1) as (node,):
        with pytest.raises(TooLarge):
            await node.gossip.publish(TOPIC, bytes(MAX_GOSSIP + 1))


async def test_the_largest_message_arrives() -> None:
    async with (
        nodes(2) as (a, b),
        a.gossip.subscribe(TOPIC, everything),
        b.gossip.subscribe(TOPIC, everything) as heard,
    ):
        await meshed((a, b))
        await a.gossip.publish(TOPIC, bytes(MAX_GOSSIP))
        with trio.fail_after(20):
            assert await anext(heard) == (a.name, bytes(MAX_GOSSIP))


async def test_a_slow_subscriber_loses_the_oldest_messages_and_that_is_counted() -> None:
    stats = NetStatistics()
    subscription = Subscription(everything, stats)
    for index in range(600):
        assert subscription.offer("peer", index.to_bytes(4, "big"))
    assert stats.gossip_dropped == 600 - 512
    assert await anext(subscription) == ("peer", (600 - 512).to_bytes(4, "big"))


async def test_waiting_messages_are_bounded_in_bytes_too() -> None:
    stats = NetStatistics()
    subscription = Subscription(everything, stats)
    for _ in range(50):
        subscription.offer("peer", bytes(MAX_GOSSIP))
    kept = 50 - stats.gossip_dropped
    assert 1 <= kept <= (4 << 20) // MAX_GOSSIP


def test_a_budget_refills_with_time_and_forgets_the_longest_silent_sender() -> None:
    now = 0.0
    budgets = Budgets(Rate(messages_per_second=1, messages=2, bytes_per_second=10, bytes=100), lambda: now, capacity=2)
    assert [budgets.take(b"a", 1) for _ in range(3)] == [True, True, False]
    now = 1.0
    assert [budgets.take(b"a", 1) for _ in range(2)] == [True, False]
    assert not budgets.take(b"b", 101)
    assert budgets.take(b"c", 100)
    # Room for two: ``a`` was silent for longest, and starts afresh.
    assert [budgets.take(b"a", 1) for _ in range(3)] == [True, True, False]


async def test_a_burst_arrives_whole_and_leaves_nothing_behind() -> None:
    async with (
        nodes(2) as (a, b),
        a.gossip.subscribe(TOPIC, everything),
        b.gossip.subscribe(TOPIC, everything) as heard,
    ):
        await meshed((a, b))
        for index in range(100):
            await a.gossip.publish(TOPIC, index.to_bytes(4, "big"))
        with trio.fail_after(30):
            arrived = {(await anext(heard))[1] for _ in range(100)}
        assert arrived == {index.to_bytes(4, "big") for index in range(100)}
        for node in (a, b):
            assert not node.gossip._router.recent_message_deliveries
            assert not node.gossip._router.equivocation_detection


async def test_who_may_not_hear_hears_nothing_and_takes_no_place_in_the_mesh() -> None:
    async with (
        nodes(3) as (a, b, outsider),
        a.gossip.subscribe(TOPIC, everything),
        b.gossip.subscribe(TOPIC, everything) as heard,
        outsider.gossip.subscribe(TOPIC, everything) as overheard,
    ):
        members = {a.name, b.name}
        for node in (a, b):
            node.gossip.restrict(members.__contains__)
        await meshed((a, b))
        for index in range(20):
            await a.gossip.publish(TOPIC, index.to_bytes(4, "big"))
        with trio.fail_after(20):
            assert {(await anext(heard))[1] for _ in range(20)} == {index.to_bytes(4, "big") for index in range(20)}
        await trio.sleep(2.5)  # heartbeats, in which the library tells of messages and grafts
        assert not overheard._waiting
        for node in (a, b):
            node.gossip.restrict(lambda peer: True)
        await a.gossip.publish(TOPIC, b"for all")
        with trio.fail_after(20):
            assert (await anext(overheard))[1] == b"for all"


async def test_what_a_neighbour_brings_that_may_not_hear_is_refused_before_its_signature_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[object] = []
    monkeypatch.setattr("gnusnode.net.p2p.gossip.signature_validator", lambda message: not checked.append(message))
    async with nodes(1) as (victim,), open_host() as attacker, victim.gossip.subscribe(TOPIC, everything) as heard:
        await connect(attacker, victim.host)
        keys = create_new_key_pair()
        payload = encode_varint_prefixed(rpc_pb2.RPC(publish=[signed(keys)]).SerializeToString())
        victim.gossip.restrict(lambda peer: False)
        await send_raw(attacker, victim, payload)
        await until(lambda: victim.stats.gossip_refused == 1)
        assert (checked, len(heard._waiting)) == ([], 0)


async def test_what_was_kept_for_a_neighbour_before_it_subscribed_is_not_for_one_that_may_not_hear() -> None:
    async with nodes(2) as (a, outsider), a.gossip.subscribe(TOPIC, everything):
        a.gossip.restrict(lambda peer: False)
        await until(lambda: bool(a.gossip._pubsub.peers))
        for index in range(4):
            await a.gossip.publish(TOPIC, index.to_bytes(4, "big"))
        async with outsider.gossip.subscribe(TOPIC, everything) as overheard:
            await until(lambda: bool(a.gossip._pubsub.peer_topics.get(TOPIC)))
            await trio.sleep(1)  # in which the library would hand it over
            assert not overheard._waiting
