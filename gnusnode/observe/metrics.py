"""Every metric of a node, in one table. One registry a node, never the global one: several nodes fit one process.

``docs/observability.md`` documents each; a test ties the two both ways. Labels hold names from closed or configured
sets only (outcomes, stages, loaded models), so that no client can make the number of series grow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from gnusnode import __version__
from gnusnode.observe.bus import Stamped
from gnusnode.observe.engines import EngineGauges
from gnusnode.observe.events import (
    EngineChanged,
    HealthChanged,
    JoinAttempted,
    RecordRefused,
    RequestEnded,
    RequestRefused,
    RequestStarted,
    RosterChanged,
)
from gnusnode.observe.network import NetworkMetrics

_STAGE_BUCKETS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 120.0)
_COMMIT_BUCKETS: Final = (0.0005, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


class NodeMetrics:
    """The metrics of one node; ``registry`` is what ``/metrics`` shows."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        counter, gauge, histogram = self._makers()

        self.build = Info("gnusnode_build", "Version of the running node.", registry=self.registry)
        self.build.info({"version": __version__})
        self.started = gauge("gnusnode_start_time_seconds", "Unix time at which the node started.")
        self.started.set_to_current_time()

        self.requests = counter(
            "gnusnode_requests", "Requests that ended, by what came of them.", "endpoint", "outcome"
        )
        self.requests_active = gauge("gnusnode_requests_active", "Requests being answered.")
        self.refused = counter("gnusnode_refused", "Requests turned away before any work, by error code.", "code")
        self.request_seconds = histogram(
            "gnusnode_request_seconds", "Time from admission to the end of a request.", _STAGE_BUCKETS, "endpoint"
        )
        self.first_token_seconds = histogram(
            "gnusnode_first_token_seconds", "Time from admission to the first token.", _STAGE_BUCKETS
        )
        self.stage_seconds = histogram(
            "gnusnode_stage_seconds", "Time spent in a stage.", _STAGE_BUCKETS, "stage", "outcome"
        )
        self.tokens = counter("gnusnode_tokens", "Tokens of requests: `in`, of these `cached`, and `out`.", "kind")

        self.engines = EngineGauges()
        self.registry.register(self.engines)
        self.engine_restarts = counter(
            "gnusnode_engine_restarts", "Engine children that were started again.", "model", "cause"
        )

        self.http_connections = gauge("gnusnode_http_connections", "Open HTTP connections.")
        self.http_refused = counter(
            "gnusnode_http_connections_refused", "Connections closed at once, by why.", "reason"
        )
        self.http_faults = counter("gnusnode_http_connection_faults", "Connections ended by the fence after a fault.")
        self.sse_streams = gauge("gnusnode_sse_streams", "Open event streams, by what they follow.", "topic")

        self.store_commit_seconds = histogram(
            "gnusnode_store_commit_seconds", "Time of a group commit to the disk.", _COMMIT_BUCKETS
        )
        self.store_bytes = gauge("gnusnode_store_used_bytes", "Bytes of the database in use.")
        self.audit_events = counter("gnusnode_audit_events", "Events written to the audit chain.", "family")
        self.records_refused = counter(
            "gnusnode_records_refused", "Signed records that failed verification.", "record", "outcome"
        )
        self._make_swarm(counter, gauge)

        self.events = counter("gnusnode_events", "Events published, by name.", "name")
        self.warnings = gauge("gnusnode_health_warnings", "Health warnings that hold now.", "severity")
        self.loop_lag = gauge("gnusnode_loop_lag_seconds", "Longest delay of the event loop in the last ten seconds.")
        process = psutil.Process()
        self.resident = gauge("gnusnode_resident_bytes", "Resident memory of the daemon.")
        self.resident.set_function(lambda: float(process.memory_info().rss))

    def _make_swarm(self, counter: Callable[..., Counter], gauge: Callable[..., Gauge]) -> None:
        self.network = NetworkMetrics()
        self.registry.register(self.network)
        self.peers = gauge("gnusnode_peers", "Peers known now, by how far they have come.", "state")
        self.dials = counter("gnusnode_dials", "Attempts to connect to a peer.", "outcome")
        self.hellos = counter("gnusnode_hellos", "Hellos with peers, by what came of them.", "outcome")
        self.heartbeat_age = gauge(
            "gnusnode_heartbeat_age_seconds", "Age of the oldest last announcement of a connected peer."
        )
        self.clock_skew = gauge("gnusnode_clock_skew_seconds", "Median of the peers' clocks minus this node's.")
        self.gossip_failures = counter("gnusnode_gossip_failures", "Own announcements that could not be published.")
        self.joins = counter("gnusnode_join_attempts", "Invites that were shown here, by what came of it.", "outcome")
        self.roster_records = gauge("gnusnode_roster_records", "Membership records that this node holds.")
        self.roster_members = gauge("gnusnode_roster_members", "Nodes that hold a membership certificate.")

    def count(self, stamped: Stamped) -> None:
        """The sink by which events move their metrics: whoever publishes an event counts nothing on its own."""
        event = stamped.event
        self.events.labels(event.name).inc()
        match event:
            case RequestStarted():
                self.requests_active.inc()
            case RequestEnded():
                self.requests_active.dec()
                self._count_request(event)
            case RequestRefused():
                self.refused.labels(event.code).inc()
            case EngineChanged(state="restarting"):
                self.engine_restarts.labels(event.model, event.cause).inc()
            case RecordRefused():
                self.records_refused.labels(event.record, event.outcome).inc()
            case JoinAttempted():
                self.joins.labels(event.outcome).inc()
            case RosterChanged():
                self.roster_records.set(event.records)
                self.roster_members.set(event.members)
            case HealthChanged():
                self.warnings.labels(event.severity).inc(1 if event.active else -1)
            case _:
                pass

    def _count_request(self, event: RequestEnded) -> None:
        self.requests.labels(event.endpoint, event.outcome).inc()
        self.request_seconds.labels(event.endpoint).observe(event.total_ms / 1000)
        if event.first_token_ms is not None:
            self.first_token_seconds.observe(event.first_token_ms / 1000)
        self.tokens.labels("in").inc(event.tokens_in)
        self.tokens.labels("cached").inc(event.tokens_cached)
        self.tokens.labels("out").inc(event.tokens_out)

    def _makers(self) -> tuple[Callable[..., Counter], Callable[..., Gauge], Callable[..., Histogram]]:
        registry = self.registry

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        return counter, gauge, histogram
