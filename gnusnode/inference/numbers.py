"""Integer ranges as GBNF: the texts of all integers between two bounds, and no others. Pure."""

from __future__ import annotations

from typing import Final

MAX_DIGITS: Final = 18
_BEYOND: Final = 10**MAX_DIGITS - 1
"""Bounds that nobody gave: the largest integers that a grammar writes."""


def integer_range(low: int | None, high: int | None) -> str:
    """An expression for the decimal texts, without leading zeros, of all integers from ``low`` to ``high``.

    A missing bound is that of ``MAX_DIGITS`` digits, and so is one that lies beyond it.

    Raises:
        ValueError: there is no such integer.
    """
    least = -_BEYOND if low is None else max(low, -_BEYOND)
    most = _BEYOND if high is None else min(high, _BEYOND)
    if least > most:
        raise ValueError("no integer lies between the bounds")
    parts: list[str] = []
    if least < 0:
        parts.append(f'"-" ({_natural(max(1, -most), -least)})')
    if most >= 0:
        parts.append(_natural(max(0, least), most))
    return " | ".join(parts)


def _natural(low: int, high: int) -> str:
    """From ``low`` to ``high``, neither negative: one alternative for each number of digits."""
    parts: list[str] = []
    for digits in range(len(str(low)), len(str(high)) + 1):
        smallest = 0 if digits == 1 else 10 ** (digits - 1)
        parts.append(_same_length(str(max(low, smallest)), str(min(high, 10**digits - 1))))
    return " | ".join(parts)


def _same_length(low: str, high: str) -> str:
    """Digit strings of one length, compared as numbers."""
    rest = len(low) - 1
    if low == high:
        return f'"{low}"'
    if low == "0" * len(low) and high == "9" * len(high):
        return f"[0-9]{{{len(low)}}}"
    if not rest:
        return f"[{low}-{high}]"
    if low[0] == high[0]:
        return f'"{low[0]}" ({_same_length(low[1:], high[1:])})'
    first, last = int(low[0]), int(high[0])
    parts: list[str] = []
    if low[1:] != "0" * rest:
        parts.append(f'"{first}" ({_same_length(low[1:], "9" * rest)})')
        first += 1
    tail: list[str] = []
    if high[1:] != "9" * rest:
        tail.append(f'"{last}" ({_same_length("0" * rest, high[1:])})')
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}] [0-9]{{{rest}}}")
    return " | ".join(parts + tail)
