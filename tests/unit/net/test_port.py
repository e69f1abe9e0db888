"""What the port promises, on both of its twins."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from gnusnode.errors import Conflict, Forbidden, PeerUnreachable, TooLarge, UnsupportedProtocol
from gnusnode.net.port import MAX_MESSAGE, Connected, Disconnected, MessageStream, Net, NetEvent
from tests.unit.net.worlds import MemoryWorld, RealWorld, World, pair, peer_id

ECHO = "/gnus/test-echo/1"
SINK = "/gnus/test-sink/1"


@pytest.fixture(params=["memory", "p2p"])
def world(request: pytest.FixtureRequest) -> World:
    return MemoryWorld() if request.param == "memory" else RealWorld()


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer gives up sooner than after five seconds."""
    monkeypatch.setattr("gnusnode.net.memory_streams.WRITE_SECONDS", 0.3)
    monkeypatch.setattr("gnusnode.net.p2p.yamux_stream.WRITE_SECONDS", 0.3)


async def echo(stream: MessageStream) -> None:
    while (message := await stream.receive()) is not None:
        await stream.send(message)


async def gone(net: Net, events: AsyncIterator[NetEvent], peer: str) -> None:
    """Waits until ``net`` has lost ``peer``."""
    while await anext(events) != Disconnected(peer):
        pass
    assert peer not in net.connected()


# --- messages ---------------------------------------------------------------------------------------------------------


async def test_messages_of_any_size_arrive_whole_and_in_order(world: World) -> None:
    sizes = [0, 1, 4, 65_535, 65_536, 262_144, 262_145, 1_000_000, 1, 0]
    messages = [random.Random(size).randbytes(size) for size in sizes]
    async with pair(world) as (a, b), b.serve(ECHO, echo):
        stream = await a.open_stream(b.peer_id, ECHO)

        async def send() -> None:
            for message in messages:
                await stream.send(message)
            await stream.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            assert [await stream.receive() for _ in messages] == messages
            assert await stream.receive() is None


async def test_the_largest_message_passes_and_a_larger_one_is_refused_before_it_leaves(world: World) -> None:
    largest = bytes(MAX_MESSAGE)
    async with pair(world) as (a, b), b.serve(ECHO, echo):
        stream = await a.open_stream(b.peer_id, ECHO)
        with pytest.raises(TooLarge):
            await stream.send(largest + b"x")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send, largest)
            assert await stream.receive() == largest


async def test_both_sides_know_whom_they_talk_to_and_of_what(world: World) -> None:
    async def who(stream: MessageStream) -> None:
        await stream.send(f"{stream.peer} {stream.protocol}".encode())

    async with pair(world) as (a, b), b.serve(ECHO, who):
        stream = await a.open_stream(b.peer_id, ECHO)
        assert (stream.peer, stream.protocol) == (b.peer_id, ECHO)
        assert await stream.receive() == f"{a.peer_id} {ECHO}".encode()


async def test_closing_one_direction_leaves_the_other_open(world: World) -> None:
    async def answer_at_the_end(stream: MessageStream) -> None:
        heard = [message async for message in until_the_end(stream)]
        await stream.send(b"|".join(heard))

    async with pair(world) as (a, b), b.serve(ECHO, answer_at_the_end):
        stream = await a.open_stream(b.peer_id, ECHO)
        await stream.send(b"one")
        await stream.send(b"two")
        await stream.close()
        assert await stream.receive() == b"one|two"
        assert await stream.receive() is None
        with pytest.raises(PeerUnreachable):
            await stream.send(b"three")


async def until_the_end(stream: MessageStream) -> AsyncIterator[bytes]:
    while (message := await stream.receive()) is not None:
        yield message


async def test_a_reset_ends_both_directions_and_may_come_twice(world: World) -> None:
    ended = trio.Event()

    async def wait_for_the_reset(stream: MessageStream) -> None:
        await stream.send(b"ready")
        with pytest.raises(PeerUnreachable):
            await stream.receive()
        with pytest.raises(PeerUnreachable):
            await stream.send(b"late")
        ended.set()

    async with pair(world) as (a, b), b.serve(ECHO, wait_for_the_reset):
        stream = await a.open_stream(b.peer_id, ECHO)
        assert await stream.receive() == b"ready"
        await stream.reset()
        await stream.reset()
        with pytest.raises(PeerUnreachable):
            await stream.receive()
        await ended.wait()
        assert b.statistics().handler_failures == 0


async def test_a_handler_that_fails_resets_its_own_stream_and_is_counted(world: World) -> None:
    async def fail(stream: MessageStream) -> None:
        await stream.receive()
        raise ValueError("a bug")

    async with pair(world) as (a, b), b.serve(SINK, fail), b.serve(ECHO, echo):
        sound = await a.open_stream(b.peer_id, ECHO)
        broken = await a.open_stream(b.peer_id, SINK)
        await broken.send(b"go")
        with pytest.raises(PeerUnreachable):
            await broken.receive()
        await sound.send(b"still here")
        assert await sound.receive() == b"still here"
        assert b.statistics().handler_failures == 1
        assert b.statistics().library_faults == 0


async def test_a_stream_belongs_to_one_sender_and_one_receiver(world: World) -> None:
    async with pair(world) as (a, b), b.serve(ECHO, echo):
        stream = await a.open_stream(b.peer_id, ECHO)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await stream.receive()
            nursery.cancel_scope.cancel()


async def test_fifty_streams_at_once_do_not_mix(world: World) -> None:
    async def ask(net: Net, peer: str, number: int) -> None:
        stream = await net.open_stream(peer, ECHO)
        for turn in range(5):
            message = f"{number}/{turn}".encode() * 100
            await stream.send(message)
            assert await stream.receive() == message
        await stream.close()
        assert await stream.receive() is None

    async with pair(world) as (a, b), b.serve(ECHO, echo), trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(ask, a, b.peer_id, number)


# --- slow readers -----------------------------------------------------------------------------------------------------


async def test_a_writer_waits_for_a_slow_reader_and_nothing_is_lost(world: World) -> None:
    may_read = trio.Event()
    sent: list[int] = []

    async def read_late(stream: MessageStream) -> None:
        await may_read.wait()
        async for message in until_the_end(stream):
            await stream.send(message[:8])

    async with pair(world) as (a, b), b.serve(SINK, read_late):
        stream = await a.open_stream(b.peer_id, SINK)

        async def write() -> None:
            for number in range(64):
                await stream.send(number.to_bytes(8, "big") + bytes(65_536))
                sent.append(number)
            await stream.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            for _ in range(5):
                await a.ping(b.peer_id)  # the connection is free for others
            assert len(sent) <= 16  # the window, what the socket took, and not four megabytes
            may_read.set()
            assert [int.from_bytes(await stream.receive() or b"", "big") for _ in range(64)] == list(range(64))


async def send_for_ever(stream: MessageStream) -> None:
    while True:
        await stream.send(bytes(65_536))


@pytest.mark.usefixtures("short_patience")
async def test_a_reader_that_takes_nothing_costs_the_writer_its_stream_and_not_the_connection(world: World) -> None:
    async def never_read(_: MessageStream) -> None:
        await trio.sleep_forever()

    async with pair(world) as (a, b), b.serve(SINK, never_read):
        stream = await a.open_stream(b.peer_id, SINK)
        with pytest.raises(PeerUnreachable, match="read nothing"):
            await send_for_ever(stream)
        with pytest.raises(PeerUnreachable):
            await stream.receive()
        assert await a.ping(b.peer_id) >= 0


# --- cancellation -----------------------------------------------------------------------------------------------------


async def test_cancelled_receives_lose_nothing(world: World) -> None:
    dice = random.Random(1)

    async def count(stream: MessageStream) -> None:
        for number in range(500):
            await stream.send(number.to_bytes(4, "big") * random.Random(number).randint(1, 3000))
        await stream.close()

    async with pair(world) as (a, b), b.serve(SINK, count):
        stream = await a.open_stream(b.peer_id, SINK)
        heard: list[bytes | None] = []
        while not heard or heard[-1] is not None:
            with trio.move_on_after(dice.uniform(0, 0.0005)):
                heard.append(await stream.receive())
        assert [int.from_bytes(message[:4], "big") for message in heard if message is not None] == list(range(500))


async def test_cancelled_sends_leave_whole_messages_and_a_sound_connection(world: World) -> None:
    dice = random.Random(2)
    heard: list[bytes] = []

    async def listen(stream: MessageStream) -> None:
        async for message in until_the_end(stream):
            heard.append(message)
        await stream.send(b"all of it")

    async with pair(world) as (a, b), b.serve(SINK, listen):
        stream = await a.open_stream(b.peer_id, SINK)
        certain = set[int]()
        for number in range(100):
            with trio.move_on_after(dice.uniform(0, 0.003)):
                await stream.send(number.to_bytes(4, "big") + bytes(dice.choice((10, 70_000, 600_000))))
                certain.add(number)
        await stream.send(b"last")
        await stream.close()
        assert await stream.receive() == b"all of it"
        numbers = [int.from_bytes(message[:4], "big") for message in heard[:-1]]
        assert heard[-1] == b"last"
        assert numbers == sorted(set(numbers))
        assert certain <= set(numbers)
        assert all(len(message) in (14, 70_004, 600_004) and not any(message[4:]) for message in heard[:-1])


async def test_cancelled_openings_leave_a_sound_connection(world: World) -> None:
    dice = random.Random(3)
    async with pair(world) as (a, b), b.serve(ECHO, echo):
        for _ in range(100):
            with trio.move_on_after(dice.uniform(0, 0.002)):
                stream = await a.open_stream(b.peer_id, ECHO)
                await stream.reset()
        stream = await a.open_stream(b.peer_id, ECHO)
        await stream.send(b"sound")
        assert await stream.receive() == b"sound"
        assert a.connected() == {b.peer_id}


# --- serving ----------------------------------------------------------------------------------------------------------


async def test_a_protocol_that_nobody_serves_is_said_so(world: World) -> None:
    async with pair(world) as (a, b), b.serve(ECHO, echo):
        with pytest.raises(UnsupportedProtocol):
            await a.open_stream(b.peer_id, "/gnus/no-such-thing/1")
        with pytest.raises(UnsupportedProtocol):
            await b.open_stream(a.peer_id, ECHO)  # what we offer does not say what we ask for
        async with a.serve(ECHO, echo):
            assert await b.open_stream(a.peer_id, ECHO)
        with pytest.raises(UnsupportedProtocol):
            await b.open_stream(a.peer_id, ECHO)


async def test_a_protocol_is_served_once(world: World) -> None:
    async with world.join(1) as net, net.serve(ECHO, echo):
        with pytest.raises(Conflict):
            async with net.serve(ECHO, echo):
                pass
        async with net.serve(SINK, echo):
            pass
        async with net.serve(SINK, echo):
            pass


async def test_handlers_end_with_the_service(world: World) -> None:
    cancelled = trio.Event()

    async def wait(stream: MessageStream) -> None:
        try:
            await stream.send(b"here")
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with pair(world) as (a, b):
        async with b.serve(SINK, wait):
            stream = await a.open_stream(b.peer_id, SINK)
            assert await stream.receive() == b"here"
        assert cancelled.is_set()
        with pytest.raises(PeerUnreachable):
            await stream.receive()


# --- connections ------------------------------------------------------------------------------------------------------


async def test_addresses_name_the_node_and_can_be_dialled(world: World) -> None:
    async with world.join(1) as a, world.join(2) as b:
        assert b.addresses()
        for address in b.addresses():
            assert address.endswith(f"/p2p/{b.peer_id}")
            assert "/0.0.0.0/" not in address
            await a.connect(b.peer_id, [address])
            await a.disconnect(b.peer_id)


async def test_a_second_connect_finds_the_first_connection(world: World) -> None:
    async with world.join(1) as a, world.join(2) as b, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(a.connect, b.peer_id, b.addresses())
        await a.connect(b.peer_id, b.addresses())
        await a.connect(b.peer_id, ["/ip4/192.0.2.1/tcp/1"])
        assert a.connected() == {b.peer_id}
        assert a.statistics().connections == 1


async def test_nobody_there_is_unreachable_with_what_each_address_did(world: World) -> None:
    async with world.join(1) as a, world.join(2) as b, world.join(3) as c:
        wrong = [address.split("/p2p/")[0] for address in c.addresses()]
        closed = "/ip4/127.0.0.1/tcp/1"
        with pytest.raises(PeerUnreachable) as caught:
            await a.connect(b.peer_id, [closed, *wrong])
        assert closed in str(caught.value)
        assert f"{wrong[0]}: answers as" in str(caught.value)
        with pytest.raises(PeerUnreachable):
            await a.connect(b.peer_id, [])
        assert a.connected() == frozenset()
        await a.connect(b.peer_id, [closed, *wrong, *b.addresses()])
        assert a.connected() == {b.peer_id}


async def test_a_node_does_not_connect_to_itself(world: World) -> None:
    async with world.join(1) as a:
        with pytest.raises(PeerUnreachable):
            await a.connect(a.peer_id, a.addresses())


async def test_what_needs_a_connection_says_that_there_is_none(world: World) -> None:
    async with world.join(1) as a:
        with pytest.raises(PeerUnreachable):
            await a.open_stream(peer_id(2), ECHO)
        with pytest.raises(PeerUnreachable):
            await a.ping(peer_id(2))
        await a.disconnect(peer_id(2))


async def test_comings_and_goings_are_told_on_both_sides(world: World) -> None:
    async with world.join(1) as a, world.join(2) as b, a.events() as of_a, b.events() as of_b:
        await a.connect(b.peer_id, b.addresses())
        mine, theirs = await anext(of_a), await anext(of_b)
        assert isinstance(mine, Connected)
        assert isinstance(theirs, Connected)
        assert (mine.peer, mine.inbound) == (b.peer_id, False)
        assert (theirs.peer, theirs.inbound) == (a.peer_id, True)
        assert mine.address in b.addresses()[0]
        assert not mine.relayed
        async with a.events() as later:
            assert await anext(later) == mine
        await a.disconnect(b.peer_id)
        assert await anext(of_a) == Disconnected(b.peer_id)
        assert await anext(of_b) == Disconnected(a.peer_id)
        assert a.connected() == b.connected() == frozenset()
        assert a.statistics().connections == b.statistics().connections == 0


async def test_a_node_that_leaves_is_a_loss_and_never_an_orderly_end(world: World) -> None:
    """A shortened answer must not look like a whole one."""

    async def begin(stream: MessageStream) -> None:
        await stream.send(b"the beginning")
        await trio.sleep_forever()

    async with world.join(1) as a, a.events() as events:
        async with world.join(2) as b, b.serve(SINK, begin):
            await a.connect(b.peer_id, b.addresses())
            assert isinstance(await anext(events), Connected)
            stream = await a.open_stream(b.peer_id, SINK)
            assert await stream.receive() == b"the beginning"
        with pytest.raises(PeerUnreachable):
            await stream.receive()
        with pytest.raises(PeerUnreachable):
            await stream.send(b"anybody there?")
        await gone(a, events, peer_id(2))


async def test_a_banned_peer_loses_its_connection_and_gets_no_other(world: World) -> None:
    async with pair(world) as (a, b), b.events() as events:
        b.ban(frozenset({a.peer_id}))
        await gone(b, events, a.peer_id)
        with pytest.raises(Forbidden):
            await b.connect(a.peer_id, a.addresses())
        while not b.statistics().inbound_refused.get("banned"):
            with contextlib.suppress(PeerUnreachable):
                await a.connect(b.peer_id, b.addresses())
            await a.disconnect(b.peer_id)
        assert b.connected() == frozenset()
        b.ban(frozenset())
        await b.connect(a.peer_id, a.addresses())
        assert b.connected() == {a.peer_id}


async def test_the_callers_own_error_comes_out_as_it_is(world: World) -> None:
    async def serve_and_fail(net: Net) -> None:
        async with net.serve(ECHO, echo), net.subscribe("topic", lambda _, __: True), net.events():
            raise ValueError("the caller's")

    with pytest.raises(ValueError, match="the caller's"):
        async with pair(world) as (a, _):
            await serve_and_fail(a)


# --- gossip and discovery ---------------------------------------------------------------------------------------------


def believe(_: str, __: bytes) -> bool:
    return True


async def hear(publisher: Net, readers: AsyncIterator[tuple[str, bytes]], data: bytes) -> tuple[str, bytes]:
    """What arrives of ``data``, published again until the mesh has formed."""
    while True:
        await publisher.publish("news", data)
        with trio.move_on_after(0.2):
            return await anext(readers)


async def test_gossip_reaches_those_who_are_connected_through_others(world: World) -> None:
    async with (
        world.join(1) as a,
        world.join(2) as b,
        world.join(3) as c,
        a.subscribe("news", believe),
        b.subscribe("news", believe),
        c.subscribe("news", believe) as at_c,
    ):
        await a.connect(b.peer_id, b.addresses())
        await b.connect(c.peer_id, c.addresses())
        assert await hear(a, at_c, b"hello") == (a.peer_id, b"hello")
        assert a.peer_id not in c.connected()


async def test_gossip_that_is_not_believed_is_not_heard_nor_passed_on(world: World) -> None:
    def doubt(_: str, data: bytes) -> bool:
        if data == b"raise":
            raise ValueError("a validator's bug")
        return data == b"true"

    async with (
        world.join(1) as a,
        world.join(2) as b,
        world.join(3) as c,
        a.subscribe("news", believe),
        b.subscribe("news", doubt) as at_b,
        c.subscribe("news", believe) as at_c,
    ):
        await a.connect(b.peer_id, b.addresses())
        await b.connect(c.peer_id, c.addresses())
        await hear(a, at_c, b"true")
        await a.publish("news", b"false")
        await a.publish("news", b"raise")
        heard = {await anext(at_b)}
        while b.statistics().gossip_refused < 2:
            await a.ping(b.peer_id)
        await a.publish("news", b"true")
        for reader in (at_b, at_c):
            heard.add(await anext(reader))
        assert heard == {(a.peer_id, b"true")}


async def test_gossip_over_the_limit_is_refused_where_it_is_made(world: World) -> None:
    async with world.join(1) as net:
        with pytest.raises(TooLarge):
            await net.publish("news", bytes(192 * 1024 + 1))


async def test_what_is_provided_is_found_with_addresses() -> None:
    for world in (MemoryWorld(), RealWorld(dht=True)):
        async with pair(world) as (a, b):
            await a.provide("role/core")
            found = await b.find("role/core")
            while not found:
                await a.provide("role/core")
                found = await b.find("role/core")
            assert [each.peer for each in found] == [a.peer_id]
            assert {bare(address) for address in found[0].addresses} & {bare(address) for address in a.addresses()}
            assert await a.find("role/core") == ()
            assert await b.find("role/other") == ()


def bare(address: str) -> str:
    return address.split("/p2p/")[0]
