"""Which start of each node is the present one, and which keys are in two places at once. Pure.

Each start of a node draws an instance id. A restart replaces one instance by another for good; a copied key makes two
that speak in turn. So the proof of a clash is an instance that was replaced a while ago and still speaks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

GRACE: Final = 8.0
"""Seconds during which the last words of a replaced instance may still arrive by gossip."""
FORGET: Final = 60.0
"""Seconds of silence after which an instance no longer counts."""
_RETIRED: Final = 4
_CAPACITY: Final = 8192
_STARTUP_MS: Final = 2_000


class Sighting(Enum):
    CURRENT = "current"
    STALE = "stale"
    """The last words of an instance that is gone, or out of order: to be ignored."""
    CLASH = "clash"


@dataclass
class _Run:
    instance: str
    seq: int
    seen: float
    retired: dict[str, _Retired] = field(default_factory=dict[str, "_Retired"])


@dataclass
class _Retired:
    at: float
    seq: int


class InstanceWatch:
    """Told of every instance id that is heard; bounded. Times are seconds of one steady clock."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    def heard(self, peer: str, instance: str, seq: int, now: float) -> Sighting:
        """An announcement, whose signature holds."""
        run = self._runs.get(peer)
        if run is None or now - run.seen > FORGET:
            self._begin(peer, instance, seq, now)
            return Sighting.CURRENT
        if instance == run.instance:
            if seq <= run.seq:
                return Sighting.STALE
            run.seq, run.seen = seq, now
            return Sighting.CURRENT
        before = run.retired.get(instance)
        if before is None:
            self._replace(run, instance, seq, now)
            return Sighting.CURRENT
        if seq <= before.seq or now - before.at < GRACE:
            return Sighting.STALE
        before.seq = seq
        return Sighting.CLASH

    def met(self, peer: str, instance: str, now: float) -> Sighting:
        """A hello over a connection of its own: it comes from a process that lives."""
        run = self._runs.get(peer)
        if run is None or now - run.seen > FORGET:
            self._begin(peer, instance, -1, now)
            return Sighting.CURRENT
        if instance == run.instance:
            run.seen = now
            return Sighting.CURRENT
        before = run.retired.get(instance)
        self._replace(run, instance, before.seq if before else -1, now)
        return Sighting.CLASH if before else Sighting.CURRENT

    def forget(self, peer: str) -> None:
        """The node has left in order."""
        self._runs.pop(peer, None)

    def _begin(self, peer: str, instance: str, seq: int, now: float) -> None:
        self._runs.pop(peer, None)
        while len(self._runs) >= _CAPACITY:
            del self._runs[next(iter(self._runs))]
        self._runs[peer] = _Run(instance, seq, now)

    def _replace(self, run: _Run, instance: str, seq: int, now: float) -> None:
        run.retired.pop(instance, None)
        run.retired[run.instance] = _Retired(now, run.seq)
        while len(run.retired) > _RETIRED:
            del run.retired[next(iter(run.retired))]
        run.instance, run.seq, run.seen = instance, seq, now


def is_rival(issued_at_ms: int, instance: str, *, own: str, started_ms: int) -> bool:
    """Whether what our own key announced comes from another machine, and not from this node before its last start.

    Args:
        own, started_ms: this instance, and when it began (this machine's wall clock).
    """
    return instance != own and issued_at_ms > started_ms + _STARTUP_MS
