"""Signs of life of a draft: who waits can tell an expert that is busy from one that is gone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import trio

from gnusnode.contracts.services import ChoiceDelta, ChoiceDone, DraftBeat
from gnusnode.errors import GnusError
from roles.experts.draft import Send

BEAT_SECONDS: Final = 3.0
"""Longest silence of an expert that works: well below what a router waits for a word."""

Beating: TypeAlias = "Callable[[DraftBeat | ChoiceDelta | ChoiceDone], Awaitable[None]]"


@asynccontextmanager
async def beating(send: Beating, beat: DraftBeat, seconds: float) -> AsyncGenerator[Send]:
    """Sends ``beat`` at once, and again after every ``seconds`` in which nothing was said through what this yields."""
    await send(beat)
    said = trio.current_time()
    failure: GnusError | None = None

    async def speak(item: ChoiceDelta | ChoiceDone) -> None:
        nonlocal said
        await send(item)
        said = trio.current_time()

    async def keep_beating() -> None:
        nonlocal said
        while True:
            await trio.sleep_until(said + seconds)
            if trio.current_time() >= said + seconds:
                await send(beat)
                said = trio.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_beating)
        try:
            yield speak
        except GnusError as error:
            failure = error  # raised behind the nursery, which would wrap it into a group
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
