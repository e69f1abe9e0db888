"""Whom to dial, where, and when again: a bounded book of targets with one backoff each. Pure."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from gnusnode.contracts import ids
from gnusnode.contracts.swarm import MAX_ADDRESSES
from gnusnode.errors import RequestError
from gnusnode.net.port import PeerAddresses

SHORTEST: Final = 1.0
LONGEST: Final = 60.0
REFUSED: Final = 600.0
"""Seconds until a peer that refuses us, or that we refuse, is tried again."""
SILENT: Final = 30.0
"""Seconds after which a peer that was lost and does not answer is tried again; if it comes back, it dials us."""
AT_ONCE: Final = 0.5
"""A configured peer that was lost is dialled again within so many seconds."""
LONG_AGO: Final = 3600.0
"""Seconds after which it no longer matters that a peer was given up."""
CAPACITY: Final = 1024
GIVE_UP: Final = 8
"""Attempts in vain after which a target that nobody configured is forgotten: some minutes."""


def target_of(address: str) -> PeerAddresses:
    """Whom a multiaddr names: its last ``/p2p/`` part.

    Raises:
        RequestError: it names nobody.
    """
    peer = address.rpartition("/p2p/")[2] if "/p2p/" in address else ""
    try:
        ids.public_key(peer)
    except ValueError as error:
        raise RequestError(
            "this address names no peer", where=address, hint="it has to end with /p2p/ and the node's PeerID"
        ) from error
    return PeerAddresses(peer, (address,))


@dataclass
class Target:
    """A peer that one may dial. ``due``: not before. ``lost``: it was connected, and nothing was heard of it since."""

    peer: str
    due: float
    configured: bool = False
    addresses: list[str] = field(default_factory=list[str])
    failures: int = 0
    refused: bool = False
    lost: bool = False


class AddressBook:
    """Times are seconds of one steady clock."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._targets: dict[str, Target] = {}
        self._given_up: dict[str, float] = {}

    def add(self, found: PeerAddresses, now: float, *, configured: bool = False, hearsay: bool = False) -> bool:
        """Notes where a peer may be reached; addresses that name another peer are left out.

        Args:
            hearsay: whoever says so may not know that the peer is gone, as the DHT, which forgets in two days.

        Returns:
            Whether the peer is a target now.
        """
        if hearsay and self._given_up.get(found.peer, now) > now:
            return False
        good = [a for a in found.addresses if a.endswith(f"/p2p/{found.peer}") or "/p2p/" not in a]
        target = self._targets.get(found.peer)
        if target is None:
            if not good or not self._has_room(configured):
                return False
            # Whoever was given up before has one attempt, not all of them again.
            failures = GIVE_UP - 1 if hearsay and found.peer in self._given_up else 0
            target = self._targets[found.peer] = Target(found.peer, now, failures=failures)
        target.configured |= configured
        # A configured address keeps its place: hearsay must not crowd it out.
        merged = [*target.addresses, *good] if target.configured and not configured else [*good, *target.addresses]
        target.addresses = list(dict.fromkeys(merged))[:MAX_ADDRESSES]
        return True

    def due(self, now: float, busy: Collection[str], *, only_configured: bool) -> list[Target]:
        """Whom to dial now, configured peers first; ``busy`` are left out."""
        found = [t for t in self._free(busy, only_configured) if t.due <= now]
        return sorted(found, key=lambda t: (not t.configured, t.due))

    def next_due(self, busy: Collection[str], *, only_configured: bool) -> float:
        """When somebody is due next; infinite: nobody."""
        return min((t.due for t in self._free(busy, only_configured)), default=float("inf"))

    def known(self) -> tuple[PeerAddresses, ...]:
        return tuple(PeerAddresses(t.peer, tuple(t.addresses)) for t in self._targets.values())

    def configured(self) -> frozenset[str]:
        return frozenset(t.peer for t in self._targets.values() if t.configured)

    # --- what came of it ----------------------------------------------------------------------------------------------

    def failed(self, peer: str, now: float) -> None:
        """No address answered."""
        if (target := self._targets.get(peer)) is None:
            return
        target.failures += 1
        silent = SILENT if target.lost and not target.configured else 0.0
        target.due = now + max(silent, self._backoff(target.failures))
        if target.failures >= GIVE_UP and not target.configured:
            del self._targets[peer]
            self._given_up = {p: until for p, until in self._given_up.items() if until + LONG_AGO > now}
            self._given_up[peer] = now + REFUSED

    def welcomed(self, peer: str) -> None:
        """The peer is authenticated."""
        if (target := self._targets.get(peer)) is not None:
            target.failures, target.refused, target.lost = 0, False, False
            self._given_up.pop(peer, None)

    def lost(self, peer: str, now: float) -> None:
        """The connection is gone."""
        target = self._targets.get(peer)
        if target is None or target.refused:
            return
        target.lost = True
        if target.configured:
            target.failures, target.due = 0, now + AT_ONCE * self._rng.random()
        else:
            target.failures = max(1, target.failures)
            target.due = now + self._backoff(target.failures)

    def heard(self, peer: str, now: float) -> None:
        """The peer has just said something, if only through others: one that was lost is worth an attempt."""
        target = self._targets.get(peer)
        if target is not None and target.lost:
            target.lost = False
            target.due = min(target.due, now + self._backoff(target.failures))

    def refused(self, peer: str, now: float) -> None:
        """One side does not want the other: no use to come back soon."""
        if (target := self._targets.get(peer)) is not None:
            target.refused = True
            target.due = now + (LONGEST if target.configured else REFUSED)

    def reopened(self, now: float) -> None:
        """The grounds of refusals changed: those are due at once."""
        for target in self._targets.values():
            if target.refused:
                target.refused, target.due = False, now

    def forget(self, peer: str) -> None:
        """The peer left, or is banned; a configured one stays for later."""
        target = self._targets.get(peer)
        if target is not None and not target.configured:
            del self._targets[peer]

    def _free(self, busy: Collection[str], only_configured: bool) -> Iterable[Target]:
        return (t for t in self._targets.values() if t.peer not in busy and (t.configured or not only_configured))

    def _has_room(self, configured: bool) -> bool:
        if len(self._targets) < CAPACITY:
            return True
        idle = [t for t in self._targets.values() if not t.configured and (t.failures or configured)]
        if not idle:
            return False
        del self._targets[max(idle, key=lambda t: t.failures).peer]
        return True

    def _backoff(self, failures: int) -> float:
        return max(SHORTEST, min(LONGEST, 2.0**failures) * (0.5 + 0.5 * self._rng.random()))


def addresses_of(texts: Iterable[str]) -> tuple[PeerAddresses, ...]:
    """The peers that a list of multiaddrs names, each once.

    Raises:
        RequestError: an address names nobody.
    """
    by_peer: dict[str, list[str]] = {}
    for text in texts:
        target = target_of(text)
        by_peer.setdefault(target.peer, []).extend(target.addresses)
    return tuple(PeerAddresses(peer, tuple(found)) for peer, found in by_peer.items())
