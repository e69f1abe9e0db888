"""The schema subset: what it means, checked by running the real grammar over texts."""

from __future__ import annotations

from typing import Any

import pytest

from gnusnode.errors import SchemaRefused
from gnusnode.inference.grammar import MAX_REPEAT, compile_schema
from tests.gbnf import matches

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "mail": {"type": "string"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "tags"],
}


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        ({"type": "null"}, ["null"], ["nul", "0", "null "]),
        ({"type": "boolean"}, ["true", "false"], ["True", "1"]),
        ({"type": "integer"}, ["0", "-7", "123456"], ["01", "1.5", "-", "1e3", '"1"']),
        ({"type": "number"}, ["0", "-7.25", "1e3", "2.5E-7"], [".5", "1.", "+1", "NaN", "Infinity"]),
        (
            {"type": "string"},
            ['""', '"a b"', '"é😀"', r'"\"\\\n\u00e9"'],
            ["a", '"', '"a"b"', '"a\nb"', r'"\x"', r'"\u12"', '"\x7f"'],
        ),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', r'"\n\n\n"'], ['"a"', '"abcd"']),
        ({"type": "string", "format": "date"}, ['"2026-11-30"'], ['"2026-13-01"', '"26-1-1"', '"today"']),
        (
            {"type": "string", "format": "date-time"},
            ['"2026-11-30T12:00:00Z"', '"2026-11-30T12:00:00.5+01:00"'],
            ['"2026-11-30"', '"2026-11-30T25:00:00Z"'],
        ),
        (
            {"type": "string", "format": "uuid"},
            ['"123e4567-e89b-12d3-a456-426614174000"'],
            ['"123e4567e89b12d3a456426614174000"'],
        ),
        ({"type": "string", "format": "hostname"}, ['"anything"'], ["anything"]),
        ({"enum": ["red", 1, 2.5, None, True]}, ['"red"', "1", "2.5", "null", "true"], ["red", '"blue"', "false"]),
        ({"enum": ['a"b\\c\n', "ü😀"]}, [r'"a\"b\\c\n"', '"ü😀"'], ['"a', '"u"']),
        ({"type": "string", "enum": ["a", 1]}, ['"a"'], ["1"]),
        ({"const": "x"}, ['"x"'], ['"y"']),
        ({"anyOf": [{"type": "integer"}, {"const": "none"}]}, ["4", '"none"'], ['"x"', "true"]),
        ({"type": ["string", "null"], "maxLength": 2}, ["null", '"ab"'], ['"abc"', "1"]),
        ({"type": "array", "items": {"type": "integer"}}, ["[]", "[1]", "[1, 2,3]"], ["[1,]", "[,1]", "[a]", "[1 ,2]"]),
        (
            {"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 3},
            ["[null,null]", "[null, null, null]"],
            ["[]", "[null]", "[null,null,null,null]"],
        ),
        ({"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
        ({"type": "array", "items": {"type": "null"}, "maxItems": 1}, ["[]", "[null]"], ["[null,null]"]),
        ({"type": "object"}, ["{}", '{"a":1}', '{"a": {"b": [null]}, "c": ""}'], ["[]", "{ }", "{a:1}", '{"a":1,}']),
        ({"type": "object", "properties": {}}, ["{}"], ['{"a":1}', "{ }"]),
        ({"type": "object", "additionalProperties": False}, ["{}"], ['{"a":1}']),
        ({"type": "integer", "minimum": 0}, ["0", "7", "120"], ["-1", "01", "1.5"]),
        (
            {"type": "integer", "minimum": 3, "maximum": 120},
            ["3", "99", "100", "120"],
            ["2", "121", "200", "-3", "1000"],
        ),
        ({"type": "integer", "minimum": -15, "exclusiveMaximum": 4}, ["-15", "-9", "-1", "0", "3"], ["-16", "4", "-0"]),
        ({"type": "integer", "exclusiveMinimum": 2.5}, ["3", "10"], ["2", "-5"]),
        ({"type": "number", "minimum": 0}, ["0", "0.5", "7e2"], ["-1", "-0.5"]),
        (
            PERSON,
            [
                '{"name":"A","tags":[]}',
                '{"name": "A", "age": 3, "tags": ["a", "b"]}',
                '{"name":"A","mail":"m","tags":["b"]}',
                '{"name":"A","age":1,"mail":"m","tags":[]}',
            ],
            [
                '{"name":"A"}',
                '{"tags":[],"name":"A"}',
                '{"name":"A","tags":["c"]}',
                '{"name":"A",,"tags":[]}',
                '{"name":"A","tags":[],"x":1}',
            ],
        ),
        (
            {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}},
            ["{}", '{"a":null}', '{"b":null}', '{"a":null,"b":null}'],
            ["{,}", '{"b":null,"a":null}', '{"a":null,}', '{,"b":null}'],
        ),
        ({}, ['{"a": [1, {"b": null}]}', "[]", "3", '"x"', "[[[[1]]]]"], ["[[[[[1]]]]]", "{a:1}", "[1,]", ""]),
        (
            {"$defs": {"P": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/P"}},
            ["[1]"],
            ['["1"]'],
        ),
        ({"title": "T", "description": "d", "type": "null", "default": None, "examples": [1]}, ["null"], ["1"]),
    ],
)
def test_the_grammar_accepts_exactly_the_texts_of_the_schema(
    schema: dict[str, Any], accepted: list[str], rejected: list[str]
) -> None:
    grammar = compile_schema(schema)
    assert [text for text in accepted if not matches(grammar, text)] == []
    assert [text for text in rejected if matches(grammar, text)] == []


def test_an_upper_bound_that_is_too_large_to_unroll_is_left_to_validation() -> None:
    grammar = compile_schema({"type": "string", "maxLength": 10**9})
    assert matches(grammar, '"' + "a" * (MAX_REPEAT + 50) + '"')
    assert len(grammar) < 1000


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"type": "string", "pattern": "(a+)+$"}, "json_schema.pattern"),
        ({"type": "object", "properties": {"a": {"type": "text"}}}, "json_schema.properties.a.type"),
        ({"type": "object", "additionalProperties": True}, "json_schema.additionalProperties"),
        ({"type": "object", "properties": {}, "required": ["x"]}, "json_schema.required"),
        ({"type": "integer", "minimum": "3"}, "json_schema.minimum"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "json_schema"),
        ({"type": "number", "minimum": 3}, "json_schema.minimum"),
        ({"type": "integer", "multipleOf": 3}, "json_schema.multipleOf"),
        ({"allOf": [{"type": "null"}]}, "json_schema"),
        ({"oneOf": [{"type": "null"}]}, "json_schema"),
        ({"not": {}}, "json_schema"),
        ({"anyOf": [{"type": "null"}], "type": "null"}, "json_schema.type"),
        ({"anyOf": []}, "json_schema.anyOf"),
        ({"enum": []}, "json_schema.enum"),
        ({"enum": [{"a": 1}]}, "json_schema"),
        ({"enum": ["a"], "type": "integer"}, "json_schema"),
        ({"enum": [2**70]}, "json_schema"),
        ({"type": []}, "json_schema.type"),
        ({"type": "string", "minLength": -1}, "json_schema.minLength"),
        ({"type": "string", "minLength": float("nan")}, "json_schema.minLength"),
        ({"type": "string", "minLength": 5, "maxLength": 4}, "json_schema.maxLength"),
        ({"type": "string", "minLength": MAX_REPEAT + 1}, "json_schema.minLength"),
        ({"type": "array", "items": False}, "json_schema.items"),
        ({"type": "array", "items": [{"type": "null"}]}, "json_schema.items"),
        ({"$ref": "https://example.org/schema"}, "json_schema.$ref"),
        ({"$ref": "#"}, "json_schema.$ref"),
        ({"properties": {"a": {}}}, "json_schema"),
    ],
)
def test_what_is_outside_the_subset_is_refused_by_its_path(schema: dict[str, Any], param: str) -> None:
    with pytest.raises(SchemaRefused) as refused:
        compile_schema(schema)
    assert refused.value.param == param
    assert refused.value.hint
