"""An OpenAI-compatible server that the operator already runs, as an ``Engine``.

What such a server does not tell is not made up: token ids stay empty, log-probabilities carry token -1, the determinism
class is C, and what needs logits or ids (``score``, ``classify``, prompts of ids, resuming) is refused by name. Reading
is driven by the consumer, so a slow one slows the server down and nothing piles up here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, NoReturn

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
from gnusnode.errors import EngineFailed, UnsupportedField
from gnusnode.inference import remotewire as wire
from gnusnode.inference.jobs import deadline_error

_MAX_ERROR_BODY: Final = 64 * 1024
_MAX_EMBED_BODY: Final = 256 * 1024 * 1024
_OK: Final = 200
_BAD_REQUEST: Final = 400
_CONNECT_TIMEOUT: Final = 5.0
_IDLE_TIMEOUT: Final = 60.0
"""Seconds without a byte after which a server counts as gone; the first token of a long prompt must come within it."""


class RemoteEngine:
    """An ``Engine`` over HTTP. Made by ``open_remote``, which owns its connections."""

    def __init__(self, name: str, model: str, client: httpx2.AsyncClient, *, n_ctx: int, embeds: bool) -> None:
        self._name = name
        self._model = model
        self._client = client
        self._n_ctx = n_ctx
        self._embeds = embeds

    def info(self) -> EngineInfo:
        return EngineInfo(
            model=self._name,
            # Which weights answer is not known: the name of the place stands for them.
            artifact_hash=sha256(f"remote:{self._client.base_url}#{self._model}".encode()),
            state=EngineState.READY,
            reason=f"served by {self._client.base_url.host}",
            build="remote",
            n_ctx=self._n_ctx,
            n_ctx_train=self._n_ctx,
            generates=not self._embeds,
            embeds=self._embeds,
            device="remote",
        )

    @asynccontextmanager
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[AsyncIterator[Started | Delta | Done]]:
        """See ``Engine``; besides ``UnsupportedField`` for what needs token ids. Enters when the server answers."""
        path, body = wire.generation_body(self._model, request)
        deadline = math.inf
        if request.deadline_ms is not None:
            deadline = trio.current_time() + request.deadline_ms / 1000
        async with AsyncExitStack() as stack:
            response: httpx2.Response | None = None
            with _faults(), trio.move_on_at(deadline):
                response = await stack.enter_async_context(self._client.stream("POST", path, json=body))
                await _check(response, "text/event-stream")
            if response is None:
                raise deadline_error()
            chunks = response.aiter_raw()
            stack.push_async_callback(_unwind, chunks)
            yield _Stream(chunks, deadline)

    async def classify(self, request: ClassifyRequest) -> ClassifyResult:
        await trio.lowlevel.checkpoint()
        _no_logits("label probabilities", request.request_id)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        await trio.lowlevel.checkpoint()
        _no_logits("teacher-forced scores", request.request_id)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        body: dict[str, Any] = {"model": self._model, "input": list(request.texts), "encoding_format": "float"}
        with _faults():
            async with self._client.stream("POST", "embeddings", json=body) as response:
                await _check(response, "application/json")
                data = await _read(response, _MAX_EMBED_BODY)
        return await trio.to_thread.run_sync(wire.embeddings, data, len(request.texts))


class _Stream:
    """The events of one answer."""

    def __init__(self, chunks: AsyncIterator[bytes], deadline: float) -> None:
        self._chunks = chunks
        self._deadline = deadline
        self._reader = wire.EventReader()
        self._waiting: deque[str] = deque()
        self._answer = wire.Answer()
        self._begun = False
        self._over = False

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> Started | Delta | Done:
        if self._over:
            raise StopAsyncIteration
        if not self._begun:
            self._begun = True
            return Started(prompt_tokens=())
        self._over = True  # until an event proves otherwise: after an error nothing more is read
        while (data := await self._data()) is not None:
            if (delta := self._answer.take(data)) is not None:
                self._over = False
                return delta
        return self._answer.done()

    async def _data(self) -> str | None:
        """The data of the next event; None: the server says that it is done, or closes."""
        while not self._waiting:
            chunk: bytes | None = None
            with _faults(), trio.move_on_at(self._deadline) as scope:
                chunk = await anext(self._chunks, None)
            if scope.cancelled_caught:
                raise deadline_error()
            if chunk is None:
                return None
            self._waiting += self._reader.feed(chunk)
        data = self._waiting.popleft()
        return None if data.strip() == "[DONE]" else data


@asynccontextmanager
async def open_remote(
    name: str,
    *,
    url: str,
    model: str,
    key: str | None = None,
    n_ctx: int = 0,
    embeds: bool = False,
    idle_timeout: float = _IDLE_TIMEOUT,
) -> AsyncGenerator[RemoteEngine]:
    """An engine for ``model`` at ``url``, the base URL up to and including ``/v1``. Nothing is sent before it is used.

    Args:
        key: sent as a bearer token; never logged.
        n_ctx: tokens of context that the operator knows the server to have; 0: unknown.
        idle_timeout: seconds without a byte after which the server counts as gone.
    """
    timeout = httpx2.Timeout(idle_timeout, connect=_CONNECT_TIMEOUT)
    headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {key}"} if key else {})
    # No redirects and nothing from the environment: a proxy or another host must not see prompts or the key.
    async with httpx2.AsyncClient(
        base_url=url.rstrip("/") + "/", headers=headers, timeout=timeout, trust_env=False, follow_redirects=False
    ) as client:
        yield RemoteEngine(name, model, client, n_ctx=n_ctx, embeds=embeds)


@contextmanager
def _faults() -> Generator[None]:
    """Errors of the transport as errors of the engine."""
    try:
        yield
    except httpx2.TimeoutException as error:
        raise EngineFailed(f"the remote server does not answer: {type(error).__name__}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
        raise EngineFailed(f"the remote server cannot be used: {type(error).__name__}: {error}"[:500]) from error


async def _check(response: httpx2.Response, expected: str) -> None:
    """Raises what a status other than 200 stands for, and when the answer is not of the ``expected`` type."""
    if response.status_code != _OK:
        body = await _read(response, _MAX_ERROR_BODY)
        if response.status_code < _BAD_REQUEST:
            raise EngineFailed(f"the remote server answered {response.status_code}", hint="check its `url`")
        raise wire.failure(response.status_code, response.headers, body)
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != expected:
        raise EngineFailed(f"the remote server answered with {kind[:64]!r} where {expected} was expected")


async def _read(response: httpx2.Response, limit: int) -> bytes:
    """The body, of which more than ``limit`` bytes are an error."""
    data = bytearray()
    chunks = response.aiter_raw()
    async for chunk in chunks:
        data += chunk
        if len(data) > limit:
            break
    else:
        return bytes(data)
    await _unwind(chunks)
    raise EngineFailed(f"the remote server answered with more than {limit} bytes")


async def _unwind(iterator: AsyncIterator[object]) -> None:
    """Ends a chain of the client library's async generators that nobody reads to its end.

    Closing the outer one would leave the inner ones to the garbage collector, of which trio complains; a cancellation
    reaches the innermost first.
    """
    with suppress(httpx2.HTTPError, httpx2.StreamError), trio.CancelScope() as scope:
        scope.cancel()
        async for _ in iterator:
            pass


def _no_logits(what: str, request_id: str) -> NoReturn:
    raise UnsupportedField(f"a remote server gives no {what}", where=request_id, hint="use a local model for this")
