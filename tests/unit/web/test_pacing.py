"""The rate limiter, on a clock of the test's own."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from gnusnode.web.pacing import Pacer
from gnusnode.web.refusals import Reason, WebFailed


async def turns(pacer: Pacer, host: str, count: int, **how: float) -> list[float]:
    """When each turn came."""
    times: list[float] = []
    for _ in range(count):
        await pacer.turn(host, longest=how.get("longest", 100.0), interval=how.get("interval", 0.0))
        times.append(trio.current_time())
    return times


async def test_a_burst_passes_at_once_and_the_rest_at_the_rate(autojump_clock: MockClock) -> None:
    start = trio.current_time()

    times = await turns(Pacer(interval=2, burst=3), "a", 6)

    assert [time - start for time in times] == [0, 0, 0, 2, 4, 6]


async def test_hosts_do_not_wait_for_each_other(autojump_clock: MockClock) -> None:
    start = trio.current_time()
    pacer = Pacer(interval=2, burst=1)

    assert await turns(pacer, "a", 1) == await turns(pacer, "b", 1) == [start]


async def test_a_site_may_ask_for_a_longer_pause_but_not_for_a_shorter_one(autojump_clock: MockClock) -> None:
    start = trio.current_time()
    pacer = Pacer(interval=2, burst=2)

    assert [time - start for time in await turns(pacer, "a", 3, interval=10)] == [0, 10, 20]
    assert [time - start for time in await turns(pacer, "b", 3, interval=0.1)] == [20, 20, 22]


async def test_many_at_once_share_the_rate(autojump_clock: MockClock) -> None:
    start, pacer = trio.current_time(), Pacer(interval=1, burst=1)
    times: list[float] = []

    async def one() -> None:
        await pacer.turn("a", longest=10)
        times.append(trio.current_time() - start)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(one)

    assert times == [0, 1, 2, 3]


async def test_who_would_wait_too_long_is_refused_and_uses_up_no_turn(autojump_clock: MockClock) -> None:
    pacer = Pacer(interval=10, burst=1)
    await pacer.turn("a", longest=0)
    for _ in range(3):
        with pytest.raises(WebFailed) as caught:
            await pacer.turn("a", longest=5)
        assert caught.value.reason is Reason.RATE_LIMITED
        assert caught.value.retry_after == 10
    await trio.sleep(10)

    await pacer.turn("a", longest=0)


async def test_when_all_hosts_are_busy_a_further_one_is_refused_and_none_forgotten(autojump_clock: MockClock) -> None:
    pacer = Pacer(interval=10, burst=1, hosts=2)
    for host in ("a", "b"):
        await pacer.turn(host, longest=0)

    with pytest.raises(WebFailed):
        await pacer.turn("c", longest=0)
    with pytest.raises(WebFailed):
        await pacer.turn("a", longest=0)

    await trio.sleep(10)
    await pacer.turn("c", longest=0)
