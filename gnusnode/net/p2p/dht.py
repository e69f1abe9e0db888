"""The distributed hash table, for coarse discovery: who once said that it offers a key.

The library's Kademlia is used as it is on the wire. What differs, and why:

- a network of its own per name: the library ignores its protocol prefix, so its host is wrapped;
- a routing table that fills: the library adds no inbound peer and looks again after ten minutes only;
- bounded memory: no values, few keys and addresses per peer, small messages;
- records that end: the library keeps what it finds as if it had been told, so dead providers never leave;
- no endless dialling of the dead.
"""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.kad_dht import kad_dht, peer_routing, provider_store
from libp2p.kad_dht.common import PROTOCOL_ID as PUBLIC_PROTOCOL
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.kad_dht.provider_store import ProviderStore
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.records.validator import NamespacedValidator
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

from gnusnode.net.p2p.comings import Comings
from gnusnode.net.port import PeerAddresses

if TYPE_CHECKING:
    from gnusnode.net.p2p.options import NetOptions

FIND_SECONDS: Final = 8.0
"""Longest time of one lookup; what was found by then is the answer."""
PROVIDE_SECONDS: Final = 15.0
MAX_PROVIDED: Final = 32
"""Keys that one node provides; with more, the one provided longest ago is no longer renewed."""

_RECORD_SECONDS: Final = 2 * 3600
_RENEW_SECONDS: Final = 40 * 60
_RETELL_SECONDS: Final = 60.0
"""A key told less than this ago is not told again because somebody came."""
_ADDS_PER_WINDOW: Final = 8
_WINDOW_SECONDS: Final = 10.0
"""Receivers silently drop what is over ten additions of one peer in ten seconds."""
_MAX_MESSAGE: Final = 128 * 1024
_MAX_KEYS: Final = 8192
_MAX_KEYS_PER_PEER: Final = 2 * MAX_PROVIDED
_MAX_ADDRESSES: Final = 8
_MAX_ADDRESS_BYTES: Final = 256
_DIAL_SECONDS: Final = 4.0
_DEAD_SECONDS: Final = 300.0
_MAX_DEAD: Final = 1024
_FIRST_LOOK_SECONDS: Final = 2.0
_LAST_LOOK_SECONDS: Final = 300.0
_SETTLE_SECONDS: Final = 0.5
_MIN_LOOK_GAP_SECONDS: Final = 3.0
"""A walk costs a stream to each of twenty peers: one that keeps reconnecting must not buy it at will."""


def protocol_of(network_name: str | None) -> str:
    """The protocol id of the table of the network; without a name, the one that all of libp2p shares."""
    if network_name is None:
        return str(PUBLIC_PROTOCOL)
    return f"/gnus/{hashlib.sha256(network_name.encode()).hexdigest()[:16]}/kad/1.0.0"


def key_bytes(key: str) -> bytes:
    """The key on the wire: the SHA-256 multihash of the text, as other implementations expect one."""
    return b"\x12\x20" + hashlib.sha256(key.encode()).digest()


class _Peerstore:
    """The host's peerstore, that says of the private protocol what the library asks of the public one."""

    def __init__(self, inner: Any, protocol: TProtocol) -> None:
        self._inner = inner
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get_protocols(self, peer_id: ID) -> list[str]:
        known = cast("list[str]", self._inner.get_protocols(peer_id))
        return [str(PUBLIC_PROTOCOL) if each == self._protocol else each for each in known if each != PUBLIC_PROTOCOL]


class _Host:
    """The host as the library's table sees it: its protocol renamed, its dials bounded."""

    def __init__(
        self, inner: IHost, protocol: TProtocol, clock: Callable[[], float], admits: Callable[[str], bool]
    ) -> None:
        self._inner = inner
        self._protocol = protocol
        self._clock = clock
        self._admits = admits
        self._dead: dict[ID, float] = {}
        self._peerstore = inner.get_peerstore()
        if protocol != PUBLIC_PROTOCOL:
            self._peerstore = _Peerstore(self._peerstore, protocol)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get_peerstore(self) -> Any:
        return self._peerstore

    def get_addrs(self) -> list[Multiaddr]:
        # A record without any address is not kept by anybody; who cannot be dialled can still be known by name.
        return self._inner.get_addrs() or [Multiaddr(f"/p2p/{self._inner.get_id()}")]

    def set_stream_handler(self, protocol_id: TProtocol, handler: Callable[[INetStream], Awaitable[None]]) -> None:
        async def answer(stream: INetStream) -> None:
            # Who asks for a key learns who holds it: nothing for a former member, who still has the network key.
            if self._admits(str(stream.muxed_conn.peer_id)):
                await handler(stream)
            else:
                await stream.reset()

        self._inner.set_stream_handler(self._renamed(protocol_id), answer)

    def remove_stream_handler(self, protocol_id: TProtocol) -> None:
        self._inner.remove_stream_handler(self._renamed(protocol_id))

    async def new_stream(self, peer_id: ID, protocol_ids: Sequence[TProtocol]) -> INetStream:
        """A stream to a connected peer, or to one that answers a short dial. Who did not is left alone for a while."""
        stream = await self._reach(peer_id, [self._renamed(each) for each in protocol_ids])
        if self._admits(str(peer_id)):
            return stream
        # What is provided is not for it to hear either. One that was just dialled says its hello meanwhile.
        await stream.reset()
        raise SwarmException(f"peer {peer_id} is not admitted")

    async def _reach(self, peer_id: ID, protocols: list[TProtocol]) -> INetStream:
        if peer_id in self._inner.get_connected_peers():
            return await self._inner.new_stream(peer_id, protocols)
        if self._dead.get(peer_id, 0.0) > self._clock():
            raise SwarmException(f"peer {peer_id} did not answer a moment ago")
        try:
            with trio.fail_after(_DIAL_SECONDS):
                return await self._inner.new_stream(peer_id, protocols)
        except Exception:  # the library raises many kinds; whichever it was, it is raised on
            self.leave_alone(peer_id)
            raise

    def leave_alone(self, peer_id: ID) -> None:
        """Does not dial the peer for a while; where it comes by itself it is welcome."""
        while len(self._dead) >= _MAX_DEAD:
            del self._dead[next(iter(self._dead))]
        self._dead[peer_id] = self._clock() + _DEAD_SECONDS

    def revive(self, peer_id: ID) -> None:
        self._dead.pop(peer_id, None)

    def _renamed(self, protocol: TProtocol) -> TProtocol:
        return self._protocol if protocol == PUBLIC_PROTOCOL else protocol


class _Store(ProviderStore):
    """Provider records with a bound on what any peer can make us keep."""

    def add_provider(self, key: bytes, provider: PeerInfo) -> None:
        name = str(provider.peer_id)
        if name not in self.providers.get(key, {}):
            if len(self.providers) >= _MAX_KEYS and key not in self.providers:
                return
            if sum(name in records for records in self.providers.values()) >= _MAX_KEYS_PER_PEER:
                return
        super().add_provider(key, PeerInfo(provider.peer_id, _short(provider.addrs)))

    async def _republish_provider_records(self) -> None:
        """Nothing: ``Dht`` renews what it provides, long before the library would."""


def _short(addresses: Iterable[Multiaddr]) -> list[Multiaddr]:
    """As many addresses as anybody needs, none of absurd length."""
    return [each for each in addresses if len(each.to_bytes()) <= _MAX_ADDRESS_BYTES][:_MAX_ADDRESSES]


class Dht:
    """Providing and finding, as ``gnusnode.net.port.Net`` says."""

    def __init__(self, dht: KadDHT, host: _Host) -> None:
        self._dht = dht
        self._host = host
        self._comings = Comings(self._forget)
        self._provided: dict[str, float] = {}
        """Key -> when it was last told to at least one peer, by ``trio.current_time``; minus infinity: never."""
        self._sent: deque[float] = deque(maxlen=_ADDS_PER_WINDOW)
        self._telling = trio.Lock()

    async def provide(self, key: str) -> None:
        """Tells the peers closest to ``key`` that this node offers it, and again for as long as the table is open.

        Where nobody is connected yet, it is told once somebody is. Takes at most ``PROVIDE_SECONDS``, more only where
        more than eight keys are provided within ten seconds.
        """
        self._provided.pop(key, None)
        self._provided[key] = float("-inf")
        while len(self._provided) > MAX_PROVIDED:
            forgotten = next(iter(self._provided))
            del self._provided[forgotten]
        await self._tell(key)

    async def find(self, key: str) -> tuple[PeerAddresses, ...]:
        """Who said that it offers ``key``, this node left out; each peer once. At most ``FIND_SECONDS``."""
        wire = key_bytes(key)
        # A store of its own for each lookup: the library's answers from what it has, however old, and keeps what it
        # finds with a new time, so that nodes would hand dead records to each other for ever.
        found = ProviderStore(cast("IHost", self._host), self._dht.peer_routing)
        with trio.move_on_after(FIND_SECONDS):
            await found.find_providers(wire)
        own = self._dht.local_peer_id
        merged: dict[str, dict[str, None]] = {}
        for info in (*self._dht.provider_store.get_providers(wire), *found.get_providers(wire)):
            if info.peer_id != own:
                texts = [text for text in map(str, _short(info.addrs)) if "/tcp/" in text]
                merged.setdefault(str(info.peer_id), {}).update(dict.fromkeys(texts))
        return tuple(PeerAddresses(peer, tuple(addresses)[:_MAX_ADDRESSES]) for peer, addresses in merged.items())

    def known(self) -> frozenset[str]:
        """The peers in the routing table."""
        return frozenset(str(peer) for peer in self._dht.routing_table.get_peer_ids())

    async def run(self) -> None:
        """Keeps the routing table filled and the provided keys told. Never returns."""
        network = self._host.get_network()
        network.register_notifee(self._comings)
        try:
            delay, looked = _FIRST_LOOK_SECONDS, float("-inf")
            while True:
                with trio.move_on_after(delay) as quiet:
                    await self._comings.rung.wait()
                if quiet.cancelled_caught:
                    delay = min(_LAST_LOOK_SECONDS, 4 * delay)
                else:
                    # Connections come in bunches, and identify needs a moment to say what the newcomer speaks.
                    await trio.sleep_until(max(trio.current_time() + _SETTLE_SECONDS, looked + _MIN_LOOK_GAP_SECONDS))
                    delay = _FIRST_LOOK_SECONDS
                self._comings.rung = trio.Event()
                grown, looked = await self._look_around(), trio.current_time()
                await self._renew(_RETELL_SECONDS if grown else _RENEW_SECONDS)
        finally:
            network.remove_notifee(self._comings)

    def _forget(self, peer: ID) -> None:
        # Died, or sent away: by whoever decides that, and the table must not bring it back at once.
        if peer not in self._host.get_connected_peers():
            self._host.leave_alone(peer)
            self._dht.routing_table.remove_peer(peer)

    async def _renew(self, older_than: float) -> None:
        due = trio.current_time() - older_than
        for key, told in tuple(self._provided.items()):
            if told < due and key in self._provided:
                await self._tell(key)

    async def _look_around(self) -> bool:
        """Learns of peers from those who are connected. Whether there are any that were not in the table before."""
        table, before = self._dht.routing_table, set(self._dht.routing_table.get_peer_ids())
        own = self._dht.local_peer_id
        for peer in self._host.get_connected_peers():
            self._host.revive(peer)
            await self._dht.add_peer(peer)
        with trio.move_on_after(FIND_SECONDS):
            for peer in await self._dht.peer_routing.find_closest_peers_network(own.to_bytes()):
                if peer != own:
                    await self._dht.add_peer(peer)
        return not before.issuperset(table.get_peer_ids())

    async def _tell(self, key: str) -> None:
        async with self._telling:
            if len(self._sent) == _ADDS_PER_WINDOW:
                await trio.sleep_until(self._sent[0] + _WINDOW_SECONDS)
            self._sent.append(trio.current_time())
            told = False
            with trio.move_on_after(PROVIDE_SECONDS):
                told = await self._dht.provider_store.provide(key_bytes(key))
            if told and key in self._provided:
                self._provided[key] = trio.current_time()


@asynccontextmanager
async def open_dht(
    host: IHost, options: NetOptions, *, admits: Callable[[str], bool] = lambda peer: True
) -> AsyncGenerator[Dht, None]:
    """A full member of the network's table, on ``host``, while the context is open.

    Args:
        admits: the peers whose questions are answered; asked for each.
    """
    _limit_library()
    wrapped = _Host(host, TProtocol(protocol_of(options.network_name)), time.monotonic, admits)
    dht = KadDHT(
        cast("IHost", wrapped),
        DHTMode.SERVER,
        # No namespace: nobody can store a value here, of which the library would keep 50 GB.
        validator=NamespacedValidator({}, strict_validation=True),
        validator_changed=True,
        strict_validation=True,
    )
    dht.provider_store = _Store(cast("IHost", wrapped), dht.peer_routing)
    table = Dht(dht, wrapped)
    try:
        async with background_trio_service(dht), trio.open_nursery() as nursery:
            nursery.start_soon(table.run)
            yield table
            nursery.cancel_scope.cancel()
    finally:
        # The library leaves its handler behind.
        wrapped.remove_stream_handler(TProtocol(str(PUBLIC_PROTOCOL)))


def _limit_library() -> None:
    """Limits that the library holds as constants of its modules; the same for every table of the process."""
    for module in cast("tuple[Any, ...]", (kad_dht, peer_routing, provider_store)):
        module.MAX_DHT_MESSAGE_SIZE = _MAX_MESSAGE
    provider_store.PROVIDER_RECORD_EXPIRATION_INTERVAL = _RECORD_SECONDS
    # Every finished stream of the table is a warning, every peer without one an error.
    logging.getLogger("libp2p.kad_dht").setLevel(logging.CRITICAL)
