"""Comings and goings of peers as a feed for several readers; both twins of the port use it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from gnusnode.net.port import Connected, Disconnected, NetEvent


class EventFeed:
    """Remembers who is there, and tells each reader what changed since it last looked.

    A reader that falls behind is not told of connections that came and went meanwhile, so that what waits for it never
    holds more than two events for each peer that is, or was by its knowledge, there.
    """

    def __init__(self) -> None:
        self._present: dict[str, Connected] = {}
        self._readers: set[_Reader] = set()

    def connected(self, event: Connected) -> None:
        """The peer's first connection is there. A further one is no event."""
        if event.peer not in self._present:
            self._present[event.peer] = event
            self._tell(event)

    def disconnected(self, peer: str) -> None:
        """The peer's last connection is gone."""
        if self._present.pop(peer, None) is not None:
            self._tell(Disconnected(peer))

    def present(self) -> frozenset[str]:
        return frozenset(self._present)

    @asynccontextmanager
    async def subscribe(self) -> AsyncGenerator[AsyncIterator[NetEvent], None]:
        """Events from now on, after one ``Connected`` for each peer that is there already."""
        reader = _Reader(self._present.values())
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)

    def _tell(self, event: NetEvent) -> None:
        for reader in self._readers:
            reader.add(event)


class _Reader(AsyncIterator[NetEvent]):
    def __init__(self, present: Iterable[NetEvent]) -> None:
        self._waiting: deque[NetEvent] = deque(present)
        self._changed = trio.lowlevel.ParkingLot()

    def add(self, event: NetEvent) -> None:
        if isinstance(event, Disconnected):
            unseen = next((e for e in self._waiting if isinstance(e, Connected) and e.peer == event.peer), None)
            if unseen is not None:
                self._waiting.remove(unseen)
                return
        self._waiting.append(event)
        self._changed.unpark_all()

    async def __anext__(self) -> NetEvent:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._waiting:
            await self._changed.park()
        return self._waiting.popleft()
