"""Scores of claimed answers, and labels, by the real model."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from gnusnode.contracts.generation import ClassifyResult, Prompt, ScoreResult
from gnusnode.errors import ContextTooLong, RequestError
from tests.child_driver import Child, child

pytestmark = pytest.mark.model

STORY = "Tell me a story about a fox."
TOPICS = {
    "instruction": "Name the topic of the text.\n\nText: The minister resigned.\nTopic: politics\n\nText: ",
    "suffix": "\nTopic:",
    "labels": [" sport", " politics", " cooking"],
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Child]:
    with child(slots=4) as running:
        yield running


def score(engine: Child, prompt: list[int], answer: list[int], **fields: Any) -> ScoreResult:
    request = {"request_id": str(uuid.uuid4()), "prompt_tokens": prompt, "answer_tokens": answer, **fields}
    return ScoreResult.model_validate(engine.done(engine.submit("score", request)))


def classify(engine: Child, text: str, **fields: Any) -> ClassifyResult:
    request = {"request_id": str(uuid.uuid4()), "text": text, **TOPICS, **fields}
    return ClassifyResult.model_validate(engine.done(engine.submit("classify", request)))


def claim(engine: Child, **fields: Any) -> tuple[list[int], list[int], dict[str, Any]]:
    job = engine.generate(STORY, **fields)
    done = engine.done(job)
    return engine.started(job)["prompt_tokens"], done["tokens"], done


def test_an_honest_answer_scores_well_and_a_foreign_one_badly(engine: Child) -> None:
    prompt, answer, done = claim(engine, max_tokens=48)
    honest = score(engine, prompt, answer)
    assert len(honest.gaps) == len(honest.ranks) == len(honest.logprobs) == 48
    assert honest.argmax_match >= 0.9
    assert max(honest.gaps) < 1
    assert sum(honest.logprobs) / 48 == pytest.approx(done["mean_logprob"], abs=0.05)
    foreign = score(engine, prompt, list(reversed(answer)))
    assert foreign.argmax_match < 0.5
    assert max(foreign.gaps) > 2


def test_the_seed_is_checked_by_replaying_the_chain(engine: Child) -> None:
    sampling = {"temperature": 0.8, "seed": 7, "top_k": 40}
    prompt, answer, _ = claim(engine, max_tokens=48, sampling=sampling)
    honest = score(engine, prompt, answer, replay=sampling).replayed
    wrong = score(engine, prompt, answer, replay={**sampling, "seed": 8}).replayed
    assert honest is not None
    assert wrong is not None
    assert sum(honest) >= 40
    assert sum(wrong) < sum(honest) - 5


def test_a_long_answer_is_scored_in_chunks(engine: Child) -> None:
    prompt = list(range(100, 110))
    answer = [200 + n % 50 for n in range(300)]
    whole = score(engine, prompt, answer)
    assert len(whole.gaps) == 300
    head = score(engine, prompt, answer[:20])
    assert head.logprobs == pytest.approx(whole.logprobs[:20], abs=0.5)
    assert all(rank == 0 for rank, gap in zip(whole.ranks, whole.gaps, strict=True) if gap == 0)


def test_streams_go_on_while_an_answer_is_scored(engine: Child) -> None:
    stream = engine.generate(STORY, max_tokens=60)
    engine.wait_for(lambda f: f["ev"] == "step" and any(number == stream for number, _ in f["deltas"]))
    before = len(engine.deltas(stream))
    score(engine, list(range(100, 110)), [200 + n % 50 for n in range(200)])
    assert len(engine.deltas(stream)) > before + 5
    engine.done(stream)


def test_what_cannot_be_scored_is_refused(engine: Child) -> None:
    with pytest.raises(RequestError, match="after a prompt"):
        score(engine, [], [5])
    with pytest.raises(RequestError, match="outside the vocabulary"):
        score(engine, [5], [60_000])
    with pytest.raises(ContextTooLong):
        score(engine, [5], [6] * 3000)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("The striker scored two goals.", " sport"),
        ("Parliament voted on the budget.", " politics"),
        ("Bake the bread for forty minutes.", " cooking"),
    ],
)
def test_a_text_gets_its_label(engine: Child, text: str, label: str) -> None:
    result = classify(engine, text)
    assert result.label == label
    assert math.isclose(sum(result.probabilities), 1)
    ordered = sorted(result.probabilities, reverse=True)
    assert result.margin == pytest.approx(ordered[0] - ordered[1])


def test_raw_logprobs_are_those_of_the_label_after_the_prompt(engine: Child) -> None:
    labels = [" sport and games", " politics"]
    result = classify(engine, "The striker scored.", labels=labels, calibrate=False)
    text = TOPICS["instruction"] + "The striker scored." + TOPICS["suffix"]
    for label, raw in zip(labels, result.raw_logprobs, strict=True):
        start = engine.generate(Prompt(text=text), max_tokens=1)
        tail = engine.generate(Prompt(text=label), max_tokens=1)
        prompt, tokens = (engine.started(job)["prompt_tokens"] for job in (start, tail))
        assert sum(score(engine, prompt, tokens).logprobs) == pytest.approx(raw, abs=0.1)


def test_calibration_takes_away_the_liking_for_a_label(engine: Child) -> None:
    raw = classify(engine, "N/A", calibrate=False)
    calibrated = classify(engine, "N/A", calibrate=True)
    assert max(raw.probabilities) > 0.5
    assert calibrated.probabilities == pytest.approx([1 / 3] * 3, abs=0.02)


def test_the_instruction_is_computed_once(engine: Child) -> None:
    classify(engine, "The striker scored.")
    job = engine.generate(Prompt(text=TOPICS["instruction"] + "Something else"), max_tokens=1)
    engine.done(job)
    assert engine.started(job)["cached_tokens"] > 10


def test_a_classification_of_nothing_is_refused(engine: Child) -> None:
    with pytest.raises(RequestError, match="no tokens"):
        classify(engine, "", instruction="", suffix="", calibrate=False)


def test_many_labels_with_long_tails_are_all_scored(engine: Child) -> None:
    labels = [f" label number {n} of the list" for n in range(32)]
    result = classify(engine, "x", labels=labels, calibrate=False)
    assert len(result.raw_logprobs) == 32
    assert all(raw < -1 for raw in result.raw_logprobs)


def test_a_cancelled_classification_ends_once(engine: Child) -> None:
    request = {"request_id": str(uuid.uuid4()), "text": "word " * 800, **TOPICS}
    job = engine.submit("classify", request)
    engine.send({"op": "cancel", "id": job})
    assert engine.end_of(job)["error"]["code"] == "cancelled"
    classify(engine, "The striker scored.")
    assert [f["ev"] for f in engine.frames if f.get("id") == job] == ["error"]
