"""``POST /v1/chat/completions``: the answer, whole or as a stream of chunks."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from gnusnode.api.bodies import read_body
from gnusnode.api.document import body_of
from gnusnode.api.envelope import json_response
from gnusnode.api.facade import NodeFacade
from gnusnode.api.gateway import RequestInfo, info_of
from gnusnode.api.openai.chat_request import ChatRequest, to_task
from gnusnode.api.openai.common import Facts, chat_logprobs, coalesced, usage_object
from gnusnode.api.openai.models import context_of
from gnusnode.api.options import ApiOptions
from gnusnode.api.sse import TaskStream
from gnusnode.api.tasks import Event, Job, running, unless_gone
from gnusnode.contracts.generation import TokenLogprob
from gnusnode.contracts.services import ChoiceDelta, ChoiceDone, TaskRequest
from gnusnode.contracts.tools import ToolProposal


def chat_routes(node: NodeFacade, options: ApiOptions) -> APIRouter:
    router = APIRouter(tags=["openai"])

    @router.post("/v1/chat/completions", openapi_extra=body_of(ChatRequest), summary="Answer a conversation")
    async def create(request: Request) -> Response:
        chat = await read_body(request, ChatRequest)
        info = info_of(request.scope)
        task = to_task(chat, info, options, n_ctx=context_of(node, chat.model))
        info.headers["x-gnus-task"] = info.request_id
        seconds = min(options.request_seconds, task.policy.max_wall_ms / 1000)
        job = Job(task, seconds, traceparent=info.traceparent)
        if chat.stream:
            chunks = ChatChunks(task, info, include_usage=chat.include_usage)
            return TaskStream(node, options, [job], chunks, info.headers)
        return json_response(await unless_gone(request.receive, partial(_whole, node, job, info)))

    return router


async def _whole(node: NodeFacade, job: Job, info: RequestInfo) -> dict[str, Any]:
    answer = ChatAnswer(job.request, info)
    async with running(node, [job]) as feed:
        while not feed.finished:
            answer.take(await feed.next())
    if answer.facts.node is not None:
        info.headers["x-gnus-node"] = answer.facts.node
    return answer.plain()


class ChatAnswer:
    """Collects the events of a task into one ``chat.completion``."""

    def __init__(self, task: TaskRequest, info: RequestInfo) -> None:
        self._task = task
        self._text: dict[int, list[str]] = {}
        self._logprobs: dict[int, list[TokenLogprob]] = {}
        self._ends: dict[int, ChoiceDone] = {}
        self.facts = Facts([task.generation.request_id], task.model, info.charge)

    def take(self, event: Event) -> None:
        self.facts.note(event)
        match event:
            case ChoiceDelta(index=index, delta=delta):
                self._text.setdefault(index, []).append(delta.text)
                self._logprobs.setdefault(index, []).extend(delta.logprobs)
            case ChoiceDone(index=index):
                self._ends[index] = event
            case _:
                pass

    def plain(self) -> dict[str, Any]:
        return {
            "id": completion_id(self._task.generation.request_id),
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.facts.model,
            "choices": [self._choice(index, end) for index, end in sorted(self._ends.items())],
            "usage": usage_object(self.facts.usage),
            "system_fingerprint": self._fingerprint(),
            "gnus": self.facts.gnus(),
        }

    def _fingerprint(self) -> str:
        """Changes whenever another model file answers."""
        digests = [end.output.artifact_hash.removeprefix("sha256:") for end in self._ends.values()]
        return f"fp_{digests[0][:12]}" if digests else "fp_none"

    def _choice(self, index: int, end: ChoiceDone) -> dict[str, Any]:
        text = "".join(self._text.get(index, ()))
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
        if end.tool_calls:
            message |= {"content": text or None, "tool_calls": [tool_call(call) for call in end.tool_calls]}
        wanted = self._task.generation.top_logprobs is not None
        return {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(self._logprobs.get(index, ())) if wanted else None,
            "finish_reason": end.finish_reason,
        }


class ChatChunks:
    """Turns the events of a task into ``chat.completion.chunk`` objects.

    The chunk that ends the last choice is held back until the task is done, so that it can carry the swarm's facts.
    """

    def __init__(self, task: TaskRequest, info: RequestInfo, *, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._wants_logprobs = task.generation.top_logprobs is not None
        self._facts = Facts([task.generation.request_id], task.model, info.charge)
        self._opened: set[int] = set()
        self._held: list[dict[str, Any]] = []
        self._id = completion_id(task.generation.request_id)
        self._created = int(time.time())
        self._model: str | None = None

    @property
    def node(self) -> str | None:
        return self._facts.node

    def feed(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        chunks: list[dict[str, Any]] = []
        for event in coalesced(events):
            self._facts.note(event)
            match event:
                case ChoiceDelta(index=index, delta=delta) if delta.text or delta.logprobs:
                    chunks += self._open(index)
                    logprobs = chat_logprobs(delta.logprobs) if self._wants_logprobs else None
                    chunks.append(self._choice(index, {"content": delta.text}, logprobs=logprobs))
                case ChoiceDone(index=index):
                    chunks += [*self._open(index), *self._held, *self._calls(index, event.tool_calls)]
                    self._held = [self._choice(index, {}, finish=event.finish_reason)]
                case _:
                    pass
        return chunks

    def finish(self) -> list[dict[str, Any]]:
        for chunk in self._held:
            chunk["gnus"] = self._facts.gnus()
        last = [self._chunk([]) | {"usage": usage_object(self._facts.usage)}] if self._include_usage else []
        return [*self._held, *last]

    def _open(self, index: int) -> list[dict[str, Any]]:
        if index in self._opened:
            return []
        self._opened.add(index)
        return [self._choice(index, {"role": "assistant", "content": "", "refusal": None})]

    def _calls(self, index: int, calls: Iterable[ToolProposal]) -> list[dict[str, Any]]:
        """Each call as OpenAI streams it: id and name first, then the arguments."""
        chunks: list[dict[str, Any]] = []
        for position, call in enumerate(calls):
            whole = tool_call(call)
            arguments = whole["function"].pop("arguments")
            whole["function"]["arguments"] = ""
            rest = {"index": position, "function": {"arguments": arguments}}
            chunks.append(self._choice(index, {"tool_calls": [{"index": position, **whole}]}))
            chunks.append(self._choice(index, {"tool_calls": [rest]}))
        return chunks

    def _choice(
        self, index: int, delta: dict[str, Any], *, logprobs: dict[str, Any] | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        return self._chunk([{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}])

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        self._model = self._model or self._facts.model
        chunk: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }
        return chunk | {"usage": None} if self._include_usage else chunk


def completion_id(request_id: str) -> str:
    return f"chatcmpl-{request_id.replace('-', '')}"


def tool_call(proposal: ToolProposal) -> dict[str, Any]:
    """A proposal as a ``tool_calls`` entry: the client decides whether it runs."""
    return {
        "id": f"call_{proposal.tool_call_id.replace('-', '')}",
        "type": "function",
        "function": {"name": proposal.tool_name, "arguments": to_json(proposal.arguments).decode()},
    }
