"""Everything about who is there, put together: table, hello, heartbeat, dialling, probes; and what an operator may ask.

    members ─▶ Admission, PeerTable ─▶ (SwarmRpc) ─▶ Presence: Announcer, Greeter, Prober, Tender, Dialer

The table and the admission are made before the rpc, which asks them who may call; the rpc before the rest, which calls
through it.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import trio

from gnusnode.contracts.outcome import Outcome
from gnusnode.errors import DeadlineExceeded, Forbidden, GnusError, RequestError
from gnusnode.net.addressbook import AddressBook, addresses_of, target_of
from gnusnode.net.announce import AnnounceOptions, Announcer
from gnusnode.net.context import NetContext
from gnusnode.net.dialer import Dialer, DialOptions
from gnusnode.net.hello import Greeter
from gnusnode.net.peerentry import PeerEntry, PeerState
from gnusnode.net.peerfile import MAX_KNOWN, PeerFile, Remembered
from gnusnode.net.peers import PeerChange
from gnusnode.net.port import PeerAddresses
from gnusnode.net.probe import Prober
from gnusnode.net.rpc import Rpc
from gnusnode.net.tending import Tender
from gnusnode.observe.events import PeerChanged
from gnusnode.observe.health import CLOCK_SKEW, PEERS_UNREACHABLE

_log = logging.getLogger(__name__)

_REACHED: Final = frozenset({PeerState.AUTHENTICATED, PeerState.USABLE})
TICK: Final = 1.0
SAVE_EVERY: Final = 30.0
SKEW_WARNING_MS: Final = 5_000
UNREACHED_SECONDS: Final = 15.0
MEET_SECONDS: Final = 10.0


@dataclass(frozen=True)
class PresenceOptions:
    """
    Attributes:
        configured: multiaddrs of peers to keep dialling.
        heartbeat, ttl: seconds between two announcements, and how long one holds.
        wanted: connections that the node seeks by itself.
        dht: whether the DHT is asked for peers.
    """

    configured: tuple[str, ...] = ()
    heartbeat: float = 10.0
    ttl: float = 30.0
    wanted: int = 32
    dht: bool = True


class Presence:
    """This node among its peers. ``run`` until it is cancelled; leaving it says goodbye.

    Args:
        context: with a table of the TTL of ``options``.
        file: where bans and addresses are kept; None: nowhere.

    Raises:
        RequestError: a configured address names no peer.
    """

    def __init__(
        self,
        context: NetContext,
        rpc: Rpc,
        *,
        file: PeerFile | None = None,
        options: PresenceOptions = PresenceOptions(),
    ) -> None:
        self._of = context
        self._net = context.net
        self._table = context.table
        self._observer = context.observer
        self._file = file
        self._configured = addresses_of(options.configured)
        self._reached_at = self._table.now()
        self._book = AddressBook(context.rng)
        self._known: dict[str, tuple[str, ...]] = {}
        self._unsaved = False
        self.announcer = Announcer(context, AnnounceOptions(options.heartbeat, options.ttl))
        self.greeter = Greeter(context, self.announcer)
        self.prober = Prober(context, rpc)
        tender = Tender(
            context,
            self.greeter,
            self.prober,
            ttl=options.ttl,
            refused=lambda peer: self._book.refused(peer, self._table.now()),
        )
        self.dialer = Dialer(context, tender, self._book, DialOptions(options.wanted, options.dht))
        self._table.listen(self._tell)

    async def run(
        self,
        finders: Sequence[AsyncIterator[PeerAddresses]] = (),
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Meets peers. ``started`` once hellos are answered.

        Args:
            finders: name peers as they find them, such as mDNS.

        Raises:
            DataError: the list of bans is damaged.
        """
        await self._remember()
        async with self.greeter.serve():
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self.announcer.run)
                    nursery.start_soon(self.dialer.run, finders)
                    nursery.start_soon(self._follow_members)
                    nursery.start_soon(self._tick)
                    nursery.start_soon(self._keep_saved)
                    task_status.started()
            finally:
                with trio.CancelScope(shield=True):
                    await self._try_to_save()

    # --- what an operator may ask -------------------------------------------------------------------------------------

    def overview(self) -> dict[str, Any]:
        """All peers and their counts as plain JSON."""
        now = self._table.now()
        order = {state: place for place, state in enumerate(reversed(PeerState))}
        entries = sorted(self._table.entries(), key=lambda entry: (order[entry.state], entry.peer))
        return {"counts": asdict(self._table.counts()), "data": [entry.to_plain(now) for entry in entries]}

    def show(self, name: str) -> dict[str, Any]:
        """One peer, by its PeerID or the end of it. Raises ``NotFound``."""
        entry = self._table.find(name)
        announcement = entry.announcement
        return entry.to_plain(self._table.now()) | {"announcement": announcement and announcement.to_plain()}

    async def connect(self, address: str) -> dict[str, Any]:
        """Dials a multiaddr that ends in ``/p2p/PEERID``, and waits until the hello is over.

        ``dialled`` is false where the peer was connected already: nothing is known of the address then.

        Raises:
            RequestError: the address names no peer, or this node. Forbidden: it is banned. PeerUnreachable,
                DeadlineExceeded.
        """
        target = target_of(address)
        self._check_other(target.peer)
        if target.peer in self._table.bans():
            raise Forbidden("this peer is banned here", where=target.peer, hint="gnusnode peers unban PEER")
        self.dialer.found(target, "manual")
        dialled = target.peer not in self._net.connected()
        await self._net.connect(target.peer, target.addresses)
        return (await self._met(target.peer)).to_plain(self._table.now()) | {"dialled": dialled}

    async def ping(self, name: str) -> dict[str, Any]:
        """Milliseconds of one round trip. Raises ``NotFound`` and ``PeerUnreachable``."""
        peer = self._table.find(name).peer
        rtt = await self._net.ping(peer) * 1000
        self._table.pinged(peer, rtt)
        return {"peer": peer, "rtt_ms": round(rtt, 2)}

    async def ban(self, name: str, reason: str = "") -> dict[str, Any]:
        """Ends the connection to a peer and lets it have none again; also for a PeerID that was never seen.

        Raises:
            NotFound: nobody is called so. RequestError: it is this node.
        """
        peer = target_of(f"/p2p/{name}").peer if self._is_peer_id(name) else self._table.find(name).peer
        self._check_other(peer)
        self._table.ban(peer, reason)
        await self._banned_changed()
        return {"peer": peer, "banned": True, "reason": reason}

    async def unban(self, name: str) -> dict[str, Any]:
        """Undoes ``ban``. Raises ``NotFound``."""
        peer = name if name in self._table.bans() else self._table.find(name).peer
        self._table.unban(peer)
        await self._banned_changed()
        return {"peer": peer, "banned": False}

    # --- parts --------------------------------------------------------------------------------------------------------

    async def _met(self, peer: str) -> PeerEntry:
        with trio.move_on_after(MEET_SECONDS):
            async with self._table.changes() as changes:
                entry = self._table.get(peer)
                while entry is None or not (entry.hello or entry.refusal):
                    await anext(changes)
                    entry = self._table.get(peer)
                return entry
        raise DeadlineExceeded("connected, but there was no hello", where=peer, hint="does it run gnusnode?")

    def _check_other(self, peer: str) -> None:
        if peer == self._net.peer_id:
            raise RequestError("this is the node itself", where=peer, hint="name another node: `gnusnode peers list`")

    @staticmethod
    def _is_peer_id(name: str) -> bool:
        try:
            target_of(f"/p2p/{name}")
        except GnusError:
            return False
        return True

    async def _banned_changed(self) -> None:
        self._net.ban(frozenset(self._table.bans()))
        self._unsaved = True
        await self._save()

    async def _follow_members(self) -> None:
        swarm_id, standing = self._of.swarm_id, self._of.own_standing()
        async with self._of.members.changes() as changes:
            async for _ in changes:
                self.greeter.reconsider()
                self.announcer.poke()
                if (self._of.swarm_id, self._of.own_standing()) == (swarm_id, standing):
                    continue
                if self._of.swarm_id != swarm_id:
                    self.announcer.moved()
                swarm_id, standing = self._of.swarm_id, self._of.own_standing()
                for entry in self._table.entries():
                    if entry.link is not None and (entry.refusal or entry.refused_by):
                        self._table.reopened(entry.peer)
                self.dialer.reopen()

    async def _tick(self) -> None:
        """What only time changes: once a second, and cheap."""
        while True:
            self._table.expire()
            self.greeter.reconsider()
            self._watch_clocks()
            self._watch_configured()
            await trio.sleep(TICK)

    def _watch_clocks(self) -> None:
        now = self._table.now()
        present = [e for e in self._table.entries() if e.link is not None]
        heard = [e.announced_at for e in present if e.announcement is not None]
        self._observer.metrics.heartbeat_age.set(now - min(heard, default=now))
        # Only members count: a stranger must not be able to make this node doubt its clock.
        skews = [
            e.skew_ms for e in present if e.skew_ms is not None and e.standing and e.standing.outcome is Outcome.OK
        ]
        median = statistics.median(skews) if skews else 0.0
        self._observer.metrics.clock_skew.set(median / 1000)
        where = "behind" if median > 0 else "ahead of"
        text = f"{abs(median) / 1000:.0f} s {where} the median of {len(skews)} peers"
        self._observer.health.update(CLOCK_SKEW, abs(median) > SKEW_WARNING_MS, text)

    def _watch_configured(self) -> None:
        wanted = [peer.peer for peer in self._configured if peer.peer != self._net.peer_id]
        found = [entry for peer in wanted if (entry := self._table.get(peer)) is not None]
        if not wanted or any(entry.state in _REACHED for entry in found):
            self._reached_at = self._table.now()
        lost = self._table.now() - self._reached_at > UNREACHED_SECONDS
        said = "; ".join(entry.reason for entry in found if entry.reason)
        self._observer.health.update(PEERS_UNREACHABLE, lost, f"none of {len(wanted)}" + (f": {said}" if said else ""))

    def _tell(self, change: PeerChange) -> None:
        """Events, gauges, and what is worth remembering, after each change of the table."""
        before, after = change.before, change.after
        if before is not None and after is not None and (before.state, before.code) == (after.state, after.code):
            return
        gauge = self._observer.metrics.peers
        if before is not None:
            gauge.labels(before.state.value).dec()
        if after is not None:
            gauge.labels(after.state.value).inc()
        state = after.state.value if after is not None else "gone"
        cause = after.code if after is not None else "goodbye" if change.goodbye else "silent"
        self._observer.bus.publish(PeerChanged(peer=change.peer, state=state, cause=cause or None))
        if after is not None and after.state is PeerState.USABLE and after.addresses:
            self._known.pop(change.peer, None)
            self._known[change.peer] = after.addresses
            while len(self._known) > MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._unsaved = True

    async def _remember(self) -> None:
        self._reached_at = self._table.now()
        if self._file is not None:
            remembered = await trio.to_thread.run_sync(self._file.load)
            for peer, reason in remembered.bans.items():
                self._table.ban(peer, reason)
            self._net.ban(frozenset(remembered.bans))
            self._known = dict(remembered.known)
        for peer in self._configured:
            self.dialer.found(peer, "configured")
        for peer, addresses in self._known.items():
            self.dialer.found(PeerAddresses(peer, addresses), "known")

    async def _keep_saved(self) -> None:
        while True:
            await trio.sleep(SAVE_EVERY)
            await self._try_to_save()

    async def _try_to_save(self) -> None:
        try:
            await self._save()
        except GnusError as error:
            _log.warning("the list of peers was not saved: %s", error)

    async def _save(self) -> None:
        if self._file is None or not self._unsaved:
            return
        latest_first = dict(reversed(self._known.items()))
        remembered = Remembered(dict(self._table.bans()), latest_first)
        self._unsaved = False
        try:
            await trio.to_thread.run_sync(self._file.save, remembered)
        except GnusError:
            self._unsaved = True
            raise
