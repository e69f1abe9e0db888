"""What a member that means no good can do with a program of its own, down to the frames of a connection."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from gnusnode.clock import unix_ms
from gnusnode.contracts.hello import HELLO_PROTOCOL, Greeting, HelloVerdict
from gnusnode.identity import NodeIdentity
from tests.swarm.swarmlab import Member

COUNTERS = (
    "gnusnode_network_faults_total",
    "gnusnode_peer_connections_refused_total",
    "gnusnode_records_refused_total",
)
"""Where a node counts what others do wrong."""


def identity_of(member: Member) -> NodeIdentity:
    """The key of a member, as whoever has its machine holds it."""
    return NodeIdentity.load(member.home / "key")


def peer_of(member: Member) -> str:
    """The PeerID of a member, without a process that prints it."""
    return identity_of(member).peer_id


async def connect(net: Any, target: Member) -> None:
    """Connects an endpoint of the attacker's to the target, where it is not."""
    await net.connect(peer_of(target), [target.listen])


@asynccontextmanager
async def connected(evil: Member, target: Member) -> AsyncGenerator[Any]:
    """The attacker's own endpoint (``P2PNet``) with the key of ``evil``, connected to the target, without a hello."""
    from gnusnode.net.p2p.host import open_net  # loads libp2p: only when such a test runs
    from gnusnode.net.p2p.options import NetOptions

    state = json.loads((evil.home / "swarm" / "swarm.json").read_text())
    options = NetOptions(listen=(), network_key=bytes.fromhex(state["network_key"]))
    async with open_net(identity_of(evil).seed, options) as net:
        await connect(net, target)
        yield net


@asynccontextmanager
async def introduced(evil: Member, target: Member) -> AsyncGenerator[Any]:
    """As ``connected``, and welcome: the attacker says hello and answers hellos, as a member without services."""
    swarm_id = target.status()["id"]
    instance = secrets.token_hex(16)

    def greeting() -> bytes:
        return Greeting(version="0", swarm_id=swarm_id, instance=instance, clock_ms=unix_ms()).to_bytes()

    async def answer(stream: Any) -> None:
        Greeting.from_bytes(await stream.receive())
        await stream.send(greeting())
        HelloVerdict.from_bytes(await stream.receive())
        await stream.send(HelloVerdict().to_bytes())

    async with connected(evil, target) as net, net.serve(HELLO_PROTOCOL, answer):
        stream = await net.open_stream(peer_of(target), HELLO_PROTOCOL)
        await stream.send(greeting())
        Greeting.from_bytes(await stream.receive())
        await stream.send(HelloVerdict(rtt_ms=1.0).to_bytes())
        verdict = HelloVerdict.from_bytes(await stream.receive())
        await stream.close()
        assert not verdict.refused, verdict
        yield net


def connection_to(net: Any, target: Member) -> Any:
    """The muxed connection (``Yamux``), whose frames are the attacker's to make."""
    return net._connection(peer_of(target))


async def raw_stream(net: Any, target: Member, protocol: str) -> Any:
    """A stream on which ``protocol`` was agreed, and whose bytes are the attacker's to choose."""
    from gnusnode.net.p2p import stream

    muxed = connection_to(net, target).open()
    with trio.fail_after(10):
        await stream._select(muxed, protocol)
    return muxed


def prefixed(data: bytes) -> bytes:
    """With its length before it, as the library's protocols have it."""
    length, prefix = len(data), bytearray()
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((*prefix, length)) + data


async def until_ended(muxed: Any, seconds: float) -> None:
    """Until the other side has ended a stream or connection, or for ``seconds``."""
    with trio.move_on_after(seconds), contextlib.suppress(Exception):  # whichever way it ends is good
        while await muxed.read():
            pass


async def send_frames(connection: Any, frames: bytes) -> None:
    """Puts bytes between the frames of a connection, whatever they are."""
    while connection._outbox and not connection.ended.is_set():
        await connection._emptied.park()
    connection._outbox += frames
    connection._filled.unpark()


def counts(member: Member) -> dict[str, float]:
    """What the member has counted of the misdeeds of others, by sample."""
    lines = [line.rpartition(" ") for line in member.request("GET", "/metrics")[1].splitlines()]
    return {name: float(value) for name, _, value in lines if name.startswith(COUNTERS)}


def moved(member: Member, before: dict[str, float]) -> dict[str, float]:
    """By how much each counter has risen since ``before``."""
    return {
        name: value - before.get(name, 0.0) for name, value in counts(member).items() if value > before.get(name, 0)
    }


async def eventually(member: Member, holds: Callable[[], bool], what: str, patience: float = 30.0) -> None:
    """``Member.until``, while the attacker goes on."""
    await trio.to_thread.run_sync(lambda: member.until(holds, what, patience))


def knock(target: Member, source: str = "127.0.0.1") -> socket.socket:
    """A connection to the port for peers from the address ``source`` of this machine."""
    port = int(target.listen.rsplit("/", 1)[1])
    return socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(source, 0))
