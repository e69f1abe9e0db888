"""Keeping the membership records of all members alike: news by gossip, the whole truth by exchange.

Gossip is quick and may be lost. So whoever dialled a new connection compares sets over it, and from time to time with
one peer at random: after a partition the sets are one again as soon as a single connection joins the parts.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from typing import Final

import trio

from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.swarm import Tier
from gnusnode.errors import GnusError, ProtocolViolation
from gnusnode.net.membership import Membership
from gnusnode.net.names import roster_topic
from gnusnode.net.port import Connected, Net
from gnusnode.net.records import SwarmRecord, read_record
from gnusnode.net.rosterexchange import Exchanged, exchange
from gnusnode.net.rostermsg import ROSTER, pack, unpack

GOSSIPED: Final = 16
"""Records in one gossip message: what a validator can check in a few milliseconds."""
MAX_NEWS: Final = 128 * 1024
"""Bytes of one gossip message."""
EXCHANGE_SECONDS: Final = 300.0
"""How often a peer at random is asked to compare, once the connections are old."""
AT_ONCE: Final = 4
LONGEST_SECONDS: Final = 120.0
"""An exchange that takes longer is given up; what came by then counts, and another one goes on from there."""

_log = logging.getLogger(__name__)


@dataclass
class SyncStatistics:
    """Counts since start."""

    exchanges: int = 0
    exchanges_failed: int = 0
    received: int = 0
    given: int = 0
    refused: int = 0
    """Records of others that do not count: forged, of another swarm, or beyond their signer's power."""
    gossip_refused: int = 0


class RosterSync:
    """Spreads and gathers records. ``run`` for as long as there is a net."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._running: set[str] = set()
        self._limiter = trio.CapacityLimiter(AT_ONCE)
        self.statistics = SyncStatistics()

    async def run(self, net: Net) -> None:
        """Owns every exchange and the subscription. Follows the node from one swarm to the next."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._publish, net)
            nursery.start_soon(self._listen, net, nursery)
            nursery.start_soon(self._meet, net, nursery)
            nursery.start_soon(self._wander, net)

    async def exchange(self, net: Net, peer: str, *, renew: bool = False) -> Exchanged | None:
        """Compares with ``peer`` over the living connection; None: one is under way, or it came to nothing."""
        if peer in self._running or self._membership.swarm is None:
            return None
        self._running.add(peer)
        try:
            async with self._limiter:
                with trio.move_on_after(LONGEST_SECONDS):
                    return await self._exchange(net, peer, renew=renew)
        finally:
            self._running.discard(peer)
        return None

    async def _exchange(self, net: Net, peer: str, *, renew: bool) -> Exchanged | None:
        counts = self.statistics
        try:
            stream = await net.open_stream(peer, ROSTER)
            try:
                moved = await exchange(stream, self._membership, renew=renew)
            except BaseException:  # cancelled too: nobody else knows of the stream; it is raised on
                with trio.CancelScope(shield=True):
                    await stream.reset()
                raise
        except GnusError as error:
            counts.exchanges_failed += 1
            _log.debug("comparing membership records with %s: %s", peer, error)
            return None
        counts.exchanges += 1
        counts.received += moved.received
        counts.given += moved.given
        counts.refused += moved.refused
        return moved

    # --- its tasks ----------------------------------------------------------------------------------------------------

    async def _publish(self, net: Net) -> None:
        """Tells everybody of what was made here, or came from one peer only."""
        async with self._membership.changes() as changes:
            async for _ in changes:
                swarm, news = self._membership.swarm, self._membership.take_outbox()
                if swarm is None:
                    continue
                for batch in batches(news):
                    try:
                        await net.publish(roster_topic(swarm.swarm_id), batch)
                    except GnusError as error:  # it travels by exchange
                        _log.debug("gossiping membership records: %s", error)

    async def _listen(self, net: Net, nursery: trio.Nursery) -> None:
        """Takes in what is gossiped in the swarm that this node belongs to just now."""
        async with self._membership.changes() as changes:
            while True:
                swarm = self._membership.swarm
                async with trio.open_nursery() as listening:
                    if swarm is not None:
                        listening.start_soon(self._hear, net, roster_topic(swarm.swarm_id), nursery)
                    while _id(self._membership) == (swarm and swarm.swarm_id):
                        await anext(changes)
                    listening.cancel_scope.cancel()

    async def _hear(self, net: Net, name: str, nursery: trio.Nursery) -> None:
        async with net.subscribe(name, self.believes) as messages:
            async for publisher, data in messages:
                report = await self._membership.add(_records(data), gossiped=True)
                self.statistics.received += len(report.added)
                self.statistics.refused += len(report.refused)
                lacking = any(outcome is Outcome.UNKNOWN_SIGNER for _, outcome in report.refused)
                if lacking and publisher in net.connected():
                    # Perhaps the delegation of its signer has not come yet: its publisher will have it.
                    nursery.start_soon(self.exchange, net, publisher)

    def believes(self, publisher: str, data: bytes) -> bool:
        """Whether gossip is worth passing on: nothing but signed records, from a member, whose admin need not be known
        here yet; or, on an open swarm, from anybody, if they are the word of the root or of a known admin.
        """
        standing, roster = self._membership.standing(publisher), self._membership.roster
        records = _sound_records(data) if standing.outcome is Outcome.OK else None
        good = records is not None and (
            standing.tier is not Tier.D or all(one.signer_peer in {roster.root, *roster.admins} for one in records)
        )
        self.statistics.gossip_refused += not good
        return good

    async def _meet(self, net: Net, nursery: trio.Nursery) -> None:
        """Compares over each new connection that this node dialled; the other side does for those that it dialled."""
        async with net.events() as happenings:
            async for event in happenings:
                if isinstance(event, Connected) and not event.inbound:
                    nursery.start_soon(self.exchange, net, event.peer)

    async def _wander(self, net: Net) -> None:
        while True:
            await trio.sleep(EXCHANGE_SECONDS * random.uniform(0.75, 1.25))  # noqa: S311 - spreads load, hides nothing
            members = [peer for peer in net.connected() if self._membership.standing(peer).outcome is Outcome.OK]
            if members:
                await self.exchange(net, random.choice(members))  # noqa: S311


def batches(records: list[SwarmRecord]) -> list[bytes]:
    """Gossip messages with ``records``, delegations first: what follows may count by them."""
    data = [record.to_bytes() for record in sorted(records, key=lambda one: one.record_name)]
    return [pack("news", records=data[start : start + GOSSIPED]) for start in range(0, len(data), GOSSIPED)]


def _sound_records(data: bytes) -> list[SwarmRecord] | None:
    try:
        records = [read_record(record).record for record in _records(data)]
    except ProtocolViolation:
        return None
    return None if None in records else [record for record in records if record is not None]


def _records(data: bytes) -> list[bytes]:
    return unpack(data, "news", most=MAX_NEWS).records(most=GOSSIPED)


def _id(membership: Membership) -> str | None:
    return None if membership.swarm is None else membership.swarm.swarm_id
