"""An OpenAI-compatible server that the operator already runs, as an ``Engine``.

What such a server does not tell is not made up: token ids stay empty, log-probabilities carry token -1, the determinism
class is C, and what needs logits or ids (``score``, ``classify``, prompts of ids, resuming) is refused by name. Reading is
driven by the consumer, so a slow one slows the server down and nothing piles up here.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, NoReturn, cast

import httpx2
import trio

from gnusnode.contracts.generation import (
    ClassifyRequest,
    ClassifyResult,
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
from gnusnode.contracts.ids import sha256
from gnusnode.errors import EngineFailed, GnusError, UnsupportedField
from gnusnode.inference import remotewire as wire
from gnusnode.inference.jobs import deadline_error
from gnusnode.inference.remotewire import Answer

_MAX_EVENT: Final = 1024 * 1024
_MAX_ERROR_BODY: Final = 64 * 1024
_MAX_EMBED_BODY: Final = 256 * 1024 * 1024


class RemoteEngine:
    """An ``Engine`` over HTTP. Made by ``open_remote``, which owns its connections."""

    def __init__(self, name: str, model: str, client: httpx2.AsyncClient, *, n_ctx: int, embeds: bool) -> None:
        self._name = name
        self._model = model
        self._client = client
        self._n_ctx = n_ctx
        self._embeds = embeds
        self._active = 0
        self._fault = ""

    def info(self) -> EngineInfo:
        return EngineInfo(
            model=self._name,
            # Which weights answer is not known: the name of the place stands for them.
            artifact_hash=sha256(f"remote:{self._client.base_url}#{self._model}".encode()),
            state=EngineState.READY,
            reason=self._fault or f"served by {self._client.base_url.host}",
            build="remote",
            n_ctx=self._n_ctx,
            n_ctx_train=self._n_ctx,
            generates=not self._embeds,
            embeds=self._embeds,
            device="remote",
        )

    @asynccontextmanager
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[AsyncIterator[Started | Delta | Done]]:
        """See ``Engine``; besides ``UnsupportedField`` for what needs token ids."""
        path, body = wire.generation_body(self._model, request)
        self._active += 1
        try:
            async with aclosing(self._stream(path, body, request)) as events:
                yield events
        finally:
            self._active -= 1

    async def classify(self, request: ClassifyRequest) -> ClassifyResult:
        del request
        await trio.lowlevel.checkpoint()
        _no_logits("label probabilities")

    async def score(self, request: ScoreRequest) -> ScoreResult:
        del request
        await trio.lowlevel.checkpoint()
        _no_logits("teacher-forced scores")

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        body = {"model": self._model, "input": list(request.texts), "encoding_format": "float"}
        with self._plain_faults():
            async with self._client.stream("POST", "embeddings", json=body) as response:
                await self._check(response)
                return wire.embeddings(await _read(response, _MAX_EMBED_BODY), len(request.texts))

    async def _stream(
        self, path: str, body: Mapping[str, Any], request: GenerateRequest
    ) -> AsyncGenerator[Started | Delta | Done]:
        deadline = math.inf
        if request.deadline_ms is not None:
            deadline = trio.current_time() + request.deadline_ms / 1000
        answer = Answer()
        with self._plain_faults():
            async with aclosing(self._lines(path, body)) as lines:
                first = True
                while True:
                    line = None
                    with trio.move_on_at(deadline) as scope:
                        line = await anext(lines, None)
                    if scope.cancelled_caught:
                        raise deadline_error()
                    if first:
                        yield Started(prompt_tokens=())
                        first = False
                    if line is None or line == "[DONE]":
                        break
                    for delta in answer.take(line):
                        yield delta
        yield answer.done()
