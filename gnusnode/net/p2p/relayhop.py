"""A relay for others: it keeps reservations, and joins a stream of the caller to one of the target.

Ours, because the library's reserves for whoever the message names, not for who sent it, and ends a target's other
circuits when one of them ends.
"""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

import trio
from libp2p.abc import IHost, INetStream
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Limit, PeerId, Reservation, Status, StopMessage
from multiaddr import Multiaddr

from gnusnode.net.p2p import relaywire as wire
from gnusnode.net.port import NetStatistics

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RelayLimits:
    """What a relay gives; ``circuit_bytes`` counts both directions."""

    reservations: int = 128
    reservation_seconds: int = 3600
    circuits: int = 128
    circuits_per_peer: int = 8
    circuit_seconds: int = 12 * 3600
    circuit_bytes: int = 16 << 30
    message_seconds: float = 10.0
    chunk_bytes: int = 64 * 1024


RELAY_LIMITS: Final = RelayLimits()


@dataclass
class Hop:
    """Serves the HOP protocol on ``host``. ``admits``: who may reserve and call."""

    host: IHost
    limits: RelayLimits
    statistics: NetStatistics
    admits: Callable[[str], bool]
    _reservations: dict[ID, float] = field(default_factory=dict[ID, float])
    _circuits: Counter[ID] = field(default_factory=Counter[ID])
    """Circuits in which a peer takes part, on either end, those being built counted."""

    async def serve(self, stream: INetStream) -> None:
        """Answers the one request of a stream; a circuit lasts as long as its stream."""
        try:
            with trio.fail_after(self.limits.message_seconds):
                request = await wire.read(stream, HopMessage)
            caller = stream.muxed_conn.peer_id
            connection = wire.connection_of(self.host, stream.muxed_conn)
            if connection is None or wire.is_relayed(connection) or not self.admits(str(caller)):
                await self._refuse(stream, wire.DENIED)
            elif request.type == HopMessage.RESERVE:
                await self._reserve(stream, caller)
            elif request.type == HopMessage.CONNECT and (target := wire.peer_of(request.peer.id)) is not None:
                await self._connect(stream, caller, target)
            else:
                await self._refuse(stream, wire.MALFORMED)
        except wire.NETWORK_FAULTS as error:
            _log.debug("a relay request failed: %r", error)
            await stream.reset()

    async def _reserve(self, stream: INetStream, caller: ID) -> None:
        # The caller's key made this connection: a reservation for anybody else cannot be asked for.
        self._forget_gone()
        if caller not in self._reservations and len(self._reservations) >= self.limits.reservations:
            await self._refuse(stream, wire.FULL)
            return
        seconds = self.limits.reservation_seconds
        self._reservations[caller] = trio.current_time() + seconds
        own = self.host.get_id()
        direct = [str(each) for each in self.host.get_addrs() if "/p2p-circuit" not in str(each)]
        addresses = [Multiaddr(f"{each.partition('/p2p/')[0]}/p2p/{own}").to_bytes() for each in direct]
        reservation = Reservation(expire=int(time.time()) + seconds, addrs=addresses)
        await self._answer(stream, HopMessage(status=wire.OK, reservation=reservation, limit=self._limit()))
        await stream.close()

    async def _connect(self, stream: INetStream, caller: ID, target: ID) -> None:
        self._forget_gone()
        if target not in self._reservations:
            await self._refuse(stream, wire.NO_RESERVATION)
            return
        busiest = max(self._circuits[caller], self._circuits[target])
        if busiest >= self.limits.circuits_per_peer or self._circuits.total() >= 2 * self.limits.circuits:
            await self._refuse(stream, wire.FULL)
            return
        self._circuits.update((caller, target))
        onward: INetStream | None = None
        try:
            onward = await self._call(caller, target)
            if onward is None:
                await self._refuse(stream, wire.FAILED)
                return
            await self._answer(stream, HopMessage(status=wire.OK, limit=self._limit()))
            await self._join(stream, onward)
        finally:
            self._circuits.subtract((caller, target))
            self._circuits += Counter()  # drops the zeros
            with trio.CancelScope(shield=True), trio.move_on_after(1):
                await stream.reset()
                if onward is not None:
                    await onward.reset()

    async def _call(self, caller: ID, target: ID) -> INetStream | None:
        """A stream on which ``target`` agreed to speak with ``caller``; None: it did not."""
        onward: INetStream | None = None
        try:
            with trio.fail_after(self.limits.message_seconds):
                onward = await self.host.new_stream(target, [wire.STOP])
                peer = PeerId(id=caller.to_bytes())
                await wire.write(onward, StopMessage(type=StopMessage.CONNECT, peer=peer, limit=self._limit()))
                answer = await wire.read(onward, StopMessage)
            if answer.type == StopMessage.STATUS and answer.status == wire.OK:
                return onward
        except wire.NETWORK_FAULTS as error:
            _log.debug("the target %s of a circuit does not answer: %r", target, error)
        if onward is not None:
            await onward.reset()
        return None

    async def _join(self, one: INetStream, other: INetStream) -> None:
        left = self.limits.circuit_bytes

        async def pump(source: INetStream, sink: INetStream) -> None:
            nonlocal left
            with contextlib.suppress(*wire.NETWORK_FAULTS):
                while left > 0:
                    try:
                        data = await source.read(self.limits.chunk_bytes)
                    except StreamEOF:
                        # One direction only: the stream's own ``close`` ends both.
                        await cast("Any", sink).muxed_stream.close()
                        return
                    left -= len(data)
                    await sink.write(data)
            nursery.cancel_scope.cancel()

        with trio.move_on_after(self.limits.circuit_seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pump, one, other)
                nursery.start_soon(pump, other, one)

    def _forget_gone(self) -> None:
        now, here = trio.current_time(), set(wire.directly_connected(self.host))
        for peer, end in tuple(self._reservations.items()):
            if end < now or peer not in here:
                del self._reservations[peer]

    def _limit(self) -> Limit:
        return Limit(duration=self.limits.circuit_seconds, data=self.limits.circuit_bytes)

    async def _refuse(self, stream: INetStream, status: Status.ValueType) -> None:
        self.statistics.streams_refused += 1
        await self._answer(stream, HopMessage(status=status))
        await stream.close()

    async def _answer(self, stream: INetStream, message: HopMessage) -> None:
        message.type = HopMessage.STATUS
        with trio.fail_after(self.limits.message_seconds):
            await wire.write(stream, message)
