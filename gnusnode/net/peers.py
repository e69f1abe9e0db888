"""Who is there: the table of all peers that this node knows of. Events in, entries out; no I/O.

``net.dialer`` feeds it with what the network does, ``net.hello`` and ``net.probe`` with what peers say,
``net.announce`` with heartbeats. An entry without a connection lives for ``ttl`` seconds after the last sign of life; a
goodbye ends it at once. What a peer said of itself is forgotten with its connection and with each new instance, so that
neither a restart nor a stolen address leaves a ghost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import trio

from gnusnode.contracts.roster import Standing
from gnusnode.contracts.services import ExpertCard
from gnusnode.contracts.swarm import NodeAnnouncement
from gnusnode.errors import NotFound
from gnusnode.net.conduct import Conduct
from gnusnode.net.instances import InstanceWatch, Sighting
from gnusnode.net.peerentry import Introduction, Link, PeerEntry, PeerState, Refusal

CAPACITY: Final = 4096
_KEPT: Final = frozenset({"configured"})
"""Sources whose peers stay in the table although nothing is heard of them."""
_CHANGES: Final = 1024
_SHORTEST_NAME: Final = 4


@dataclass(frozen=True)
class PeerChange:
    """``before`` is None for a new peer, ``after`` for one that is gone."""

    peer: str
    before: PeerEntry | None
    after: PeerEntry | None
    goodbye: bool = False
    """It left in order and is not to be sought."""


@dataclass(frozen=True)
class PeerCounts:
    """How many peers have come at least so far, now; ``refused`` and ``banned`` stand apart."""

    discovered: int = 0
    dialled: int = 0
    connected: int = 0
    authenticated: int = 0
    usable: int = 0
    refused: int = 0
    banned: int = 0


class PeerTable:
    """All changes happen in the trio thread, at once, and are told to the listeners before the call returns.

    Args:
        own: this node's PeerID, which never stands in the table.
        ttl: seconds that an announcement holds, and that a peer without a connection stays.
        now: seconds of a steady clock.
    """

    def __init__(
        self, own: str, *, ttl: float = 30.0, capacity: int = CAPACITY, now: Callable[[], float] = trio.current_time
    ) -> None:
        self._own = own
        self._ttl = ttl
        self._capacity = capacity
        self.now = now
        self._entries: dict[str, PeerEntry] = {}
        self._bans: dict[str, str] = {}
        self._conduct = Conduct()
        self._instances = InstanceWatch()
        self._listeners: list[Callable[[PeerChange], None]] = []
        self._usable: tuple[PeerEntry, ...] | None = None

    # --- questions ----------------------------------------------------------------------------------------------------

    def entries(self) -> tuple[PeerEntry, ...]:
        return tuple(self._entries.values())

    def get(self, peer: str) -> PeerEntry | None:
        return self._entries.get(peer)

    def find(self, name: str) -> PeerEntry:
        """The peer of this PeerID, or the only one whose PeerID ends with ``name``.

        Raises:
            NotFound: none, or several.
        """
        if (entry := self._entries.get(name)) is not None:
            return entry
        found = [peer for peer in self._entries if peer.endswith(name)] if len(name) >= _SHORTEST_NAME else []
        if len(found) != 1:
            short = f"give at least the last {_SHORTEST_NAME} characters; " if len(name) < _SHORTEST_NAME else ""
            none = "is not known here" if short or not self._own.endswith(name) else "is the node itself"
            what = f"{len(found)} peers have a PeerID that ends so" if found else f"this peer {none}"
            raise NotFound(what, where=name, hint=f"{short}see `gnusnode peers list`")
        return self._entries[found[0]]

    def usable(self) -> tuple[PeerEntry, ...]:
        """Those that answer for what they claim and are not excluded; the best first."""
        if self._usable is None:
            found = (entry for entry in self._entries.values() if entry.state is PeerState.USABLE)
            self._usable = tuple(sorted(found, key=lambda entry: entry.rank))
        return self._usable

    def serving(self, service: str) -> tuple[PeerEntry, ...]:
        """Usable peers that offer ``service`` and may; the best first."""
        return tuple(e for e in self.usable() if e.serves(service))

    def cards(self) -> tuple[ExpertCard, ...]:
        """The experts of all usable peers, as fresh as their last heartbeat."""
        return tuple(card for entry in self.usable() for card in entry.cards)

    def counts(self) -> PeerCounts:
        states = Counter(entry.state for entry in self._entries.values())
        way = (PeerState.AUTHENTICATED, PeerState.USABLE)
        return PeerCounts(
            discovered=len(self._entries),
            dialled=sum(entry.dials > 0 or entry.link is not None for entry in self._entries.values()),
            connected=sum(entry.link is not None for entry in self._entries.values()),
            authenticated=sum(states[state] for state in way),
            usable=states[PeerState.USABLE],
            refused=states[PeerState.REFUSED],
            banned=states[PeerState.BANNED],
        )

    def bans(self) -> Mapping[str, str]:
        """Reason by PeerID."""
        return self._bans

    # --- what the network does ----------------------------------------------------------------------------------------

    def discovered(self, peer: str, addresses: Iterable[str], source: str) -> None:
        """Somebody says where a peer is. Not a sign of life of a peer that we know."""
        entry = self._entries.get(peer) or self._new(peer)
        if entry is not None:
            self._put(entry.located(addresses, source))

    def dialled(self, peer: str) -> None:
        self._change(peer, lambda e: replace(e, dials=e.dials + 1))

    def dial_failed(self, peer: str, why: str) -> None:
        self._change(peer, lambda e: replace(e, failures=e.failures + 1, note=why))

    def connected(self, peer: str, link: Link) -> None:
        entry = self._entries.get(peer) or self._new(peer, make_room=True)
        if entry is None:
            return
        if entry.link is None:
            entry = replace(entry.unspoken(), refusal=None, refused_by=None)
        sources = entry.sources or frozenset({"inbound" if link.inbound else "manual"})
        self._put(replace(entry, link=link, sources=sources, last_seen=self.now(), note=""))

    def disconnected(self, peer: str, why: str = "the connection was lost") -> None:
        self._change(peer, lambda e: replace(e.unspoken(), link=None, last_seen=self.now(), note=why))

    def pinged(self, peer: str, rtt_ms: float) -> None:
        self._change(peer, lambda e: replace(e, rtt_ms=rtt_ms, last_seen=self.now()))

    # --- what peers say -----------------------------------------------------------------------------------------------

    def greeted(
        self,
        peer: str,
        hello: Introduction,
        *,
        standing: Standing,
        refusal: Refusal | None,
        refused_by: Refusal | None,
        rtt_ms: float | None,
        skew_ms: float,
        left_alone: str = "",
    ) -> Sighting:
        """A hello came to its end, whatever its outcome. It may overtake the news of its connection."""
        if (known := self._entries.get(peer)) is None or known.link is None:
            self.connected(peer, Link("", inbound=True, relayed=False, since=self.now()))
        if (entry := self._entries.get(peer)) is None:
            return Sighting.STALE
        sighting = self._instances.met(peer, hello.instance, self.now())
        if entry.hello is not None and entry.hello.instance != hello.instance:
            entry = entry.unspoken()
        if entry.announcement is not None and entry.announcement.instance != hello.instance:
            entry = replace(entry, announcement=None)
        self._put(
            replace(
                entry,
                hello=hello,
                standing=standing,
                refusal=refusal,
                refused_by=refused_by,
                admitted=refusal is None,
                rtt_ms=entry.rtt_ms if rtt_ms is None else rtt_ms,
                skew_ms=skew_ms,
                left_alone=left_alone,
                failures=0,
                note="",
                last_seen=self.now(),
            )
        )
        return sighting

    def admitted(self, peer: str, standing: Standing) -> None:
        """This node accepts the peer, whose own verdict is still to come."""
        self._change(peer, lambda e: replace(e, admitted=True, standing=standing, refusal=None))

    def not_greeted(self, peer: str, refusal: Refusal) -> None:
        """A hello broke off: the peer speaks another language, or none."""
        self._change(peer, lambda e: replace(e.unspoken(), refusal=refusal))

    def hello_missed(self, peer: str, why: str) -> None:
        """No hello came to its end on this connection; another may."""
        self._change(peer, lambda e: replace(e.unspoken(), failures=e.failures + 1, note=why))

    def judged(self, peer: str, standing: Standing, refusal: Refusal | None) -> None:
        """The roster changed, or time passed."""
        self._change(peer, lambda e: replace(e, standing=standing, refusal=refusal, admitted=not refusal))

    def reopened(self, peer: str) -> None:
        """Forgets what either side decided, since the grounds changed: a new hello is due."""
        self._change(peer, lambda e: replace(e.unspoken(), refusal=None, refused_by=None))

    def announced(self, record: NodeAnnouncement) -> Sighting:
        """An announcement that was verified. Only its node's present instance counts, and only what is newer."""
        peer, now = record.signer, self.now()
        if peer == self._own:
            return Sighting.STALE
        sighting = self._instances.heard(peer, record.instance, record.seq, now)
        if sighting is Sighting.CLASH:
            self._change(peer, lambda e: replace(e, last_word=record))
        if sighting is not Sighting.CURRENT:
            return sighting
        if record.leaving:
            self.left(peer)
            return sighting
        entry = self._entries.get(peer) or self._new(peer)
        if entry is None:
            return sighting
        if entry.hello is not None and entry.hello.instance != record.instance:
            entry = entry.unspoken()  # it was started again: the connection is about to die, or a hello about to come
        self._put(replace(entry.located(record.addresses, "gossip").loaded(record, now), last_seen=now))
        return sighting

    def left(self, peer: str) -> None:
        """The peer said goodbye."""
        entry = self._entries.get(peer)
        if entry is None:
            return
        if entry.sources & _KEPT or entry.banned is not None:
            gone = replace(entry.unspoken(), announcement=None, note="it said goodbye", last_seen=self.now())
            self._put(gone)
        else:
            self._drop(peer, goodbye=True)

    def probed(
        self,
        peer: str,
        cards: tuple[ExpertCard, ...],
        *,
        claims: frozenset[tuple[str, bool]] | None = None,
        note: str = "",
    ) -> None:
        """The peer answered for its services, with these experts.

        Args:
            claims: what it announced when it was asked; None: what it announces now.
        """

        def answer(entry: PeerEntry) -> PeerEntry:
            asked_for = entry.claims if claims is None else claims
            found = replace(entry, cards=cards, probed=asked_for, note=note, last_seen=self.now())
            return found.loaded(entry.announcement, entry.announced_at) if entry.announcement else found

        self._change(peer, answer)

    def probe_failed(self, peer: str, why: str) -> None:
        self._change(peer, lambda e: replace(e, cards=(), probed=None, note=why))

    # --- what this node decides ---------------------------------------------------------------------------------------

    def exclude(self, peer: str, seconds: float, reason: str) -> None:
        """Asks nothing of the peer for ``seconds``, longer for each repetition within the next minutes."""
        self._conduct.exclude(peer, seconds, reason, self.now())
        self._refresh_conduct(peer)

    def rate(self, peer: str, *, good: bool) -> None:
        """A call to the peer came out well, or did not: its reputation moves."""
        self._conduct.rate(peer, good, self.now())
        self._refresh_conduct(peer)

    def ban(self, peer: str, reason: str = "") -> None:
        """No connection to this peer any more, until ``unban``."""
        self._bans[peer] = reason
        entry = self._entries.get(peer) or self._new(peer, make_room=True)
        if entry is not None:
            self._put(replace(entry, banned=reason))

    def unban(self, peer: str) -> None:
        """Undoes ``ban`` and pardons the peer.

        Raises:
            NotFound: it is not banned.
        """
        if self._bans.pop(peer, None) is None:
            raise NotFound("this peer is not banned", where=peer, hint="see `gnusnode peers list`")
        self._conduct.pardon(peer)
        self._change(peer, lambda e: replace(e, banned=None, exclusion="", reputation=0.5, last_seen=self.now()))

    def expire(self) -> None:
        """What only time changes: silent peers go, old announcements no longer count, exclusions end."""
        now = self.now()
        for peer, entry in list(self._entries.items()):
            silent = now - entry.last_seen > self._ttl
            if entry.link is None and silent and entry.banned is None and not entry.sources & _KEPT:
                self._drop(peer)
                continue
            if entry.announcement is not None and now - entry.announced_at > self._ttl:
                self._put(replace(entry, announcement=None))
            if entry.exclusion or entry.reputation != 0.5:
                self._refresh_conduct(peer)

    # --- who wants to know --------------------------------------------------------------------------------------------

    def listen(self, listener: Callable[[PeerChange], None]) -> None:
        """Calls ``listener`` with every change, at once and for as long as the table lives. It must not raise."""
        self._listeners.append(listener)

    @asynccontextmanager
    async def changes(self) -> AsyncGenerator[AsyncIterator[PeerChange], None]:
        """Changes from now on; a reader that falls behind loses the oldest."""
        reader = _Reader()
        self._listeners.append(reader.add)
        try:
            yield reader
        finally:
            self._listeners.remove(reader.add)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _change(self, peer: str, change: Callable[[PeerEntry], PeerEntry]) -> None:
        entry = self._entries.get(peer)
        if entry is not None:
            self._put(change(entry))

    def _refresh_conduct(self, peer: str) -> None:
        now = self.now()
        reputation, exclusion = self._conduct.reputation(peer, now), self._conduct.exclusion(peer, now)
        self._change(peer, lambda e: replace(e, reputation=reputation, exclusion=exclusion))

    def _new(self, peer: str, *, make_room: bool = False) -> PeerEntry | None:
        """A fresh entry, not stored yet; None: it is ourselves, or the table is full of peers that matter more."""
        if peer == self._own or (len(self._entries) >= self._capacity and not self._evict(make_room)):
            return None
        now = self.now()
        reputation, exclusion = self._conduct.reputation(peer, now), self._conduct.exclusion(peer, now)
        return PeerEntry(peer, now, banned=self._bans.get(peer), reputation=reputation, exclusion=exclusion)

    def _evict(self, make_room: bool) -> bool:
        """Takes out the oldest peer without a connection; hearsay never replaces one that spoke itself."""
        idle = (e for e in self._entries.values() if e.link is None and not e.sources & _KEPT)
        oldest = min(idle, key=lambda e: (e.announcement is not None, e.last_seen), default=None)
        if oldest is None or (oldest.announcement is not None and not make_room):
            return False
        self._drop(oldest.peer)
        return True

    def _put(self, entry: PeerEntry) -> None:
        before = self._entries.get(entry.peer)
        if entry != before:
            self._entries[entry.peer] = entry
            self._tell(PeerChange(entry.peer, before, entry))

    def _drop(self, peer: str, *, goodbye: bool = False) -> None:
        self._tell(PeerChange(peer, self._entries.pop(peer), None, goodbye))

    def _tell(self, change: PeerChange) -> None:
        self._usable = None
        for listener in tuple(self._listeners):
            listener(change)


class _Reader(AsyncIterator[PeerChange]):
    def __init__(self) -> None:
        self._waiting: deque[PeerChange] = deque(maxlen=_CHANGES)
        self._arrived = trio.lowlevel.ParkingLot()

    def add(self, change: PeerChange) -> None:
        self._waiting.append(change)
        self._arrived.unpark_all()

    async def __anext__(self) -> PeerChange:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._waiting:
            await self._arrived.park()
        return self._waiting.popleft()
