"""Ingress: attaches policy, bounds each tenant, hands requests to the router, checks and keeps what comes back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from gnusnode.contracts.expert import ExpertOutput
from gnusnode.contracts.generation import EmbedResult, Usage
from gnusnode.contracts.plan import ExecutionPlan
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.services import (
    CORE_EMBED,
    ELM_EMBED,
    MAX_PLANS,
    ROUTER_RUN,
    ChoiceDelta,
    ChoiceDone,
    ModelCall,
    PlanMade,
    PlanQuery,
    PlanView,
    TaskDone,
    TaskRequest,
)
from gnusnode.errors import (
    Cancelled,
    Conflict,
    GnusError,
    ModelNotFound,
    NoExpert,
    NotFound,
    Overloaded,
    RateLimited,
    RecordRefused,
    RequestError,
)
from gnusnode.net.rpc import CallContext, Rpc, Service
from gnusnode.observe import events
from gnusnode.observe.stage import Stage
from gnusnode.policy.envelopes import effective_policy
from roles.ingress.tasklog import TaskLog
from roles.ports import RoleContext

Send = Callable[[PlanMade | ChoiceDelta | ChoiceDone | TaskDone], Awaitable[None]]
WorkspacePolicy = Callable[[str], PolicyEnvelope]
"""The widest policy that a tenant may ask for."""

_KEEP_SECONDS: Final = 2.0
"""How long the end of a request that was cut off may take to be written down."""


@dataclass(frozen=True)
class IngressOptions:
    """Bounds of the requests that run at a time; more are refused at once."""

    max_active: int = 256
    max_active_per_tenant: int = 64


@dataclass
class _Account:
    """What is known of a running request: the basis of its event, its metrics and its entry in the log."""

    request_id: str
    tenant: str
    endpoint: str
    begin: float = field(default_factory=time.perf_counter)
    plans: dict[str, ExecutionPlan] = field(default_factory=dict[str, ExecutionPlan])
    """All plans by digest; the one that holds now comes last."""
    policy_hash: str = ""
    outputs: list[ExpertOutput] = field(default_factory=list[ExpertOutput])
    usage: Usage = field(default_factory=Usage)
    first_token: float | None = None
    error: GnusError | None = None


class Ingress:
    """The service ``ingress``."""

    def __init__(
        self,
        rpc: Rpc,
        node: RoleContext,
        log: TaskLog,
        workspace: WorkspacePolicy,
        options: IngressOptions | None = None,
    ) -> None:
        self._rpc = rpc
        self._node = node
        self._log = log
        self._workspace = workspace
        self._options = options or IngressOptions()
        self._active: Counter[str] = Counter()
        self._running: set[str] = set()

    def service(self) -> Service:
        return Service("ingress", unary={"embed": self._embed, "plan": self._plan}, streams={"chat": self._chat})

    @property
    def active(self) -> int:
        """Requests being answered now."""
        return self._active.total()

    # --- handlers -----------------------------------------------------------------------------------------------------

    async def _chat(self, request: TaskRequest, context: CallContext, send: Send) -> None:
        with self._admitted(request.generation.request_id, "chat", request.policy.tenant) as account:
            timer = self._node.timer(account.request_id)
            with timer.stage(Stage.ADMISSION):
                task = self._with_policy(request)
            account.policy_hash = task.policy.digest
            try:
                await self._forward(task, context, account, send)
            except GnusError as error:
                account.error = error
                raise
            except trio.Cancelled:
                account.error = Cancelled("the caller left")
                raise
            finally:
                if account.error is not None:
                    with trio.move_on_after(_KEEP_SECONDS, shield=True):
                        await self._log.finish(account.request_id, account.outputs, error=account.error)

    async def _embed(self, call: ModelCall, context: CallContext) -> EmbedResult:
        if call.embed is None:
            raise RequestError("the call carries nothing to embed", param="embed")
        with self._admitted(call.embed.request_id, "embed", call.embed.tenant) as account:
            try:
                result = await self._embedded(call, context)
            except GnusError as error:
                account.error = error
                raise
            account.usage = Usage(prompt_tokens=result.prompt_tokens)
            return result

    async def _plan(self, query: PlanQuery, context: CallContext) -> PlanView:
        del context
        view = await self._log.get(query.request_id)
        if view is None or query.tenant not in (None, view.tenant):
            raise NotFound(
                f"no request {query.request_id} is known here",
                hint="ask the node that answered it; only the latest requests are kept",
            )
        return view

    # --- parts --------------------------------------------------------------------------------------------------------

    def _with_policy(self, request: TaskRequest) -> TaskRequest:
        tenant = request.policy.tenant
        policy = effective_policy(request.policy, self._workspace(tenant))
        generation = request.generation.model_copy(update={"tenant": tenant})
        return request.model_copy(update={"policy": policy, "generation": generation})

    async def _forward(self, task: TaskRequest, context: CallContext, account: _Account, send: Send) -> None:
        limited = context.within(task.policy.max_wall_ms / 1000)
        async with self._rpc.stream(ROUTER_RUN, task, limited) as items:
            async for item in items:
                await self._take(account, item)
                await send(item)

    async def _take(self, account: _Account, item: PlanMade | ChoiceDelta | ChoiceDone | TaskDone) -> None:
        """Checks an event of the router and keeps what has to be kept, before the caller sees it.

        Raises:
            RecordRefused: a record that is not to be believed or belongs elsewhere.
        """
        match item:
            case ChoiceDelta():
                if account.first_token is None:
                    account.first_token = time.perf_counter()
            case PlanMade():
                self._node.require(item.plan)
                if (item.plan.request_id, item.plan.policy_hash) != (account.request_id, account.policy_hash):
                    raise RecordRefused("the plan is for another request or policy", where="execution-plan")
                account.plans.pop(item.plan.digest, None)
                if len(account.plans) == MAX_PLANS:
                    raise RecordRefused(f"more than {MAX_PLANS} plans for one request", where="execution-plan")
                await self._log.put_plan(item, account.tenant, former=tuple(account.plans.values()))
                account.plans[item.plan.digest] = item.plan
            case ChoiceDone():
                self._node.require(item.output)
                if item.output.plan_hash not in account.plans:
                    raise RecordRefused("the package was made under another plan", where="expert-output")
                account.outputs.append(item.output)
            case TaskDone():
                account.usage = item.usage
                await self._log.finish(account.request_id, account.outputs, stages_ms=item.stages_ms)

    async def _embedded(self, call: ModelCall, context: CallContext) -> EmbedResult:
        """The vectors, made on this node: no plan says who else might read the texts."""
        unknown: ModelNotFound | None = None
        for method in (CORE_EMBED, ELM_EMBED):
            if not self._rpc.offers(method.service):
                continue
            try:
                return await self._rpc.call(method, call, context, peer=self._node.peer_id)
            except ModelNotFound as error:
                unknown = unknown or error
            except NoExpert:
                continue  # a peer offers it, this node does not
        raise unknown or NoExpert(
            "nobody here computes embeddings", where=call.model, hint="start a node with the role core or elm"
        )

    @contextmanager
    def _admitted(self, request_id: str, endpoint: str, tenant: str) -> Generator[_Account]:
        """Counts a request in and out; events and metrics tell of both.

        Raises:
            Conflict: a request of this id is running. RateLimited, Overloaded: too many are.
        """
        self._check_bounds(request_id, tenant)
        account = _Account(request_id, tenant, endpoint)
        self._active[tenant] += 1
        self._running.add(request_id)
        self._node.observer.bus.publish(events.RequestStarted(request_id=request_id, endpoint=endpoint))
        outcome: events.Outcome = "failed"
        try:
            yield account
            outcome = "ok"
        except trio.Cancelled:
            outcome = "cancelled"
            raise
        finally:
            self._active[tenant] -= 1
            self._active += Counter()  # forgets tenants without requests
            self._running.discard(request_id)
            self._tell_end(account, outcome)

    def _check_bounds(self, request_id: str, tenant: str) -> None:
        refused: GnusError | None = None
        if request_id in self._running:
            refused = Conflict("a request of this id is running", where=request_id, hint="give each request its own id")
        elif self._active[tenant] >= self._options.max_active_per_tenant:
            refused = RateLimited(
                f"{self._active[tenant]} requests of this tenant are running",
                retry_after=1.0,
                hint="wait for one to end",
            )
        elif self.active >= self._options.max_active:
            refused = Overloaded(f"{self.active} requests are running", retry_after=1.0, hint="try again")
        if refused is not None:
            self._node.observer.bus.publish(events.RequestRefused(code=refused.code))
            raise refused

    def _tell_end(self, account: _Account, outcome: events.Outcome) -> None:
        first = account.first_token
        self._node.observer.bus.publish(
            events.RequestEnded(
                request_id=account.request_id,
                endpoint=account.endpoint,
                outcome=outcome,
                code=account.error.code if account.error else None,
                tokens_in=account.usage.prompt_tokens,
                tokens_cached=account.usage.cached_tokens,
                tokens_out=account.usage.completion_tokens,
                first_token_ms=None if first is None else (first - account.begin) * 1000,
                total_ms=(time.perf_counter() - account.begin) * 1000,
            )
        )
