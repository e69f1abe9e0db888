"""The canonical profile: the same bytes whatever happens around a job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.child_driver import Child, child

pytestmark = pytest.mark.model

CANONICAL: dict[str, Any] = {"profile": "canonical", "n_ctx": 256, "slots": 4}
STORY = "Tell me a story about a fox."
OTHERS = ("Describe how a bicycle works.", "List facts about the moon.", "word " * 120)


def answer(engine: Child, prompt: str = STORY) -> tuple[Any, ...]:
    return outcome(engine, ask(engine, prompt))


def ask(engine: Child, prompt: str = STORY) -> int:
    return engine.generate(prompt, max_tokens=24, profile="canonical", top_logprobs=1)


def outcome(engine: Child, job: int) -> tuple[Any, ...]:
    body = engine.done(job)
    return body["tokens"], body["mean_logprob"], [entry for delta in engine.deltas(job) for entry in delta["logprobs"]]


@pytest.fixture(scope="module")
def engine() -> Iterator[Child]:
    with child(**CANONICAL) as running:
        yield running


@pytest.fixture(scope="module")
def expected(engine: Child) -> tuple[Any, ...]:
    return answer(engine)


def test_twenty_runs_give_the_same_bytes(engine: Child, expected: tuple[Any, ...]) -> None:
    assert all(answer(engine) == expected for _ in range(20))


def test_company_does_not_change_the_bytes(engine: Child, expected: tuple[Any, ...]) -> None:
    assert engine.info["slots"] == 4, "batching is exact on plain CPU kernels"
    jobs = [ask(engine, OTHERS[0]), ask(engine), ask(engine, OTHERS[1]), ask(engine, OTHERS[2])]
    results = [outcome(engine, job) for job in jobs]
    assert results[1] == expected


def test_a_job_that_joins_running_ones_gets_the_same_bytes(engine: Child, expected: tuple[Any, ...]) -> None:
    other = ask(engine, OTHERS[0])
    engine.wait_for(lambda f: f["ev"] == "step" and any(number == other for number, _ in f["deltas"]))
    assert answer(engine) == expected
    engine.done(other)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_new_process_gives_the_same_bytes(expected: tuple[Any, ...], threads: int) -> None:
    with child(**CANONICAL, threads=threads) as again:
        assert answer(again) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sampling": {"temperature": 0.8, "seed": 5, "top_k": 40, "top_p": 0.9}},
        {"sampling": {"temperature": 0.7, "seed": 9, "presence_penalty": 0.6}},
        {"sampling": {"temperature": 0.0, "frequency_penalty": 1.0}},
        {
            "json_schema": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 9},
            "sampling": {"temperature": 1.0, "seed": 11},
        },
    ],
)
def test_a_resumed_answer_goes_on_as_if_never_interrupted(engine: Child, fields: dict[str, Any]) -> None:
    job = engine.generate(STORY, max_tokens=24, profile="canonical", **fields)
    whole = engine.done(job)["tokens"]
    again = engine.generate(STORY, max_tokens=24, profile="canonical", resume_tokens=whole[:9], **fields)
    assert engine.done(again)["tokens"] == whole
    seen = engine.text(engine.generate(STORY, max_tokens=9, profile="canonical", **fields))
    assert seen + engine.text(again) == engine.text(job)


def test_an_aborted_prefill_beside_it_does_not_change_the_bytes(engine: Child, expected: tuple[Any, ...]) -> None:
    job = ask(engine)
    long = ask(engine, "word " * 180)
    engine.started(long)
    time.sleep(0.05)  # somewhere inside a step; the outcome is the same wherever it hits
    engine.send({"op": "cancel", "id": long})
    assert engine.end_of(long)["ev"] == "error"
    assert outcome(engine, job) == expected


def test_a_seed_repeats_its_answer_and_another_seed_does_not(engine: Child) -> None:
    def sampled(seed: int) -> str:
        sampling = {"temperature": 0.9, "seed": seed}
        return engine.text(engine.generate(STORY, max_tokens=24, profile="canonical", sampling=sampling))

    assert sampled(7) == sampled(7)
    assert sampled(7) != sampled(8)


def test_no_prefix_is_shared(engine: Child) -> None:
    answer(engine)
    assert engine.done(ask(engine))["usage"]["cached_tokens"] == 0


def test_labels_are_scored_on_one_sequence(engine: Child) -> None:
    request = {
        "request_id": "0" * 8 + "-0000-0000-0000-" + "0" * 12,
        "instruction": "Which topic?\n",
        "text": "The team won the cup.",
        "suffix": "\nTopic:",
        "labels": [" sport and games", " politics and law"],
    }
    first = engine.done(engine.submit("classify", request))
    second = engine.done(engine.submit("classify", request))
    assert first == second
    assert first["label"] == " sport and games"
