"""Which chunk is fetched from whom: work stealing over the chunks of one file. Pure; times are the caller's."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_MOST_CLAIMS: Final = 2
"""Sources that fetch one chunk at the same time, at the end of a download."""


@dataclass
class _Claim:
    since: float
    peers: set[str]


class Schedule:
    """Each chunk is missing, claimed by one or two sources, or done.

    Args:
        chunks: how many there are.
        done: those that are here already.
    """

    def __init__(self, chunks: int, done: Iterable[int] = ()) -> None:
        self._done = set(done)
        self._missing = [chunk for chunk in range(chunks) if chunk not in self._done]
        self._claims: dict[int, _Claim] = {}
        self._chunks = chunks

    @property
    def finished(self) -> bool:
        return len(self._done) == self._chunks

    def is_done(self, chunk: int) -> bool:
        return chunk in self._done

    def claim(self, peer: str, now: float) -> int | None:
        """The first chunk that nobody fetches, now ``peer``'s; None when there is none."""
        while self._missing:
            chunk = heapq.heappop(self._missing)
            if chunk not in self._done and chunk not in self._claims:
                self._claims[chunk] = _Claim(now, {peer})
                return chunk
        return None

    def steal(self, peer: str, now: float, patience: float) -> int | None:
        """The chunk that others have owed for longest, if that is more than ``patience``: now ``peer`` fetches it too.

        Only worth asking once ``claim`` gives nothing: then the slowest source would decide when the download ends.
        """
        owed = (
            (claim.since, chunk)
            for chunk, claim in self._claims.items()
            if now - claim.since > patience and len(claim.peers) < _MOST_CLAIMS and peer not in claim.peers
        )
        _, chunk = min(owed, default=(0.0, None))
        if chunk is not None:
            self._claims[chunk].peers.add(peer)
        return chunk

    def complete(self, chunk: int) -> None:
        """The chunk is here; whoever else fetches it does so in vain."""
        self._claims.pop(chunk, None)
        self._done.add(chunk)

    def release(self, peer: str) -> None:
        """``peer`` will bring nothing of what it claimed."""
        for chunk, claim in list(self._claims.items()):
            claim.peers.discard(peer)
            if not claim.peers:
                del self._claims[chunk]
                heapq.heappush(self._missing, chunk)
