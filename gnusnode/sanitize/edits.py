"""A text with stretches taken out, which remembers where everything stood."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What is left of a text, and the way back."""

    text: str
    _starts: Sequence[int] = field(default=())
    """Where in the left text each removal took place, ascending."""
    _shifts: Sequence[int] = field(default=())
    """How many characters were gone up to and with that removal."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing was taken out."""
        return not self._starts

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """The span in the original of the span ``start:end`` of what is left."""
        if not self._starts:
            return start, end
        last = max(start, end - 1)
        return self._back(start), self._back(last) + (end - last)

    def _back(self, index: int) -> int:
        at = bisect_right(self._starts, index)
        return index + (self._shifts[at - 1] if at else 0)


def trim(text: str, removals: Sequence[tuple[int, int]]) -> Trimmed:
    """``text`` without ``removals``, which are ascending spans that do not overlap."""
    if not removals:
        return Trimmed(text)
    kept: list[str] = []
    at = 0
    for start, end in removals:
        kept.append(text[at:start])
        at = end
    kept.append(text[at:])
    shifts = list(accumulate(end - start for start, end in removals))
    starts = [end - shift for (_, end), shift in zip(removals, shifts, strict=True)]
    return Trimmed("".join(kept), starts, shifts)


def merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """``spans`` in order of place, those that touch or overlap as one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
