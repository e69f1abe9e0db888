"""Being reached, and reaching others, through relays (circuit relay v2).

A node that nobody can dial keeps reservations with relays that it is connected to, renews them, and announces the
addresses that follow. Over a circuit the two ends make the same authenticated, encrypted connection as without one.
"""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import trio
from libp2p.abc import IHost, INetStream
from libp2p.connection_types import ConnectionType
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStoreError
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, PeerId, StopMessage
from libp2p.security.pnet.protector import new_protected_conn  # pyright: ignore[reportUnknownVariableType]
from multiaddr import Multiaddr

from gnusnode.errors import PeerUnreachable
from gnusnode.net.p2p import relaywire as wire
from gnusnode.net.p2p.comings import Comings
from gnusnode.net.p2p.relayhop import RELAY_LIMITS, Hop, RelayLimits
from gnusnode.net.port import NetStatistics

if TYPE_CHECKING:
    from gnusnode.net.p2p.options import NetOptions

WANTED: Final = 2
"""Relays to hold a reservation with: one may leave."""
DIAL_SECONDS: Final = 15.0

_EXCHANGE_SECONDS: Final = 10.0
_MIN_LIFE_SECONDS: Final = 120.0
_MAX_LIFE_SECONDS: Final = 3600.0
_REFUSED_SECONDS: Final = 60.0
_FIRST_LOOK_SECONDS: Final = 2.0
_LAST_LOOK_SECONDS: Final = 60.0
_SETTLE_SECONDS: Final = 0.5
_MAX_ADDRESSES: Final = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Reservation:
    addresses: tuple[str, ...]
    renew_at: float
    ends_at: float


class Relay:
    """Our side of relayed connections."""

    def __init__(self, host: IHost, statistics: NetStatistics) -> None:
        self._host = host
        self._statistics = statistics
        self._comings = Comings(self._lost)
        self._reservations: dict[ID, _Reservation] = {}
        self._refused: dict[ID, float] = {}

    def addresses(self) -> tuple[str, ...]:
        """Circuit addresses that can be dialled now, each ending in ``/p2p/<our peer id>``."""
        now = trio.current_time()
        return tuple(
            address
            for relay, held in self._reservations.items()
            if held.ends_at > now and wire.has_direct(self._host, relay)
            for address in held.addresses
        )

    async def dial(self, address: str, peer: str) -> None:
        """A connection to ``peer`` through the relay that ``address`` names, which is dialled itself where needed.

        Raises:
            PeerUnreachable: no connection came of it within ``DIAL_SECONDS``; the text says where it failed.
        """
        parts = _split(address)
        if parts is None or str(parts[2]) != peer:
            raise PeerUnreachable(f"this is not an address of {peer} through a relay", where=address)
        at, relay, target = parts
        try:
            with trio.fail_after(DIAL_SECONDS):
                if not wire.has_direct(self._host, relay):
                    await _network(self._host).dial_addr(at, relay)
                await self._call(relay, target)
        except trio.TooSlowError:
            raise PeerUnreachable(f"no answer within {DIAL_SECONDS:g} s", where=address) from None
        except wire.NETWORK_FAULTS as error:
            raise PeerUnreachable(f"the relayed dial failed: {error or type(error).__name__}", where=address) from error

    async def accept(self, stream: INetStream) -> None:
        """Serves STOP: a relay brings a caller. Only relays that hold a reservation of ours may."""
        relay = stream.muxed_conn.peer_id
        try:
            with trio.fail_after(_EXCHANGE_SECONDS):
                request = await wire.read(stream, StopMessage)
                caller = wire.peer_of(request.peer.id)
                welcome = relay in self._reservations and request.type == StopMessage.CONNECT and caller is not None
                status = wire.OK if welcome else wire.DENIED
                await wire.write(stream, StopMessage(type=StopMessage.STATUS, status=status))
            if not welcome or caller is None:
                self._statistics.streams_refused += 1
                await stream.close()
                return
            address = wire.circuit(relay, caller)
            raw = RawConnection(stream, False, ConnectionType.RELAYED, [address])
            muxed = await self._host.upgrade_inbound_connection(raw, address)
        except wire.NETWORK_FAULTS as error:
            _log.debug("a circuit through %s failed: %r", relay, error)
            await stream.reset()
            return
        connection = wire.connection_of(self._host, muxed)
        if connection is not None:
            connection.set_transport_info([address], ConnectionType.RELAYED)
            # The stream is the connection now: it ends with it.
            await connection.event_closed.wait()

    async def run(self) -> None:
        """Keeps ``WANTED`` reservations where there are relays. Never returns."""
        network = _network(self._host)
        network.register_notifee(self._comings)
        try:
            delay = _FIRST_LOOK_SECONDS
            while True:
                with trio.move_on_after(delay) as quiet:
                    await self._comings.rung.wait()
                if not quiet.cancelled_caught:
                    # Identify needs a moment to say who relays; and connections come in bunches.
                    await trio.sleep(_SETTLE_SECONDS)
                self._comings.rung = trio.Event()
                await self._keep()
                missing = len(self._reservations) < WANTED
                delay = min(
                    _LAST_LOOK_SECONDS, 2 * delay if missing and quiet.cancelled_caught else _FIRST_LOOK_SECONDS
                )
                if not missing:
                    due = min(held.renew_at for held in self._reservations.values())
                    delay = max(1.0, due - trio.current_time())
        finally:
            network.remove_notifee(self._comings)

    def _lost(self, relay: ID) -> None:
        # A relay ends a reservation with the connection; where another one is left, it is asked again at once.
        self._reservations.pop(relay, None)
        self._comings.rung.set()

    async def _keep(self) -> None:
        now, direct = trio.current_time(), set(wire.directly_connected(self._host))
        for relay, held in tuple(self._reservations.items()):
            if relay not in direct or held.ends_at <= now:
                del self._reservations[relay]
            elif held.renew_at <= now:
                await self._reserve(relay)
        self._refused = {relay: until for relay, until in self._refused.items() if until > now}
        for peer in direct:
            if len(self._reservations) >= WANTED:
                return
            if peer in self._reservations or peer in self._refused:
                continue
            if self._relays(peer):
                await self._reserve(peer)

    def _relays(self, peer: ID) -> bool:
        """Whether identify has said that ``peer`` is a relay."""
        try:
            return wire.HOP in self._host.get_peerstore().get_protocols(peer)
        except PeerStoreError:  # identify has not run yet
            return False

    async def _reserve(self, relay: ID) -> None:
        stream: INetStream | None = None
        try:
            with trio.fail_after(_EXCHANGE_SECONDS):
                stream = await self._host.new_stream(relay, [wire.HOP])
                await wire.write(stream, HopMessage(type=HopMessage.RESERVE))
                answer = await wire.read(stream, HopMessage)
                await stream.close()
        except wire.NETWORK_FAULTS as error:
            _log.debug("no reservation at %s: %r", relay, error)
            self._refused[relay] = trio.current_time() + _REFUSED_SECONDS
            if stream is not None:
                await stream.reset()
            return
        if answer.type != HopMessage.STATUS or answer.status != wire.OK:
            self._refused[relay] = trio.current_time() + _REFUSED_SECONDS
            return
        # The relay's clock may differ from ours: too short a life only renews too often.
        life = min(max(answer.reservation.expire - time.time(), _MIN_LIFE_SECONDS), _MAX_LIFE_SECONDS)
        now = trio.current_time()
        addresses = self._through(relay, list(answer.reservation.addrs))
        self._reservations[relay] = _Reservation(addresses, now + life / 2, now + life)

    def _through(self, relay: ID, said: list[bytes]) -> tuple[str, ...]:
        """Our addresses through ``relay``: at the addresses it names itself, else at those known of it."""
        own = self._host.get_id()
        at: list[Multiaddr] = []
        for raw in said[: 4 * _MAX_ADDRESSES]:
            try:
                at.append(Multiaddr(str(Multiaddr(raw)).partition("/p2p/")[0]))
            except Exception:  # noqa: BLE001, S112 - multiaddr raises many kinds on hostile bytes
                continue
        at = at or list(self._host.get_peerstore().addrs(relay))
        plain = [each for each in at if "/tcp/" in str(each) and "/p2p-circuit" not in str(each)]
        return tuple(dict.fromkeys(str(wire.circuit(relay, own, each)) for each in plain))[:_MAX_ADDRESSES]

    async def _call(self, relay: ID, target: ID) -> None:
        stream = await self._host.new_stream(relay, [wire.HOP])
        try:
            peer = PeerId(id=target.to_bytes())
            await wire.write(stream, HopMessage(type=HopMessage.CONNECT, peer=peer))
            answer = await wire.read(stream, HopMessage)
            if answer.type != HopMessage.STATUS or answer.status != wire.OK:
                raise PeerUnreachable(
                    wire.REASONS.get(answer.status, f"the relay answered {answer.status}"), where=str(target)
                )
            address = wire.circuit(relay, target)
            raw = RawConnection(stream, True, ConnectionType.RELAYED, [address])
            # The library protects only the connections that it dials itself.
            psk = cast("str | None", getattr(_network(self._host), "psk", None))
            guarded = raw if psk is None else new_protected_conn(raw, psk)
            connection = await self._host.upgrade_outbound_connection(guarded, target)
            cast("Any", connection).set_transport_info([address], ConnectionType.RELAYED)
        except BaseException:  # cancelled too: nobody else knows of the stream; it is raised on
            with trio.CancelScope(shield=True), trio.move_on_after(1):
                await stream.reset()
            raise


@asynccontextmanager
async def open_relay(
    host: IHost,
    options: NetOptions,
    statistics: NetStatistics,
    *,
    admits: Callable[[str], bool] = lambda _peer: True,
    limits: RelayLimits = RELAY_LIMITS,
) -> AsyncGenerator[Relay, None]:
    """Relayed connections of ``host``; ``options.relay`` says whether it is a relay for others too.

    Args:
        admits: who may use this node where it relays.
    """
    relay = Relay(host, statistics)
    host.set_stream_handler(wire.STOP, relay.accept)
    if options.relay == "server":
        host.set_stream_handler(wire.HOP, Hop(host, limits, statistics, admits).serve)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relay.run)
            yield relay
            nursery.cancel_scope.cancel()
    finally:
        host.remove_stream_handler(wire.STOP)
        if options.relay == "server":
            host.remove_stream_handler(wire.HOP)


def _network(host: IHost) -> Any:
    """The network of the host, untyped: what is used of it is not in the library's interface."""
    return cast("Any", host.get_network())


def _split(address: str) -> tuple[Multiaddr, ID, ID] | None:
    """The relay's own address, the relay and the target of a circuit address; None: it is none."""
    before, through, after = address.partition("/p2p-circuit/p2p/")
    _, _, relay = before.rpartition("/p2p/")
    try:
        return (Multiaddr(before), ID.from_string(relay), ID.from_string(after)) if through else None
    except Exception:  # noqa: BLE001 - multiaddr and base58 raise many kinds on text that is no address
        return None
