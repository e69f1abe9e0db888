"""``/v1/chat/completions``: what a request becomes, and what comes back whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gnusnode.contracts.generation import Sampling
from gnusnode.contracts.plan import MemoryMode, PrivacyMode
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.errors import ContextTooLong, EngineFailed, ModelInvalid, Overloaded
from tests.unit.api.scripted import Script, ScriptedNode
from tests.unit.api.serving import CHAT, client_of

TOOL = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


async def ask(node: ScriptedNode, fields: dict[str, Any] | None = None, **options: Any) -> Any:
    async with client_of(node, **options) as client:
        return await client.post("/v1/chat/completions", json={**CHAT, **(fields or {})})


async def task_of(node: ScriptedNode, fields: dict[str, Any] | None = None, **options: Any) -> Any:
    answer = await ask(node, fields, **options)
    assert answer.status_code == 200, answer.text
    return node.tasks[-1]


# --- what a request becomes -------------------------------------------------------------------------------------------


async def test_silence_means_the_nodes_own_defaults_and_a_fresh_seed(node: ScriptedNode) -> None:
    defaults = Sampling(temperature=0.3, top_k=7)
    first = await task_of(node, default_sampling=defaults, default_max_tokens=77)
    second = await task_of(node, default_sampling=defaults)
    assert first.generation.sampling.model_copy(update={"seed": 1}) == defaults
    assert first.generation.max_tokens == 77
    assert first.generation.sampling.seed != second.generation.sampling.seed
    assert (first.choices, first.tool_choice, first.generation.top_logprobs) == (1, "none", None)


async def test_what_is_said_reaches_the_sampler(node: ScriptedNode) -> None:
    said = {"temperature": 0, "top_p": 0.5, "frequency_penalty": 1, "presence_penalty": -1, "seed": 42, "top_k": 3}
    task = await task_of(node, {**said, "min_p": 0.1, "stop": "END", "n": 3, "user": "someone"})
    assert task.generation.sampling == Sampling(**said, min_p=0.1)
    assert task.generation.stop == ("END",)
    assert task.choices == 3


@pytest.mark.parametrize(
    ("given", "used"), [(1, 1), (0, 2**32 - 1), (-1, 2**32 - 2), (2**32, 1), (2**63 - 1, 2**31 - 1)]
)
async def test_any_seed_of_openai_maps_to_one_of_ours(node: ScriptedNode, given: int, used: int) -> None:
    assert (await task_of(node, {"seed": given})).generation.sampling.seed == used


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 50_000}, 50_000),
        ({"max_tokens": 50, "gnus": {"max_tokens": 7}}, 7),
        ({"model": "gnus/small"}, 32),
    ],
)
async def test_the_length_of_an_answer_is_what_was_asked_for_within_the_policy(
    node: ScriptedNode, fields: dict[str, Any], expected: int
) -> None:
    assert (await task_of(node, fields)).generation.max_tokens == expected


async def test_roles_and_parts_become_plain_messages(node: ScriptedNode) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ann"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": ""},
    ]
    prompt = (await task_of(node, {"messages": messages})).generation.prompt
    assert [(m.role, m.content, m.name) for m in prompt.messages] == [
        ("system", "be brief", None),
        ("user", "a\nb", "ann"),
        ("assistant", "c", None),
        ("user", "", None),
    ]


async def test_a_history_of_tool_calls_is_told_in_words(node: ScriptedNode) -> None:
    messages = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    prompt = (await task_of(node, {"messages": messages, "tools": [TOOL]})).generation.prompt
    _, called, result = prompt.messages
    assert called.content == '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
    assert (result.role, result.name, result.content) == ("tool", "weather", "rain")


async def test_tools_are_offered_to_the_expert(node: ScriptedNode) -> None:
    task = await task_of(node, {"tools": [TOOL]})
    assert [(tool.name, tool.description, tool.parameters) for tool in task.tools] == [
        ("weather", "d", {"type": "object"})
    ]
    assert task.tool_choice == "auto"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("none", "none"), ("required", "required"), ({"type": "function", "function": {"name": "weather"}}, "weather")],
)
async def test_a_tool_choice_is_passed_on(node: ScriptedNode, choice: Any, expected: str) -> None:
    assert (await task_of(node, {"tools": [TOOL], "tool_choice": choice})).tool_choice == expected


@pytest.mark.parametrize(
    ("wanted", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "integer"}}},
            {"type": "integer"},
        ),
    ],
)
async def test_a_response_format_becomes_a_schema(node: ScriptedNode, wanted: Any, schema: Any) -> None:
    assert (await task_of(node, {"response_format": wanted})).generation.json_schema == schema


async def test_the_gnus_object_is_the_policy_of_the_task(node: ScriptedNode) -> None:
    task = await task_of(
        node, {"gnus": {"privacy_mode": "private_boundary", "allow_resume": False, "max_wall_ms": 500}}
    )
    assert task.policy.privacy_mode is PrivacyMode.PRIVATE_BOUNDARY
    assert not task.policy.allow_resume
    assert task.generation.deadline_ms == 500


async def test_a_request_cannot_widen_the_operators_policy(node: ScriptedNode) -> None:
    operator = PolicyEnvelope(
        privacy_mode=PrivacyMode.PRIVATE_BOUNDARY, max_tokens=9, memory_mode=MemoryMode.TRUSTED_ONLY
    )
    asked = {"gnus": {"privacy_mode": "plaintext", "memory_mode": "policy_scoped"}, "max_tokens": 100}
    task = await task_of(node, asked, policy=operator)
    assert task.policy.privacy_mode is PrivacyMode.PRIVATE_BOUNDARY
    assert task.policy.memory_mode == "trusted_only"
    assert task.policy.max_tokens == task.generation.max_tokens == 9


async def test_unknown_fields_are_ignored(node: ScriptedNode) -> None:
    new = {
        "service_tier": "auto",
        "store": False,
        "metadata": {"a": "b"},
        "invented_tomorrow": [1],
        "modalities": ["text"],
    }
    await task_of(node, {**new, "logit_bias": {}, "parallel_tool_calls": True, "audio": None})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content.0.type",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
    ],
)
async def test_what_would_change_the_meaning_is_refused_by_name(
    node: ScriptedNode, fields: dict[str, Any], param: str
) -> None:
    answer = await ask(node, fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"], error["type"]) == (param, "unsupported_parameter", "invalid_request_error")
    assert not node.tasks


LONG, HALF = "a" * 1_000_001, "a" * 500_000
HELLO = {"role": "user", "content": "Hello"}


def call(arguments: str) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}


HELLO_CALL = {"role": "assistant", "tool_calls": [call("{}")]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"model": 1}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "call_9"}]}, "messages.0.tool_call_id"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop.0"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"tool_choice": "auto"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice.function.name",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"gnus": {"privacy": "none"}}, "gnus"),
        ({"gnus": {"max_spend": -1}}, "gnus"),
        ({"messages": [{"role": "user", "content": LONG}]}, "messages.0.content"),
        (
            {"messages": [HELLO, {"role": "user", "content": [{"type": "text", "text": HALF}] * 2}]},
            "messages.1.content",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [call(LONG)]}]}, "messages.0.content"),
        ({"messages": [{"role": "assistant", "tool_calls": [call(HALF)] * 2}]}, "messages.0.content"),
        (
            {"messages": [HELLO_CALL, {"role": "tool", "content": LONG, "tool_call_id": "call_1"}]},
            "messages.1.content",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
async def test_what_is_wrong_with_a_request_is_named(node: ScriptedNode, fields: dict[str, Any], param: str) -> None:
    answer = await ask(node, fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not node.tasks


# --- what comes back --------------------------------------------------------------------------------------------------


async def test_an_answer_has_the_shape_that_clients_expect(node: ScriptedNode) -> None:
    body = (await ask(node)).json()
    request_id = node.tasks[0].generation.request_id
    facts = body.pop("gnus")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "id": f"chatcmpl-{request_id.replace('-', '')}",
        "object": "chat.completion",
        "model": "gnus/small",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello, world", "refusal": None, "annotations": []},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
        "system_fingerprint": "fp_000000000000",
    }
    assert facts == {
        "request_id": request_id,
        "model": "gnus/small",
        "mode": "single_node",
        "reasons": ["because"],
        "confidence": [0.5],
        "resumed": False,
        "rerouted": 0,
        "plan_digest": node.plans[request_id].plan.digest,
        "plan_digests": [node.plans[request_id].plan.digest],
        "node": node.peer_id,
        "stages_ms": {"draft": 1.5},
    }


async def test_tool_calls_come_back_as_proposals(node: ScriptedNode) -> None:
    node.script = Script(pieces=(), tools=(("weather", {"city": "Oslo"}),))
    (choice,) = (await ask(node, {"tools": [TOOL]})).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}


async def test_several_choices_come_back_in_order(node: ScriptedNode) -> None:
    body = (await ask(node, {"n": 3})).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in body["choices"]} == {"Hello, world"}
    assert body["usage"]["completion_tokens"] == 9


async def test_log_probabilities_carry_the_bytes_of_each_token(node: ScriptedNode) -> None:
    node.script = Script(pieces=("é", "\\xf0"))
    (choice,) = (await ask(node, {"logprobs": True, "top_logprobs": 1})).json()["choices"]
    first, second = choice["logprobs"]["content"]
    assert first == {
        "token": "é",
        "logprob": -0.5,
        "bytes": [0xC3, 0xA9],
        "top_logprobs": [{"token": "é", "logprob": -1.0, "bytes": [0xC3, 0xA9]}],
    }
    assert second["bytes"] == [0xF0]


async def test_log_probabilities_without_alternatives_have_an_empty_list(node: ScriptedNode) -> None:
    (choice,) = (await ask(node, {"logprobs": True})).json()["choices"]
    assert choice["logprobs"]["content"][0]["top_logprobs"] == []


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        (Script(fail_first=Overloaded("full", retry_after=3)), 503, "overloaded"),
        (Script(fail_after_plan=ContextTooLong("too long", param="messages")), 400, "context_length_exceeded"),
        (Script(fail_after=(2, EngineFailed("died"))), 502, "engine_failed"),
        (Script(fail_first=ModelInvalid("its chat template is faulty")), 502, "model_invalid"),
        (Script(ends_early=True), 502, "engine_failed"),
        (Script(fail_after=(1, ExceptionGroup("g", [ExceptionGroup("h", [EngineFailed("x")])]))), 502, "engine_failed"),
        (Script(fail_after=(1, ExceptionGroup("g", [EngineFailed("x"), ValueError()]))), 500, "internal_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_never_answers_200(
    node: ScriptedNode, autojump_clock: Any, script: Script, status: int, code: str, stream: bool
) -> None:
    node.script = script
    answer = await ask(node, {"stream": stream})
    if stream and answer.status_code == 200:
        # Something was visible already: the stream must end with an error and without [DONE].
        assert f'"code":"{code}"' in answer.text
        assert "[DONE]" not in answer.text
        return
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] == code


async def test_an_answer_that_takes_too_long_is_given_up_with_504(node: ScriptedNode, autojump_clock: Any) -> None:
    node.script = Script(endless=True, interval=1.0)
    answer = await ask(node, request_seconds=5)
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"
    assert node.running == 0
