"""The canonical profile: the same bytes whatever happens around a job."""

from __future__ import annotations

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
    return body["tokens"], body["mean_logprob"], [delta["logprobs"] for delta in engine.deltas(job)]


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
