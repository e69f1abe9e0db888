"""``POST /v1/completions``: the older dialect, where a prompt is raw text or token ids."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from gnusnode.api.bodies import read_body
from gnusnode.api.document import body_of
from gnusnode.api.envelope import json_response
from gnusnode.api.facade import NodeFacade
from gnusnode.api.gateway import RequestInfo, info_of
from gnusnode.api.openai.common import Facts, SamplingFields, coalesced, per_choice, unsupported, usage_object
from gnusnode.api.options import ApiOptions
from gnusnode.api.sse import TaskStream
from gnusnode.api.tasks import Event, Job, running, unless_gone
from gnusnode.contracts.generation import MAX_TEXT_CHARS, GenerateRequest, Prompt, TokenLogprob
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.services import ChoiceDelta, ChoiceDone, TaskRequest
from gnusnode.errors import RequestError

_DEFAULT_TOKENS = 16
"""OpenAI's."""

Text = Annotated[str, StringConstraints(max_length=MAX_TEXT_CHARS)]
Token = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[Token], Field(max_length=1_000_000)]


class CompletionRequest(SamplingFields):
    prompt: Text | Annotated[list[Text], Field(max_length=16)] | Tokens | Annotated[list[Tokens], Field(max_length=16)]
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    def refuse(self) -> None:
        """Raises ``RequestError`` for what would change the meaning and is not supported."""
        self.refuse_common()
        if self.echo:
            raise unsupported("echo", "put the prompt before the answer yourself")
        if self.suffix:
            raise unsupported("suffix")
        if self.best_of not in (None, 1, self.choices):
            raise unsupported("best_of", "leave it out, or set it to n")

    def prompts(self) -> list[Prompt]:
        """Raises ``RequestError`` when a prompt is empty."""
        given = self.prompt
        if isinstance(given, str):
            found: list[str | list[int]] = [given]
        elif given and isinstance(given[0], int):
            found = [[token for token in given if isinstance(token, int)]]
        else:
            found = [one for one in given if not isinstance(one, int)]
        if not found or not all(found):
            raise RequestError("prompt is empty", param="prompt")
        return [Prompt(text=one) if isinstance(one, str) else Prompt(tokens=tuple(one)) for one in found]


def completion_routes(node: NodeFacade, options: ApiOptions) -> APIRouter:
    router = APIRouter(tags=["openai"])

    @router.post("/v1/completions", openapi_extra=body_of(CompletionRequest), summary="Continue a text")
    async def create(request: Request) -> Response:
        wanted = await read_body(request, CompletionRequest)
        info = info_of(request.scope)
        jobs = _jobs(wanted, info, options)
        info.headers["x-gnus-task"] = info.request_id
        if wanted.stream:
            return TaskStream(node, options, jobs, TextChunks(wanted, jobs, info), info.headers)
        return json_response(await unless_gone(request.receive, partial(_whole, node, wanted, jobs, info)))

    return router


def _jobs(wanted: CompletionRequest, info: RequestInfo, options: ApiOptions) -> list[Job]:
    """One task for each prompt; the first bears the id of the HTTP request."""
    wanted.refuse()
    asked = wanted.max_tokens or _DEFAULT_TOKENS
    policy = wanted.policy(info, options, asked * wanted.choices)
    seconds = min(options.request_seconds, policy.max_wall_ms / 1000)
    return [
        Job(
            _task(wanted, policy, prompt, str(uuid.uuid4()) if at else info.request_id, options, int(seconds * 1000)),
            seconds,
            first_index=at * wanted.choices,
            traceparent=info.traceparent,
        )
        for at, prompt in enumerate(wanted.prompts())
    ]


def _task(
    wanted: CompletionRequest,
    policy: PolicyEnvelope,
    prompt: Prompt,
    request_id: str,
    options: ApiOptions,
    deadline_ms: int,
) -> TaskRequest:
    generation = GenerateRequest(
        request_id=request_id,
        prompt=prompt,
        max_tokens=per_choice(wanted.max_tokens or _DEFAULT_TOKENS, policy, wanted.choices),
        sampling=wanted.sampling(options.default_sampling),
        stop=tuple(wanted.stop or ()),
        top_logprobs=wanted.logprobs,
        profile=wanted.profile,
        tenant=policy.tenant,
        deadline_ms=deadline_ms,
    )
    return TaskRequest(
        model=wanted.model,
        generation=generation,
        choices=wanted.choices,
        tool_choice="none",
        policy=policy,
        open_sampling=wanted.open_sampling,
    )


async def _whole(node: NodeFacade, wanted: CompletionRequest, jobs: Sequence[Job], info: RequestInfo) -> dict[str, Any]:
    chunks = TextChunks(wanted, jobs, info)
    async with running(node, jobs) as feed:
        events: list[Event] = []
        while not feed.finished:
            events.append(await feed.next())
    choices: dict[int, dict[str, Any]] = {}
    whole = [*chunks.feed(events), *chunks.finish()]
    if chunks.node is not None:
        info.headers["x-gnus-node"] = chunks.node
    for chunk in whole:
        for part in chunk["choices"]:
            known = choices.setdefault(part["index"], part)
            if known is not part:
                _append(known, part)
    return chunks.whole([choices[index] for index in sorted(choices)])


def _append(choice: dict[str, Any], part: dict[str, Any]) -> None:
    """Makes two parts of a choice one."""
    choice["text"] += part["text"]
    choice["finish_reason"] = part["finish_reason"]
    if part["logprobs"] is not None:
        choice["logprobs"] = {name: choice["logprobs"][name] + part["logprobs"][name] for name in part["logprobs"]}


class TextChunks:
    """Turns the events of tasks into ``text_completion`` objects."""

    def __init__(self, wanted: CompletionRequest, jobs: Sequence[Job], info: RequestInfo) -> None:
        self._include_usage = wanted.include_usage
        self._wants_logprobs = wanted.logprobs is not None
        self._facts = Facts([job.request.generation.request_id for job in jobs], wanted.model, info.charge)
        self._id = f"cmpl-{info.request_id.replace('-', '')}"
        self._created = int(time.time())
        self._model: str | None = None
        self._offsets: dict[int, int] = {}
        self._held: list[dict[str, Any]] = []

    @property
    def node(self) -> str | None:
        return self._facts.node

    def feed(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        chunks: list[dict[str, Any]] = []
        for event in coalesced(events):
            self._facts.note(event)
            match event:
                case ChoiceDelta(index=index, delta=delta) if delta.text or delta.logprobs:
                    chunks.append(self._choice(index, delta.text, self._logprobs(index, delta.logprobs)))
                case ChoiceDone(index=index):
                    chunks += self._held
                    finish = "length" if event.finish_reason == "length" else "stop"
                    self._held = [self._choice(index, "", None, finish)]
                case _:
                    pass
        return chunks

    def finish(self) -> list[dict[str, Any]]:
        for chunk in self._held:
            chunk["gnus"] = self._facts.gnus()
        last = [self._chunk([]) | {"usage": usage_object(self._facts.usage)}] if self._include_usage else []
        return [*self._held, *last]

    def whole(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """The complete answer around ``choices``."""
        return self._chunk(choices) | {"usage": usage_object(self._facts.usage), "gnus": self._facts.gnus()}

    def _choice(
        self, index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None = None
    ) -> dict[str, Any]:
        return self._chunk([{"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}])

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        self._model = self._model or self._facts.model
        chunk: dict[str, Any] = {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }
        return chunk | {"usage": None} if self._include_usage else chunk

    def _logprobs(self, index: int, given: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """This dialect lists tokens, their values and their offsets side by side."""
        if not self._wants_logprobs:
            return None
        offsets: list[int] = []
        for one in given:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(one.piece)
        return {
            "tokens": [one.piece for one in given],
            "token_logprobs": [one.logprob for one in given],
            "top_logprobs": [{top.piece: top.logprob for top in one.top} for one in given],
            "text_offset": offsets,
        }
