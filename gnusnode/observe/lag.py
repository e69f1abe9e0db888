"""How late the event loop is: a task that sleeps a little and looks how long it really took."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from gnusnode.observe.health import LOOP_LAG, Health
from gnusnode.observe.metrics import NodeMetrics

INTERVAL: Final = 0.1
WINDOW: Final = 100
"""Samples looked at together: ten seconds, as long as the loop is not late."""


async def watch_loop_lag(
    metrics: NodeMetrics, health: Health, *, warning_ms: int, beat: Callable[[], object] | None = None
) -> None:
    """Keeps ``gnusnode_loop_lag_seconds`` and the ``loop-lag`` warning; runs until cancelled.

    The gauge is the worst of the window, so that a scrape does not miss a spike; the warning goes by the mean, so that
    a single spike (a model being loaded) raises none.

    Args:
        beat: called after every sample: the loop is alive, so this is the place for systemd's ``WATCHDOG=1``.
    """
    samples: deque[float] = deque(maxlen=WINDOW)
    while True:
        asleep = trio.current_time()
        await trio.sleep(INTERVAL)
        samples.append(max(trio.current_time() - asleep - INTERVAL, 0.0))
        metrics.loop_lag.set(max(samples))
        mean = sum(samples) / len(samples)
        late = len(samples) == WINDOW and mean * 1000 > warning_ms
        health.update(LOOP_LAG, late, f"{mean * 1000:.0f} ms on average over the last {WINDOW} samples")
        if beat is not None:
            beat()


def every(
    seconds: float, action: Callable[[], object], clock: Callable[[], float] = trio.current_time
) -> Callable[[], None]:
    """A ``beat`` that runs ``action`` at once and then at most every ``seconds``."""
    due = float("-inf")

    def beat() -> None:
        nonlocal due
        now = clock()
        if now >= due:
            due = now + seconds
            action()

    return beat
