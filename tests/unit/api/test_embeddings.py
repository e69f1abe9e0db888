"""``/v1/embeddings``."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from gnusnode.errors import Overloaded
from tests.unit.api.scripted import ScriptedNode
from tests.unit.api.serving import client_of


async def ask(node: ScriptedNode, fields: dict[str, Any]) -> Any:
    async with client_of(node) as client:
        return await client.post("/v1/embeddings", json={"model": "gnus/embed", **fields})


async def test_every_text_gets_its_vector_in_order(node: ScriptedNode) -> None:
    body = (await ask(node, {"input": ["a", "bb"]})).json()
    assert body["object"] == "list"
    assert body["model"] == "gnus/embed"
    assert [(item["object"], item["index"]) for item in body["data"]] == [("embedding", 0), ("embedding", 1)]
    assert [item["embedding"] for item in body["data"]] == [[0.6, 0.8, 1.0], [0.6, 0.8, 2.0]]
    assert body["usage"] == {"prompt_tokens": 7, "total_tokens": 7}


async def test_base64_is_float32_little_endian(node: ScriptedNode) -> None:
    (item,) = (await ask(node, {"input": "abc", "encoding_format": "base64"})).json()["data"]
    assert struct.unpack("<3f", base64.b64decode(item["embedding"])) == pytest.approx((0.6, 0.8, 3.0))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [1, 2]}, "input"),
        ({"input": [[1], [2]]}, "input"),
        ({"input": "a" * 1_000_001}, "input"),
        ({"input": ["a", "a" * 1_000_001]}, "input.1"),
        ({"input": "a", "dimensions": 2}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
async def test_what_is_not_possible_is_refused_by_name(node: ScriptedNode, fields: dict[str, Any], param: str) -> None:
    answer = await ask(node, fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_the_size_that_the_model_has_may_be_asked_for(node: ScriptedNode) -> None:
    assert (await ask(node, {"input": "a", "dimensions": 3})).status_code == 200


async def test_a_refusal_of_the_node_is_passed_on(node: ScriptedNode) -> None:
    node.embed_error = Overloaded("full", retry_after=4)
    answer = await ask(node, {"input": "a"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "4"


async def test_a_model_that_does_not_embed_is_not_found(node: ScriptedNode) -> None:
    answer = await ask(node, {"input": "a", "model": "gnus"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
