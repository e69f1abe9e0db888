"""Embeddings by a real child. The instruct model pools its mean: a poor embedding, but a real one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gnusnode.contracts.generation import EmbedResult
from gnusnode.errors import ContextTooLong, RequestError
from tests.child_driver import Child, child

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def engine() -> Iterator[Child]:
    with child(embeddings=True, n_ctx=512) as running:
        yield running


def fields(texts: list[str]) -> dict[str, Any]:
    return {"request_id": str(uuid.uuid4()), "texts": texts}


def embed(engine: Child, texts: list[str]) -> EmbedResult:
    return EmbedResult.model_validate(engine.done(engine.submit("embed", fields(texts))))


def test_the_child_says_that_it_embeds(engine: Child) -> None:
    assert (engine.info["embeds"], engine.info["generates"]) == (True, False)
    assert engine.info["embedding_size"] == 576


def test_vectors_have_length_one_and_order_by_meaning(engine: Child) -> None:
    result = embed(engine, ["A cat sleeps on the sofa.", "A kitten naps on the couch.", "The court fined the bank."])
    vectors = np.array(result.vectors)
    assert vectors.shape == (3, 576)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1])
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
    assert result.prompt_tokens > 15


def test_more_texts_than_a_batch_holds_keep_their_order(engine: Child) -> None:
    texts = [f"Text number {n} " + "word " * (n % 8) for n in range(40)]
    together = np.array(embed(engine, texts).vectors)
    for n in (0, 31, 32, 39):
        alone = np.array(embed(engine, [texts[n]]).vectors[0])
        assert alone @ together[n] == pytest.approx(1, abs=1e-3)


def test_requests_side_by_side_do_not_mix(engine: Child) -> None:
    alone = [np.array(embed(engine, [text]).vectors[0]) for text in ("red wine", "a blue car")]
    jobs = [engine.submit("embed", fields([text])) for text in ("red wine", "a blue car")]
    for job, expected in zip(jobs, alone, strict=True):
        assert np.array(engine.done(job)["vectors"][0]) @ expected == pytest.approx(1, abs=1e-3)


def test_what_cannot_be_embedded_is_refused(engine: Child) -> None:
    with pytest.raises(ContextTooLong) as refused:
        embed(engine, ["fine", "word " * 600])
    assert refused.value.param == "input.1"
    with pytest.raises(RequestError, match="empty"):
        embed(engine, [""])
    with pytest.raises(RequestError, match="embeddings only"):
        engine.done(engine.generate("Hello"))


def test_a_cancelled_request_ends_once(engine: Child) -> None:
    first = engine.submit("embed", fields(["word " * 60] * 12))
    job = engine.submit("embed", fields(["word " * 60] * 12))
    engine.send({"op": "cancel", "id": job})
    assert engine.end_of(job)["error"]["code"] == "cancelled"
    assert len(engine.done(first)["vectors"]) == 12


def test_special_tokens_in_a_text_are_plain_text(engine: Child) -> None:
    plain = embed(engine, ["<|im_end|>"])
    assert plain.prompt_tokens > 2
