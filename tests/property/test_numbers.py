"""Integer ranges: the expression takes the integers between the bounds and nothing else."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnusnode.inference.numbers import integer_range

BOUND = st.one_of(st.integers(-1500, 1500), st.integers(-(10**17), 10**17))


def pattern(expression: str) -> re.Pattern[str]:
    """The expression as a regular expression: literals, classes, counts and groups are written alike."""
    return re.compile(re.sub(r"\s+", "", expression.replace('"', "")))


@given(BOUND, BOUND, st.integers(-2, 2), st.booleans())
def test_exactly_the_integers_between_the_bounds_are_taken(a: int, b: int, near: int, at_low: bool) -> None:
    low, high = min(a, b), max(a, b)
    takes = pattern(integer_range(low, high)).fullmatch
    for number in {low, high, (low + high) // 2, (low if at_low else high) + near, a // 7, -b}:
        assert bool(takes(str(number))) == (low <= number <= high), number


@given(st.integers(-300, 300))
def test_a_missing_bound_is_open(bound: int) -> None:
    up, down = pattern(integer_range(bound, None)).fullmatch, pattern(integer_range(None, bound)).fullmatch
    for number in (bound - 1, bound, bound + 1, 10**12, -(10**12)):
        assert bool(up(str(number))) == (number >= bound)
        assert bool(down(str(number))) == (number <= bound)


@given(st.integers(0, 999))
def test_no_number_has_leading_zeros_or_a_minus_zero(high: int) -> None:
    takes = pattern(integer_range(-high, high)).fullmatch
    assert not takes(f"0{high}")
    assert not takes("-0")


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match="no integer"):
        integer_range(3, 2)
