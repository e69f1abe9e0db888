"""What this router has seen of experts itself: who failed, who answered, who works for it now.

A failure keeps an expert behind the others for a while, twice as long each time; what lies back counts less and less,
and an answer ends it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gnusnode.errors import DataError, GnusError, ModelNotFound, Overloaded, ProtocolViolation, RecordRefused

Key: TypeAlias = "tuple[str, str]"
"""PeerID and expert id."""

_BROKEN_SECONDS: Final = 60.0
"""First exclusion of an expert with a broken model, wrong records, or none at all: it does not get well by itself."""
_LOST_SECONDS: Final = 5.0
"""First exclusion of one that died, or that did not answer: it may be back soon."""
_BUSY_SECONDS: Final = 2.0
"""Exclusion of one that refused for its load and did not say for how long."""
_MAX_SECONDS: Final = 600.0
_HALF_LIFE: Final = 120.0
"""Seconds after which a failure counts half."""
_REMEMBERED: Final = 4096
"""Experts that are remembered; those of which nothing was seen for longest are forgotten first."""
_NEW: Final = 8
"""Answers after which an expert is no newcomer to this router."""


@dataclass(frozen=True)
class Experience:
    """What ``Health`` knew at one moment.

    Attributes:
        failed: experts that go last for now.
        answered: answers that each has given, as far as remembered.
        running: drafts that each makes for this router now.
    """

    failed: frozenset[Key] = frozenset()
    answered: Mapping[Key, int] = field(default_factory=dict[Key, int])
    running: Mapping[Key, int] = field(default_factory=dict[Key, int])

    def is_new(self, key: Key) -> bool:
        return self.answered.get(key, 0) < _NEW


@dataclass
class _Past:
    failures: float = 0.0
    """Failures, each halved for every half-life since."""
    at: float = 0.0
    until: float = 0.0


class Health:
    """Grows with every draft. ``clock`` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._past: OrderedDict[Key, _Past] = OrderedDict()
        self._answered: OrderedDict[Key, int] = OrderedDict()
        self._running: Counter[Key] = Counter()

    def now(self) -> Experience:
        now = self._clock()
        failed = frozenset(key for key, past in self._past.items() if past.until > now)
        return Experience(failed, self._answered.copy(), self._running.copy())

    @contextmanager
    def at_work(self, key: Key) -> Generator[None]:
        """Counts a draft in and out."""
        self._running[key] += 1
        try:
            yield
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def failed(self, key: Key, error: GnusError) -> None:
        now = self._clock()
        past = self._past.setdefault(key, _Past())
        self._past.move_to_end(key)
        if isinstance(error, Overloaded):
            past.until = max(past.until, now + min(error.retry_after or _BUSY_SECONDS, _BROKEN_SECONDS))
        else:
            past.failures = past.failures * 0.5 ** ((now - past.at) / _HALF_LIFE) + 1.0
            past.at = now
            broken = isinstance(error, DataError | RecordRefused | ProtocolViolation | ModelNotFound)
            seconds = (_BROKEN_SECONDS if broken else _LOST_SECONDS) * 2.0 ** (past.failures - 1.0)
            past.until = max(past.until, now + min(seconds, _MAX_SECONDS))
        while len(self._past) > _REMEMBERED:
            self._past.popitem(last=False)

    def answered(self, key: Key) -> None:
        self._past.pop(key, None)
        self._answered[key] = self._answered.get(key, 0) + 1
        self._answered.move_to_end(key)
        while len(self._answered) > _REMEMBERED:
            self._answered.popitem(last=False)
