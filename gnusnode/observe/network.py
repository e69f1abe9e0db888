"""Metrics of the network, read from its own counts at the moment of a scrape: nothing to keep in step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


@dataclass(frozen=True)
class NetworkCounts:
    """Counts since start, but for ``connections`` and ``calls``, which are of now.

    Attributes:
        refused: incoming connections that were turned away, by why.
        faults: what went wrong, by kind.
        traffic: bytes by direction, ``in`` and ``out``.
        artifacts: those of them that were model files.
        calls: by direction.
    """

    connections: int = 0
    refused: Mapping[str, int] = field(default_factory=dict[str, int])
    faults: Mapping[str, int] = field(default_factory=dict[str, int])
    traffic: Mapping[str, int] = field(default_factory=dict[str, int])
    artifacts: Mapping[str, int] = field(default_factory=dict[str, int])
    calls: Mapping[str, int] = field(default_factory=dict[str, int])


class NetworkMetrics(Collector):
    """Empty until ``follow``: a node that stands alone has no network."""

    def __init__(self) -> None:
        self._counts: Callable[[], NetworkCounts] = NetworkCounts

    def follow(self, counts: Callable[[], NetworkCounts]) -> None:
        """Sets who tells about the network. ``counts`` must not wait: it runs in the scrape."""
        self._counts = counts

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        counts = self._counts()
        yield GaugeMetricFamily("gnusnode_peer_connections", "Connections to peers.", value=counts.connections)
        yield _by(
            CounterMetricFamily(
                "gnusnode_peer_connections_refused",
                "Incoming connections of peers that were turned away.",
                labels=["reason"],
            ),
            counts.refused,
        )
        yield _by(
            CounterMetricFamily("gnusnode_network_faults", "What went wrong with peers, by kind.", labels=["kind"]),
            counts.faults,
        )
        yield _by(
            CounterMetricFamily("gnusnode_network_bytes", "Bytes to and from peers.", labels=["direction"]),
            counts.traffic,
        )
        yield _by(
            CounterMetricFamily(
                "gnusnode_artifact_bytes", "Bytes of model files to and from peers.", labels=["direction"]
            ),
            counts.artifacts,
        )
        running = GaugeMetricFamily("gnusnode_rpc_calls", "Calls to and from peers that run.", labels=["direction"])
        for direction, value in counts.calls.items():
            running.add_metric([direction], value)
        yield running


def _by(family: CounterMetricFamily, values: Mapping[str, int]) -> CounterMetricFamily:
    for name, value in values.items():
        family.add_metric([name], value)
    return family
