"""Generation in a real child with the real model."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Iterator

import pytest

from gnusnode.contracts.generation import Delta, Done, Prompt, Started
from gnusnode.errors import ContextTooLong, RequestError, SchemaRefused, Unprocessable
from tests.child_driver import Child, child

pytestmark = pytest.mark.model

STORY = "Tell me a story about a fox."


@pytest.fixture(scope="module")
def engine() -> Iterator[Child]:
    with child(slots=4) as running:
        yield running


def finished(engine: Child, number: int) -> Done:
    return Done.model_validate(engine.done(number))


def test_the_child_says_what_it_is(engine: Child) -> None:
    assert engine.info["n_vocab"] == 49152
    assert engine.info["n_ctx_train"] == 8192
    assert engine.info["threads"] == 1
    assert engine.info["determinism"] == "A"
    assert engine.info["template_warning"] == ""
    assert engine.info["decode_rate"] > 0


def test_a_stream_is_started_deltas_done(engine: Child) -> None:
    job = engine.generate("What is the capital of France?", max_tokens=12)
    done = finished(engine, job)
    deltas = [Delta.model_validate(delta) for delta in engine.deltas(job)]
    started = Started.model_validate(engine.started(job))
    events = [f["ev"] for f in engine.frames if f.get("id") == job or job in [d[0] for d in f.get("deltas", [])]]
    assert events == ["started", *["step"] * len(deltas), "done"]
    assert deltas[0].tokens == done.tokens[:1]  # the first token is not held to be gathered with others
    assert len(deltas) > 2
    assert [token for delta in deltas for token in delta.tokens] == list(done.tokens)
    assert done.finish_reason == "length"
    assert done.usage.completion_tokens == 12
    assert done.usage.prompt_tokens == len(started.prompt_tokens)
    assert done.mean_logprob is not None
    assert done.mean_logprob < 0
    assert done.timing.decode_ms > 0


def test_a_delta_is_the_plain_form_of_its_record(engine: Child) -> None:
    for fields in ({}, {"top_logprobs": 2}):
        job = engine.generate(STORY, max_tokens=2, **fields)
        engine.done(job)
        for delta in engine.deltas(job):
            assert Delta.model_validate(delta).to_plain() == delta


def test_the_end_of_turn_token_ends_the_answer_and_is_not_text(engine: Child) -> None:
    messages = [
        {"role": "user", "content": "Say A."},
        {"role": "assistant", "content": "A."},
        {"role": "user", "content": "Say A."},
    ]
    job = engine.generate(messages, max_tokens=60)
    done = finished(engine, job)
    assert done.finish_reason == "stop"
    assert done.tokens[-1] == 2
    assert "<|im_end|>" not in engine.text(job)


def test_a_stop_string_ends_the_text_before_it(engine: Child) -> None:
    whole = engine.text(engine.generate(STORY, max_tokens=40))
    stop = whole[30:34]
    job = engine.generate(STORY, max_tokens=40, stop=[stop])
    assert engine.text(job) == whole.split(stop)[0]
    assert finished(engine, job).finish_reason == "stop"


def test_logprobs_are_those_of_the_whole_vocabulary(engine: Child) -> None:
    job = engine.generate(STORY, max_tokens=5, top_logprobs=5)
    done = finished(engine, job)
    entries = [entry for delta in engine.deltas(job) for entry in delta["logprobs"]]
    assert [entry["token"] for entry in entries] == list(done.tokens)
    for entry in entries:
        assert len(entry["top"]) == 5
        assert entry["top"][0]["logprob"] == entry["logprob"]  # greedy takes the best
        assert sum(math.exp(top["logprob"]) for top in entry["top"]) <= 1.0001
    assert done.mean_logprob == pytest.approx(sum(entry["logprob"] for entry in entries) / 5)
    assert "".join(entry["piece"] for entry in entries) == engine.text(job)


def test_penalties_keep_the_model_from_repeating_itself(engine: Child) -> None:
    prompt = Prompt(text="one one one one one one one one")
    plain = finished(engine, engine.generate(prompt, max_tokens=16)).tokens
    strict = {"temperature": 0, "presence_penalty": 2, "frequency_penalty": 2}
    varied = finished(engine, engine.generate(prompt, max_tokens=16, sampling=strict)).tokens
    assert len(set(varied)) > len(set(plain))


def test_a_resumed_answer_counts_what_was_delivered(engine: Child) -> None:
    whole = finished(engine, engine.generate(STORY, max_tokens=24))
    resumed = finished(engine, engine.generate(STORY, max_tokens=24, resume_tokens=list(whole.tokens[:9])))
    assert resumed.tokens[:9] == whole.tokens[:9]
    assert resumed.usage.completion_tokens == 24
    assert resumed.usage.prompt_tokens == whole.usage.prompt_tokens


def test_a_resumed_answer_that_had_ended_ends_at_once(engine: Child) -> None:
    ended = finished(engine, engine.generate(STORY, resume_tokens=[10, 11, 2], max_tokens=9))
    assert (ended.finish_reason, ended.tokens) == ("stop", (10, 11, 2))
    full = finished(engine, engine.generate(STORY, resume_tokens=[10, 11], max_tokens=2))
    assert (full.finish_reason, full.tokens) == ("length", (10, 11))


def test_a_schema_shapes_the_answer(engine: Child) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "big": {"type": "boolean"}},
        "required": ["city", "big"],
    }
    for sampling in ({}, {"temperature": 1.0, "seed": 3}):
        job = engine.generate("Paris", max_tokens=80, json_schema=schema, sampling=sampling)
        answer = json.loads(engine.text(job))
        assert finished(engine, job).finish_reason == "stop"
        assert set(answer) == {"city", "big"}
        assert isinstance(answer["big"], bool)


def test_resumed_tokens_must_follow_the_schema(engine: Child) -> None:
    job = engine.generate("x", json_schema={"type": "boolean"}, resume_tokens=[3000])
    with pytest.raises(RequestError, match="do not follow the schema"):
        engine.done(job)


def test_a_schema_outside_the_subset_is_refused_by_its_path(engine: Child) -> None:
    job = engine.generate("x", json_schema={"type": "string", "pattern": "(a+)+"})
    with pytest.raises(SchemaRefused) as refused:
        engine.done(job)
    assert refused.value.param == "json_schema.pattern"


def test_a_job_that_can_never_fit_is_refused_at_once(engine: Child) -> None:
    for job in (
        engine.generate(STORY, max_tokens=2040),
        engine.generate("word " * 4000),
        engine.generate("x" * 900_000),
    ):
        with pytest.raises(ContextTooLong):
            engine.done(job)


def test_jobs_that_do_not_fit_together_wait_their_turn(engine: Child) -> None:
    jobs = [engine.generate(f"Story {number}", max_tokens=1200, stop=["."]) for number in range(3)]
    assert [finished(engine, job).finish_reason for job in jobs] == ["stop"] * 3


def test_tokens_outside_the_vocabulary_are_refused(engine: Child) -> None:
    with pytest.raises(RequestError, match="outside the vocabulary"):
        engine.done(engine.generate(Prompt(tokens=(1, 49152))))
    with pytest.raises(RequestError, match="outside the vocabulary"):
        engine.done(engine.generate(STORY, resume_tokens=[2**31 - 1]))


def test_a_malformed_request_ends_alone(engine: Child) -> None:
    bad = engine.submit("generate", {"prompt": {"text": "x"}, "max_tokens": -4})
    good = engine.generate(STORY, max_tokens=3)
    with pytest.raises(Unprocessable):
        engine.done(bad)
    assert finished(engine, good).usage.completion_tokens == 3


def test_streams_run_side_by_side(engine: Child) -> None:
    jobs = [engine.generate(f"Tell me about {what}.", max_tokens=20) for what in ("cats", "dogs", "bread", "tea")]
    for job in jobs:
        engine.done(job)
    shared = [f for f in engine.frames if f["ev"] == "step" and {d[0] for d in f["deltas"]} == set(jobs)]
    assert len(shared) >= 10


def test_a_cancel_ends_the_job_and_no_other(engine: Child) -> None:
    other = engine.generate("Tell me about tea.", max_tokens=60)
    job = engine.generate(STORY, max_tokens=800)
    engine.wait_for(lambda f: f["ev"] == "step" and any(number == job for number, _ in f["deltas"]))
    engine.send({"op": "cancel", "id": job})
    assert engine.end_of(job)["error"]["code"] == "cancelled"
    assert finished(engine, other).usage.completion_tokens == 60


def test_a_cancel_of_a_waiting_or_unknown_job_is_harmless(engine: Child) -> None:
    first = engine.generate(STORY, max_tokens=1500)
    waiting = engine.generate("Another", max_tokens=1500)
    engine.started(first)
    engine.send({"op": "cancel", "id": waiting}, {"op": "cancel", "id": 999_999}, {"op": "cancel", "id": first})
    assert engine.end_of(waiting)["error"]["code"] == "cancelled"
    assert engine.end_of(first)["error"]["code"] == "cancelled"


def test_a_cancel_inside_a_prefill_leaves_the_others_their_answers(engine: Child) -> None:
    other = engine.generate(STORY, max_tokens=48)
    engine.wait_for(lambda f: f["ev"] == "step" and any(number == other for number, _ in f["deltas"]))
    long = engine.generate("word " * 1500, max_tokens=4)
    engine.started(long)
    time.sleep(0.05)  # somewhere inside a step; the outcome is the same wherever it hits
    engine.send({"op": "cancel", "id": long})
    assert engine.end_of(long)["error"]["code"] == "cancelled"
    assert len(finished(engine, other).tokens) == 48


def test_a_prompt_seen_before_is_not_computed_again(engine: Child) -> None:
    policy = {"role": "system", "content": "You are a careful expert. " * 30}
    first = engine.generate([policy, {"role": "user", "content": "What is tea?"}], max_tokens=4)
    prompt = len(Started.model_validate(engine.started(first)).prompt_tokens)
    engine.done(first)
    second = engine.generate([policy, {"role": "user", "content": "Why do cats sleep?"}], max_tokens=4)
    cached = finished(engine, second).usage.cached_tokens
    assert prompt - 20 < cached < prompt
    assert engine.started(second)["cached_tokens"] == cached


def test_jobs_that_arrive_together_share_their_prefix(engine: Child) -> None:
    policy = {"role": "system", "content": "Answer like a pirate would. " * 30}
    jobs = [engine.generate([policy, {"role": "user", "content": f"Number {n}?"}], max_tokens=4) for n in range(4)]
    cached = [finished(engine, job).usage.cached_tokens for job in jobs]
    assert cached[0] < 20
    assert min(cached[1:]) > 150


def test_a_conversation_continues_on_its_own_cells(engine: Child) -> None:
    turns = [{"role": "user", "content": "Tell me of the sea in detail, please."}]
    first = engine.generate(turns, max_tokens=30)
    answer = engine.text(first)
    turns += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And the moon?"}]
    second = finished(engine, engine.generate(turns, max_tokens=4))
    assert second.usage.cached_tokens >= len(engine.started(first)["prompt_tokens"])


def test_a_ping_is_answered_while_jobs_run(engine: Child) -> None:
    job = engine.generate(STORY, max_tokens=40)
    engine.started(job)
    engine.send({"op": "ping", "n": 41})
    pong = engine.wait_for(lambda f: f["ev"] == "pong" and f["n"] == 41)
    assert pong["active"] == 1
    assert pong["rss"] > 10_000_000
    engine.done(job)


COLOURS = {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 130, "maxItems": 130}


def starts(engine: Child, job: int) -> int:
    return sum(frame["ev"] == "started" and frame["id"] == job for frame in engine.frames)


def delivered(engine: Child, job: int) -> list[int]:
    return [token for delta in engine.deltas(job) for token in delta["tokens"]]


def test_a_paused_answer_is_quiet_and_then_goes_on_as_the_model_would(engine: Child) -> None:
    job = engine.generate(STORY, max_tokens=60)
    engine.wait_for(lambda f: f["ev"] == "step" and any(number == job for number, _ in f["deltas"]))
    engine.send({"op": "pause", "id": job})
    engine.done(engine.generate("Tell me about tea.", max_tokens=30))
    before = delivered(engine, job)
    engine.done(engine.generate("Tell me about bread.", max_tokens=10))
    assert delivered(engine, job) == before
    engine.send({"op": "resume", "id": job})
    done = finished(engine, job)
    assert len(before) < 60
    assert delivered(engine, job) == list(done.tokens)
    assert (starts(engine, job), done.usage.completion_tokens) == (1, 60)
    assert done.timing.queue_ms > done.timing.prefill_ms  # the pause was longer than the prompt
    prompt = list(engine.started(job)["prompt_tokens"])
    fields = {"request_id": str(uuid.uuid4()), "prompt_tokens": prompt, "answer_tokens": list(done.tokens)}
    assert max(engine.done(engine.submit("score", fields))["gaps"]) < 1.0


def test_a_paused_answer_can_be_cancelled(engine: Child) -> None:
    job = engine.generate(STORY, max_tokens=800)
    engine.started(job)
    engine.send({"op": "pause", "id": job}, {"op": "cancel", "id": job}, {"op": "resume", "id": job})
    assert engine.end_of(job)["error"]["code"] == "cancelled"


def test_answers_that_outgrow_the_cache_are_interrupted_and_still_whole() -> None:
    with child(slots=2, n_ctx=768) as engine:
        jobs = [
            engine.generate(
                f"Name colours, {what}.",
                max_tokens=700,
                json_schema=COLOURS,
                sampling={"temperature": 1.0, "seed": seed},
            )
            for seed, what in enumerate(("please", "as many as you can"), 1)
        ]
        for job in jobs:
            done = finished(engine, job)
            assert len(json.loads(engine.text(job))) == 130
            assert delivered(engine, job) == list(done.tokens)
            assert starts(engine, job) == 1
        steps = [{number for number, _ in frame["deltas"]} for frame in engine.frames if frame["ev"] == "step"]
        last = [jobs[-1] in step for step in steps]
        span = last[last.index(True) : len(last) - last[::-1].index(True)]
        assert span.count(False) > 5  # others went on meanwhile


def test_two_long_answers_leave_a_short_one_its_place() -> None:
    with child(slots=4, n_ctx=1024) as engine:
        endless = {"type": "array", "items": {"type": "integer"}, "minItems": 256}
        long = [engine.generate(f"Count from {n}.", max_tokens=900, json_schema=endless) for n in (1, 2)]
        for job in long:
            engine.started(job)
        assert finished(engine, engine.generate("Say A.", max_tokens=4)).usage.completion_tokens > 0
        for job in long:
            engine.send({"op": "cancel", "id": job})
            assert engine.end_of(job)["error"]["code"] == "cancelled"
