"""``/v1/chat/completions`` with ``stream``: the chunks, their pace, and how a stream ends."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest
import trio

from gnusnode.errors import ContextTooLong, EngineFailed
from tests.unit.api.scripted import Script, ScriptedNode, sse
from tests.unit.api.serving import CHAT, client_of
from tests.unit.api.test_chat import TOOL


async def chunks_of(node: ScriptedNode, fields: dict[str, Any] | None = None, **options: Any) -> list[Any]:
    return sse(await text_of(node, fields, **options))


async def text_of(node: ScriptedNode, fields: dict[str, Any] | None = None, **options: Any) -> str:
    async with client_of(node, **options) as client:
        answer = await client.post("/v1/chat/completions", json={**CHAT, "stream": True, **(fields or {})})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    return answer.text


async def test_a_stream_begins_with_the_role_and_ends_with_the_reason_and_done(
    node: ScriptedNode, autojump_clock: Any
) -> None:
    *chunks, done = await chunks_of(node)
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "Hello, world"
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert not any("usage" in chunk for chunk in chunks)


async def test_the_last_chunk_carries_what_the_swarm_says(node: ScriptedNode, autojump_clock: Any) -> None:
    *chunks, _ = await chunks_of(node)
    assert [chunk for chunk in chunks if "gnus" in chunk] == [chunks[-1]]
    assert chunks[-1]["gnus"]["node"] == node.peer_id
    assert chunks[-1]["gnus"]["plan_digest"].startswith("sha256:")


async def test_usage_comes_in_a_chunk_of_its_own_when_asked_for(node: ScriptedNode, autojump_clock: Any) -> None:
    *chunks, usage, _ = await chunks_of(node, {"stream_options": {"include_usage": True}})
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 8
    assert all(chunk["usage"] is None for chunk in chunks)


async def test_tool_calls_come_as_id_and_name_first_and_arguments_after(
    node: ScriptedNode, autojump_clock: Any
) -> None:
    node.script = Script(pieces=("Let me see. ",), tools=(("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})))
    *chunks, _ = await chunks_of(node, {"tools": [TOOL]})
    found: defaultdict[int, list[Any]] = defaultdict(list)
    for chunk in chunks:
        for part in chunk["choices"][0]["delta"].get("tool_calls", ()):
            found[part["index"]].append(part)
    for parts, city in zip(found.values(), ("Oslo", "Rome"), strict=True):
        first, *rest = parts
        assert first["id"].startswith("call_")
        assert (first["type"], first["function"]) == ("function", {"name": "weather", "arguments": ""})
        assert json.loads("".join(part["function"]["arguments"] for part in rest)) == {"city": city}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_several_choices_share_a_stream_each_with_its_own_beginning_and_end(
    node: ScriptedNode, autojump_clock: Any
) -> None:
    *chunks, _ = await chunks_of(node, {"n": 2})
    by_index: defaultdict[int, list[Any]] = defaultdict(list)
    for chunk in chunks:
        (choice,) = chunk["choices"]
        by_index[choice["index"]].append(choice)
    assert sorted(by_index) == [0, 1]
    for choices in by_index.values():
        assert choices[0]["delta"]["role"] == "assistant"
        assert choices[-1]["finish_reason"] == "stop"
        assert "".join(choice["delta"].get("content", "") for choice in choices) == "Hello, world"


async def test_log_probabilities_of_a_stream_cover_every_token(node: ScriptedNode, autojump_clock: Any) -> None:
    *chunks, _ = await chunks_of(node, {"logprobs": True})
    tokens = [
        entry["token"]
        for chunk in chunks
        if chunk["choices"][0]["logprobs"]
        for entry in chunk["choices"][0]["logprobs"]["content"]
    ]
    assert tokens == ["Hello", ", ", "world"]


async def test_fast_tokens_are_gathered_but_the_first_is_sent_at_once(node: ScriptedNode, autojump_clock: Any) -> None:
    node.script = Script(pieces=tuple("abcdefghijklmnopqrst"), interval=0.005)
    *chunks, _ = await chunks_of(node, sse_interval_seconds=0.02)
    texts = [chunk["choices"][0]["delta"].get("content") for chunk in chunks]
    texts = [text for text in texts if text]
    assert "".join(texts) == "abcdefghijklmnopqrst"
    assert texts[0] == "a"
    assert 4 <= len(texts) <= 8


async def test_the_end_of_an_answer_does_not_wait_for_the_pace(node: ScriptedNode, autojump_clock: Any) -> None:
    node.script = Script(pieces=("a", "b", "c"), interval=0.01)
    begin = trio.current_time()
    *chunks, last = await chunks_of(node, sse_interval_seconds=60.0)
    assert trio.current_time() - begin < 1.0
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "abc"
    assert last == "[DONE]"


async def test_text_that_is_being_gathered_when_a_task_fails_still_arrives(
    node: ScriptedNode, autojump_clock: Any
) -> None:
    node.script = Script(pieces=("a", "b", "c"), interval=0.01, fail_after=(2, EngineFailed("it died")))
    *chunks, last = sse(await text_of(node, sse_interval_seconds=60.0))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "ab"
    assert last["error"]["code"] == "engine_failed"


async def test_slow_tokens_are_sent_one_by_one(node: ScriptedNode, autojump_clock: Any) -> None:
    node.script = Script(pieces=("a", "b", "c"), interval=0.5)
    *chunks, _ = await chunks_of(node)
    texts = [chunk["choices"][0]["delta"].get("content") for chunk in chunks]
    assert [text for text in texts if text] == ["a", "b", "c"]


async def test_silence_is_filled_with_comments(node: ScriptedNode, autojump_clock: Any) -> None:
    node.script = Script(pieces=("a", "b"), interval=50)
    text = await text_of(node, sse_keepalive_seconds=15, request_seconds=1000)
    assert text.count(": keep-alive\n\n") >= 5
    assert text.startswith(": keep-alive"), "a long wait for the first token must not look like a dead connection"
    assert sse(text)[-1] == "[DONE]"


async def test_a_failure_before_the_first_token_gets_its_status(node: ScriptedNode, autojump_clock: Any) -> None:
    node.script = Script(fail_after_plan=ContextTooLong("too long", param="messages"))
    async with client_of(node) as client:
        answer = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("failure", "code"), [(EngineFailed("it died"), "engine_failed"), (ZeroDivisionError("secret"), "internal_error")]
)
async def test_a_failure_in_the_middle_is_an_error_event_and_no_done(
    node: ScriptedNode, autojump_clock: Any, failure: Exception, code: str
) -> None:
    node.script = Script(pieces=("a", "b", "c"), interval=1.0, fail_after=(2, failure))
    text = await text_of(node)
    *chunks, last = sse(text)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "ab"
    assert last["error"]["code"] == code
    assert "secret" not in text


async def test_a_stopping_node_ends_a_quiet_stream_with_an_error_event(node: ScriptedNode, autojump_clock: Any) -> None:
    reached = trio.Event()

    def pause(at: int) -> trio.Event | None:
        if at != 1:
            return None
        reached.set()
        return trio.Event()

    node.script = Script(pause=pause)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def stop() -> None:
            await reached.wait()
            node.stopping.set()

        *_, last = await chunks_of(node)
    assert last["error"]["code"] == "unavailable"
    assert node.running == 0
