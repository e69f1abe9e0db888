"""The official client, unmodified, in memory and over a real socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import pytest
from pydantic import BaseModel

from gnusnode.errors import EngineFailed, RateLimited
from tests.unit.api.scripted import Script, ScriptedNode
from tests.unit.api.serving import CHAT, client_of, serving


@asynccontextmanager
async def openai_client(node: ScriptedNode, how: str) -> AsyncGenerator[openai.AsyncOpenAI]:
    if how == "memory":
        async with client_of(node) as http:
            yield openai.AsyncOpenAI(base_url="http://127.0.0.1:8477/v1", api_key="x", http_client=http, max_retries=0)
        return
    async with serving(node) as bound, httpx2.AsyncClient() as http:
        yield openai.AsyncOpenAI(base_url=f"{bound.url}/v1", api_key="x", http_client=http, max_retries=0)


pytestmark = [
    pytest.mark.parametrize("how", ["memory", "socket"]),
    # The client stops reading at [DONE] or at an error, and leaves generators to the garbage collector.
    pytest.mark.filterwarnings(r"ignore:Async generator '(openai|httpx2|httpcore2)\._:ResourceWarning"),
]


async def test_models_can_be_listed_and_retrieved(node: ScriptedNode, how: str) -> None:
    async with openai_client(node, how) as client:
        assert [model.id async for model in client.models.list()] == ["gnus", "gnus/small", "gnus/embed"]
        assert (await client.models.retrieve("gnus/small")).owned_by == "gnusnode"
        with pytest.raises(openai.NotFoundError) as error:
            await client.models.retrieve("nobody")
    assert error.value.code == "model_not_found"


async def test_a_chat_is_answered(node: ScriptedNode, how: str) -> None:
    async with openai_client(node, how) as client:
        answer = await client.chat.completions.create(**CHAT, temperature=0, logprobs=True, top_logprobs=2)
    assert answer.choices[0].message.content == "Hello, world"
    assert answer._request_id == node.tasks[0].generation.request_id
    assert answer.choices[0].logprobs is not None


async def test_a_chat_is_streamed(node: ScriptedNode, how: str) -> None:
    async with (
        openai_client(node, how) as client,
        client.chat.completions.stream(**CHAT, stream_options={"include_usage": True}) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert "content.delta" in kinds
    assert final.choices[0].message.content == "Hello, world"
    assert final.usage is not None


async def test_tools_are_proposed_in_a_stream(node: ScriptedNode, how: str) -> None:
    node.script = Script(pieces=(), tools=(("weather", {"city": "Oslo"}),))
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    async with openai_client(node, how) as client, client.chat.completions.stream(**CHAT, tools=tools) as stream:
        final = await stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls or []
    assert (call.function.name, call.function.arguments) == ("weather", '{"city":"Oslo"}')


async def test_a_structured_answer_is_parsed(node: ScriptedNode, how: str) -> None:
    class City(BaseModel):
        name: str
        people: int

    node.script = Script(obedient=True)
    async with openai_client(node, how) as client:
        answer = await client.chat.completions.parse(**CHAT, response_format=City)
    assert answer.choices[0].message.parsed == City(name="Paris", people=1)
    assert node.tasks[0].generation.json_schema is not None


async def test_texts_are_completed_and_embedded(node: ScriptedNode, how: str) -> None:
    async with openai_client(node, how) as client:
        completion = await client.completions.create(model="gnus", prompt="Once")
        vectors = await client.embeddings.create(model="gnus/embed", input=["a", "b"])
    assert completion.choices[0].text == "Hello, world"
    assert vectors.data[1].embedding == pytest.approx([0.6, 0.8, 1.0])


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (RateLimited("slow down", retry_after=1), openai.RateLimitError),
        (EngineFailed("it died"), openai.InternalServerError),
    ],
)
async def test_failures_arrive_as_the_clients_own_exceptions(
    node: ScriptedNode, how: str, failure: Any, kind: type[openai.APIStatusError]
) -> None:
    node.script = Script(fail_after_plan=failure)
    async with openai_client(node, how) as client:
        with pytest.raises(kind) as whole:
            await client.chat.completions.create(**CHAT)
        with pytest.raises(kind):
            await client.chat.completions.create(**CHAT, stream=True)
    assert whole.value.code == failure.code


async def test_a_wrong_field_is_named(node: ScriptedNode, how: str) -> None:
    async with openai_client(node, how) as client:
        with pytest.raises(openai.BadRequestError) as error:
            await client.chat.completions.create(model="gnus", messages=[{"role": "king", "content": "x"}])  # type: ignore[list-item]  # wrong on purpose
    assert error.value.param == "messages.0.role"


async def test_a_failure_in_the_middle_of_a_stream_is_raised(node: ScriptedNode, how: str) -> None:
    node.script = Script(fail_after=(1, EngineFailed("it died")), interval=0.03)
    seen: list[str] = []

    async def read(client: openai.AsyncOpenAI) -> None:
        async for chunk in await client.chat.completions.create(**CHAT, stream=True):
            seen.append(chunk.choices[0].delta.content or "")

    async with openai_client(node, how) as client:
        with pytest.raises(openai.APIError, match="it died"):
            await read(client)
    assert "".join(seen) == "Hello"
