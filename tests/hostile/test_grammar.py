"""Schemas made to hurt: each ends in a refusal or in a small grammar, quickly."""

from __future__ import annotations

from typing import Any

import pytest

from gnusnode.errors import SchemaRefused
from gnusnode.inference.grammar import MAX_GRAMMAR, compile_schema
from tests.gbnf import compiles


def nested(depth: int, kind: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(depth):
        match kind:
            case "array":
                schema = {"type": "array", "items": schema}
            case "object":
                schema = {"type": "object", "properties": {"a": schema}}
            case _:
                schema = {"anyOf": [schema, {"type": "null"}]}
    return schema


def laughs(levels: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for level in range(1, levels):
        definitions[f"d{level}"] = {"anyOf": [{"$ref": f"#/$defs/d{level - 1}"}] * 10}
    return {"$defs": definitions, "$ref": f"#/$defs/d{levels - 1}"}


REFUSED: dict[str, Any] = {
    "deep arrays": nested(900, "array"),
    "deep objects": nested(9, "object"),
    "deep choices": nested(100, "anyOf"),
    "recursion": {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
    "left recursion": {
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    "self reference": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "root reference": {"type": "array", "items": {"$ref": "#"}},
    "remote reference": {"$ref": "https://169.254.169.254/latest/meta-data"},
    "file reference": {"$ref": "file:///etc/passwd"},
    "pointer into properties": {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
    "exponential references": laughs(8),
    "giant enum": {"enum": [f"value {n}" for n in range(100_000)]},
    "long literal": {"const": "x" * 100_000},
    "many properties": {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(5000)}},
    "long property name": {"type": "object", "properties": {"p" * 5000: {"type": "null"}}},
    "many types": {"type": ["null"] * 1000},
    "regular expression": {"type": "string", "pattern": "^(a+)+$"},
    "pattern properties": {"type": "object", "patternProperties": {"(a+)+": {}}},
    "large minimum": {"type": "string", "minLength": 10**9},
    "large minimum of items": {"type": "array", "items": {}, "minItems": 10**9},
    "repetitions that multiply": {
        "type": "object",
        "properties": {f"p{n}": {"type": "string", "maxLength": 256} for n in range(60)},
    },
    "surrogate": {"const": "\ud800"},
    "not finite": {"const": float("inf")},
    "grammar in a name": {"type": "object", "properties": {"a": {"$ref": '#/$defs/x" | root | "'}}},
    "a list": [1, 2],
    "a text": "root ::= root",
    "a number": 5,
    "false": False,
}

TAKEN: dict[str, Any] = {
    "large maximum": {"type": "string", "maxLength": 10**9},
    "large maximum of items": {"type": "array", "items": {"type": "null"}, "maxItems": 10**9},
    "nested repetitions": {
        "type": "array",
        "maxItems": 256,
        "items": {"type": "array", "maxItems": 256, "items": {"type": "string", "maxLength": 256}},
    },
    "grammar text in literals": {
        "enum": ['" | root | "', "root ::= root", "\\x00", "[^a]*", "{1,99999}", "# comment\n"]
    },
    "grammar text in names": {"type": "object", "properties": {'" root ::= "': {"type": "null"}, "\n": {}}},
    "control characters": {"const": "\x00\x01\x7f\u2028"},
    "optional members": {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(64)}},
    "choices of choices": {"anyOf": [{"anyOf": [{"type": "null"}] * 12}] * 12},
    "any within any": {"type": "array", "items": {"type": "array", "items": {}}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_schema_is_refused(name: str) -> None:
    with pytest.raises(SchemaRefused) as refused:
        compile_schema(REFUSED[name])
    assert len(str(refused.value)) < 600
    assert refused.value.param is not None
    assert len(refused.value.param) <= 200


@pytest.mark.parametrize("name", TAKEN)
def test_a_schema_that_looks_hostile_but_is_not_compiles(name: str) -> None:
    grammar = compile_schema(TAKEN[name])
    assert len(grammar) <= MAX_GRAMMAR
    assert compiles(grammar)
