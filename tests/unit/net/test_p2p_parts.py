"""Gossip, DHT and relay as ``open_net`` puts them together, with a network key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Literal

import pytest
import trio

from gnusnode.errors import PeerUnreachable
from gnusnode.net.p2p.host import open_net
from gnusnode.net.p2p.options import NetOptions
from gnusnode.net.port import Connected, MessageStream, Net
from tests.fakes.p2phost import LOOPBACK, until

TOPIC, ECHO = "gnus/0123456789abcdef/announce/1", "/gnus/test/echo/1"
OPTIONS = NetOptions(listen=LOOPBACK, network_key=bytes(range(32)), network_name="home", dht=True)


async def echo(stream: MessageStream) -> None:
    while (message := await stream.receive()) is not None:
        await stream.send(message)


@asynccontextmanager
async def swarm(*relays: Literal["off", "client", "server"]) -> AsyncIterator[list[Net]]:
    """A relay and others that listen nowhere and are connected to it alone."""
    async with AsyncExitStack() as stack:
        nets: list[Net] = []
        for index, relay in enumerate(relays):
            options = replace(OPTIONS, relay=relay, listen=LOOPBACK if relay == "server" else ())
            nets.append(await stack.enter_async_context(open_net(bytes([index + 1]) * 32, options)))
        for net in nets[1:]:
            with trio.fail_after(20):
                await net.connect(nets[0].peer_id, nets[0].addresses())
        yield nets


async def test_a_node_behind_nat_serves_another_through_the_relay_and_both_know_it_is_relayed() -> None:
    async with swarm("server", "client", "client") as (_, hidden, caller), hidden.serve(ECHO, echo):
        await until(lambda: bool(hidden.addresses()))
        async with hidden.events() as at_hidden, caller.events() as at_caller:
            with trio.fail_after(20):
                await caller.connect(hidden.peer_id, hidden.addresses())
                stream = await caller.open_stream(hidden.peer_id, ECHO)
                await stream.send(bytes(1_000_000))
                assert await stream.receive() == bytes(1_000_000)
                for events, other in ((at_hidden, caller), (at_caller, hidden)):
                    while True:
                        event = await anext(events)
                        if event.peer == other.peer_id:
                            break
                    assert isinstance(event, Connected)
                    assert event.relayed
            await stream.close()
        await caller.disconnect(hidden.peer_id)
        await until(lambda: caller.peer_id not in hidden.connected())
        assert [net.statistics().library_faults for net in (hidden, caller)] == [0, 0]


async def test_who_cannot_be_dialled_is_found_with_its_circuit_address_and_heard_by_gossip() -> None:
    async with swarm("server", "client", "client") as (relay, hidden, seeker):
        await until(lambda: bool(hidden.addresses()))
        async with (
            relay.subscribe(TOPIC, lambda _publisher, _data: True),
            seeker.subscribe(TOPIC, lambda _publisher, _data: True) as heard,
        ):
            with trio.fail_after(60):
                await hidden.provide("role/experts")
                while not (hints := await seeker.find("role/experts")):
                    await trio.sleep(0.2)
                assert hints[0].peer == hidden.peer_id
                await seeker.connect(hidden.peer_id, hints[0].addresses or hidden.addresses())
                while True:
                    await hidden.publish(TOPIC, b"here")
                    with trio.move_on_after(0.5):
                        assert await anext(heard) == (hidden.peer_id, b"here")
                        break


async def test_another_network_key_is_named_as_what_it_probably_is() -> None:
    other = replace(OPTIONS, network_key=bytes(range(1, 33)))
    async with open_net(bytes([1]) * 32, OPTIONS) as a, open_net(bytes([2]) * 32, other) as b:
        with trio.fail_after(20), pytest.raises(PeerUnreachable, match="it has another network key, or is no gnusnode"):
            await a.connect(b.peer_id, b.addresses())
