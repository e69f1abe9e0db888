"""What every engine keeps, whatever it is: scripted, remote, or llama.cpp with a real model."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from gnusnode.contracts.generation import (
    ClassifyRequest,
    Delta,
    Done,
    EmbedRequest,
    GenerateRequest,
    Message,
    Prompt,
    ScoreRequest,
    Started,
)
from gnusnode.errors import ContextTooLong, DeadlineExceeded, RequestError, UnsupportedField
from gnusnode.inference.engine import Engine
from gnusnode.inference.frames import ChildSpec
from gnusnode.inference.process import open_llama
from gnusnode.inference.remote import open_remote
from gnusnode.inference.scripted import Rule, ScriptedEngine
from tests.fakes.engines import ARTIFACT, collect, real_model, request_id
from tests.fakes.openai_server import scripted, serve

LONG = "Write a long story about the sea."
RULES = (
    Rule(match="sea", answer=" ".join(f"word{index}" for index in range(400)), token_delay=0.01),
    Rule(match="", answer="The capital of France is Paris."),
)
PATIENCE = 60.0


@pytest.fixture(params=["scripted", "remote", pytest.param("llama", marks=pytest.mark.model)])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    script = ScriptedEngine("script", RULES, fixture=True, n_ctx=1024)
    if request.param == "scripted":
        yield script
    elif request.param == "remote":
        async with serve(scripted(script)) as url, open_remote("far", url=url, model="script") as remote:
            yield remote
    else:
        spec = ChildSpec(
            model_path=str(real_model()), model_name="smollm2", artifact_hash=ARTIFACT, n_ctx=1024, slots=4, threads=1
        )
        async with open_llama(spec) as llama:
            yield llama


def ask(text: str = "What is the capital of France?", **fields: object) -> GenerateRequest:
    prompt = Prompt(messages=(Message(role="user", content=text),))
    return GenerateRequest.model_validate({"request_id": request_id(), "prompt": prompt, "max_tokens": 12, **fields})


async def test_a_generation_is_started_then_deltas_then_done_and_no_more(engine: Engine) -> None:
    async with engine.generate(ask()) as events:
        seen = [event async for event in events]
        assert [event async for event in events] == []
    assert isinstance(seen[0], Started)
    assert isinstance(seen[-1], Done)
    assert all(isinstance(event, Delta) for event in seen[1:-1])
    assert "".join(event.text for event in seen if isinstance(event, Delta)).strip()


async def test_the_same_request_gives_the_same_text(engine: Engine) -> None:
    texts = []
    for _ in range(2):
        _, deltas, _ = await collect(engine, ask())
        texts.append("".join(delta.text for delta in deltas))
    assert texts[0] == texts[1]


async def test_max_tokens_is_a_hard_limit_and_named_as_the_reason(engine: Engine) -> None:
    _, _, done = await collect(engine, ask(LONG, max_tokens=5))
    assert done.finish_reason == "length"
    assert done.usage.completion_tokens == 5
    assert done.usage.prompt_tokens > 0


async def test_log_probabilities_come_when_asked_for(engine: Engine) -> None:
    _, deltas, done = await collect(engine, ask(max_tokens=4, top_logprobs=2))
    logprobs = [item for delta in deltas for item in delta.logprobs]
    assert logprobs
    assert all(item.logprob <= 0 and len(item.top) == 2 for item in logprobs)
    assert done.mean_logprob is not None
    assert done.mean_logprob <= 0


async def test_streams_run_side_by_side(engine: Engine) -> None:
    both_begun = trio.Event()
    begun = 0

    async def one() -> None:
        nonlocal begun
        async with engine.generate(ask(LONG, max_tokens=200)) as events:
            await anext(events)
            await anext(events)
            begun += 1
            if begun == 2:
                both_begun.set()
            await both_begun.wait()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            nursery.start_soon(one)


async def test_a_stream_can_be_left_and_the_engine_serves_on(engine: Engine) -> None:
    with trio.fail_after(PATIENCE):
        async with engine.generate(ask(LONG, max_tokens=300)) as events:
            await anext(events)
            await anext(events)
        _, _, done = await collect(engine, ask(max_tokens=3))
    assert done.usage.completion_tokens == 3


async def test_a_stream_that_is_cancelled_leaves_the_engine_whole(engine: Engine) -> None:
    with trio.fail_after(PATIENCE):
        with trio.CancelScope() as scope:
            async with engine.generate(ask(LONG, max_tokens=300)) as events:
                async for _ in events:
                    scope.cancel()
        assert scope.cancelled_caught
        await collect(engine, ask(max_tokens=3))


async def test_a_deadline_is_kept(engine: Engine) -> None:
    with trio.fail_after(PATIENCE), pytest.raises(DeadlineExceeded):
        await collect(engine, ask(LONG, max_tokens=400, deadline_ms=300))


async def test_a_prompt_that_does_not_fit_is_refused_as_such(engine: Engine) -> None:
    with pytest.raises(ContextTooLong):
        await collect(engine, ask("word " * 2000))


async def test_it_says_what_it_is(engine: Engine) -> None:
    info = engine.info()
    assert isinstance(engine, Engine)
    assert info.model in ("script", "far", "smollm2")
    assert info.artifact_hash.startswith("sha256:")


async def test_labels_are_weighed_or_refused_by_name(engine: Engine) -> None:
    request = ClassifyRequest(
        request_id=request_id(),
        instruction="Is the text about sport or weather?\n\n",
        text="It will rain tomorrow.",
        suffix="\nTopic:",
        labels=(" sport", " weather"),
    )
    if engine.info().device == "remote":
        with pytest.raises(UnsupportedField):
            await engine.classify(request)
        return
    result = await engine.classify(request)
    assert result.label in request.labels
    assert sum(result.probabilities) == pytest.approx(1.0)
    assert result.margin >= 0


async def test_an_honest_answer_scores_better_than_another_or_scores_are_refused(engine: Engine) -> None:
    started, _, done = await collect(engine, ask(max_tokens=5))
    if engine.info().device == "remote":
        with pytest.raises(UnsupportedField):
            await engine.score(ScoreRequest(request_id=request_id(), prompt_tokens=(1,), answer_tokens=(1,)))
        return
    honest = ScoreRequest(request_id=request_id(), prompt_tokens=started.prompt_tokens, answer_tokens=done.tokens)
    false = honest.model_copy(update={"request_id": request_id(), "answer_tokens": tuple(reversed(done.tokens))})
    assert (await engine.score(honest)).argmax_match > (await engine.score(false)).argmax_match
    assert (await engine.score(honest)).argmax_match >= 0.9


async def test_vectors_are_normalised_or_refused_by_name(engine: Engine) -> None:
    request = EmbedRequest(request_id=request_id(), texts=("the sea", "the sea", "a tax form"))
    if engine.info().device == "cpu":  # a child loaded for text gives no vectors: another child does
        with pytest.raises(RequestError, match="embed"):
            await engine.embed(request)
        return
    result = await engine.embed(request)
    first, same, other = result.vectors
    assert first == same != other
    assert sum(value * value for value in first) == pytest.approx(1.0)
