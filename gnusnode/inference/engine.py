"""The one interface to a language model. Twins: the llama.cpp child, the scripted engine, a remote OpenAI server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from gnusnode.contracts.generation import (
    ClassifyRequest,
    ClassifyResult,
    Delta,
    Done,
    EmbedRequest,
    EmbedResult,
    EngineInfo,
    GenerateRequest,
    ScoreRequest,
    ScoreResult,
    Started,
)


@runtime_checkable
class Engine(Protocol):
    """A model that runs somewhere. Safe to use from many trio tasks at once.

    Ownership: ``generate`` is a context manager; leaving it, normally or by cancellation, stops the job within 100 ms.
    Errors: ``RequestError`` (schema, context length), ``Overloaded`` (with ``retry_after``), ``EngineFailed``,
    ``Poisoned``, ``DeadlineExceeded``. A stream ends with ``Done`` or raises; it never just stops.
    """

    def info(self) -> EngineInfo: ...

    def generate(
        self, request: GenerateRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[Started | Delta | Done]]: ...

    async def classify(self, request: ClassifyRequest) -> ClassifyResult: ...

    async def score(self, request: ScoreRequest) -> ScoreResult: ...

    async def embed(self, request: EmbedRequest) -> EmbedResult: ...
