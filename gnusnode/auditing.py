"""From events to the audit chain: the one writer of the families ``node``, ``engine``, ``request`` and ``record``.

The bus is for listeners that come and go; the chain is for good. Both say digests and codes only.
"""

from __future__ import annotations

from typing import Final

from gnusnode.contracts.events import AuditValue
from gnusnode.errors import GnusError
from gnusnode.observe import events
from gnusnode.observe.bus import EventBus, Missed, Stamped
from gnusnode.observe.health import AUDIT_BROKEN, Health
from gnusnode.observe.metrics import NodeMetrics
from gnusnode.store.audit import AuditLog

FAMILIES: Final = ("node", "engine", "request", "plan", "record")

Entry = tuple[str, str, dict[str, AuditValue]]
"""Family, event name, fields."""


def entry_of(event: events.Event) -> Entry | None:
    """What the chain keeps of an event; None for one that is only of the moment."""
    match event:
        case events.NodeStarted():
            return "node", "node.started", {"version": event.version}
        case events.NodeStopping():
            return "node", "node.stopping", {"cause": event.cause}
        case events.EngineChanged(state="ready" | "quarantined"):
            return "engine", f"engine.{event.state}", {"model": event.model[:64], "restarts": event.restarts}
        case events.PlanMade():
            return "plan", "plan.made", {"request_id": event.request_id, "plan_digest": event.plan_digest}
        case events.RequestEnded():
            fields: dict[str, AuditValue] = {
                "request_id": event.request_id,
                "outcome": event.outcome,
                "tokens_in": event.tokens_in,
                "tokens_out": event.tokens_out,
            }
            return "request", "request.ended", fields | ({"code": event.code[:64]} if event.code else {})
        case events.RecordRefused():
            return "record", "record.refused", {"record": event.record[:64], "outcome": event.outcome[:64]}
        case _:
            return None


class Auditor:
    """Follows the bus and writes what concerns the chain. ``run`` until cancelled; ``drain`` writes the rest."""

    def __init__(self, log: AuditLog, bus: EventBus, health: Health, metrics: NodeMetrics) -> None:
        self._writers = {family: log.writer(family) for family in FAMILIES}
        self._bus = bus
        self._reader = bus.follow()
        self._health = health
        self._metrics = metrics
        self._done = bus.last_id

    async def run(self) -> None:
        """Writes events in their order as they come. A full disk is a health warning, not the end of the node."""
        while True:
            item = await anext(self._reader)
            if isinstance(item, Missed):
                self._done = item.last_id
                self._health.warn(AUDIT_BROKEN, "events came faster than they could be written; some are missing")
            else:
                await self._take(item)

    async def drain(self) -> None:
        """Writes what was published and not yet taken up. Call when ``run`` has ended."""
        for stamped in self._bus.recent():
            if stamped.id > self._done:
                await self._take(stamped)

    async def _take(self, stamped: Stamped) -> None:
        self._done = stamped.id  # first: a write that is cancelled while it waits is made nevertheless
        entry = entry_of(stamped.event)
        if entry is not None:
            await self._write(entry)

    async def _write(self, entry: Entry) -> None:
        family, name, fields = entry
        try:
            await self._writers[family].append(name, **fields)
        except GnusError as error:
            self._health.warn(AUDIT_BROKEN, f"cannot write: {error.what}", about="write")
            return
        self._metrics.audit_events.labels(family).inc()
        self._health.clear(AUDIT_BROKEN, about="write")
