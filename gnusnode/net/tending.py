"""One connected peer from its first hello to its last: greet, probe, renew, let go. One task for each connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from gnusnode.net.context import NetContext
from gnusnode.net.hello import Greeter
from gnusnode.net.peerentry import PeerEntry, PeerState
from gnusnode.net.peers import PeerChange
from gnusnode.net.probe import Prober

ANSWER_SECONDS: Final = 3.0
"""How long the side that was dialled waits for the hello of the other before it speaks itself."""
CROSSED_SECONDS: Final = 0.3
"""The same for a peer that was dialled from here too: where both dial at once, each may see the other's connection, and
both would wait."""
REFUSED_SECONDS: Final = 30.0
"""How long a connection to a refused peer is kept: time to join the swarm over it."""
HELLOS: Final = 5
"""Attempts before the connection is given up."""
RENEW_AT: Final = 0.8
"""Share of the TTL without a heartbeat after which a connected peer is asked directly."""
RENEW_SECONDS: Final = 45.0
"""How often the side that dialled says hello again: it measures the clocks anew, and of two nodes with one key, which
share what is known of them, each shows its own instance."""
_LONGEST: Final = 60.0


class Tender:
    """Looks after connected peers. ``tend`` is one peer's task.

    Args:
        refused: told of each peer that one side refuses, once its connection is given up.
    """

    def __init__(
        self, context: NetContext, greeter: Greeter, prober: Prober, *, ttl: float, refused: Callable[[str], None]
    ) -> None:
        self._net = context.net
        self._table = context.table
        self._rng = context.rng
        self._greeter = greeter
        self._prober = prober
        self._ttl = ttl
        self._refused = refused
        self._wakes: dict[str, trio.Event] = {}
        self._table.listen(self._wake)

    async def tend(self, peer: str, *, dialled: bool) -> None:
        """Returns when the connection is gone or was given up."""
        care = _Care(trio.current_time(), dialled, self._rng.random())
        try:
            if not dialled:
                entry = self._table.get(peer)
                crossed = entry is not None and entry.dials > 0
                with trio.move_on_after(CROSSED_SECONDS if crossed else ANSWER_SECONDS):
                    await self._until_heard(peer, care)
            while True:
                wake = self._wakes[peer] = care.wake = trio.Event()
                entry = self._table.get(peer)
                if entry is None or entry.link is None or entry.banned is not None:
                    return
                due = await self._step(entry, care)
                if due is None:
                    return
                with trio.move_on_at(due):
                    await wake.wait()
        finally:
            if self._wakes.get(peer) is care.wake:  # not that of the task for the next connection
                del self._wakes[peer]

    async def _step(self, entry: PeerEntry, care: _Care) -> float | None:
        """Does what is due for the peer; when to look again at the latest. None: it was let go."""
        now = trio.current_time()
        match entry.state:
            case PeerState.REFUSED:
                if care.refused_at is None and care.accepted:
                    await self._greeter.greet(entry.peer)  # so that it learns what changed, and why
                care.refused_at = care.refused_at or now
                care.accepted = False
                if now >= care.refused_at + REFUSED_SECONDS:
                    return await self._let_go(entry.peer)
                return care.refused_at + REFUSED_SECONDS
            case PeerState.CONNECTED:
                care.refused_at = None
                return await self._greet(entry.peer, care, now)
            case _:
                care.refused_at, care.accepted = None, True
                return await self._keep(entry, care, now)

    async def _greet(self, peer: str, care: _Care, now: float) -> float | None:
        if now < care.hello_at:
            return care.hello_at
        await self._greeter.greet(peer)
        after = self._table.get(peer)
        if after is not None and (after.hello is not None or after.refusal):
            care.hellos, care.heard_at = 0, trio.current_time()
            return trio.current_time()
        care.hellos += 1
        if care.hellos >= HELLOS:
            return await self._let_go(peer)
        care.hello_at = trio.current_time() + self._backoff(care.hellos)
        return care.hello_at

    async def _keep(self, entry: PeerEntry, care: _Care, now: float) -> float | None:
        """An authenticated peer: probed where that is due, greeted again when its heartbeats stay away."""
        if _took_on_others(entry) and entry.announced_at > care.heard_at and now >= care.hello_at:
            return await self._greet(entry.peer, care, now)  # before a probe misses what only a new hello offers
        if bool(entry.exclusion) is not care.excluded and now >= care.hello_at:
            care.excluded = bool(entry.exclusion)
            return await self._greet(entry.peer, care, now)  # so that it learns that it is left alone, or no longer
        if not entry.exclusion and now >= care.probe_at and self._prober.is_due(entry):
            if await self._prober.probe(entry.peer):
                care.probes = 0
            else:
                care.probes += 1
            care.probe_at = trio.current_time() + self._backoff(care.probes)
            return trio.current_time()
        hello_at = max(care.heard_at, entry.announced_at) + RENEW_AT * self._ttl
        if care.dialled:
            hello_at = min(hello_at, care.heard_at + RENEW_SECONDS * (0.8 + 0.2 * care.spread))
        hello_at = max(hello_at, care.hello_at)
        if now >= hello_at:
            return await self._greet(entry.peer, care, now)
        probe_at = care.probe_at if not entry.exclusion and self._prober.is_due(entry) else float("inf")
        return min(hello_at, probe_at)

    async def _let_go(self, peer: str) -> None:
        self._refused(peer)
        await self._net.disconnect(peer)

    async def _until_heard(self, peer: str, care: _Care) -> None:
        while True:
            wake = self._wakes[peer] = care.wake = trio.Event()
            entry = self._table.get(peer)
            if entry is None or entry.link is None or entry.hello is not None or entry.refusal:
                return
            await wake.wait()

    def _wake(self, change: PeerChange) -> None:
        if (event := self._wakes.get(change.peer)) is not None:
            event.set()

    def _backoff(self, failures: int) -> float:
        """Seconds; one after a success, so that announcements cannot make us probe without end."""
        return min(_LONGEST, 2.0**failures) * (0.5 + 0.5 * self._rng.random())


def _took_on_others(entry: PeerEntry) -> bool:
    """Whether the peer announces other roles than it said in its hello, which also named its services."""
    said, announced = entry.hello, entry.announcement
    return said is not None and announced is not None and frozenset(announced.roles) != said.roles


@dataclass
class _Care:
    """What was tried for one peer on one connection: how often in vain, and not before when again."""

    heard_at: float
    """When the last hello came to its end."""
    dialled: bool
    spread: float
    """0 to 1: keeps the renewals of many connections apart."""
    hellos: int = 0
    probes: int = 0
    hello_at: float = float("-inf")
    probe_at: float = float("-inf")
    refused_at: float | None = None
    accepted: bool = False
    """It was let in before, on this connection."""
    excluded: bool = False
    """It was told last that it is left alone."""
    wake: trio.Event = field(default_factory=trio.Event)
