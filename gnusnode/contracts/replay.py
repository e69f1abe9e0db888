"""Remembers the nonces of records that are still in force, so that each is used once."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Final

from gnusnode.contracts.outcome import Outcome

CAPACITY: Final = 65_536
SHARE: Final = 4_096
"""The most that one signer may occupy: a noisy member cannot use up everybody's room."""


class ReplayGuard:
    """Nonces by signer until they expire. Bounded: when it is full it refuses, it never forgets a live nonce.

    One owner, no lock. Memory is about 300 bytes for each nonce.
    """

    def __init__(self, *, capacity: int = CAPACITY, share: int = SHARE) -> None:
        self._capacity = capacity
        self._share = share
        self._expiries: list[tuple[int, str, str]] = []
        self._live: set[tuple[str, str]] = set()
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._live)

    def admit(self, signer: str, nonce: str, *, expires_at_ms: int, at_ms: int) -> Outcome:
        """``OK`` and remembered, or ``REPLAYED``, or ``REPLAY_GUARD_FULL``."""
        self._forget_expired(at_ms)
        key = (signer, nonce)
        if key in self._live:
            return Outcome.REPLAYED
        if len(self._live) >= self._capacity or self._held[signer] >= self._share:
            return Outcome.REPLAY_GUARD_FULL
        self._live.add(key)
        self._held[signer] += 1
        heapq.heappush(self._expiries, (expires_at_ms, signer, nonce))
        return Outcome.OK

    def _forget_expired(self, at_ms: int) -> None:
        while self._expiries and self._expiries[0][0] <= at_ms:
            _, signer, nonce = heapq.heappop(self._expiries)
            self._live.discard((signer, nonce))
            self._held[signer] -= 1
            if not self._held[signer]:
                del self._held[signer]
