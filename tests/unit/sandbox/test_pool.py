"""Sandboxes are ready when they are wanted, used once, and gone when nobody wants them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from gnusnode.errors import GnusError, Unavailable
from sandbox.run import pool
from sandbox.run.pool import WarmPool


class Sandbox:
    def __init__(self) -> None:
        self.lives = True
        self.removed = 0

    def alive(self) -> bool:
        return self.lives

    async def remove(self) -> None:
        self.removed += 1


class Factory:
    def __init__(self) -> None:
        self.made: list[Sandbox] = []
        self.fails = False

    async def __call__(self) -> Sandbox:
        await trio.lowlevel.checkpoint()
        if self.fails:
            raise Unavailable("not today")
        self.made.append(Sandbox())
        return self.made[-1]


@asynccontextmanager
async def served(
    open_one: Callable[[], Awaitable[Sandbox]], most: int = 4, failed: Callable[[GnusError], None] | None = None
):
    found = WarmPool(open_one, most=most, failed=failed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.serve)
        await trio.testing.wait_all_tasks_blocked()
        yield found
        nursery.cancel_scope.cancel()


async def settled() -> None:
    await trio.sleep(1)
    await trio.testing.wait_all_tasks_blocked()


async def test_an_idle_node_keeps_none(autojump_clock: MockClock) -> None:
    factory = Factory()
    async with served(factory):
        await trio.sleep(3600)
    assert factory.made == []


async def test_as_many_wait_as_were_asked_for_lately_up_to_the_most(autojump_clock: MockClock) -> None:
    factory = Factory()
    async with served(factory, most=3) as waiting:
        assert waiting.take() is None
        await settled()
        assert waiting.waiting == 1
        for _ in range(10):
            waiting.take()
        await settled()
        assert waiting.waiting == 3


async def test_one_is_kept_for_ten_minutes_and_then_none(autojump_clock: MockClock) -> None:
    factory = Factory()
    async with served(factory) as waiting:
        waiting.take()
        waiting.take()
        await settled()
        assert waiting.waiting == 2
        await trio.sleep(pool.RECENT * 2)
        assert waiting.waiting == 1
        await trio.sleep(pool.REMEMBERED)
        assert waiting.waiting == 0
    assert all(sandbox.removed == 1 for sandbox in factory.made)


async def test_none_is_ever_handed_out_twice(autojump_clock: MockClock) -> None:
    factory = Factory()
    handed: list[Sandbox] = []
    async with served(factory) as waiting:
        for _ in range(30):
            if sandbox := waiting.take():
                handed.append(sandbox)
            await trio.sleep(0.7)
    assert len(handed) > 10
    assert len(set(map(id, handed))) == len(handed)
    assert all(sandbox.removed == (sandbox not in handed) for sandbox in factory.made)


async def test_one_that_died_while_it_waited_is_not_handed_out(autojump_clock: MockClock) -> None:
    factory = Factory()
    async with served(factory) as waiting:
        waiting.take()
        await settled()
        factory.made[0].lives = False
        assert waiting.take() is None
        await settled()
        assert factory.made[0].removed == 1


async def test_one_that_waited_too_long_is_replaced(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_AGE", 100.0)
    factory = Factory()
    async with served(factory) as waiting:
        waiting.take()
        await trio.sleep(200)
        assert factory.made[0].removed == 1
        assert waiting.waiting == 1


async def test_a_failing_start_is_told_and_tried_again_later(autojump_clock: MockClock) -> None:
    factory, told = Factory(), []
    factory.fails = True
    async with served(factory, failed=told.append) as waiting:
        waiting.take()
        await trio.sleep(20)
        assert 1 <= len(told) <= 3
        factory.fails = False
        await trio.sleep(40)
        assert waiting.waiting == 1


async def test_a_used_sandbox_is_removed_behind_the_caller_s_back_but_only_a_few_at_a_time(
    autojump_clock: MockClock,
) -> None:
    used = [Sandbox() for _ in range(3)]
    async with served(Factory(), most=2) as waiting:
        assert [waiting.retire(sandbox) for sandbox in used] == [True, True, False]
        await settled()
        assert [sandbox.removed for sandbox in used] == [1, 1, 0]
        assert waiting.retire(used[2])
    assert used[2].removed == 1
    assert not waiting.retire(Sandbox())


async def test_nothing_waits_when_nobody_serves() -> None:
    factory = Factory()
    idle = WarmPool(factory)
    assert idle.take() is None
    assert factory.made == []


async def test_a_pool_is_served_once(autojump_clock: MockClock) -> None:
    async with served(Factory()) as waiting:
        with pytest.raises(RuntimeError):
            await waiting.serve()
