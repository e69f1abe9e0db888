"""``StageTimer``: the only writer of a stage's time. One measurement feeds record, histogram and event."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

import trio

from gnusnode.observe.bus import EventBus
from gnusnode.observe.events import Outcome, StageEnded
from gnusnode.observe.metrics import NodeMetrics


class Stage(StrEnum):
    """Where the time of a request goes. Each is measured by the node that does it; no two clocks are subtracted."""

    ADMISSION = "admission"
    """Authentication, limits, parsing, policy."""
    ROUTING = "routing"
    """Classification, choice of experts, signing the plan."""
    DISPATCH = "dispatch"
    """From the plan to the expert's first sign of work."""
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    COMPUTE = "compute"
    """The expert's whole work as the router sees it."""


class StageTimer:
    """Times the stages of one request.

    ``elapsed_ms`` grows by stage as stages end; a stage that runs twice counts twice. Stages may nest and overlap: they
    are reported apart, and their sum means nothing.
    """

    def __init__(
        self, request_id: str, metrics: NodeMetrics, bus: EventBus, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.request_id: Final = request_id
        self.elapsed_ms: Final[dict[str, float]] = {}
        self._metrics = metrics
        self._bus = bus
        self._clock = clock

    @contextmanager
    def stage(self, stage: Stage) -> Generator[None]:
        """Measures its body, also when that fails or is cancelled."""
        begin = self._clock()
        outcome: Outcome = "failed"
        try:
            yield
            outcome = "ok"
        except trio.Cancelled:
            outcome = "cancelled"
            raise
        finally:
            self.add(stage, (self._clock() - begin) * 1000, outcome)

    def add(self, stage: Stage, elapsed_ms: float, outcome: Outcome = "ok") -> None:
        """Takes over a duration that the same node measured elsewhere, such as the engine's queue time."""
        elapsed_ms = max(elapsed_ms, 0.0)
        self.elapsed_ms[stage] = self.elapsed_ms.get(stage, 0.0) + elapsed_ms
        self._metrics.stage_seconds.labels(stage, outcome).observe(elapsed_ms / 1000)
        self._bus.publish(
            StageEnded(request_id=self.request_id, stage=stage, outcome=outcome, elapsed_ms=round(elapsed_ms, 3))
        )
