"""When a frame comes out of a cable of the lab, if it does. No devices and no root here."""

from __future__ import annotations

import pytest

from scripts.lab.switch import QUEUE_SECONDS, Cable


@pytest.fixture
def cable() -> Cable:
    return Cable("test", -1)


def test_a_plain_cable_takes_no_time(cable: Cable) -> None:
    assert cable.passage(1500, 0, 7.0, 0.0) == 7.0


def test_a_delay_moves_frames_and_keeps_their_order(cable: Cable) -> None:
    cable.delay_s = 0.15
    assert [cable.passage(1500, 0, at, 0.5) for at in (1.0, 1.1)] == pytest.approx([1.15, 1.25])


@pytest.mark.parametrize(("chance", "lost"), [(0.0, True), (0.29, True), (0.3, False), (0.99, False)])
def test_a_frame_is_lost_with_the_probability_that_was_set(cable: Cable, chance: float, lost: bool) -> None:
    cable.loss = 0.3
    assert (cable.passage(100, 1, 0.0, chance) is None) == lost


def test_a_cut_cable_loses_everything_until_it_is_mended(cable: Cable) -> None:
    cable.is_cut = True
    assert cable.passage(100, 0, 0.0, 0.99) is None
    cable.is_cut = False
    assert cable.passage(100, 0, 0.0, 0.99) == 0.0


def test_a_rate_makes_frames_queue_each_way_on_its_own(cable: Cable) -> None:
    cable.bytes_per_second = 1000
    assert [cable.passage(100, 0, 0.0, 0.5) for _ in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    assert cable.passage(100, 1, 0.0, 0.5) == pytest.approx(0.1)
    assert cable.passage(100, 0, 10.0, 0.5) == pytest.approx(10.1)


def test_a_full_queue_drops(cable: Cable) -> None:
    cable.bytes_per_second = 1000
    passed = [cable.passage(1000, 0, 0.0, 0.5) for _ in range(10)]
    assert passed.count(None) > 0
    assert max(at for at in passed if at is not None) <= QUEUE_SECONDS + 1
