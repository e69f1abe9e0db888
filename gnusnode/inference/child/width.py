"""How many answers one decode serves: as many as makes a token cheapest, which is not always all of them.

llama.cpp picks its kernels by the shape of the batch, and some quantisations have a fast one for a single token but a
slow one for a few: two tokens of a Q8_0 file can cost four times as much as one. What pays depends on file, processor
and build, so it is learned from the steps themselves.
"""

from __future__ import annotations

from typing import Final

_TRIALS: Final = 3
"""Decodes of a width before it is judged; the first of a new shape is slow."""
_STALE: Final = 256
"""Decodes after which a width that lost is tried again: what else runs on the machine changes."""
_WEIGHT: Final = 0.25
"""Weight of the newest decode in the moving average."""
_OUTLIER: Final = 2.0
"""A decode that took more times what was expected counts as so many: something else held it up."""
_TIE: Final = 1.05
"""All together may cost this much more than the cheapest way: it serves everybody evenly."""


class BatchWidth:
    """Learns what decodes of one token per answer cost, by the number of answers in them.

    Args:
        single: seconds of a decode for one answer, as measured at start.
    """

    def __init__(self, single: float) -> None:
        self._seconds: dict[int, float] = {1: single}
        self._trials: dict[int, int] = {1: _TRIALS}
        self._last: dict[int, int] = {1: 0}
        self._decodes = 0

    def choose(self, answers: int) -> int:
        """How many of so many waiting answers the next decode should serve."""
        if answers == 1 or self._trials.get(answers, 0) < _TRIALS:
            return answers
        known = [width for width in self._seconds if width <= answers]
        stalest = min(known, key=lambda width: self._last[width])
        if self._decodes - self._last[stalest] > _STALE:
            return stalest
        best = min(known, key=self._per_answer)
        return answers if self._per_answer(answers) <= _TIE * self._per_answer(best) else best

    def learn(self, width: int, seconds: float) -> None:
        """A decode of ``width`` answers, and nothing else, took so long."""
        self._decodes += 1
        self._last[width] = self._decodes
        trials = self._trials.get(width, 0)
        known = self._seconds.get(width, seconds)
        if trials < _TRIALS:
            self._trials[width] = trials + 1
            self._seconds[width] = min(known, seconds)
        else:
            self._seconds[width] = known + _WEIGHT * (min(seconds, _OUTLIER * known) - known)

    def _per_answer(self, width: int) -> float:
        return self._seconds[width] / width
