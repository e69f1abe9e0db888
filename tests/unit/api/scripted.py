"""A node that answers by a script: everything that the HTTP layer can meet, without a model."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import trio
from nacl.signing import SigningKey

from gnusnode.api.facade import ModelCard, Readiness
from gnusnode.contracts import ids
from gnusnode.contracts.base import SignedRecord
from gnusnode.contracts.expert import ExpertOutput
from gnusnode.contracts.generation import Delta, EmbedRequest, EmbedResult, Timing, TokenLogprob, TopLogprob, Usage
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.plan import (
    AttestationRequirements,
    Constraints,
    ExecutionGraph,
    ExecutionPlan,
    ExpertRole,
    MemoryMode,
    Mode,
    Platform,
    PrivacyMode,
    SandboxProfile,
    SelectedCore,
    Stage,
    Topology,
)
from gnusnode.contracts.services import ChoiceDelta, ChoiceDone, PlanMade, PlanView, TaskDone, TaskRequest
from gnusnode.contracts.tools import ToolPolicy, ToolProposal
from gnusnode.errors import GnusError, ModelNotFound, NotFound
from gnusnode.observe.observer import Observer

HASH = "sha256:" + "0" * 64


class Key:
    def __init__(self) -> None:
        self._key = SigningKey(b"\x07" * 32)
        self.peer_id = ids.peer_id(bytes(self._key.verify_key))

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message).signature


@dataclass
class Script:
    """What the node says to one task."""

    pieces: tuple[str, ...] = ("Hello", ", ", "world")
    tools: tuple[tuple[str, dict[str, Any]], ...] = ()
    finish: Literal["stop", "length"] = "stop"
    fail_first: GnusError | None = None
    """Raised before a plan exists."""
    fail_after_plan: GnusError | None = None
    fail_after: tuple[int, Exception] | None = None
    """Raised behind so many pieces."""
    endless: bool = False
    """Goes on with the last piece for ever."""
    pause: Callable[[int], trio.Event | None] = lambda _at: None
    """What to wait for before a piece."""
    interval: float = 0.0
    obedient: bool = False
    """Calls the tool that is asked for and answers in the schema that is given, as a good model would."""
    worker: str | None = None
    """The node that the plan names, where it is another one."""
    ends_early: bool = False
    """Stops without a ``TaskDone``."""


@dataclass
class ScriptedNode:
    script: Script = field(default_factory=Script)
    ready: Readiness = field(default_factory=lambda: Readiness(True))
    tasks: list[TaskRequest] = field(default_factory=list)
    embeds: list[tuple[str, EmbedRequest]] = field(default_factory=list)
    embed_error: GnusError | None = None
    running: int = 0
    sent: int = 0
    stop_requests: int = 0
    traceparents: list[str | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.key = Key()
        self.peer_id = self.key.peer_id
        self.observer = Observer.create()
        self.metrics = self.observer.metrics.registry
        self.stopping = trio.Event()
        self.idle = trio.Event()
        self.moved = trio.Event()
        self.plans: dict[str, PlanView] = {}

    async def settled(self) -> None:
        """Returns as soon as no task runs."""
        while self.running:
            await self.idle.wait()

    async def begun(self, tasks: int = 1) -> None:
        """Returns as soon as so many pieces were asked for."""
        while self.sent < tasks:
            await self.moved.wait()

    def models(self) -> list[ModelCard]:
        return [
            ModelCard("gnus", 1, "gnusnode", generates=True, embeds=False),
            ModelCard("gnus/small", 1, "gnusnode", generates=True, embeds=False, artifact_hash=HASH, n_ctx=64),
            ModelCard("gnus/embed", 1, "gnusnode", generates=False, embeds=True),
        ]

    def readiness(self) -> Readiness:
        return self.ready

    def status(self) -> dict[str, Any]:
        return {"peer_id": self.peer_id, "roles": ["ingress"]}

    @asynccontextmanager
    async def chat(
        self, request: TaskRequest, *, deadline: float, traceparent: str | None = None
    ) -> AsyncGenerator[AsyncIterator[PlanMade | ChoiceDelta | ChoiceDone | TaskDone]]:
        self.tasks.append(request)
        self.traceparents.append(traceparent)
        self.running += 1
        try:
            if self.script.fail_first is not None:
                raise self.script.fail_first
            if request.model not in ("gnus", "gnus/small"):
                raise ModelNotFound(f"no model {request.model!r}", param="model")
            async with aclosing(self._events(request)) as events:
                yield events
        finally:
            self.running -= 1
            if not self.running:
                self.idle.set()
                self.idle = trio.Event()

    async def _events(self, request: TaskRequest) -> AsyncGenerator[PlanMade | ChoiceDelta | ChoiceDone | TaskDone]:
        script = self.script = obeying(self.script, request) if self.script.obedient else self.script
        plan = self._plan(request)
        yield PlanMade(plan=plan, model="gnus/small", confidence=0.9, reasons=("because",), node=script.worker)
        if script.fail_after_plan is not None:
            raise script.fail_after_plan
        outputs: list[ExpertOutput] = []
        for index in range(request.choices):
            for at, piece in self._pieces():
                if script.fail_after is not None and at == script.fail_after[0]:
                    raise script.fail_after[1]
                if (event := script.pause(at)) is not None:
                    await event.wait()
                await trio.sleep(script.interval)
                self.sent += 1
                self.moved.set()
                self.moved = trio.Event()
                yield ChoiceDelta(index=index, delta=self._delta(request, at, piece))
            outputs.append(self._output(request, plan))
            yield ChoiceDone(
                index=index,
                finish_reason="tool_calls" if script.tools else script.finish,
                tool_calls=outputs[-1].tool_calls,
                output=outputs[-1],
                usage=Usage(prompt_tokens=5, completion_tokens=len(script.pieces)),
                timing=Timing(),
            )
        self.plans[request.generation.request_id] = PlanView(
            request_id=request.generation.request_id,
            tenant=request.policy.tenant,
            plan=plan,
            outputs=tuple(outputs),
            state="done",
        )
        if script.ends_early:
            return
        yield TaskDone(
            usage=Usage(prompt_tokens=5, completion_tokens=request.choices * len(script.pieces), cached_tokens=2),
            node=self.peer_id,
            plan_digest=plan.digest,
            stages_ms={"draft": 1.5},
        )

    def _pieces(self) -> Any:
        yield from enumerate(self.script.pieces)
        at = len(self.script.pieces)
        while self.script.endless:
            yield at, self.script.pieces[-1]
            at += 1

    def _delta(self, request: TaskRequest, at: int, piece: str) -> Delta:
        wanted = request.generation.top_logprobs
        top = tuple(TopLogprob(token=n, piece="é", logprob=-1.0) for n in range(wanted or 0))
        logprobs = () if wanted is None else (TokenLogprob(token=at, piece=piece, logprob=-0.5, top=top),)
        return Delta(text=piece, tokens=(at,), logprobs=logprobs)

    def _plan(self, request: TaskRequest) -> ExecutionPlan:
        now = int(time.time() * 1000)
        return ExecutionPlan.signed(
            self.key,
            request_id=request.generation.request_id,
            query_hash=HASH,
            selected_core=SelectedCore(core_id="gnus/small", version="1"),
            execution_graph=ExecutionGraph(mode=Mode.SINGLE_NODE, topology=Topology.SINGLE, stages=(Stage.DRAFT,)),
            constraints=Constraints(max_tokens=10, max_wall_ms=1000, max_spend=0.0),
            privacy_mode=PrivacyMode.RESTRICTED,
            attestation_requirements=AttestationRequirements(),
            tool_policy=ToolPolicy(),
            memory_mode=MemoryMode.OFF,
            sandbox_profile=SandboxProfile(platform=Platform.SERVER_NAMESPACES),
            swarm_id=HASH,
            policy_hash=HASH,
            issued_at_ms=now,
            expires_at_ms=now + 60_000,
            nonce="0" * 32,
        )

    def _output(self, request: TaskRequest, plan: ExecutionPlan) -> ExpertOutput:
        calls = tuple(
            ToolProposal(tool_call_id=f"00000000-0000-4000-8000-{at:012d}", tool_name=name, arguments=arguments)
            for at, (name, arguments) in enumerate(self.script.tools)
        )
        return ExpertOutput.signed(
            self.key,
            request_id=request.generation.request_id,
            expert_id="gnus/small",
            expert_version="1",
            expert_role=ExpertRole.SEMANTIC_CORE,
            answer="".join(self.script.pieces),
            confidence=0.5,
            tool_calls=calls,
            plan_hash=plan.digest,
            artifact_hash=HASH,
            issued_at_ms=int(time.time() * 1000),
        )

    async def embed(self, model: str, request: EmbedRequest, *, deadline: float) -> EmbedResult:
        await trio.lowlevel.checkpoint()
        if self.embed_error is not None:
            raise self.embed_error
        if model != "gnus/embed":
            raise ModelNotFound(f"no model {model!r}", param="model")
        self.embeds.append((model, request))
        return EmbedResult(vectors=tuple((0.6, 0.8, float(len(text))) for text in request.texts), prompt_tokens=7)

    async def plan(self, request_id: str, *, tenant: str | None = None) -> PlanView:
        await trio.lowlevel.checkpoint()
        view = self.plans.get(request_id)
        if view is None or tenant not in (None, view.tenant):
            raise NotFound(f"no request {request_id!r}")
        return view

    def verify(self, record: SignedRecord) -> Outcome:
        return Outcome.OK if record.signature_is_valid() else Outcome.BAD_SIGNATURE

    async def audit_events(self, first: int | None, count: int) -> list[Any]:
        await trio.lowlevel.checkpoint()
        return [_Event(number) for number in range(first or 0, 3)][:count]

    async def audit_head(self) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"length": 3}

    async def audit_report(self) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"checked": 3, "length": 3, "broken": None}

    def request_stop(self) -> None:
        self.stop_requests += 1
        self.stopping.set()

    async def bugreport(self) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"version": "test"}


@dataclass
class _Event:
    """Stands in for an audit event, of which the API knows only the plain form."""

    number: int

    def to_plain(self) -> dict[str, Any]:
        return {"number": self.number}


def obeying(script: Script, request: TaskRequest) -> Script:
    """``script``, with the tool call or the JSON that ``request`` insists on."""
    schema = request.generation.json_schema
    pieces = ("Hello", ", ", "world") if schema is None else (json.dumps(least(schema)),)
    wanted = [
        tool
        for tool in request.tools
        if request.tool_choice == "required" or request.tool_choice == tool.name or request.tool_choice == "auto"
    ]
    return replace(script, pieces=pieces, tools=tuple((tool.name, least(tool.parameters)) for tool in wanted[:1]))


def least(schema: Any) -> Any:
    """The smallest value that a simple schema allows."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type", "object"):
        case "object":
            return {name: least(part) for name, part in schema.get("properties", {}).items()}
        case "array":
            return [least(schema["items"])] * max(1, schema.get("minItems", 0))
        case "string":
            return "Paris"
        case "boolean":
            return True
        case _:
            return 1


def sse(text: str) -> list[Any]:
    """The data of a server-sent event stream; ``[DONE]`` as itself."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]
