"""A small OpenAI-compatible server over a scripted engine, on a real socket; and one that answers with given bytes."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from gnusnode.contracts.generation import Delta, Done, EmbedRequest, GenerateRequest, Message, Prompt, Sampling
from gnusnode.errors import GnusError
from gnusnode.inference.engine import Engine
from tests.fakes.engines import request_id

Handler = Callable[[trio.SocketStream, str, dict[str, Any]], Any]


@asynccontextmanager
async def serve(handler: Handler) -> AsyncGenerator[str]:
    """Runs ``handler(stream, path, body)`` per connection; gives the base URL."""

    async def connection(stream: trio.SocketStream) -> None:
        try:
            data = b""
            while b"\r\n\r\n" not in data:
                received = await stream.receive_some()
                if not received:
                    return
                data += received
            head, _, rest = data.partition(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
            )
            while len(rest) < length:
                rest += await stream.receive_some()
            await handler(stream, head.split(b" ")[1].decode(), json.loads(rest))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client left
        finally:
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(
            lambda task_status: trio.serve_tcp(connection, 0, host="127.0.0.1", task_status=task_status)
        )
        port = listeners[0].socket.getsockname()[1]
        yield f"http://127.0.0.1:{port}/v1"
        nursery.cancel_scope.cancel()


def response(status: int, body: bytes, headers: str = "", kind: str = "application/json") -> bytes:
    lines = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nconnection: close\r\n{headers}\r\n"
    return lines.encode() + body


EVENTS = response(200, b"", kind="text/event-stream")


def event(data: Any) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def says(*parts: bytes) -> Handler:
    """A handler that sends ``parts`` whatever it is asked."""

    async def handler(stream: trio.SocketStream, _path: str, _body: dict[str, Any]) -> None:
        for part in parts:
            await stream.send_all(part)

    return handler


def scripted(engine: Engine) -> Handler:
    """A handler that serves ``engine``."""

    async def handler(stream: trio.SocketStream, path: str, body: dict[str, Any]) -> None:
        try:
            if path.endswith("/embeddings"):
                await _embed(stream, engine, body)
            else:
                await _generate(stream, engine, path, body)
        except GnusError as error:
            fault = {"error": {"message": error.what, "code": error.code}}
            head = f"retry-after: {error.retry_after}\r\n" if error.retry_after else ""
            await stream.send_all(response(error.status, json.dumps(fault).encode(), head))

    return handler


async def _embed(stream: trio.SocketStream, engine: Engine, body: dict[str, Any]) -> None:
    result = await engine.embed(EmbedRequest(request_id=request_id(), texts=tuple(body["input"])))
    data = [{"index": index, "embedding": vector} for index, vector in enumerate(result.vectors)]
    answer = {"data": data, "usage": {"prompt_tokens": result.prompt_tokens}}
    await stream.send_all(response(200, json.dumps(answer).encode()))


async def _generate(stream: trio.SocketStream, engine: Engine, path: str, body: dict[str, Any]) -> None:
    chat = path.endswith("/chat/completions")
    messages = tuple(Message(**message) for message in body.get("messages", ()))
    request = GenerateRequest(
        request_id=request_id(),
        prompt=Prompt(messages=messages) if chat else Prompt(text=body["prompt"]),
        max_tokens=body["max_tokens"],
        sampling=Sampling(temperature=body["temperature"], seed=body["seed"]),
        stop=tuple(body.get("stop", ())),
        top_logprobs=body.get("top_logprobs"),
    )
    async with engine.generate(request) as events:
        first = await anext(events)
        await stream.send_all(EVENTS)
        del first
        async for item in events:
            if isinstance(item, Delta):
                await stream.send_all(event({"choices": [_choice(item, chat=chat)]}))
            elif isinstance(item, Done):
                end = {"index": 0, "delta": {}, "finish_reason": item.finish_reason}
                await stream.send_all(event({"choices": [end]}))
                usage = item.usage.to_plain()
                await stream.send_all(event({"choices": [], "usage": usage}) + event(b"[DONE]"))


def _choice(delta: Delta, *, chat: bool) -> dict[str, Any]:
    text = {"delta": {"content": delta.text}} if chat else {"text": delta.text}
    if not delta.logprobs:
        return {"index": 0, **text}
    content = [
        {
            "token": item.piece,
            "logprob": item.logprob,
            "top_logprobs": [{"token": top.piece, "logprob": top.logprob} for top in item.top],
        }
        for item in delta.logprobs
    ]
    return {"index": 0, **text, "logprobs": {"content": content}}
