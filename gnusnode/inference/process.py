"""``LlamaEngine``: a model in a confined child process that is watched, restarted and never left behind.

caller ─ generate, … ─> Dispatcher (fair queue, slots, streams) ─ frames ─> child <─ Supervisor
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar, cast

import trio

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
    ScoreRequest,
    ScoreResult,
    Started,
)
from gnusnode.errors import EngineFailed, UnsupportedField
from gnusnode.inference.crashes import CrashLedger
from gnusnode.inference.dispatch import Dispatcher, poisoned_error
from gnusnode.inference.frames import ChildSpec
from gnusnode.inference.jobs import Job, Operation, Request
from gnusnode.inference.limits import Capabilities, EngineLimits, Notify, deny_all, ignore
from gnusnode.inference.nurseries import plain_errors
from gnusnode.inference.supervisor import Supervisor, stopping_error
from sandbox import confine

_Res = TypeVar("_Res", ClassifyResult, ScoreResult, EmbedResult)


class LlamaEngine:
    """An ``Engine`` over a child process. Made by ``open_llama``, which owns it.

    A child that dies takes the jobs it had begun with it: their streams end with ``EngineFailed``, or ``Poisoned`` when
    the request was active in repeated crashes. Jobs that wait run on the next child.
    """

    def __init__(
        self,
        spec: ChildSpec,
        dispatcher: Dispatcher,
        supervisor: Supervisor,
        *,
        crashes: CrashLedger,
        cancel_wait: float,
    ) -> None:
        self._spec = spec
        self._dispatcher = dispatcher
        self._supervisor = supervisor
        self._crashes = crashes
        self._cancel_wait = cancel_wait

    def info(self) -> EngineInfo:
        return EngineInfo.model_validate(self._supervisor.info_fields())

    @asynccontextmanager
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[AsyncIterator[Started | Delta | Done]]:
        """See ``Engine``; a reader that lets 256 KiB wait is cut off with ``Cancelled``."""
        if request.profile is not self._spec.profile:
            raise UnsupportedField(
                f"this engine runs the {self._spec.profile} profile, not {request.profile}", param="profile"
            )
        job = self._submit("generate", request)
        try:
            yield cast("AsyncIterator[Started | Delta | Done]", job.stream)
        finally:
            self._dispatcher.abandon(job)
            with trio.move_on_after(self._cancel_wait, shield=True):
                await job.over.wait()

    async def classify(self, request: ClassifyRequest) -> ClassifyResult:
        return await self._ask("classify", request, ClassifyResult)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        return await self._ask("score", request, ScoreResult)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        return await self._ask("embed", request, EmbedResult)

    @property
    def idle(self) -> bool:
        """Nothing waits or runs."""
        return self._dispatcher.idle

    @property
    def pid(self) -> int | None:
        """Process id of the child, when there is one."""
        return self._supervisor.pid

    def end_quarantine(self) -> None:
        """An operator says that the artifact may run again."""
        self._supervisor.end_quarantine()

    def _submit(self, operation: Operation, request: Request) -> Job:
        match self._supervisor.state:
            case EngineState.STOPPED:
                raise stopping_error()
            case EngineState.QUARANTINED:
                raise self._supervisor.quarantine_error()
            case _:
                if self._crashes.poisoned(request.request_id):
                    raise poisoned_error()
                return self._dispatcher.submit(operation, request)

    async def _ask(self, operation: Operation, request: Request, kind: type[_Res]) -> _Res:
        job = self._submit(operation, request)
        try:
            result = await anext(job.stream)
        finally:
            self._dispatcher.abandon(job)
            with trio.move_on_after(self._cancel_wait, shield=True):
                await job.over.wait()
        assert isinstance(result, kind), "the dispatcher checks results against their operation"
        return result


@asynccontextmanager
async def open_llama(
    spec: ChildSpec,
    *,
    limits: EngineLimits | None = None,
    crashes: CrashLedger | None = None,
    notify: Notify = ignore,
    capabilities: Capabilities = deny_all,
    command: Sequence[str] | None = None,
    nice: int = 0,
) -> AsyncGenerator[LlamaEngine]:
    """A ready engine for ``spec``; its child is gone when the context is left, however it is left.

    Args:
        crashes: the node's ledger; a private one when None.
        command: the child's command line; ours when None.
        nice: how much less of the CPU the child gets, 0 … 19.

    Raises:
        ModelInvalid, EngineFailed: the model could not be loaded, or its artifact is in quarantine.
    """
    limits = limits or EngineLimits()
    crashes = crashes or CrashLedger()
    if held := crashes.quarantine(spec.artifact_hash, now=trio.current_time()):
        raise EngineFailed(f"the model is in quarantine: {held[1]}", where=spec.model_name)
    dispatcher = Dispatcher(
        spec.slots,
        limits.queue,
        stream_bytes=limits.stream_bytes,
        stream_events=limits.stream_events,
        turns=spec.profile is ContextProfile.THROUGHPUT and not spec.embeddings,
    )
    supervisor = Supervisor(
        spec,
        dispatcher,
        limits=limits,
        crashes=crashes,
        notify=notify,
        capabilities=capabilities,
        command=command or confine.launch_command("gnusnode.inference.child"),
        nice=nice,
    )
    with plain_errors():
        async with trio.open_nursery() as nursery:
            await nursery.start(supervisor.run)
            try:
                yield LlamaEngine(spec, dispatcher, supervisor, crashes=crashes, cancel_wait=limits.cancel_wait)
            finally:
                supervisor.stop()
                nursery.cancel_scope.cancel()
