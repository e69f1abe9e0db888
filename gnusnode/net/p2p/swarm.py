"""The library's swarm with its connections cured: slots come back, one bad stream ends alone, strangers wait outside.

Symptom and cure stand at each method; the tests are in ``tests/unit/net/test_hardening.py``.
"""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import trio
from libp2p.abc import IMuxedConn, INetConn, INetStream, ISecureConn
from libp2p.io.abc import ReadWriteCloser
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.exceptions import SwarmException
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore, PeerStoreError
from libp2p.protocol_muxer.exceptions import MultiselectClientError, MultiselectError
from libp2p.transport.exceptions import MuxerUpgradeFailure
from libp2p.transport.tcp.tcp import TCP
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr

from gnusnode.errors import PeerUnreachable
from gnusnode.net.events import EventFeed
from gnusnode.net.p2p.dial import dial_any
from gnusnode.net.p2p.gates import Gates
from gnusnode.net.p2p.hardening import library_fault
from gnusnode.net.p2p.options import NetOptions
from gnusnode.net.p2p.yamux import Yamux
from gnusnode.net.p2p.yamux_frames import YamuxOptions
from gnusnode.net.p2p.yamux_stream import YamuxStream
from gnusnode.net.port import Connected, NetStatistics

HANDSHAKE_SECONDS: Final = 4.0
"""Time that an incoming connection has to become one: half-open sockets hold a slot that long."""

PARTED_SECONDS: Final = 5.0
"""Time that the library does not dial a peer by itself after its last connection ended."""
MAX_PARTED: Final = 256

Handler = Callable[[INetStream], Awaitable[None]]


class Upgrader(TransportUpgrader):
    """Makes our own muxer of a secured connection: the library has its own built in, whatever it is given."""

    def __init__(self, secure: Any, muxers: Any, options: YamuxOptions) -> None:
        super().__init__(secure, muxers)
        self._options = options

    async def upgrade_connection(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        try:
            await self.muxer_multistream.select_transport(conn)
        except (MultiselectError, MultiselectClientError) as error:
            raise MuxerUpgradeFailure("no common muxer") from error
        return Yamux(conn, peer_id, self._options)


class HardenedSwarm(Swarm):
    """Connections of one host. ``feed`` tells of them, ``gates`` admit them."""

    def __init__(
        self,
        peer_id: ID,
        store: PeerStore,
        upgrader: Upgrader,
        options: NetOptions,
        gates: Gates,
        feed: EventFeed,
        statistics: NetStatistics,
    ) -> None:
        super().__init__(
            peer_id,
            store,
            upgrader,
            transports=[TCP()],
            # A failed dial is told at once: who dials again, and when, is decided above.
            retry_config=RetryConfig(max_retries=0),
            connection_config=_config(options),
            psk=options.network_key.hex() if options.network_key is not None else None,
        )
        self._gates = gates
        self._feed = feed
        self._statistics = statistics
        self._dial_seconds = options.dial_seconds
        self._parted: dict[ID, float] = {}
        self.own: set[str] = set()
        """Protocols whose handlers count by themselves what goes wrong."""
        # Symptom: the library dials peers of its own choice. Cure: it is not asked.
        cast("Any", self.auto_connector).maybe_connect = _nothing

    async def _handle_inbound_connection(self, read_write_closer: ReadWriteCloser, maddr: Multiaddr) -> None:
        """Symptom: after 250 incoming connections in its life a node takes no more; half-open sockets take the places.

        The library gives a slot back when the host ends, not the connection, and knows no limit per address. Cure: our
        own slots, which end with the connection, after admission by address.
        """
        remote = read_write_closer.get_remote_address()
        host = remote[0] if remote is not None else None
        if self._closing or self._gates.refuses_address(host) is not None:
            await read_write_closer.close()
            return
        with self._gates.slot(host):
            raw = RawConnection(read_write_closer, False)
            try:
                muxed = await self.upgrade_inbound_raw_conn(raw, maddr)
            except Exception:  # noqa: BLE001 - whatever a stranger's bytes cause in a handshake ends their socket only
                self._gates.failed_handshake()
                await raw.close()
                return
            if isinstance(muxed, Yamux):
                await muxed.ended.wait()

    async def dial_peer(self, peer_id: ID) -> list[INetConn]:
        """Symptom: the library dials one address of a peer, and then none for a minute; and whoever has just left.

        Its services dial by this when they want a stream to a peer that is not connected. Cure: all addresses at once,
        and nobody who left within ``PARTED_SECONDS``.
        """
        if trio.current_time() - self._parted.get(peer_id, float("-inf")) < PARTED_SECONDS:
            raise SwarmException("the peer has just left")
        try:
            known = [str(address) for address in self.peerstore.addrs(peer_id)]
        except PeerStoreError as error:
            raise SwarmException("no address is known") from error

        async def dial(address: str) -> None:
            await self.dial_addr(Multiaddr(address), peer_id)

        direct = [address for address in known if "/tcp/" in address and "/p2p-circuit" not in address]
        try:
            await dial_any(direct, dial, peer=str(peer_id), seconds=self._dial_seconds)
        except PeerUnreachable as error:
            raise SwarmException(error.what) from error
        return self.get_connections(peer_id)

    async def add_conn(self, muxed_conn: IMuxedConn, direction: str = "unknown") -> SwarmConn:
        """Symptom: there is no gate for PeerIDs. Cure: bans and the cap per peer are asked once the peer is known."""
        peer, inbound = muxed_conn.peer_id, direction == "inbound"
        reason = self._gates.refuses_peer(str(peer), len(self.get_connections(peer)), inbound=inbound)
        if reason is not None or peer == self.self_id:
            await muxed_conn.close()
            raise SwarmException(f"the connection was refused: {reason or 'it leads to this node itself'}")
        return await super().add_conn(muxed_conn, direction)

    def set_stream_handler(self, stream_handler: Handler) -> None:
        """Symptom: an exception in any handler of a stream ends the host; handlers outlive their connection.

        And a handler that returns without closing leaves its stream, and a peer that waits, for ever; what it refuses
        of a peer is told to nobody. Cure: a failure or a refusal resets that stream and is counted; a handler is
        cancelled shortly after its connection has ended, and its stream is closed when it returns.
        """

        async def fenced(stream: INetStream) -> None:
            muxed = cast("Yamux", stream.muxed_conn)
            scope = trio.CancelScope()
            muxed.end_with(scope)
            try:
                with scope:
                    await stream_handler(stream)
                if scope.cancelled_caught:
                    await stream.reset()
                opened = cast("YamuxStream", cast("Any", stream).muxed_stream)
                if opened.refused and not scope.cancelled_caught and stream.get_protocol() not in self.own:
                    self._statistics.streams_refused += 1
                opened.close_write()
            except Exception as error:  # noqa: BLE001 - the fence
                library_fault(f"the handler of {stream.get_protocol() or 'a new stream'}", error)
                await stream.reset()
            finally:
                muxed.release(scope)

        super().set_stream_handler(cast("Any", fenced))

    async def notify_connected(self, conn: INetConn) -> None:
        muxed = cast("Yamux", conn.muxed_conn)
        remote = muxed.get_remote_address()
        address = str(_multiaddr(remote)) if remote is not None else ""
        if not muxed.is_direct and (through := muxed.get_transport_addresses()):
            address = str(through[0])
        self._statistics.connections = len(self.get_connections())
        self._feed.connected(Connected(str(muxed.peer_id), address, not muxed.is_initiator, not muxed.is_direct))
        await super().notify_connected(conn)

    def remove_conn(self, swarm_conn: SwarmConn) -> None:
        super().remove_conn(swarm_conn)
        peer = swarm_conn.muxed_conn.peer_id
        self._statistics.connections = len(self.get_connections())
        if peer not in self.connections:
            now = trio.current_time()
            if len(self._parted) >= MAX_PARTED:
                self._parted = {each: at for each, at in self._parted.items() if now - at < PARTED_SECONDS}
            self._parted[peer] = now
            self._feed.disconnected(str(peer))

    async def notify_disconnected(self, conn: INetConn) -> None:
        """Symptom: each peer that ever left is remembered for the library's own redialling. Cure: nobody is."""
        await self._notify("disconnected", conn)

    async def notify_opened_stream(self, stream: INetStream) -> None:
        """Symptom: a new stream starts four tasks that do nothing. Cure: nobody listens to this, so nobody is told."""

    async def notify_closed_stream(self, stream: INetStream) -> None:
        """As ``notify_opened_stream``."""

    async def close(self) -> None:
        """Symptom: connections are closed one after the other, 0.1 s each, and dialled ones not at all on cancellation.

        Cure: all at once; then what is left of them is aborted.
        """
        if self._closing:
            return
        connections = list(self.get_connections())
        with trio.move_on_after(0.5):
            async with trio.open_nursery() as nursery:
                for connection in connections:
                    nursery.start_soon(connection.close)
        for connection in connections:
            cast("Yamux", connection.muxed_conn).abort()
        await super().close()


def _config(options: NetOptions) -> ConnectionConfig:
    return ConnectionConfig(
        min_connections=0,
        low_watermark=0,
        high_watermark=options.max_connections,
        max_connections=options.max_connections,
        # Ours is in ``gates``: the library's closes whichever it likes least.
        max_connections_per_peer=options.max_connections,
        inbound_upgrade_timeout=HANDSHAKE_SECONDS,
        outbound_upgrade_timeout=options.dial_seconds,
    )


async def _nothing(*_: Any, **__: Any) -> None:
    return


def _multiaddr(remote: tuple[str, int]) -> Multiaddr:
    host, port = remote
    return Multiaddr(f"/{'ip6' if ':' in host else 'ip4'}/{host.partition('%')[0]}/tcp/{port}")
