"""Bodies that are JSON but hardly requests: whatever stands in them, the answer is 200 or a 4xx that names a field."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.api.scripted import ScriptedNode
from tests.unit.api.serving import client_of

NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
MISSING = "<missing>"
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=20)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def nearly(always: dict[str, Any], sometimes: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with these fields; now and then one is missing or is some other JSON."""
    right = st.fixed_dictionaries(always, optional=sometimes)
    wrong = st.dictionaries(st.sampled_from(sorted([*always, *sometimes])), JSON | st.just(MISSING), max_size=1)
    return st.builds(_spoiled, right, st.just({}) | wrong)


def _spoiled(right: dict[str, Any], wrong: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (right | wrong).items() if value != MISSING}


SHORT = st.text(max_size=9)
WEATHER = st.just("weather")
IS_FUNCTION = st.just("function")
CALL = nearly(
    {"id": st.just("call_1"), "type": IS_FUNCTION, "function": nearly({"name": WEATHER}, {"arguments": st.just("{}")})},
    {},
)
TOOL = nearly(
    {"type": IS_FUNCTION, "function": nearly({"name": WEATHER}, {"description": SHORT, "parameters": JSON})}, {}
)
PART = nearly({"type": st.just("text"), "text": SHORT}, {"refusal": SHORT})
MESSAGE = nearly(
    {
        "role": st.sampled_from(["system", "developer", "user", "assistant"]),
        "content": SHORT | st.lists(PART, max_size=3),
    },
    {"name": st.just("ann"), "tool_calls": st.lists(CALL, max_size=2)},
)
RESULT = nearly({"role": st.just("tool"), "content": SHORT, "tool_call_id": st.just("call_1")}, {})
SAMPLING = {
    "n": st.integers(1, 8),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.1, 1),
    "frequency_penalty": st.floats(-2, 2),
    "seed": st.integers(-(2**63), 2**63),
    "stop": st.text(min_size=1, max_size=3) | st.lists(st.text(min_size=1, max_size=3), max_size=3),
    "stream": st.booleans(),
    "gnus": nearly({}, {"tenant": st.just("local"), "max_tokens": st.integers(1, 9), "tool_policy": st.just({})}),
    "logit_bias": st.just({}),
    "max_tokens": st.integers(1, 99),
}
FORMAT = nearly(
    {"type": st.sampled_from(["text", "json_object", "json_schema"])},
    {"json_schema": nearly({"name": st.just("n"), "schema": st.dictionaries(SHORT, JSON, max_size=3)}, {})},
)
MODEL = st.sampled_from(["gnus", "gnus/small"])
CHAT = nearly(
    {"model": MODEL, "messages": st.lists(MESSAGE | RESULT, min_size=1, max_size=3)},
    {**SAMPLING, "tools": st.lists(TOOL, max_size=2), "response_format": FORMAT, "logprobs": st.booleans()},
)
COMPLETION = nearly(
    {"model": MODEL, "prompt": st.text(min_size=1, max_size=9) | st.lists(st.integers(0, 99), min_size=1, max_size=4)},
    {**SAMPLING, "logprobs": st.integers(0, 5)},
)
EMBEDDING = nearly(
    {
        "model": st.just("gnus/embed"),
        "input": st.text(min_size=1, max_size=9) | st.lists(st.text(min_size=1, max_size=3), min_size=1),
    },
    {"dimensions": st.just(3), "encoding_format": st.sampled_from(["float", "base64"])},
)


async def answered_well(path: str, body: Any) -> None:
    node = ScriptedNode()
    async with client_of(node, sse_interval_seconds=0.0) as client:
        answer = await client.post(path, json=body)
    if answer.status_code == 200:
        return
    assert 400 <= answer.status_code < 500, (body, answer.text)
    assert set(answer.json()["error"]) == {"message", "type", "param", "code", "gnus"}
    assert not node.tasks or answer.json()["error"]["code"] == "model_not_found"


@settings(max_examples=300)
@given(body=CHAT)
async def test_any_chat_request(body: Any) -> None:
    await answered_well("/v1/chat/completions", body)


@settings(max_examples=100)
@given(body=COMPLETION)
async def test_any_completion_request(body: Any) -> None:
    await answered_well("/v1/completions", body)


@settings(max_examples=50)
@given(body=EMBEDDING)
async def test_any_embedding_request(body: Any) -> None:
    await answered_well("/v1/embeddings", body)


@settings(max_examples=100)
@given(body=JSON)
async def test_any_json_at_all(body: Any) -> None:
    await answered_well("/v1/chat/completions", body)
