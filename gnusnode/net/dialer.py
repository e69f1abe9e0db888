"""Finds peers and keeps connections to them: one loop that dials whoever is due, fed by everybody who names addresses.

Configured peers are sought always; others only while there are fewer connections than wanted. Each connection gets a
task of its own (``net.tending``). A dial that meets one from the other side is harmless: the network keeps either, and
the hello may come twice.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from gnusnode.errors import GnusError
from gnusnode.net.addressbook import AddressBook, Target
from gnusnode.net.context import NetContext
from gnusnode.net.names import role_key
from gnusnode.net.peerentry import Link, PeerState
from gnusnode.net.peers import PeerChange
from gnusnode.net.port import Connected, PeerAddresses
from gnusnode.net.tending import Tender

DIALS_AT_ONCE: Final = 8
DHT_EVERY: Final = (2.0, 5.0, 11.0, 23.0, 60.0)
"""Seconds between looks into the DHT; the last one repeats."""
MAX_KEYS: Final = 8
"""Roles that a node lists itself under in the DHT: nobody can take a key back, and peers take ten in ten seconds."""


@dataclass(frozen=True)
class DialOptions:
    """``wanted``: connections that the node seeks by itself."""

    wanted: int = 32
    dht: bool = True


class Dialer:
    """Connections to peers. ``run`` until it is cancelled.

    Args:
        tender: what to do with a connection.
        book: whom to dial; configured and remembered peers stand in it already.
    """

    def __init__(
        self, context: NetContext, tender: Tender, book: AddressBook, options: DialOptions = DialOptions()
    ) -> None:
        self._of = context
        self._net = context.net
        self._table = context.table
        self._tender = tender
        self._book = book
        self._dials = context.observer.metrics.dials
        self._options = options
        self._dialling: set[str] = set()
        self._tending: dict[str, trio.CancelScope] = {}
        self._kick = trio.Event()
        self._table.listen(self._follow)

    async def run(self, finders: Sequence[AsyncIterator[PeerAddresses]] = ()) -> None:
        """Dials, and looks after what comes of it.

        Args:
            finders: name peers as they find them, such as mDNS; their source is called ``mdns``.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_network, nursery)
            nursery.start_soon(self._dial_whoever_is_due, nursery)
            for finder in finders:
                nursery.start_soon(self._follow_finder, finder)
            if self._options.dht:
                nursery.start_soon(self._search_dht)

    def found(self, peer: PeerAddresses, source: str) -> None:
        """Somebody names a peer and where it is."""
        if peer.peer == self._net.peer_id or not peer.addresses:
            return
        now = trio.current_time()
        if self._book.add(peer, now, configured=source == "configured", hearsay=source == "dht"):
            self._table.discovered(peer.peer, peer.addresses, source)
            if source == "mdns":
                self._book.heard(peer.peer, now)
            self._kick.set()

    def reopen(self) -> None:
        """The roster changed: whoever was refused is worth another attempt."""
        self._book.reopened(trio.current_time())
        self._kick.set()

    # --- parts --------------------------------------------------------------------------------------------------------

    async def _watch_network(self, nursery: trio.Nursery) -> None:
        async with self._net.events() as events:
            async for event in events:
                self._stop_tending(event.peer)
                if isinstance(event, Connected):
                    link = Link(event.address, event.inbound, event.relayed, trio.current_time())
                    self._table.connected(event.peer, link)
                    scope = self._tending[event.peer] = trio.CancelScope()
                    nursery.start_soon(self._tend, event.peer, not event.inbound, scope)
                else:
                    self._lost(event.peer)
                self._kick.set()

    def _lost(self, peer: str) -> None:
        entry, now = self._table.get(peer), trio.current_time()
        if entry is not None and entry.state is PeerState.REFUSED:
            self._book.refused(peer, now)
        else:
            self._book.lost(peer, now)
        self._table.disconnected(peer)

    async def _tend(self, peer: str, dialled: bool, scope: trio.CancelScope) -> None:
        with scope:
            await self._tender.tend(peer, dialled=dialled)
        if self._tending.get(peer) is scope:
            del self._tending[peer]

    def _stop_tending(self, peer: str) -> None:
        if (scope := self._tending.pop(peer, None)) is not None:
            scope.cancel()

    async def _dial_whoever_is_due(self, nursery: trio.Nursery) -> None:
        while True:
            self._kick = trio.Event()
            now, busy, full = trio.current_time(), self._busy(), self._is_full()
            room = DIALS_AT_ONCE - len(self._dialling)
            for target in self._book.due(now, busy, only_configured=full)[:room]:
                self._dialling.add(target.peer)
                nursery.start_soon(self._dial, target)
            due = self._book.next_due(self._busy(), only_configured=self._is_full()) if room > 0 else float("inf")
            with trio.move_on_at(due):
                await self._kick.wait()

    def _busy(self) -> frozenset[str]:
        """Whom not to dial: who is there already, being dialled, banned, or ourselves."""
        banned = frozenset(self._table.bans())
        return self._net.connected() | banned | self._dialling | {self._net.peer_id}

    def _is_full(self) -> bool:
        return len(self._net.connected()) + len(self._dialling) >= self._options.wanted

    async def _dial(self, target: Target) -> None:
        peer = target.peer
        self._table.dialled(peer)
        try:
            await self._net.connect(peer, tuple(target.addresses))
        except GnusError as error:
            self._dials.labels("failed").inc()
            self._table.dial_failed(peer, error.what)
            self._book.failed(peer, trio.current_time())
        else:
            self._dials.labels("ok").inc()
        finally:
            self._dialling.discard(peer)
            self._kick.set()

    async def _follow_finder(self, finder: AsyncIterator[PeerAddresses]) -> None:
        async for peer in finder:
            self.found(peer, "mdns")

    async def _search_dht(self) -> None:
        provided: set[str] = set()
        for turn in itertools.count():
            await trio.sleep(DHT_EVERY[min(turn, len(DHT_EVERY) - 1)] * (0.9 + 0.2 * self._of.rng.random()))
            swarm = self._of.swarm_id
            try:
                for key in [role_key(swarm, role) for role in self._of.own_roles()][:MAX_KEYS]:
                    if key not in provided and self._net.connected():
                        await self._net.provide(key)
                        provided.add(key)
                if not self._is_full():
                    for peer in await self._net.find(role_key(swarm, "core")):
                        self.found(peer, "dht")
            except GnusError:
                continue  # nobody to ask: the next turn asks again

    def _follow(self, change: PeerChange) -> None:
        """Keeps the book in step with the table."""
        after = change.after
        if change.before is not None and change.before.banned is not None:
            self._kick.set()
        if change.goodbye or (after is not None and after.banned is not None):
            self._book.forget(change.peer)
        if after is None or after.banned is not None:
            return
        announcement = after.announcement
        if announcement is not None and (change.before is None or change.before.announcement is not announcement):
            now = trio.current_time()
            self._book.add(PeerAddresses(change.peer, announcement.addresses), now)
            self._book.heard(change.peer, now)
            self._kick.set()
        if after.state is PeerState.USABLE:
            self._book.welcomed(change.peer)
