"""What the node remembers about engine crashes: which requests and which artifacts may not be tried again. Pure.

One ledger serves all engines of a node. Time is given in, in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_MAX_REQUESTS: Final = 4096
"""Requests remembered; the oldest are forgotten first."""


@dataclass(frozen=True)
class CrashPolicy:
    """
    Attributes:
        poison_after: crashes in which a request was active until it is refused everywhere.
        quarantine_after: crashes of one artifact within ``window`` seconds until it is no longer started.
        quarantine_for: seconds after which a quarantined artifact is tried again.
    """

    poison_after: int = 2
    quarantine_after: int = 5
    window: float = 600.0
    quarantine_for: float = 1800.0


class CrashLedger:
    """Counts crashes per request and per artifact."""

    def __init__(self, policy: CrashPolicy | None = None) -> None:
        self._policy = policy or CrashPolicy()
        self._requests: OrderedDict[str, int] = OrderedDict()
        self._crashes: dict[str, deque[float]] = {}
        self._quarantine: dict[str, tuple[float, str]] = {}

    def record(self, artifact: str, requests: Iterable[str], *, now: float, reason: str) -> None:
        """Notes that an engine of ``artifact`` died while ``requests`` were active in it."""
        for request in set(requests):
            self._requests[request] = self._requests.pop(request, 0) + 1
        while len(self._requests) > _MAX_REQUESTS:
            self._requests.popitem(last=False)
        recent = self._crashes.setdefault(artifact, deque())
        recent.append(now)
        while recent and recent[0] < now - self._policy.window:
            recent.popleft()
        if len(recent) >= self._policy.quarantine_after:
            minutes = round(self._policy.window / 60)
            why = f"the engine died {len(recent)} times within {minutes} minutes; the last time: {reason}"
            self._quarantine[artifact] = (now + self._policy.quarantine_for, why)
            recent.clear()

    def poisoned(self, request: str) -> bool:
        """Whether ``request`` was active in so many crashes that it is the likely cause."""
        return self._requests.get(request, 0) >= self._policy.poison_after

    def quarantine(self, artifact: str, *, now: float) -> tuple[float, str] | None:
        """When ``artifact`` may be tried again and why it may not before; None: it may."""
        held = self._quarantine.get(artifact)
        if held and held[0] <= now:
            del self._quarantine[artifact]
            return None
        return held

    def clear(self, artifact: str) -> None:
        """An operator says that ``artifact`` may run again."""
        self._quarantine.pop(artifact, None)
        self._crashes.pop(artifact, None)
