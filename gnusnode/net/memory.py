"""The in-memory twin of the network: many nodes in one process, exact, in virtual time, with faults to order.

    network = MemoryNetwork()
    async with network.join("12D3…a") as a, network.join("12D3…b") as b:
        await a.connect("12D3…b", b.addresses())

What is promised by ``net.port`` holds here as on the real network, and the same tests run on both. Faults: ``cut``
(with ``silent=True`` as a pulled cable, else as a closed socket), ``heal`` and ``delay``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import trio

from gnusnode.errors import Forbidden, PeerUnreachable, TooLarge, UnsupportedProtocol
from gnusnode.net.events import EventFeed
from gnusnode.net.handling import Handlers
from gnusnode.net.memory_streams import Connection, End, MemoryStream
from gnusnode.net.port import (
    MAX_GOSSIP,
    Accept,
    Connected,
    MessageStream,
    NetEvent,
    NetStatistics,
    PeerAddresses,
    StreamHandler,
)

DIAL_SECONDS: Final = 5.0
PING_SECONDS: Final = 5.0
GOSSIP_QUEUE: Final = 512
"""Gossip messages that wait for a slow reader before the oldest is dropped."""


class MemoryNetwork:
    """The medium between the nodes of one test."""

    def __init__(self) -> None:
        self._nodes: list[MemoryNet] = []
        self._links: set[Connection] = set()
        self._cuts: dict[frozenset[str], bool] = {}
        self._providers: dict[str, dict[str, PeerAddresses]] = {}
        self._delay = 0.0
        self._numbers = iter(range(1, 1 << 30))

    @asynccontextmanager
    async def join(self, peer_id: str, addresses: Sequence[str] = ()) -> AsyncGenerator[MemoryNet, None]:
        """A node; it leaves with the context. Two may have one PeerID: the address dialled says which is meant."""
        number = next(self._numbers)
        bare = tuple(map(_bare, addresses)) or (f"/ip4/10.0.{number // 250}.{number % 250 + 1}/tcp/8478",)
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            node = MemoryNet(self, peer_id, bare, nursery)
            self._nodes.append(node)
            try:
                yield node
            except Exception as error:  # noqa: BLE001 - re-raised below, so that the caller sees it without a group
                failure = error
            finally:
                self._nodes.remove(node)
                node.drop_all("the peer left")
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def cut(self, a: str, b: str | None = None, *, silent: bool = False) -> None:
        """Parts ``a`` from ``b``, or from everybody, until ``heal``.

        Connections end at once; with ``silent`` they go mute, and each side notices by its missing pings.
        """
        self._cuts[_pair(a, b)] = silent
        for connection in [c for c in self._links if self._is_cut(c.near.net.peer_id, c.far.net.peer_id) is not None]:
            if silent:
                connection.mute()
            else:
                connection.end("the connection was lost")

    def heal(self, a: str, b: str | None = None) -> None:
        """Undoes ``cut(a, b)``. What was sent over a mute connection arrives, unless it was given up meanwhile."""
        self._cuts.pop(_pair(a, b), None)
        for connection in list(self._links):
            if self._is_cut(connection.near.net.peer_id, connection.far.net.peer_id) is None:
                connection.unmute()

    def delay(self, seconds: float) -> None:
        """The time that everything sent from now on is on its way, one way."""
        self._delay = seconds

    # --- for the nodes ------------------------------------------------------------------------------------------------

    def current_delay(self) -> float:
        return self._delay

    async def dial(self, caller: MemoryNet, peer: str, addresses: Sequence[str]) -> None:
        """A connection from ``caller`` to ``peer`` by one of ``addresses``.

        Raises:
            PeerUnreachable: none answered.
        """
        await trio.sleep(2 * self._delay)
        if peer in caller.connected():
            return  # another task was quicker
        silent = self._is_cut(caller.peer_id, peer)
        if silent:
            await trio.sleep(DIAL_SECONDS)
        wanted = set(map(_bare, addresses))
        target = next((n for n in self._nodes if n.peer_id == peer and wanted & set(n.bare) and n is not caller), None)
        if silent is not None or target is None:
            outcomes = [f"{address}: {self._outcome(address, peer, silent)}" for address in addresses]
            raise PeerUnreachable("; ".join(outcomes) or "no address is known", where=peer)
        if caller.peer_id in target.banned:
            target.refuse("banned")
            raise PeerUnreachable(f"{addresses[0]}: closed the connection", where=peer)
        Connection(self._links, caller, target, self.current_delay, next(self._numbers))

    def _outcome(self, address: str, peer: str, silent: bool | None) -> str:
        others = [n.peer_id for n in self._nodes if _bare(address) in n.bare and n.peer_id != peer]
        if silent:
            return f"no answer within {DIAL_SECONDS:g} s"
        return f"answers as {others[0]}" if others else "connection refused"

    def _is_cut(self, a: str, b: str) -> bool | None:
        """None: connected; else whether silently."""
        found = [self._cuts[key] for key in (_pair(a, b), _pair(a, None), _pair(b, None)) if key in self._cuts]
        return any(found) if found else None

    def spread(self, publisher: MemoryNet, topic: str, data: bytes) -> None:
        """Carries a gossip message from subscriber to subscriber, as far as each believes it."""
        seen: set[MemoryNet] = {publisher}
        ring: list[MemoryNet] = [publisher]
        due = trio.current_time()
        while ring:
            due += self._delay
            neighbours = [n for node in ring for n in node.confidants() if n not in seen]
            seen.update(neighbours)
            ring = [n for n in dict.fromkeys(neighbours) if n.hear(topic, publisher.peer_id, data, due)]

    def provide(self, node: MemoryNet, key: str) -> None:
        self._providers.setdefault(key, {})[node.peer_id] = PeerAddresses(node.peer_id, node.addresses())

    def find(self, key: str) -> tuple[PeerAddresses, ...]:
        return tuple(self._providers.get(key, {}).values())


class _Topic(AsyncIterator[tuple[str, bytes]]):
    """What one node's subscription has heard and its reader has not taken."""

    def __init__(self, accept: Accept) -> None:
        self._accept = accept
        self._heard: deque[tuple[float, str, bytes]] = deque()
        self._changed = trio.lowlevel.ParkingLot()

    def believes(self, publisher: str, data: bytes) -> bool:
        try:
            return self._accept(publisher, data)
        except Exception:  # noqa: BLE001 - the port promises that a validator which raises says no
            return False

    def add(self, due: float, publisher: str, data: bytes) -> bool:
        """False: the oldest message had to go."""
        full = len(self._heard) >= GOSSIP_QUEUE
        if full:
            self._heard.popleft()
        self._heard.append((due, publisher, data))
        self._changed.unpark_all()
        return not full

    async def __anext__(self) -> tuple[str, bytes]:
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            due = self._heard[0][0] if self._heard else float("inf")
            if due <= trio.current_time():
                _, publisher, data = self._heard.popleft()
                return publisher, data
            with trio.move_on_at(due):
                await self._changed.park()


class MemoryNet:
    """``Net`` of one node of a ``MemoryNetwork``. See the port for its contract."""

    def __init__(self, network: MemoryNetwork, peer_id: str, bare: tuple[str, ...], nursery: trio.Nursery) -> None:
        self.bare = bare
        self.banned: frozenset[str] = frozenset()
        self._network = network
        self._peer_id = peer_id
        self._nursery = nursery
        self._statistics = NetStatistics()
        self._handlers = Handlers(self._statistics)
        self._feed = EventFeed()
        self._connections: dict[str, dict[End, Connection]] = {}
        self._topics: dict[str, list[_Topic]] = {}
        self._gossips_with: Callable[[str], bool] = lambda peer: True

    @property
    def peer_id(self) -> str:
        return self._peer_id

    def addresses(self) -> tuple[str, ...]:
        return tuple(f"{address}/p2p/{self._peer_id}" for address in self.bare)

    def serve(self, protocol: str, handler: StreamHandler) -> AbstractAsyncContextManager[None]:
        return self._handlers.serve(protocol, handler)

    async def connect(self, peer: str, addresses: Sequence[str]) -> None:
        await trio.lowlevel.checkpoint()
        if peer in self.banned:
            raise Forbidden("this peer is banned here", where=peer, hint="lift the ban to connect")
        if peer not in self._connections:
            await self._network.dial(self, peer, addresses)

    async def disconnect(self, peer: str) -> None:
        await trio.lowlevel.checkpoint()
        self._drop(peer, "the peer closed the connection")

    def ban(self, peers: frozenset[str]) -> None:
        self.banned = peers
        for peer in peers & self.connected():
            self._nursery.start_soon(self.disconnect, peer)

    def connected(self) -> frozenset[str]:
        return frozenset(self._connections)

    async def open_stream(self, peer: str, protocol: str) -> MessageStream:
        await trio.lowlevel.checkpoint()
        near, connection = self._connection(peer)
        heard = await connection.heard(DIAL_SECONDS)
        far = connection.other(near)
        if not (heard and near.open and far.open):
            raise PeerUnreachable("the connection died, or the peer does not answer", where=peer)
        if not far.net.serves(protocol):
            raise UnsupportedProtocol(f"the peer does not serve {protocol}", where=peer, hint="update the older node")
        ours, theirs = MemoryStream.pair(near, far, protocol)
        far.net.accept(theirs)
        return ours

    async def ping(self, peer: str) -> float:
        await trio.lowlevel.checkpoint()
        near, connection = self._connection(peer)
        start = trio.current_time()
        if not await connection.heard(PING_SECONDS) or not near.open:
            raise PeerUnreachable("no answer to a ping", where=peer)
        return trio.current_time() - start

    async def publish(self, topic: str, data: bytes) -> None:
        if len(data) > MAX_GOSSIP:
            raise TooLarge(f"gossip of {len(data)} bytes is over the limit of {MAX_GOSSIP}", where=topic)
        await trio.lowlevel.checkpoint()
        self._network.spread(self, topic, bytes(data))

    def gossip_with(self, allows: Callable[[str], bool]) -> None:
        self._gossips_with = allows

    @asynccontextmanager
    async def subscribe(self, topic: str, accept: Accept) -> AsyncGenerator[AsyncIterator[tuple[str, bytes]], None]:
        heard = _Topic(accept)
        of_topic = self._topics.setdefault(topic, [])
        of_topic.append(heard)
        try:
            yield heard
        finally:
            of_topic.remove(heard)
            if not of_topic:
                self._topics.pop(topic, None)

    async def provide(self, key: str) -> None:
        await trio.lowlevel.checkpoint()
        self._network.provide(self, key)

    async def find(self, key: str) -> tuple[PeerAddresses, ...]:
        await trio.sleep(2 * self._network.current_delay())
        if not self._connections:
            return ()
        return tuple(found for found in self._network.find(key) if found.peer != self._peer_id)

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[NetEvent]]:
        return self._feed.subscribe()

    def statistics(self) -> NetStatistics:
        return self._statistics

    # --- for the network ----------------------------------------------------------------------------------------------

    def attach(self, end: End, connection: Connection) -> None:
        self._connections.setdefault(end.peer, {})[end] = connection
        self._statistics.connections += 1
        self._feed.connected(Connected(end.peer, end.address, end.inbound))

    def detach(self, end: End, why: str) -> None:
        if not end.open:
            return
        end.open = False
        for stream in list(end.streams):
            stream.die(why)
        self._statistics.connections -= 1
        ends = self._connections[end.peer]
        del ends[end]
        if not ends:
            del self._connections[end.peer]
            self._feed.disconnected(end.peer)

    def drop_all(self, why: str) -> None:
        for peer in self.connected():
            self._drop(peer, why)

    def start(self, task: Callable[[End], Awaitable[None]], end: End) -> None:
        self._nursery.start_soon(task, end)

    def serves(self, protocol: str) -> bool:
        if not self._handlers.serves(protocol):
            self._statistics.streams_refused += 1
            return False
        return True

    def accept(self, stream: MemoryStream) -> None:
        self._nursery.start_soon(self._handlers.run, stream)

    def refuse(self, reason: str) -> None:
        self._statistics.inbound_refused[reason] = self._statistics.inbound_refused.get(reason, 0) + 1

    def sent(self, size: int) -> None:
        self._statistics.bytes_out += size

    def received(self, size: int) -> None:
        self._statistics.bytes_in += size

    def neighbours(self) -> list[MemoryNet]:
        ends = [(end, connection) for ends in self._connections.values() for end, connection in ends.items()]
        return [connection.other(end).net for end, connection in ends if not connection.muted()]

    def confidants(self) -> list[MemoryNet]:
        """The neighbours that hear what this node passes on."""
        return [node for node in self.neighbours() if self._gossips_with(node.peer_id)]

    def hear(self, topic: str, publisher: str, data: bytes, due: float) -> bool:
        """Takes a gossip message; whether to pass it on."""
        if topic not in self._topics or publisher == self._peer_id:
            return False
        # Every subscription is asked, also after one has accepted.
        believing = [each for each in self._topics[topic] if each.believes(publisher, data)]
        for each in believing:
            if not each.add(due, publisher, data):
                self._statistics.gossip_dropped += 1
        if not believing:
            self._statistics.gossip_refused += 1
        return bool(believing)

    def _connection(self, peer: str) -> tuple[End, Connection]:
        ends = self._connections.get(peer)
        if not ends:
            raise PeerUnreachable("there is no connection to this peer", where=peer, hint="connect first")
        return next(iter(ends.items()))

    def _drop(self, peer: str, why: str) -> None:
        for end, connection in list(self._connections.get(peer, {}).items()):
            connection.leave(end, why)


def _bare(address: str) -> str:
    """The address without the peer that is expected there."""
    return address.split("/p2p/")[0]


def _pair(a: str, b: str | None) -> frozenset[str]:
    return frozenset((a,) if b is None else (a, b))
