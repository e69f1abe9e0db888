"""Gauges of engines, read from the engines themselves at the moment of a scrape: nothing to keep in step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gnusnode.contracts.generation import EngineInfo

Infos = Callable[[], Iterable[EngineInfo]]


class EngineGauges(Collector):
    """Queue, slots and memory by model; a model with several engines counts as their sum. Empty until ``follow``."""

    def __init__(self) -> None:
        self._infos: Infos = tuple

    def follow(self, infos: Infos) -> None:
        """Sets who tells about the node's engines. ``infos`` must not wait: it runs in the scrape."""
        self._infos = infos

    def collect(self) -> Iterable[GaugeMetricFamily]:
        queued, running, memory = Counter[str](), Counter[str](), Counter[str]()
        for info in self._infos():
            queued[info.model] += info.queued
            running[info.model] += info.slots - info.free_slots
            memory[info.model] += info.rss_bytes
        yield _family("gnusnode_queue_depth", "Generations that wait for a slot.", queued)
        yield _family("gnusnode_streams_active", "Generations that hold a slot.", running)
        yield _family("gnusnode_engine_resident_bytes", "Resident memory of an engine child.", memory)


def _family(name: str, text: str, values: Counter[str]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["model"])
    for model, value in values.items():
        family.add_metric([model], value)
    return family
