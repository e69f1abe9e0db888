"""The real network: ``Net`` over py-libp2p, with TCP, Noise and our own Yamux, and nothing else offered.

Everything that this endpoint starts lives in the nursery of ``open_net`` and ends with it, within a second.
"""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, Protocol, cast

import trio
from libp2p.abc import INetStream
from libp2p.crypto.ed25519 import Ed25519PrivateKey
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as new_noise_key
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.tools.anyio_service import TrioManager
from multiaddr import Multiaddr

from gnusnode.errors import CannotBind, ConfigError, Forbidden, GnusError, InternalError, PeerUnreachable
from gnusnode.net.events import EventFeed
from gnusnode.net.handling import Handlers
from gnusnode.net.p2p import hardening
from gnusnode.net.p2p.addresses import Interfaces, announced
from gnusnode.net.p2p.dial import dial_any
from gnusnode.net.p2p.gates import Gates
from gnusnode.net.p2p.options import NETWORK_KEY_BYTES, NetOptions
from gnusnode.net.p2p.stream import P2PStream, open_stream
from gnusnode.net.p2p.swarm import HardenedSwarm, Upgrader
from gnusnode.net.p2p.yamux import Yamux
from gnusnode.net.p2p.yamux_frames import YamuxOptions
from gnusnode.net.port import Accept, MessageStream, NetEvent, NetStatistics, PeerAddresses, StreamHandler

CLOSE_SECONDS: Final = 1.0
PING_SECONDS: Final = 5.0
NEGOTIATE_SECONDS: Final = 10


class _Gossip(Protocol):
    def restrict(self, allows: Callable[[str], bool]) -> None: ...

    async def publish(self, topic: str, data: bytes) -> None: ...

    def subscribe(
        self, topic: str, accept: Accept
    ) -> AbstractAsyncContextManager[AsyncIterator[tuple[str, bytes]]]: ...


class _Dht(Protocol):
    async def provide(self, key: str) -> None: ...
    async def find(self, key: str) -> tuple[PeerAddresses, ...]: ...


class _Relay(Protocol):
    def addresses(self) -> tuple[str, ...]: ...
    async def dial(self, address: str, peer: str) -> None: ...


class P2PNet:
    """``Net`` of one host. See the port for its contract."""

    def __init__(
        self,
        host: BasicHost,
        swarm: HardenedSwarm,
        options: NetOptions,
        gates: Gates,
        feed: EventFeed,
        statistics: NetStatistics,
        nursery: trio.Nursery,
    ) -> None:
        self.gossip: _Gossip | None = None
        self.dht: _Dht | None = None
        self.relay: _Relay | None = None
        self._host = host
        self._swarm = swarm
        self._options = options
        self._gates = gates
        self._feed = feed
        self._statistics = statistics
        self._nursery = nursery
        self._handlers = Handlers(statistics)
        self._dialling: dict[str, trio.Event] = {}

    @property
    def peer_id(self) -> str:
        return str(self._host.get_id())

    def addresses(self) -> tuple[str, ...]:
        direct = tuple(str(address) for address in self._host.get_addrs())
        return direct + (self.relay.addresses() if self.relay is not None else ())

    # --- connections --------------------------------------------------------------------------------------------------

    async def connect(self, peer: str, addresses: Sequence[str]) -> None:
        await trio.lowlevel.checkpoint()
        target = _peer(peer)
        while True:
            if peer in self._gates.banned:
                raise Forbidden("this peer is banned here", where=peer, hint="lift the ban to connect")
            if self._living(target):
                return
            if peer not in self._dialling:
                break
            await self._dialling[peer].wait()
        done = self._dialling[peer] = trio.Event()
        try:
            await dial_any(addresses, self._dialler(target), peer=peer, seconds=self._options.dial_seconds)
        finally:
            del self._dialling[peer]
            done.set()

    def _dialler(self, target: ID) -> Callable[[str], Any]:
        async def dial(address: str) -> None:
            if target == self._host.get_id():
                raise PeerUnreachable("this is the node itself")
            if "/p2p-circuit" in address:
                if self.relay is None:
                    raise PeerUnreachable("relayed connections are switched off here")
                await self.relay.dial(address, str(target))
                return
            bare, _, named = address.partition("/p2p/")
            if named and named != str(target):
                raise PeerUnreachable("the address names another peer")
            if "/tcp/" not in bare or bare.endswith(("/ws", "/wss")):
                raise PeerUnreachable("not a TCP address")
            await self._swarm.dial_addr(Multiaddr(bare), target)

        return dial

    async def disconnect(self, peer: str) -> None:
        await trio.lowlevel.checkpoint()
        for connection in self._swarm.get_connections(_peer(peer)):
            closed = trio.Event()
            # In a task of ours: the library leaves a connection listed for ever when its closing is cancelled.
            self._nursery.start_soon(_close, connection, closed)
            await closed.wait()

    def ban(self, peers: frozenset[str]) -> None:
        self._gates.banned = peers
        for peer in peers & self.connected():
            self._nursery.start_soon(self.disconnect, peer)

    def connected(self) -> frozenset[str]:
        return self._feed.present()

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[NetEvent]]:
        return self._feed.subscribe()

    async def ping(self, peer: str) -> float:
        connection = self._connection(peer)
        with trio.move_on_after(PING_SECONDS):
            try:
                return await connection.ping()
            except MuxedConnUnavailable as error:
                raise PeerUnreachable(str(error), where=peer) from error
        raise PeerUnreachable(f"no answer to a ping within {PING_SECONDS:g} s", where=peer)

    def _living(self, target: ID) -> list[Yamux]:
        """The connections to a peer that can be used, the best one last."""
        found = [cast("Yamux", connection.muxed_conn) for connection in self._swarm.get_connections(target)]
        living = [muxed for muxed in found if muxed.is_established]
        return sorted(living, key=lambda muxed: muxed.is_direct)

    def _connection(self, peer: str) -> Yamux:
        living = self._living(_peer(peer))
        if not living:
            raise PeerUnreachable("there is no connection to this peer", where=peer, hint="connect first")
        return living[-1]

    # --- streams ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def serve(self, protocol: str, handler: StreamHandler) -> AsyncGenerator[None, None]:
        async with self._handlers.serve(protocol, handler):
            self._swarm.own.add(protocol)
            self._host.set_stream_handler(TProtocol(protocol), cast("Any", self._incoming))
            try:
                yield
            finally:
                self._host.remove_stream_handler(TProtocol(protocol))

    async def _incoming(self, stream: INetStream) -> None:
        muxed = cast("Any", stream).muxed_stream
        peer = str(stream.muxed_conn.peer_id)
        await self._handlers.run(P2PStream(muxed, peer, str(stream.get_protocol()), self._statistics))

    async def open_stream(self, peer: str, protocol: str) -> MessageStream:
        return await open_stream(self._connection(peer), peer, protocol, self._statistics)

    # --- gossip and discovery -----------------------------------------------------------------------------------------

    async def publish(self, topic: str, data: bytes) -> None:
        if self.gossip is not None:
            await self.gossip.publish(topic, data)

    def subscribe(self, topic: str, accept: Accept) -> AbstractAsyncContextManager[AsyncIterator[tuple[str, bytes]]]:
        assert self.gossip is not None, "gossip is open as long as the network is"
        return self.gossip.subscribe(topic, accept)

    def gossip_with(self, allows: Callable[[str], bool]) -> None:
        if self.gossip is not None:
            self.gossip.restrict(allows)

    async def provide(self, key: str) -> None:
        if self.dht is not None:
            await self.dht.provide(key)

    async def find(self, key: str) -> tuple[PeerAddresses, ...]:
        if self.dht is None:
            return ()
        return tuple(found for found in await self.dht.find(key) if found.peer != self.peer_id)

    def statistics(self) -> NetStatistics:
        return self._statistics


@asynccontextmanager
async def open_net(
    identity_seed: bytes, options: NetOptions, *, admits: Callable[[str], bool] = lambda peer: True
) -> AsyncGenerator[P2PNet, None]:
    """A running endpoint with the PeerID of the key ``identity_seed`` (32 bytes).

    Args:
        admits: the peers that may use this node as a relay, and ask its part of the DHT; asked whenever one wants to.

    Raises:
        CannotBind: an address of ``options.listen`` cannot be listened on.
        ConfigError: the options, or the installed version of the library.
        InternalError: the library ended under us.
    """
    hardening.apply()
    statistics = NetStatistics()
    stop_counting = hardening.count_into(statistics)
    failure: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            host, swarm, net = _assemble(identity_seed, options, statistics, nursery)
            try:
                manager = TrioManager(swarm)
                nursery.start_soon(manager.run)
                await manager.wait_started()
                async with AsyncExitStack() as stack:
                    await _open_services(stack, net, host, options, statistics, admits)
                    await _listen(swarm, options.listen)
                    try:
                        yield net
                    except Exception as error:  # noqa: BLE001 - raised below, not wrapped in the groups of the library
                        failure = error
            finally:
                with trio.move_on_after(CLOSE_SECONDS, shield=True):
                    await host.close()
                nursery.cancel_scope.cancel()
    except* GnusError as group:
        failure = failure or _first(group)
    except* Exception as group:  # noqa: BLE001 - the library's faults end here, whatever they are
        hardening.library_fault("the network service", group)
        failure = failure or InternalError("the network ended unexpectedly", hint="see the log; start the node again")
        failure.__cause__ = group
    finally:
        stop_counting()
    if failure is not None:
        raise failure


def _assemble(
    seed: bytes, options: NetOptions, statistics: NetStatistics, nursery: trio.Nursery
) -> tuple[BasicHost, HardenedSwarm, P2PNet]:
    """The host, with Noise alone: the library's default also takes plaintext, by which anybody is anybody."""
    if options.network_key is not None and len(options.network_key) != NETWORK_KEY_BYTES:
        raise ConfigError(f"the network key has {len(options.network_key)} bytes, {NETWORK_KEY_BYTES} are needed")
    private = Ed25519PrivateKey.from_bytes(seed)
    pair = KeyPair(private, private.get_public_key())
    peer = ID.from_pubkey(pair.public_key)
    store = PeerStore()
    store.add_key_pair(peer, pair)
    feed, gates = EventFeed(), Gates(options, statistics)
    upgrader = Upgrader(
        {NOISE: NoiseTransport(pair, noise_privkey=new_noise_key().private_key)},
        {TProtocol(YAMUX): Yamux},
        YamuxOptions(options.ping_seconds, statistics),
    )
    swarm = HardenedSwarm(peer, store, upgrader, options, gates, feed, statistics)
    interfaces = Interfaces()

    def announce(listening: list[Multiaddr]) -> list[Multiaddr]:
        texts = options.announce or announced(map(str, listening), interfaces.addresses())
        return [Multiaddr(text) for text in texts]

    host = BasicHost(
        swarm,
        negotiate_timeout=NEGOTIATE_SECONDS,
        addrs_factory=announce,
        # What peers claim to see of us is their word alone.
        disable_identify_address_discovery=True,
    )
    return host, swarm, P2PNet(host, swarm, options, gates, feed, statistics, nursery)


async def _open_services(
    stack: AsyncExitStack,
    net: P2PNet,
    host: BasicHost,
    options: NetOptions,
    statistics: NetStatistics,
    admits: Callable[[str], bool],
) -> None:
    """Gossip, DHT and relay; before the first connection, because each learns of peers as they come."""
    from gnusnode.net.p2p.dht import open_dht
    from gnusnode.net.p2p.gossip import open_gossip
    from gnusnode.net.p2p.relay import open_relay

    net.gossip = await stack.enter_async_context(open_gossip(host, options, statistics))
    if options.dht:
        net.dht = await stack.enter_async_context(open_dht(host, options, admits=admits))
    if options.relay != "off":
        net.relay = await stack.enter_async_context(open_relay(host, options, statistics, admits=admits))


async def _listen(swarm: HardenedSwarm, addresses: Sequence[str]) -> None:
    try:
        parsed = [Multiaddr(address) for address in addresses]
    except ValueError as error:
        raise ConfigError(str(error), where="net.listen", hint="write addresses as /ip4/0.0.0.0/tcp/8478") from error
    await swarm.listen(*parsed)
    for address in parsed:
        if str(address) not in swarm.listeners:
            raise CannotBind(
                f"cannot listen on {address}: {await _bind_error(address)}",
                where="net.listen",
                hint="stop what uses the port, or choose another one",
            )


async def _bind_error(address: Multiaddr) -> str:
    """Why the system does not let us listen on ``address``: the library keeps it to itself."""
    try:
        _, family, host, transport, port, *_ = str(address).split("/")
        kind = trio.socket.AF_INET6 if family == "ip6" else trio.socket.AF_INET
        with trio.socket.socket(kind, trio.socket.SOCK_STREAM) as probe:
            await probe.bind((host, int(port)))
    except OSError as error:
        return error.strerror or str(error)
    except ValueError:
        return "it is not an IP address with a TCP port"
    return f"the library refused it as {transport}"


async def _close(connection: Any, closed: trio.Event) -> None:
    try:
        await connection.close()
    finally:
        closed.set()


def _peer(text: str) -> ID:
    try:
        return ID.from_string(text)
    except ValueError as error:
        raise PeerUnreachable("this is not a PeerID", where=text[:80]) from error


def _first(group: BaseExceptionGroup[GnusError]) -> GnusError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, GnusError)
    return error
