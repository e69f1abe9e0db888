"""What is kept of each request, so that its plan and outputs can be fetched and verified afterwards."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol

from gnusnode.contracts.base import MalformedRecord
from gnusnode.contracts.expert import ExpertOutput
from gnusnode.contracts.plan import ExecutionPlan
from gnusnode.contracts.services import PlanMade, PlanView
from gnusnode.errors import GnusError, NotRunning
from gnusnode.store.db import Store
from gnusnode.store.tables import OUTPUTS, PLANS
from gnusnode.store.txn import WriteTxn

_log = logging.getLogger(__name__)

KEEP: Final = 1000
"""Requests that are kept; the oldest go first."""


class TaskLog(Protocol):
    """Plans, outputs and ends of requests. What was put is there for ``get`` when the call returns."""

    async def put_plan(self, made: PlanMade, tenant: str, *, former: Sequence[ExecutionPlan] = ()) -> None:
        """The request runs under this plan from now on; ``former`` are those of its plans that came before."""
        ...

    async def finish(
        self,
        request_id: str,
        outputs: Sequence[ExpertOutput],
        *,
        error: GnusError | None = None,
        stages_ms: dict[str, float] | None = None,
    ) -> None:
        """The request ended, well or with ``error``. Does nothing for a request without a plan."""
        ...

    async def get(self, request_id: str) -> PlanView | None:
        """The records of a request; None where it is unknown or no longer kept."""
        ...


class MemoryTaskLog:
    """Keeps the last ``keep`` requests of this process."""

    def __init__(self, keep: int = KEEP) -> None:
        self._keep = keep
        self._views: OrderedDict[str, PlanView] = OrderedDict()

    async def put_plan(self, made: PlanMade, tenant: str, *, former: Sequence[ExecutionPlan] = ()) -> None:
        self._views[made.plan.request_id] = running(made, tenant, former)
        self._views.move_to_end(made.plan.request_id)
        while len(self._views) > self._keep:
            self._views.popitem(last=False)

    async def finish(
        self,
        request_id: str,
        outputs: Sequence[ExpertOutput],
        *,
        error: GnusError | None = None,
        stages_ms: dict[str, float] | None = None,
    ) -> None:
        view = self._views.get(request_id)
        if view is not None:
            ended_view = ended(view, error, stages_ms)
            self._views[request_id] = ended_view.model_copy(update={"outputs": tuple(outputs)})

    async def get(self, request_id: str) -> PlanView | None:
        return self._views.get(request_id)


class StoreTaskLog:
    """Keeps the last ``keep`` requests in the store: a view per plan, its outputs beside it. Made by ``open``."""

    def __init__(self, store: Store, keep: int, kept: Sequence[str]) -> None:
        self._store = store
        self._keep = keep
        self._kept = OrderedDict.fromkeys(kept)
        """Request ids, oldest first."""

    @classmethod
    async def open(cls, store: Store, keep: int = KEEP) -> StoreTaskLog:
        """Takes up what the store holds. A request that was running when the node stopped has failed.

        Raises:
            DataError: the store cannot be read or written.
        """
        issued: list[tuple[int, str]] = []
        start: bytes | None = None
        while page := await store.page(PLANS, start=start, limit=256):
            for key, value in page:
                view = _read(key, value)
                if view is None:
                    continue
                issued.append((view.plan.issued_at_ms, view.request_id))
                if view.state == "running":
                    await store.put(PLANS, key, ended(view, _interrupted(), None).to_bytes())
            start = page[-1][0] + b"\0"
        log = cls(store, keep, [request_id for _, request_id in sorted(issued)])
        surplus = log._surplus()
        if surplus:
            await store.write(lambda txn: [_remove(txn, request_id) for request_id in surplus])
        return log

    async def put_plan(self, made: PlanMade, tenant: str, *, former: Sequence[ExecutionPlan] = ()) -> None:
        view = running(made, tenant, former)
        self._kept[view.request_id] = None
        self._kept.move_to_end(view.request_id)
        surplus = self._surplus()
        key, value = view.request_id.encode(), view.to_bytes()

        def write(txn: WriteTxn) -> None:
            for request_id in (*surplus, view.request_id):
                _remove(txn, request_id)
            txn.put(PLANS, key, value)

        await self._store.write(write)

    async def finish(
        self,
        request_id: str,
        outputs: Sequence[ExpertOutput],
        *,
        error: GnusError | None = None,
        stages_ms: dict[str, float] | None = None,
    ) -> None:
        key = request_id.encode()
        packages = [output.to_bytes() for output in outputs]

        def write(txn: WriteTxn) -> None:
            value = txn.get(PLANS, key)
            if value is None:
                return
            txn.put(PLANS, key, ended(PlanView.from_bytes(value), error, stages_ms).to_bytes())
            for index, package in enumerate(packages):
                txn.put(OUTPUTS, key + index.to_bytes(4, "big"), package)

        await self._store.write(write)

    async def get(self, request_id: str) -> PlanView | None:
        key = request_id.encode()
        with self._store.snapshot() as txn:
            value = txn.get(PLANS, key)
            packages = txn.scan(OUTPUTS, prefix=key)
        view = _read(key, value) if value is not None else None
        if view is None:
            return None
        outputs = tuple(ExpertOutput.from_bytes(package) for _, package in packages)
        return view.model_copy(update={"outputs": outputs})

    def _surplus(self) -> list[str]:
        """The oldest requests beyond ``keep``, which are no longer counted from here on."""
        surplus = list(self._kept)[: max(0, len(self._kept) - self._keep)]
        for request_id in surplus:
            del self._kept[request_id]
        return surplus


def _remove(txn: WriteTxn, request_id: str) -> None:
    key = request_id.encode()
    txn.delete(PLANS, key)
    for package, _ in txn.scan(OUTPUTS, prefix=key):
        txn.delete(OUTPUTS, package)


def _interrupted() -> NotRunning:
    return NotRunning("the node stopped while it worked on this", hint="ask again")


def _read(key: bytes, value: bytes) -> PlanView | None:
    """The stored view; None for one that another version wrote or that is damaged, which is left as it is."""
    try:
        return PlanView.from_bytes(value)
    except MalformedRecord as error:
        _log.warning("the stored plan of request %r cannot be read: %s", key[:64], error)
        return None


def running(made: PlanMade, tenant: str, former: Sequence[ExecutionPlan] = ()) -> PlanView:
    return PlanView(
        request_id=made.plan.request_id,
        tenant=tenant,
        plan=made.plan,
        former_plans=tuple(former),
        reasons=made.reasons,
        state="running",
    )


def ended(view: PlanView, error: GnusError | None, stages_ms: dict[str, float] | None) -> PlanView:
    return view.model_copy(
        update={
            "state": "done" if error is None else "failed",
            "error": error and error.to_wire(),
            "stages_ms": stages_ms or {},
        }
    )
