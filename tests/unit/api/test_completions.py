"""``/v1/completions``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.api.scripted import Script, ScriptedNode, sse
from tests.unit.api.serving import client_of


async def ask(node: ScriptedNode, fields: dict[str, Any]) -> Any:
    async with client_of(node) as client:
        return await client.post("/v1/completions", json={"model": "gnus", **fields})


async def test_a_text_is_continued(node: ScriptedNode) -> None:
    body = (await ask(node, {"prompt": "Once"})).json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["choices"] == [{"index": 0, "text": "Hello, world", "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["total_tokens"] == 8
    (task,) = node.tasks
    assert task.generation.prompt.text == "Once"
    assert task.generation.max_tokens == 16
    assert task.generation.request_id == body["gnus"]["request_id"]


async def test_token_ids_reach_the_engine_unchanged(node: ScriptedNode) -> None:
    await ask(node, {"prompt": [5, 6, 7]})
    assert node.tasks[0].generation.prompt.tokens == (5, 6, 7)


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2, 3]]])
async def test_several_prompts_are_several_tasks_with_their_choices_in_order(node: ScriptedNode, prompt: Any) -> None:
    body = (await ask(node, {"prompt": prompt, "n": 2})).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert len(node.tasks) == 2
    assert set(body["gnus"]["request_ids"]) == {task.generation.request_id for task in node.tasks}
    assert body["usage"]["completion_tokens"] == 12


async def test_log_probabilities_stand_side_by_side(node: ScriptedNode) -> None:
    node.script = Script(pieces=("ab", "c"))
    (choice,) = (await ask(node, {"prompt": "x", "logprobs": 1})).json()["choices"]
    assert choice["logprobs"] == {
        "tokens": ["ab", "c"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"é": -1.0}, {"é": -1.0}],
        "text_offset": [0, 2],
    }


async def test_a_stream_gives_the_same_text_and_ends_with_done(node: ScriptedNode, autojump_clock: Any) -> None:
    node.script = Script(interval=1.0, finish="length")
    fields = {"prompt": "x", "stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage, done = sse((await ask(node, fields)).text)
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello, world"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 3)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": "a" * 1_000_001}, "prompt"),
        ({"prompt": ["a", "a" * 1_000_001]}, "prompt.1"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "logprobs": 6}, "logprobs"),
        ({"prompt": "a", "logit_bias": {"1": 1}}, "logit_bias"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
async def test_what_is_not_possible_is_refused_by_name(node: ScriptedNode, fields: dict[str, Any], param: str) -> None:
    answer = await ask(node, fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert not node.tasks


@pytest.mark.parametrize("prompt", [[-1], [2**31], [1, "a"], {"a": 1}, None])
async def test_a_prompt_of_the_wrong_type_is_refused(node: ScriptedNode, prompt: Any) -> None:
    answer = await ask(node, {"prompt": prompt})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("prompt")
