"""Faults of the in-memory network: what a test may order, and what the nodes then see. In virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from gnusnode.errors import PeerUnreachable
from gnusnode.net.memory import GOSSIP_QUEUE, MemoryNet, MemoryNetwork
from gnusnode.net.memory_streams import SILENCE_SECONDS, WRITE_SECONDS
from gnusnode.net.port import Connected, Disconnected, MessageStream, NetEvent

ECHO = "/gnus/test-echo/1"


async def echo(stream: MessageStream) -> None:
    while (message := await stream.receive()) is not None:
        await stream.send(message)


async def connected(a: MemoryNet, b: MemoryNet) -> MessageStream:
    await a.connect(b.peer_id, b.addresses())
    return await a.open_stream(b.peer_id, ECHO)


async def next_loss(events: AsyncIterator[NetEvent]) -> float:
    """The time at which the next peer is lost."""
    while not isinstance(await anext(events), Disconnected):
        pass
    return trio.current_time()


async def test_a_cut_ends_connections_at_once_and_refuses_new_ones_until_healed(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork()
    async with network.join("A") as a, network.join("B") as b, network.join("C") as c, b.serve(ECHO, echo):
        stream = await connected(a, b)
        await c.connect("B", b.addresses())
        network.cut("A", "B")
        with pytest.raises(PeerUnreachable):
            await stream.receive()
        with pytest.raises(PeerUnreachable, match="refused"):
            await a.connect("B", b.addresses())
        assert b.connected() == {"C"}
        network.heal("A", "B")
        assert await connected(a, b)


async def test_a_pulled_cable_is_noticed_by_missing_pings_on_both_sides(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with (
        network.join("A") as a,
        network.join("B") as b,
        b.serve(ECHO, echo),
        a.events() as at_a,
        b.events() as at_b,
    ):
        stream = await connected(a, b)
        assert isinstance(await anext(at_a), Connected)
        assert isinstance(await anext(at_b), Connected)
        start = trio.current_time()
        network.cut("A", silent=True)
        with pytest.raises(PeerUnreachable):
            await a.ping("B")
        with pytest.raises(PeerUnreachable):
            await stream.receive()
        assert await next_loss(at_a) - start == pytest.approx(SILENCE_SECONDS)
        assert await next_loss(at_b) - start == pytest.approx(SILENCE_SECONDS)
        with pytest.raises(PeerUnreachable, match="no answer within 5 s"):
            await a.connect("B", b.addresses())


async def test_what_was_sent_over_a_mute_connection_arrives_when_healed_in_time(
    autojump_clock: MockClock,
) -> None:
    network = MemoryNetwork()
    async with network.join("A") as a, network.join("B") as b, b.serve(ECHO, echo):
        stream = await connected(a, b)
        network.cut("A", "B", silent=True)
        await stream.send(b"patience")
        await trio.sleep(SILENCE_SECONDS - 1)
        network.heal("A", "B")
        assert await stream.receive() == b"patience"
        await trio.sleep(2 * SILENCE_SECONDS)
        assert a.connected() == {"B"}


async def test_a_reset_is_not_heard_over_a_mute_connection(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with network.join("A") as a, network.join("B") as b, b.serve(ECHO, echo):
        stream = await connected(a, b)
        network.cut("A", "B", silent=True)
        await stream.reset()
        await trio.testing.wait_all_tasks_blocked()
        assert b.statistics().handler_failures == 0
        network.heal("A", "B")
        await trio.testing.wait_all_tasks_blocked()
        assert b.statistics().handler_failures == 1  # the echo's receive failed


async def test_delay_is_one_way_and_keeps_the_order(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with network.join("A") as a, network.join("B") as b, b.serve(ECHO, echo):
        network.delay(0.15)
        start = trio.current_time()
        await a.connect("B", b.addresses())
        assert trio.current_time() - start == pytest.approx(0.3)
        assert await a.ping("B") == pytest.approx(0.3)
        stream = await a.open_stream("B", ECHO)
        start = trio.current_time()
        for number in range(5):
            await stream.send(bytes([number]))
        assert trio.current_time() == start
        assert [await stream.receive() for _ in range(5)] == [bytes([number]) for number in range(5)]
        assert trio.current_time() - start == pytest.approx(0.3)


async def test_a_reader_that_takes_nothing_is_given_five_seconds(autojump_clock: MockClock) -> None:
    async def never_read(_: MessageStream) -> None:
        await trio.sleep_forever()

    network = MemoryNetwork()
    async with network.join("A") as a, network.join("B") as b, b.serve(ECHO, never_read):
        stream = await connected(a, b)
        start = trio.current_time()
        with pytest.raises(PeerUnreachable):
            await stream.send(bytes(300_000))
        assert trio.current_time() - start == pytest.approx(WRITE_SECONDS)
        assert a.connected() == {"B"}


async def test_two_nodes_of_one_identity_are_told_apart_by_their_addresses() -> None:
    async def name(stream: MessageStream, text: bytes) -> None:
        await stream.send(text)

    network = MemoryNetwork()
    async with (
        network.join("A") as a,
        network.join("X") as first,
        network.join("X") as second,
        first.serve(ECHO, lambda stream: name(stream, b"first")),
        second.serve(ECHO, lambda stream: name(stream, b"second")),
    ):
        for node, expected in ((first, b"first"), (second, b"second")):
            await a.connect("X", node.addresses())
            assert await (await a.open_stream("X", ECHO)).receive() == expected
            await a.disconnect("X")


async def test_a_slow_reader_of_gossip_loses_the_oldest_messages_and_it_is_counted() -> None:
    network = MemoryNetwork()
    async with network.join("A") as a, network.join("B") as b, b.subscribe("t", lambda _, __: True) as heard:
        await a.connect("B", b.addresses())
        for number in range(GOSSIP_QUEUE + 3):
            await a.publish("t", number.to_bytes(2, "big"))
        assert await anext(heard) == ("A", (3).to_bytes(2, "big"))
        assert b.statistics().gossip_dropped == 3


async def test_a_reader_of_events_that_sleeps_holds_no_list_of_all_that_happened() -> None:
    network = MemoryNetwork()
    async with network.join("A") as a, network.join("B") as b, a.events() as events:
        await a.connect("B", b.addresses())
        assert isinstance(await anext(events), Connected)
        for _ in range(100):
            await a.disconnect("B")
            await a.connect("B", b.addresses())
        assert await anext(events) == Disconnected("B")
        assert isinstance(await anext(events), Connected)
        with trio.testing.assert_checkpoints(), trio.move_on_after(0):
            await anext(events)
            pytest.fail("more than two events waited")
