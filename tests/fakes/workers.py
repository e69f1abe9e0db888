"""A swarm without a network: a node that routes, workers that answer, and a wire that breaks where a test wants it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import trio

from gnusnode.contracts import ids
from gnusnode.contracts.base import SignedRecord
from gnusnode.contracts.generation import (
    Delta,
    Done,
    EngineInfo,
    GenerateRequest,
    Sampling,
    Started,
    Timing,
    TokenLogprob,
    Usage,
)
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.plan import ExpertRole
from gnusnode.contracts.roster import Roster
from gnusnode.contracts.services import INGRESS_CHAT, ChoiceDelta, DraftBeat, ExpertCard, TaskRequest
from gnusnode.contracts.swarm import MembershipCertificate, Role, Tier
from gnusnode.contracts.verify import verify
from gnusnode.errors import EngineFailed, GnusError, PeerUnreachable
from gnusnode.identity import NodeIdentity
from gnusnode.inference.artifacts.modelrecord import GenerationDefaults
from gnusnode.inference.child.text import TextAssembler, printable
from gnusnode.net.local import LocalRpc
from gnusnode.net.rpc import CallContext, Rpc, Service
from gnusnode.observe.observer import Observer
from gnusnode.policy.envelopes import workspace_policy
from roles.experts.hosting import Expert, Host
from roles.experts.service import ExpertService
from roles.ingress.service import Ingress
from roles.ingress.tasklog import MemoryTaskLog
from roles.ports import RoleContext
from roles.router.directory import RpcDirectory, SwarmDirectory
from roles.router.facts import PeerFacts, Swarm
from roles.router.service import Router, RouterOptions
from tests.fakes.world import Event, FakeEngine

END = 256
"""The end-of-turn token of a ``ByteEngine``."""
DAY = 86_400_000


@dataclass
class ByteEngine(FakeEngine):
    """Its tokens are bytes: cuts fall inside of characters and stop strings. The text depends on the whole sampling."""

    determinism: str = "A"

    def info(self) -> EngineInfo:
        return super().info().model_copy(update={"determinism": self.determinism})

    def answer(self, sampling: Sampling) -> str:
        chain = hashlib.sha256(sampling.to_bytes()).hexdigest()[:4]
        return f"{chain}: {self.says}"

    async def _events(self, request: GenerateRequest) -> AsyncGenerator[Started | Delta | Done, None]:
        yield Started(prompt_tokens=(1, 2, 3))
        text, given = TextAssembler(request.stop), list[int]()
        planned = (*self.answer(request.sampling).encode(), END)
        for token in request.resume_tokens or ():
            given.append(token)
            _, reason = _advance(text, token, len(given), request.max_tokens)
            if reason:
                yield _done(given, reason)
                return
        assert tuple(given) == planned[: len(given)], "what was delivered is not what this answer begins with"
        for token in planned[len(given) :]:
            if self.hold is not None:
                await self.hold.wait()
            given.append(token)
            piece, reason = _advance(text, token, len(given), request.max_tokens)
            entry = TokenLogprob(token=token, piece=printable(bytes([token % 256])), logprob=-0.1)
            logprobs = () if request.top_logprobs is None else (entry,)
            yield Delta(text=piece, tokens=(token,), logprobs=logprobs)
            if reason:
                yield _done(given, reason)
                return


def _advance(text: TextAssembler, token: int, count: int, limit: int) -> tuple[str, str | None]:
    if token == END:
        return text.flush(), "stop"
    piece = text.feed(bytes([token]))
    if text.stopped:
        return piece, "stop"
    if count >= limit:
        return piece + text.flush(), "length"
    return piece, None


def _done(given: list[int], reason: Any) -> Done:
    return Done(
        finish_reason=reason,
        tokens=tuple(given),
        mean_logprob=-0.1,
        usage=Usage(prompt_tokens=3, completion_tokens=len(given)),
        timing=Timing(queue_ms=1, prefill_ms=2, decode_ms=3),
    )


@dataclass(frozen=True)
class Fault:
    """What happens on the wire to a worker's draft.

    Attributes:
        before: what never arrives: the claim, or the next words or end of a choice after ``after`` tokens or ends.
        how: ``gone``: the connection breaks; ``silent``: nothing comes any more; ``crash``: its engine dies.
    """

    before: Literal["claim", "word", "done"] = "claim"
    after: int = 0
    how: Literal["gone", "silent", "crash"] = "gone"


@dataclass(eq=False)
class Worker:
    """A node that offers one expert. ``fault`` strikes each draft that it makes."""

    engine: Any
    fault: Fault | None = None
    name: str = "small"
    artifact: str = "small.gguf"
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)
    facts: PeerFacts = field(default_factory=lambda: PeerFacts(tier=Tier.C, reputation=0.8))
    identity: NodeIdentity = field(default_factory=NodeIdentity.generate)
    drafts: int = 0
    service: Service | None = None
    experts: ExpertService | None = None

    @property
    def peer(self) -> str:
        return self.identity.peer_id

    def info(self, model: str = "") -> EngineInfo:
        del model
        fixed = {"artifact_hash": ids.sha256(self.artifact.encode()), "model": self.name}
        # Equal rates: which of two workers is asked is the test's to say.
        return self.engine.info().model_copy(update={**fixed, "decode_rate": 100.0, "prefill_rate": 1000.0})

    def card(self) -> ExpertCard:
        return ExpertCard(
            expert_id=self.name,
            version="1",
            service="core",
            role=ExpertRole.SEMANTIC_CORE.value,
            engine=self.info(),
            peer=self.peer,
        )

    def start(self, node: RoleContext, **options: Any) -> None:
        expert = Expert(self.name, "1", ExpertRole.SEMANTIC_CORE, self.name, defaults=self.defaults)
        self.experts = ExpertService(Host("core", [expert], _Engines(self)), node, **options)
        self.service = self.experts.service()


@dataclass
class _Engines:
    worker: Worker

    async def engine(self, model: str, profile: Any) -> Any:
        del model, profile
        return _Engine(self.worker)

    def info(self, model: str) -> EngineInfo:
        return self.worker.info(model)


class _Engine:
    """The worker's engine under the artifact that the worker says it is."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.generate = worker.engine.generate
        self.classify = worker.engine.classify

    def info(self) -> EngineInfo:
        return self._worker.info()


class Wire:
    """``Rpc`` of the routing node: its own services directly, those of workers over a wire with faults."""

    def __init__(self, own: LocalRpc, workers: Sequence[Worker]) -> None:
        self._own = own
        self._workers = {worker.peer: worker for worker in workers}
        self.serve = own.serve

    def offers(self, service: str) -> bool:
        return self._own.offers(service) or service == "core"

    async def call(self, method: Any, request: Any, context: CallContext, *, peer: str | None = None) -> Any:
        return await self._own.call(method, request, context, peer=peer)

    @asynccontextmanager
    async def stream(
        self, method: Any, request: Any, context: CallContext, *, peer: str | None = None
    ) -> AsyncGenerator[AsyncIterator[Any], None]:
        if peer in (None, self._own.peer_id):
            async with self._own.stream(method, request, context) as items:
                yield items
            return
        worker = self._workers[peer]
        worker.drafts += 1
        received = method.request.from_bytes(request.to_bytes())
        async with (
            _handled(worker, method.name, received, replace(context, caller=self._own.peer_id)) as items,
            aclosing(_faulty(items, worker)) as cut,
        ):
            yield cut


@asynccontextmanager
async def _handled(
    worker: Worker, name: str, request: Any, context: CallContext
) -> AsyncGenerator[trio.MemoryReceiveChannel[Any], None]:
    """Runs a worker's handler until the context is left; the channel ends with its error, if it has one."""
    assert worker.service is not None
    handler = worker.service.streams[name]
    send, receive = trio.open_memory_channel[Any](0)
    failure: GnusError | None = None

    async def run() -> None:
        async with send:
            try:
                await handler(request, context, send.send)
            except GnusError as error:
                await send.send(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        async with receive:
            try:
                yield receive
            except GnusError as error:
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _faulty(items: trio.MemoryReceiveChannel[Any], worker: Worker) -> AsyncGenerator[Any, None]:
    seen = {"claim": 0, "word": 0, "done": 0}
    async for item in items:
        kind = "claim" if isinstance(item, DraftBeat) else getattr(item, "kind", "")
        kind = {"delta": "word", "choice": "done"}.get(kind, kind)
        fault = worker.fault
        if fault is not None and kind == fault.before and seen[kind] >= fault.after:
            match fault.how:
                case "gone":
                    raise PeerUnreachable("the connection broke", where=worker.peer)
                case "crash":
                    raise EngineFailed("the engine died while it worked on this request")
                case "silent":
                    await trio.sleep_forever()
        if isinstance(item, GnusError):
            raise item
        seen[kind] += len(item.delta.tokens) if isinstance(item, ChoiceDelta) else 1
        yield item


@dataclass
class Net:
    """The routing node among its workers."""

    rpc: Rpc
    node: RoleContext
    router: Router
    log: MemoryTaskLog
    roster: Roster
    observer: Observer
    reports: list[tuple[str, str | None]]

    async def ask(self, request: TaskRequest, *, seconds: float = 600) -> tuple[list[Event], GnusError | None]:
        """What the caller gets, and the error that it ends with, if it does."""
        context = CallContext(request.generation.request_id, time.monotonic() + seconds)
        seen: list[Event] = []
        try:
            async with self.rpc.stream(INGRESS_CHAT, request, context) as items:
                async for item in items:
                    seen.append(item)
        except GnusError as error:
            return seen, error
        return seen, None


@asynccontextmanager
async def net(
    workers: Sequence[Worker],
    *,
    options: RouterOptions | None = None,
    strangers: Sequence[Worker] = (),
    identity: NodeIdentity | None = None,
    over: Callable[[NodeIdentity], Rpc] | None = None,
    **expert: Any,
) -> AsyncGenerator[Net, None]:
    """A node of the roles ingress and router, members that work for it, and strangers without a certificate.

    ``over`` gives the node's rpc where it is not a ``Wire``; the workers' services are the caller's to serve then.
    """
    identity, root = identity or NodeIdentity.generate(), NodeIdentity.generate()
    now = time.time_ns() // 1_000_000
    grants = [(identity, (Role.INGRESS, Role.ROUTER), Tier.B), *((w.identity, (Role.CORE,), Tier.C) for w in workers)]
    swarm_id = ids.sha256(ids.public_key(root.peer_id))
    roster = Roster.build(
        root.peer_id,
        certificates=[_certificate(root, who.peer_id, roles, tier, now, swarm_id) for who, roles, tier in grants],
        open_to_all=True,
    )

    def judge(record: SignedRecord) -> Outcome:
        return verify(record, time.time_ns() // 1_000_000, roster)

    def context_of(who: NodeIdentity) -> RoleContext:
        return RoleContext(who, lambda: swarm_id, judge, lambda: time.time_ns() // 1_000_000, observer)

    observer, reports = Observer.create(), list[tuple[str, str | None]]()
    everyone = [*workers, *strangers]
    for worker in everyone:
        worker.start(context_of(worker.identity), **expert)
    node = context_of(identity)
    rpc = over(identity) if over else Wire(LocalRpc(identity.peer_id), everyone)
    members = frozenset({identity.peer_id, *(worker.peer for worker in workers)})

    def view() -> Swarm:
        facts = {worker.peer: worker.facts for worker in everyone}
        return Swarm(identity.peer_id, members, frozenset({identity.peer_id}), frozenset({"core"}), facts)

    options = options or RouterOptions(explore=0.0)
    directory = SwarmDirectory(
        RpcDirectory(rpc, identity.peer_id), identity.peer_id, lambda: tuple(worker.card() for worker in everyone)
    )
    router = Router(
        rpc, node, directory, view, options, report=lambda key, error: reports.append((key[0], error and error.code))
    )
    log = MemoryTaskLog()
    ingress = Ingress(rpc, node, log, lambda tenant: workspace_policy("solo", tenant))
    async with AsyncExitStack() as stack:
        for service in (ingress.service(), router.service()):
            await stack.enter_async_context(rpc.serve(service))
        yield Net(rpc, node, router, log, roster, observer, reports)


def _certificate(
    root: NodeIdentity, peer: str, roles: tuple[Role, ...], tier: Tier, now: int, swarm_id: str
) -> MembershipCertificate:
    return MembershipCertificate.signed(
        root,
        swarm_id=swarm_id,
        peer_id=peer,
        operator="us",
        roles=roles,
        tier=tier,
        not_before=now - DAY,
        not_after=now + DAY,
        serial=1,
    )
