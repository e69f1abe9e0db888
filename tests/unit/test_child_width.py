"""How many answers share a decode: whatever makes a token cheapest, learned from the decodes themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnusnode.inference.child.width import BatchWidth

Cost = Callable[[int], float]
"""Seconds of a decode by its width."""


def widths(width: BatchWidth, answers: int, cost: Cost, steps: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(steps):
        chosen.append(width.choose(answers))
        width.learn(chosen[-1], cost(chosen[-1]))
    return chosen


def alone_is_cheapest(width: int) -> float:
    """As a Q8_0 file on a CPU with AVX-512."""
    return 1.0 if width == 1 else 2.0 * width


def together_is_cheaper(width: int) -> float:
    """As wherever memory bounds the speed."""
    return 1.0 + 0.1 * width


def test_answers_go_one_by_one_where_that_is_cheaper() -> None:
    chosen = Counter(widths(BatchWidth(1.0), 4, alone_is_cheapest, 1000))
    assert chosen[1] > 980
    assert chosen[1] + chosen[4] == 1000


def test_answers_go_together_where_that_is_cheaper() -> None:
    chosen = Counter(widths(BatchWidth(1.1), 4, together_is_cheaper, 1000))
    assert chosen[4] > 990


def test_a_width_between_is_taken_once_it_is_known_to_be_best() -> None:
    def four_are_best(width: int) -> float:
        return {1: 1.0, 4: 2.0}.get(width, 1.5 * width)

    width = BatchWidth(1.0)
    widths(width, 4, four_are_best, 10)
    assert Counter(widths(width, 6, four_are_best, 500))[4] > 480


def test_it_follows_when_the_machine_changes() -> None:
    width = BatchWidth(1.0)
    assert widths(width, 4, alone_is_cheapest, 100)[-1] == 1
    assert Counter(widths(width, 4, together_is_cheaper, 4000)[2000:])[4] > 1900
    assert Counter(widths(width, 4, alone_is_cheapest, 4000)[2000:])[1] > 1900


def test_one_slow_decode_does_not_turn_it_around_for_long() -> None:
    width = BatchWidth(1.1)
    widths(width, 4, together_is_cheaper, 100)
    width.learn(4, 50.0)
    assert Counter(widths(width, 4, together_is_cheaper, 2000)[1000:])[4] > 950


@given(
    costs=st.lists(st.floats(1e-4, 10), min_size=8, max_size=8),
    crowd=st.lists(st.integers(1, 8), min_size=1, max_size=200),
)
def test_it_never_serves_nobody_or_more_than_there_are(costs: list[float], crowd: list[int]) -> None:
    width = BatchWidth(costs[0])
    for answers in crowd:
        chosen = width.choose(answers)
        assert 1 <= chosen <= answers
        width.learn(chosen, costs[chosen - 1])


@pytest.mark.parametrize("cost", [alone_is_cheapest, together_is_cheaper])
def test_in_the_long_run_a_token_costs_hardly_more_than_the_best_way(cost: Cost) -> None:
    chosen = widths(BatchWidth(cost(1)), 5, cost, 2000)
    best = min(cost(width) / width for width in (1, 5))
    assert sum(map(cost, chosen)) / sum(chosen) < 1.06 * best
