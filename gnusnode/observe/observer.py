"""What the parts of a node are handed to tell about themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from gnusnode.observe.bus import EventBus, Sink
from gnusnode.observe.health import Health
from gnusnode.observe.metrics import NodeMetrics
from gnusnode.observe.stage import StageTimer


@dataclass(frozen=True)
class Observer:
    """Metrics, events and health of one node."""

    metrics: NodeMetrics
    bus: EventBus
    health: Health

    @classmethod
    def create(cls, *sinks: Sink) -> Self:
        """A fresh set; events move the metrics and go to ``sinks``, such as ``logs.log_event``."""
        metrics = NodeMetrics()
        bus = EventBus(metrics.count, *sinks)
        return cls(metrics, bus, Health(bus))

    def timer(self, request_id: str) -> StageTimer:
        """The stage timer of one request."""
        return StageTimer(request_id, self.metrics, self.bus)
