"""The node's events in order: a ring of the last ones, and readers that each keep a place in it.

A reader has no buffer of its own, only the number of the last event it took. So a slow one costs nothing, loses the
oldest events first and is told so, and one that comes back after a pause goes on where it was (SSE ``Last-Event-ID``).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import trio

from gnusnode.observe.events import Event

RING: Final = 1000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stamped:
    """An event with its place and time."""

    id: int
    """Rises by one with each event of a run; also rises from one run of a node to the next."""
    unix_ms: int
    event: Event

    def to_plain(self) -> dict[str, Any]:
        return {"id": self.id, "unix_ms": self.unix_ms, "name": self.event.name, "fields": self.event.fields()}


@dataclass(frozen=True, slots=True)
class Missed:
    """Events that the reader asked for are no longer held: those up to and including ``last_id``."""

    last_id: int


Sink = Callable[[Stamped], None]


class EventBus:
    """Publishes events to sinks at once and to readers at their pace. For use from the trio thread only.

    Args:
        sinks: called with every event, in order; a sink that fails is logged and never stops the publisher.
        now: unix seconds. The first id is the time in milliseconds, so ids never repeat after a restart.
    """

    def __init__(self, *sinks: Sink, now: Callable[[], float] = time.time) -> None:
        self._sinks = sinks
        self._now = now
        self._ring: deque[Stamped] = deque(maxlen=RING)
        self._next_id = int(now() * 1000)
        self._arrived = trio.lowlevel.ParkingLot()

    @property
    def last_id(self) -> int:
        """The id of the newest event, or the one before the first."""
        return self._next_id - 1

    def publish(self, event: Event) -> Stamped:
        """Records ``event``. Never waits and never raises."""
        stamped = Stamped(self._next_id, int(self._now() * 1000), event)
        self._next_id += 1
        self._ring.append(stamped)
        for sink in self._sinks:
            try:
                sink(stamped)
            except Exception:  # noqa: BLE001 - a listener's bug must not fail the work that the event tells of
                _log.exception("an event sink failed on %s", event.name)
        self._arrived.unpark_all()
        return stamped

    def recent(self, limit: int = RING) -> list[Stamped]:
        """The newest events, oldest first."""
        return list(self._ring)[-limit:] if limit > 0 else []

    def follow(self, after: int | None = None) -> Reader:
        """Events as they come, without end.

        Args:
            after: begin behind this id, as far as the ring reaches back; None: begin with the next event.
        """
        return Reader(self, self.last_id if after is None else min(after, self.last_id))

    async def wait_beyond(self, place: int) -> None:
        """Returns as soon as there is an event with a higher id than ``place``."""
        await trio.lowlevel.checkpoint()
        while place >= self.last_id:
            await self._arrived.park()

    def next_after(self, place: int) -> Stamped | Missed:
        """The event behind ``place``, of which there must be one, or how far the ring has moved on."""
        oldest = self._ring[0].id
        return Missed(oldest - 1) if place < oldest - 1 else self._ring[place + 1 - oldest]


class Reader(AsyncIterator[Stamped | Missed]):
    """One reader's place in the events. Owns nothing: to stop, leave the loop or cancel it."""

    def __init__(self, bus: EventBus, place: int) -> None:
        self._bus = bus
        self._place = place

    async def __anext__(self) -> Stamped | Missed:
        await self._bus.wait_beyond(self._place)
        item = self._bus.next_after(self._place)
        self._place = item.id if isinstance(item, Stamped) else item.last_id
        return item
