"""A running node as others see it: what it is, what it serves, how it does. Implements ``api.facade.NodeFacade``."""

from __future__ import annotations

import platform
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import psutil
import trio
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from gnusnode import __version__
from gnusnode.api.facade import ModelCard, Readiness, SwarmSurface
from gnusnode.config.load import Loaded
from gnusnode.config.paths import Home
from gnusnode.contracts.base import SignedRecord
from gnusnode.contracts.events import AuditEvent
from gnusnode.contracts.generation import EmbedRequest, EmbedResult
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.services import (
    INGRESS_CHAT,
    INGRESS_EMBED,
    INGRESS_PLAN,
    ROUTED,
    ChoiceDelta,
    ChoiceDone,
    ModelCall,
    PlanMade,
    PlanQuery,
    PlanView,
    TaskDone,
    TaskRequest,
)
from gnusnode.contracts.verify import verify
from gnusnode.errors import NoExpert, NotFound
from gnusnode.net.alone import Alone
from gnusnode.net.rpc import CallContext, Rpc
from gnusnode.observe.health import AUDIT_BROKEN
from gnusnode.observe.observer import Observer
from gnusnode.offering import Offering
from gnusnode.store.audit import AuditLog
from gnusnode.store.db import Store
from gnusnode.swarm import SwarmNode
from roles.ports import RoleContext
from roles.supervisor import Supervisor
from roles.table import RoleName

PLAN_SECONDS = 5.0
"""How long looking up a plan may take."""


@dataclass
class Node:
    """The parts of a running node, and the questions that the API may ask of them. Made by ``daemon.open_node``."""

    home: Home
    loaded: Loaded
    context: RoleContext
    swarm: SwarmNode
    observer: Observer
    store: Store
    audit: AuditLog
    roles: Supervisor
    offering: Offering
    stopping: trio.Event
    started: float = field(default_factory=time.monotonic)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    api_url: str = ""
    """Base URL, once the API listens."""
    stop_cause: Literal["signal", "request"] = "signal"

    @property
    def peer_id(self) -> str:
        return self.context.peer_id

    @property
    def metrics(self) -> CollectorRegistry:
        return self.observer.metrics.registry

    @property
    def rpc(self) -> Rpc:
        return self.swarm.rpc

    @property
    def surface(self) -> SwarmSurface:
        """What the API shows of the swarm."""
        swarm = self.swarm
        return SwarmSurface(swarm.desk, swarm.presence or Alone(), lambda: swarm.puller)

    # --- work ---------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def chat(
        self, request: TaskRequest, *, deadline: float, traceparent: str | None = None
    ) -> AsyncGenerator[AsyncIterator[PlanMade | ChoiceDelta | ChoiceDone | TaskDone]]:
        self._check_ingress()
        context = CallContext(request.generation.request_id, deadline, traceparent=traceparent)
        async with self.rpc.stream(INGRESS_CHAT, request, context) as items:
            yield items

    async def embed(self, model: str, request: EmbedRequest, *, deadline: float) -> EmbedResult:
        self._check_ingress()
        call = ModelCall(model=model, embed=request)
        return await self.rpc.call(INGRESS_EMBED, call, CallContext(request.request_id, deadline))

    async def plan(self, request_id: str, *, tenant: str | None = None) -> PlanView:
        try:
            query = PlanQuery(request_id=request_id, tenant=tenant)
        except ValidationError as error:
            raise NotFound("a request's id is a UUID", hint="it stands in the header x-gnus-task") from error
        context = CallContext(request_id, time.monotonic() + PLAN_SECONDS)
        return await self.rpc.call(INGRESS_PLAN, query, context)

    def _check_ingress(self) -> None:
        """Users are a node's own: no other node takes their requests in its place. Raises ``NoExpert``."""
        if not self.swarm.local.offers(RoleName.INGRESS):
            standing = self.swarm.status()["state"]
            raise no_ingress(self.peer_id, self.roles.status().get(RoleName.INGRESS), standing)

    def verify(self, record: SignedRecord) -> Outcome:
        """Whether the record was to be believed when it was issued: what is past its time was not wrong then."""
        return verify(record, record.issued_ms, self.swarm.roster)

    # --- what it is ---------------------------------------------------------------------------------------------------

    def models(self) -> list[ModelCard]:
        """The names that leave the choice to the router, and every expert once, those of this node first."""
        created = int(self.started_at.timestamp())
        routed = [ModelCard(name, created, "gnusnode", generates=True, embeds=False) for name in ROUTED]
        cards = {card.expert_id: card for card in (*self.swarm.table.cards(), *reversed(self.offering.cards()))}
        experts = [
            ModelCard(
                card.expert_id,
                created,
                card.peer,
                generates=card.engine.generates,
                embeds=card.engine.embeds,
                artifact_hash=card.engine.artifact_hash,
                n_ctx=card.engine.n_ctx,
                state=card.engine.state.value,
            )
            for card in reversed(cards.values())
        ]
        return [*routed, *experts] if any(card.generates for card in experts) else experts

    def readiness(self) -> Readiness:
        reasons = self.roles.readiness() | self.offering.pending()
        if self.stopping.is_set():
            reasons["node"] = "shutting down"
        return Readiness(not reasons, reasons)

    def status(self) -> dict[str, Any]:
        readiness = self.readiness()
        engines = [card.engine for card in self.offering.cards()]
        settings = self.loaded.settings
        return {
            "name": settings.node.name or platform.node(),
            "peer_id": self.peer_id,
            "version": __version__,
            "home": str(self.home.root),
            "profile": settings.profile,
            "api": self.api_url,
            "swarm": self.swarm.status(),
            "started": self.started_at.isoformat(timespec="seconds"),
            "uptime_s": round(time.monotonic() - self.started, 1),
            "ready": readiness.ready,
            "reasons": readiness.reasons,
            "roles": [
                {"name": name, "state": state["state"], "detail": _detail(state), **state}
                for name, state in self.roles.status().items()
            ],
            "models": [
                {
                    "name": engine.model,
                    "state": engine.state.value,
                    "device": f"{engine.device}, {engine.gpu_layers} layers" if engine.gpu_layers else engine.device,
                    "slots": f"{engine.slots - engine.free_slots}/{engine.slots}",
                    "queued": engine.queued,
                    "decode": f"{engine.decode_rate:.0f} tok/s",
                    "reason": engine.reason,
                    "info": engine.to_plain(),
                }
                for engine in engines
            ],
            "rss_bytes": psutil.Process().memory_info().rss,
            "engine_rss_bytes": sum(engine.rss_bytes for engine in engines),
            "audit_events": self.audit.length,
            "warnings": [warning.to_plain() for warning in self.observer.health.warnings()],
        }

    # --- the audit chain ----------------------------------------------------------------------------------------------

    async def audit_events(self, first: int | None, count: int) -> list[AuditEvent]:
        return await self.audit.tail(count) if first is None else await self.audit.events(first, count)

    async def audit_head(self) -> dict[str, Any]:
        head = self.audit.head()
        return {} if head is None else head.to_plain()

    async def audit_report(self) -> dict[str, Any]:
        report = await self.audit.verify()
        self.observer.health.update(AUDIT_BROKEN, report.broken is not None)
        return report.to_plain()

    # --- stopping, and telling a maintainer ---------------------------------------------------------------------------

    def request_stop(self) -> None:
        if not self.stopping.is_set():
            self.stop_cause = "request"
            self.stopping.set()

    async def bugreport(self) -> dict[str, Any]:
        """Everything a maintainer needs and nothing that a user said. Settings hold paths of secrets, never secrets."""
        return {
            "status": self.status(),
            "settings": self.loaded.settings.model_dump(mode="json"),
            "origins": dict(self.loaded.origins),
            "store": self.store.info().entries,
            "events": [stamped.to_plain() for stamped in self.observer.bus.recent(200)],
            "tasks": task_tree(),
            "python": platform.python_version(),
        }


def no_ingress(peer_id: str, state: Mapping[str, Any] | None, standing: str = "member") -> NoExpert:
    """Why a node takes no requests.

    Args:
        state: of its role ingress; None: its settings do not name it.
        standing: of the node in its swarm, as ``gnusnode swarm status`` says it.
    """
    if state is None:
        why, hint = "`node.roles` does not name ingress", "add ingress and router to `node.roles`, and start it again"
    elif state["state"] == "withheld" and standing != "member":
        # Nobody can grant a role to such a node: first it has to belong.
        why, hint = f"it is no member of its swarm now ({standing})", "see `gnusnode status` for what to do"
    elif state["state"] == "withheld":
        why = "the swarm does not grant it the role ingress"
        hint = f"an admin can grant it: `gnusnode swarm roles {peer_id[-6:]} ingress,router,core,elm`"
    else:
        return NoExpert(f"the role ingress of this node is {state['state']}", where=peer_id, retry_after=1.0)
    return NoExpert(f"this node takes no requests: {why}", where=peer_id, hint=f"ask another node, or {hint}")


def task_tree() -> list[str]:
    """The names of all trio tasks, indented by who owns them."""
    root = trio.lowlevel.current_root_task()
    lines: list[str] = []

    def walk(task: trio.lowlevel.Task, depth: int) -> None:
        lines.append("  " * depth + task.name)
        for nursery in task.child_nurseries:
            for child in nursery.child_tasks:
                walk(child, depth + 1)

    if root is not None:
        walk(root, 0)
    return lines


def _detail(state: dict[str, Any]) -> str:
    counts = ", ".join(f"{name} {count}" for name, count in state["statistics"].items())
    return state["reason"].removeprefix(f"{state['state']}: ") or counts
