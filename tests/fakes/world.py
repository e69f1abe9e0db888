"""A node of the roles ingress, router, core and elm over the in-memory rpc, with engines that say what a test wants."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import trio

from gnusnode.contracts import ids
from gnusnode.contracts.base import SignedRecord
from gnusnode.contracts.generation import (
    ClassifyRequest,
    ClassifyResult,
    ContextProfile,
    Delta,
    Done,
    EmbedRequest,
    EmbedResult,
    EngineInfo,
    EngineState,
    GenerateRequest,
    Message,
    Prompt,
    ScoreRequest,
    ScoreResult,
    Started,
    Timing,
    Usage,
)
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.plan import ExpertRole
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.roster import Roster
from gnusnode.contracts.services import INGRESS_CHAT, ChoiceDelta, ChoiceDone, PlanMade, TaskDone, TaskRequest
from gnusnode.contracts.verify import verify
from gnusnode.errors import GnusError, ModelNotFound
from gnusnode.identity import NodeIdentity
from gnusnode.net.local import LocalRpc
from gnusnode.net.rpc import CallContext
from gnusnode.observe.observer import Observer
from gnusnode.policy.envelopes import workspace_policy
from roles.experts.hosting import Expert, Host
from roles.experts.service import ExpertService
from roles.ingress.service import Ingress, IngressOptions
from roles.ingress.tasklog import MemoryTaskLog, TaskLog
from roles.ports import RoleContext
from roles.router.directory import RpcDirectory
from roles.router.facts import Swarm
from roles.router.service import Router, RouterOptions

T = TypeVar("T")
Event = PlanMade | ChoiceDelta | ChoiceDone | TaskDone


@dataclass
class FakeEngine:
    """Says ``says`` word by word. ``fails`` is raised after ``fails_after`` deltas; ``label`` wins a classification."""

    model: str = "fake"
    says: str = "Paris is the capital of France."
    says_json: str = "{}"
    label: str | None = None
    probability: float = 0.9
    finish_reason: str = "stop"
    json_finish_reason: str = "stop"
    fails: Exception | None = None
    fails_after: int = 0
    hold: trio.Event | None = None
    """When set, the engine waits for it before the second delta."""
    embeds: bool = False
    state: EngineState = EngineState.READY
    requests: list[GenerateRequest] = field(default_factory=list[GenerateRequest])
    classified: list[ClassifyRequest] = field(default_factory=list[ClassifyRequest])
    running: int = 0
    info_fields: dict[str, Any] = field(default_factory=dict[str, Any])

    def info(self) -> EngineInfo:
        fields: dict[str, Any] = {
            "model": self.model,
            "artifact_hash": ids.sha256(self.model.encode()),
            "state": self.state,
            "generates": not self.embeds,
            "embeds": self.embeds,
            "slots": 4,
            "free_slots": 4,
            "decode_rate": 100.0,
            "prefill_rate": 1000.0,
        }
        return EngineInfo(**{**fields, **self.info_fields})

    @asynccontextmanager
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[AsyncIterator[Started | Delta | Done], None]:
        self.requests.append(request)
        self.running += 1
        try:
            async with aclosing(self._events(request)) as events:
                yield events
        finally:
            self.running -= 1

    async def _events(self, request: GenerateRequest) -> AsyncGenerator[Started | Delta | Done, None]:
        text = self.says if request.json_schema is None else self.says_json
        reason: Any = self.finish_reason if request.json_schema is None else self.json_finish_reason
        yield Started(prompt_tokens=(1, 2, 3))
        words = text.split(" ")
        for place, part in enumerate(words):
            if self.fails is not None and place >= self.fails_after:
                raise self.fails
            if place == 1 and self.hold is not None:
                await self.hold.wait()
            yield Delta(text=part if place == 0 else f" {part}", tokens=(place,))
        if self.fails is not None:
            raise self.fails
        yield Done(
            finish_reason=reason,
            tokens=tuple(range(len(words))),
            mean_logprob=-0.1,
            usage=Usage(prompt_tokens=3, completion_tokens=len(words)),
            timing=Timing(queue_ms=1, prefill_ms=2, decode_ms=3),
        )

    async def classify(self, request: ClassifyRequest) -> ClassifyResult:
        self.classified.append(request)
        best = f" {self.label}" if self.label else request.labels[0]
        rest = (1 - self.probability) / (len(request.labels) - 1)
        probabilities = tuple(self.probability if label == best else rest for label in request.labels)
        return ClassifyResult(
            label=best,
            probabilities=probabilities,
            margin=self.probability - rest,
            raw_logprobs=tuple(-1.0 for _ in request.labels),
        )

    async def score(self, request: ScoreRequest) -> ScoreResult:
        count = len(request.answer_tokens)
        return ScoreResult(gaps=(0.0,) * count, ranks=(0,) * count, logprobs=(-0.1,) * count, argmax_match=1.0)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        return EmbedResult(vectors=tuple((1.0, 0.0) for _ in request.texts), prompt_tokens=len(request.texts))


@dataclass
class FakeEngines:
    by_model: dict[str, FakeEngine]

    async def engine(self, model: str, profile: ContextProfile) -> FakeEngine:
        del profile
        return self._find(model)

    def info(self, model: str) -> EngineInfo:
        return self._find(model).info()

    def _find(self, model: str) -> FakeEngine:
        if model not in self.by_model:
            raise ModelNotFound(f"no model {model!r}")
        return self.by_model[model]


def expert(name: str, role: ExpertRole = ExpertRole.SEMANTIC_CORE, **fields: Any) -> Expert:
    return Expert(expert_id=name, version="1", role=role, model=name, **fields)


@dataclass
class World:
    """A running node. ``chat`` asks the ingress as the API would."""

    rpc: LocalRpc
    node: RoleContext
    router: Router
    ingress: Ingress
    log: TaskLog
    observer: Observer

    async def chat(self, request: TaskRequest, *, seconds: float = 60) -> list[Event]:
        context = CallContext(request.generation.request_id, time.monotonic() + seconds)
        async with self.rpc.stream(INGRESS_CHAT, request, context) as items:
            return [item async for item in items]

    async def failure(self, request: TaskRequest, *, seconds: float = 60) -> tuple[list[Event], GnusError]:
        """The events before the error that the request must end with, and that error."""
        context = CallContext(request.generation.request_id, time.monotonic() + seconds)
        seen: list[Event] = []
        try:
            async with self.rpc.stream(INGRESS_CHAT, request, context) as items:
                async for item in items:
                    seen.append(item)
        except GnusError as error:
            return seen, error
        raise AssertionError(f"the request did not fail: {seen}")


@asynccontextmanager
async def world(
    core: Sequence[FakeEngine] = (),
    elms: Sequence[tuple[Expert, FakeEngine]] = (),
    *,
    options: RouterOptions | None = None,
    bounds: IngressOptions | None = None,
    log: TaskLog | None = None,
    signer: NodeIdentity | None = None,
    roster: Callable[[str], Roster] = Roster.solo,
    swarm_services: frozenset[str] = frozenset({"core", "elm"}),
    profile: str = "solo",
) -> AsyncGenerator[World, None]:
    identity = signer or NodeIdentity.generate()
    peer = identity.peer_id
    known = roster(peer)
    observer = Observer.create()

    def judge(record: SignedRecord) -> Outcome:
        return verify(record, time.time_ns() // 1_000_000, known)

    node = RoleContext(identity, lambda: known.swarm_id, judge, lambda: time.time_ns() // 1_000_000, observer)
    rpc = LocalRpc(peer)
    mine = frozenset({peer})
    view = Swarm(node=peer, members=mine, boundary=mine, services=swarm_services)
    router = Router(rpc, node, RpcDirectory(rpc), lambda: view, options)
    kept = log or MemoryTaskLog()
    ingress = Ingress(rpc, node, kept, lambda tenant: workspace_policy(profile, tenant), bounds)
    services = [ingress.service(), router.service()]
    if core:
        host = Host("core", [expert(e.model) for e in core], FakeEngines({e.model: e for e in core}))
        services.append(ExpertService(host, node).service())
    if elms:
        host = Host("elm", [e for e, _ in elms], FakeEngines({e.model: engine for e, engine in elms}))
        services.append(ExpertService(host, node).service())
    async with AsyncExitStack() as stack:
        for service in services:
            await stack.enter_async_context(rpc.serve(service))
        yield World(rpc, node, router, ingress, kept, observer)


def task(
    text: str = "What is the capital of France?",
    *,
    model: str = "gnus",
    policy: PolicyEnvelope | None = None,
    max_tokens: int = 64,
    messages: Sequence[Message] | None = None,
    choices: int = 1,
    tools: Sequence[Any] = (),
    tool_choice: str = "auto",
    **generation: Any,
) -> TaskRequest:
    return TaskRequest(
        model=model,
        generation=GenerateRequest(
            request_id=str(uuid.uuid4()),
            prompt=Prompt(messages=tuple(messages or (Message(role="user", content=text),))),
            max_tokens=max_tokens,
            **generation,
        ),
        choices=choices,
        tools=tuple(tools),
        tool_choice=tool_choice,
        policy=policy or PolicyEnvelope(),
    )


def text_of(events: Sequence[Event], index: int = 0) -> str:
    return "".join(e.delta.text for e in events if isinstance(e, ChoiceDelta) and e.index == index)


def of_kind(events: Sequence[Event], kind: type[T]) -> list[T]:
    return [event for event in events if isinstance(event, kind)]
