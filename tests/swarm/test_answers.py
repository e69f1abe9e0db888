"""A real node with the real model, asked by the official client over a real socket."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest
from openai import NotFoundError, OpenAI

from tests.swarm.harness import NodeProcess, gnusnode, running

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running(tmp_path_factory.mktemp("answers") / "home") as node:
        yield node


@pytest.fixture
def client(node: NodeProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{node.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.mark.requirement("G-RT-6", "G-EX-3")
def test_an_answer_comes_with_a_signed_plan_and_a_signed_output(node: NodeProcess, client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="gnus", messages=[{"role": "user", "content": "Why is the sky blue?"}], max_tokens=24
    )
    answer = raw.parse()
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 24
    status, body = node.get(f"/gnus/v1/plans/{raw.headers['x-request-id']}")
    assert status == 200
    records = json.loads(body)
    assert records["verification"]["plan"]["outcome"] == "ok"
    assert [output["outcome"] for output in records["verification"]["outputs"]] == ["ok"]
    assert records["outputs"][0]["answer"] == answer.choices[0].message.content


def test_a_stream_gives_the_same_text_as_a_whole_answer(client: OpenAI) -> None:
    ask = {"model": "gnus", "messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 20}
    whole = client.chat.completions.create(**ask, temperature=0)
    with client.chat.completions.create(**ask, temperature=0, stream=True) as stream:
        parts = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert len(parts) > 2
    assert "".join(parts) == whole.choices[0].message.content


def test_a_seed_repeats_a_sampled_answer_and_another_seed_changes_it(client: OpenAI) -> None:
    def say(seed: int) -> str | None:
        answer = client.chat.completions.create(
            model="gnus",
            messages=[{"role": "user", "content": "Write a line about the sea."}],
            max_tokens=24,
            temperature=1.2,
            seed=seed,
            extra_body={"gnus": {"profile": "canonical"}},
        )
        return answer.choices[0].message.content

    assert say(7) == say(7) != say(8)


@pytest.mark.requirement("G-EX-1")
def test_a_schema_is_kept(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"people": {"type": "integer"}, "city": {"type": "string", "maxLength": 20}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="gnus",
        messages=[{"role": "user", "content": "Give a city and how many people live there, as JSON."}],
        response_format={"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": schema}},
        max_tokens=80,
    )
    assert answer.choices[0].finish_reason == "stop"
    data = json.loads(answer.choices[0].message.content or "")
    assert list(data) == ["people", "city"]  # in the order of the schema
    assert isinstance(data["people"], int)


@pytest.mark.requirement("G-EX-7")
def test_a_demanded_tool_is_proposed_with_valid_arguments_and_not_run(client: OpenAI) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 30}},
                "required": ["city"],
            },
        },
    }
    answer = client.chat.completions.create(
        model="gnus",
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=60,
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    call = choice.message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}


def test_logprobs_and_several_choices_come_back(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="gnus",
        messages=[{"role": "user", "content": "Say a word."}],
        max_tokens=6,
        n=2,
        logprobs=True,
        top_logprobs=3,
        temperature=1,
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content
        for entry in choice.logprobs.content:
            assert entry.logprob <= 0
            assert len(entry.top_logprobs) == 3


def test_related_sentences_lie_closer_than_unrelated_ones(client: OpenAI) -> None:
    texts = ["A cat sits on the mat.", "A feline rests on a rug.", "The stock market fell sharply today."]
    vectors = [item.embedding for item in client.embeddings.create(model="all-minilm-l6-v2", input=texts).data]
    assert {len(vector) for vector in vectors} == {384}
    near, far = (sum(a * b for a, b in zip(vectors[0], other, strict=True)) for other in vectors[1:])
    assert near > far + 0.2
    assert math.isclose(sum(a * a for a in vectors[0]), 1, rel_tol=1e-3)


def test_an_unknown_model_is_said_to_be_unknown(client: OpenAI) -> None:
    with pytest.raises(NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "hi"}])
    assert caught.value.code == "model_not_found"


def test_models_name_the_router_and_every_expert(client: OpenAI) -> None:
    assert {model.id for model in client.models.list()} >= {"gnus", "smollm2-135m", "all-minilm-l6-v2"}


def test_the_canonical_profile_gives_the_same_bytes_alone_and_among_others(node: NodeProcess, client: OpenAI) -> None:
    def ask(text: str) -> str | None:
        answer = client.chat.completions.create(
            model="gnus",
            messages=[{"role": "user", "content": text}],
            max_tokens=24,
            temperature=0,
            extra_body={"gnus": {"profile": "canonical"}},
        )
        return answer.choices[0].message.content

    from concurrent.futures import ThreadPoolExecutor

    alone = ask("Tell me about the moon.")
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, ["Tell me about the moon.", "List animals.", "Tell me about the moon.", "Hi."]))
    assert answers[0] == answers[2] == alone


def test_the_terminal_shows_the_same_answer(node: NodeProcess) -> None:
    shown = gnusnode("run", "--home", str(node.home), "--temperature", "0", "--max-tokens", "12", "Say hello.")
    assert shown.returncode == 0, shown.stderr
    whole = node.ask(temperature=0, max_tokens=12)
    assert shown.stdout.strip() == whole["choices"][0]["message"]["content"].strip()
