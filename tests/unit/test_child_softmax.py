"""The log-normaliser of a row of logits."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from gnusnode.inference.child.jobs import Softmax

pytestmark = pytest.mark.usefixtures("quiet_overflow")


@pytest.fixture
def quiet_overflow() -> Iterator[None]:
    """As in the engine child."""
    with np.errstate(over="ignore"):
        yield


@pytest.mark.parametrize("offset", [0.0, 30.0, 85.0, 300.0, -60.0, -90.0, -5000.0])
def test_it_is_that_of_the_shifted_row_wherever_the_logits_lie(offset: float) -> None:
    row = np.random.default_rng(1).normal(0, 4, 49152).astype(np.float32)
    expected = float(np.log(np.exp(row.astype(np.float64)).sum()))
    shifted = (row + np.float32(offset)).astype(np.float32)
    rounding = float(np.abs(shifted).max()) * 1e-6
    assert Softmax(49152).log_normaliser(shifted) == pytest.approx(expected + offset, abs=1e-4 + rounding)


def test_one_sure_token_has_logprob_zero() -> None:
    row = np.full(8, -np.inf, np.float32)
    row[3] = 12
    assert 12 - Softmax(8).log_normaliser(row) == pytest.approx(0, abs=1e-6)


def test_rows_are_left_as_they_were() -> None:
    row = np.arange(8, dtype=np.float32)
    Softmax(8).log_normaliser(row)
    assert row.tolist() == list(range(8))
    assert math.isfinite(Softmax(8).log_normaliser(row))
