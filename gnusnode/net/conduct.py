"""How peers behaved: a reputation that comes back to the middle, and exclusions that grow with each repetition. Pure.

Kept apart from the peer table, so that a peer which leaves and comes back does not come back as new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NEUTRAL: Final = 0.5
HALF_LIFE: Final = 600.0
"""Seconds in which half of what is good or bad about a reputation is forgotten."""
LONGEST: Final = 3600.0
_BETTER: Final = 0.02
_WORSE: Final = 0.2
_CAPACITY: Final = 8192


@dataclass(frozen=True)
class _Record:
    reputation: float
    at: float
    strikes: float = 0.0
    until: float = 0.0
    reason: str = ""


class Conduct:
    """Times are seconds of one steady clock. Bounded: who was heard of least recently is forgotten first."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def reputation(self, peer: str, now: float) -> float:
        """0 to 1."""
        return self._at(peer, now).reputation

    def exclusion(self, peer: str, now: float) -> str:
        """Why the peer is excluded now; empty: it is not."""
        record = self._records.get(peer)
        return record.reason if record is not None and record.until > now else ""

    def rate(self, peer: str, good: bool, now: float) -> None:
        """A call came out well, or did not."""
        record = self._at(peer, now)
        goal, pace = (1.0, _BETTER) if good else (0.0, _WORSE)
        self._keep(
            peer,
            _Record(
                record.reputation + pace * (goal - record.reputation), now, record.strikes, record.until, record.reason
            ),
        )

    def exclude(self, peer: str, seconds: float, reason: str, now: float) -> float:
        """Excludes for ``seconds``, twice as long for each exclusion that is not forgotten yet; the new end."""
        self.rate(peer, good=False, now=now)
        record = self._at(peer, now)
        until = now + min(LONGEST, seconds * 2.0 ** round(record.strikes))
        self._keep(peer, _Record(record.reputation, now, record.strikes + 1, max(until, record.until), reason))
        return max(until, record.until)

    def pardon(self, peer: str) -> None:
        """Forgets everything about the peer."""
        self._records.pop(peer, None)

    def _at(self, peer: str, now: float) -> _Record:
        record = self._records.get(peer)
        if record is None:
            return _Record(NEUTRAL, now)
        left = 0.5 ** (max(0.0, now - record.at) / HALF_LIFE)
        reputation = NEUTRAL + (record.reputation - NEUTRAL) * left
        return _Record(reputation, now, record.strikes * left, record.until, record.reason)

    def _keep(self, peer: str, record: _Record) -> None:
        self._records.pop(peer, None)
        while len(self._records) >= _CAPACITY:
            del self._records[next(iter(self._records))]
        self._records[peer] = record
