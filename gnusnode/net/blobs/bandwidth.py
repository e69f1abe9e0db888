"""Bandwidth shared by many streams: a token bucket whose takers are served in order."""

from __future__ import annotations

from typing import Final

import trio

_BURST_SECONDS: Final = 0.25
"""How much of an idle time may be caught up."""


class TokenBucket:
    """``rate`` bytes per second, of all who take from it together; 0: no limit."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._paid_at = float("-inf")
        """When all that was taken so far is paid for."""

    async def take(self, count: int) -> None:
        """Returns when the bytes taken before are paid for; then ``count`` more are owed. Always a checkpoint."""
        if not self.rate:
            await trio.lowlevel.checkpoint()
            return
        starts = max(self._paid_at, trio.current_time() - _BURST_SECONDS)
        self._paid_at = starts + count / self.rate
        await trio.sleep_until(starts)
