"""A remote OpenAI-compatible server that misbehaves never hangs a caller and never passes for a complete answer."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from gnusnode.contracts.generation import Delta, EmbedRequest, GenerateRequest, Message, Prompt
from gnusnode.errors import (
    ContextTooLong,
    DeadlineExceeded,
    EngineFailed,
    GnusError,
    Overloaded,
    RequestError,
    TooLarge,
    UnsupportedField,
)
from gnusnode.inference.remote import RemoteEngine, open_remote
from tests.fakes.engines import collect, generation, request_id
from tests.fakes.openai_server import EVENTS, Handler, event, response, says, serve

HELLO = event({"choices": [{"delta": {"content": "Hello"}}]})
STOP = event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
PATIENCE = 30.0


def ask(**fields: Any) -> GenerateRequest:
    prompt = Prompt(messages=(Message(role="user", content="Hi"),))
    return GenerateRequest(request_id=request_id(), prompt=prompt, max_tokens=8, **fields)


@asynccontextmanager
async def remote(handler: Handler, **options: Any) -> AsyncGenerator[RemoteEngine]:
    with trio.fail_after(PATIENCE):
        async with serve(handler) as url, open_remote("far", url=url, model="m", **options) as engine:
            yield engine


async def test_a_complete_answer_without_the_closing_mark_is_complete() -> None:
    async with remote(says(EVENTS, HELLO, STOP)) as engine:
        _, deltas, done = await collect(engine, ask())
    assert [delta.text for delta in deltas] == ["Hello"]
    assert done.finish_reason == "stop"


@pytest.mark.parametrize(
    "parts",
    [
        (EVENTS, HELLO),
        (EVENTS, HELLO, event(b"[DONE]")),
        (EVENTS,),
        (EVENTS, HELLO, event(b"{not json")),
        (EVENTS, HELLO, event(b"[1, 2]")),
        (EVENTS, event({"choices": [{"delta": {"content": 7}}]})),
        (EVENTS, HELLO, event({"error": {"message": "out of memory"}})),
        (EVENTS, HELLO, event({"choices": [{"delta": {}, "finish_reason": "content_filter"}]})),
        (EVENTS, b"data: " + b"x" * 2_000_000),
        (response(200, b"{}"),),
        (response(302, b"", "location: http://127.0.0.1:1/\r\n"),),
        (b"this is not HTTP\r\n\r\n",),
        (response(200, b"", "content-length: 1000\r\n", "text/event-stream"), HELLO),
        (),
    ],
    ids=[
        "cut off",
        "done without a reason",
        "empty",
        "malformed JSON",
        "not an object",
        "text is a number",
        "error in the stream",
        "filtered",
        "endless event",
        "JSON for a stream",
        "redirect",
        "not HTTP",
        "short body",
        "hangs up",
    ],
)
async def test_an_answer_that_breaks_off_is_a_failure(parts: tuple[bytes, ...]) -> None:
    async with remote(says(*parts)) as engine:
        with pytest.raises(EngineFailed):
            await collect(engine, ask())


@pytest.mark.parametrize(
    ("status", "fault", "expected"),
    [
        (400, {"error": {"message": "bad", "code": "context_length_exceeded"}}, ContextTooLong),
        (400, {"error": {"message": "bad temperature"}}, RequestError),
        (401, {"error": {"message": "key"}}, EngineFailed),
        (404, {"detail": "no such model"}, EngineFailed),
        (413, {}, TooLarge),
        (429, {"error": "slow down"}, Overloaded),
        (500, [1, 2], EngineFailed),
        (503, "loading", Overloaded),
    ],
)
async def test_a_status_becomes_the_error_that_it_stands_for(
    status: int, fault: object, expected: type[GnusError]
) -> None:
    async with remote(says(response(status, json.dumps(fault).encode(), "retry-after: 7\r\n"))) as engine:
        with pytest.raises(GnusError) as caught:
            await collect(engine, ask())
    assert type(caught.value) is expected
    if expected is Overloaded:
        assert caught.value.retry_after == 7.0


async def test_a_huge_error_body_is_not_read_to_its_end() -> None:
    async with remote(says(response(500, b"x" * 1_000_000))) as engine:
        with pytest.raises(EngineFailed, match="more than"):
            await collect(engine, ask())


async def hangs(stream: trio.SocketStream, _path: str, _body: dict[str, Any]) -> None:
    await stream.send_all(EVENTS + HELLO)
    await trio.sleep_forever()


async def test_a_server_that_falls_silent_is_given_up() -> None:
    async with remote(hangs, idle_timeout=0.2) as engine:
        with pytest.raises(EngineFailed, match="does not answer"):
            await collect(engine, ask())


async def test_the_requests_deadline_cuts_a_silent_server_off() -> None:
    async with remote(hangs) as engine:
        with pytest.raises(DeadlineExceeded):
            await collect(engine, ask(deadline_ms=200))


async def test_nobody_at_the_address_is_a_failure_and_not_a_hang() -> None:
    async with open_remote("far", url="http://127.0.0.1:9/v1", model="m") as engine:
        with trio.fail_after(PATIENCE), pytest.raises(EngineFailed):
            await collect(engine, ask())


async def test_what_needs_token_ids_is_refused_by_name() -> None:
    async with remote(says()) as engine:
        for request in (
            generation().model_copy(update={"prompt": Prompt(tokens=(1, 2))}),
            ask(resume_tokens=(1,)),
        ):
            with pytest.raises(UnsupportedField):
                await collect(engine, request)


async def test_the_request_carries_what_was_asked_for() -> None:
    seen: list[dict[str, Any]] = []

    async def record(stream: trio.SocketStream, path: str, body: dict[str, Any]) -> None:
        seen.append(body | {"path": path})
        await stream.send_all(EVENTS + HELLO + STOP)

    schema = {"type": "object"}
    async with remote(record) as engine:
        await collect(engine, ask(stop=("END",), json_schema=schema, top_logprobs=3))
        await collect(engine, generation("once upon"))
    chat, text = seen
    assert chat["path"] == "/v1/chat/completions"
    assert chat["messages"] == [{"role": "user", "content": "Hi"}]
    assert (chat["model"], chat["max_tokens"], chat["temperature"], chat["seed"]) == ("m", 8, 0.0, 1)
    assert (chat["stop"], chat["top_logprobs"], chat["stream"]) == (["END"], 3, True)
    assert chat["response_format"]["json_schema"]["schema"] == schema
    assert (text["path"], text["prompt"]) == ("/v1/completions", "once upon")


async def test_log_probabilities_that_no_record_holds_are_bounded() -> None:
    content = [{"token": "Hello", "logprob": -1e9, "top_logprobs": []}]
    chunk = event({"choices": [{"delta": {"content": "Hello"}, "logprobs": {"content": content}}]})
    async with remote(says(EVENTS, chunk, STOP)) as engine:
        _, deltas, done = await collect(engine, ask(top_logprobs=0))
    assert isinstance(deltas[0], Delta)
    assert deltas[0].logprobs[0].token == -1
    assert done.mean_logprob == -1e4


@pytest.mark.parametrize(
    "answer",
    [
        {"data": []},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [0.0]}, {"index": 1, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": "AAAA"}, {"index": 1, "embedding": "AAAA"}]},
        {"vectors": 1},
    ],
    ids=["none", "twice the same", "no direction", "base64", "another shape"],
)
async def test_vectors_that_do_not_fit_the_texts_are_a_failure(answer: dict[str, Any]) -> None:
    async with remote(says(response(200, json.dumps(answer).encode()))) as engine:
        with pytest.raises(EngineFailed):
            await engine.embed(EmbedRequest(request_id=request_id(), texts=("a", "b")))
