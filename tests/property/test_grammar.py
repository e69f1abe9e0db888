"""Any schema of the subset gives a grammar that the native parser takes, and that its own examples satisfy."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st

from gnusnode.errors import SchemaRefused
from gnusnode.inference.grammar import MAX_GRAMMAR, compile_schema
from tests.gbnf import compiles, matches

# Printable, so that one spelling of a text in JSON is enough.
TEXT = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=6)
SCALARS = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | TEXT
Example = tuple[dict[str, Any], Any]


@st.composite
def scalars(draw: st.DrawFn) -> Example:
    kind = draw(st.sampled_from(["string", "integer", "boolean", "null", "number", "enum", "const"]))
    match kind:
        case "string":
            text = draw(TEXT)
            least, most = draw(st.integers(0, len(text))), draw(st.integers(len(text), 300))
            return {"type": "string", "minLength": least, "maxLength": most}, text
        case "integer":
            return {"type": draw(st.sampled_from(["integer", ["null", "integer"]]))}, draw(st.integers(-999, 999))
        case "number":
            return {"type": "number"}, draw(st.integers(-99, 99)) / 4
        case "boolean":
            return {"type": "boolean"}, draw(st.booleans())
        case "null":
            return {"type": "null"}, None
        case "enum":
            values = draw(st.lists(SCALARS, min_size=1, max_size=5))
            return {"enum": values}, draw(st.sampled_from(values))
        case _:
            value = draw(SCALARS)
            return {"const": value}, value


def extend(children: st.SearchStrategy[Example]) -> st.SearchStrategy[Example]:
    @st.composite
    def arrays(draw: st.DrawFn) -> Example:
        schema, example = draw(children)
        count = draw(st.integers(0, 3))
        bounds = {"minItems": draw(st.integers(0, count)), "maxItems": draw(st.integers(count, 9))}
        return {"type": "array", "items": schema, **bounds}, [example] * count

    @st.composite
    def objects(draw: st.DrawFn) -> Example:
        members = draw(st.dictionaries(TEXT, children, max_size=4))
        given = {name for name in members if draw(st.booleans())}
        required = [name for name in members if name in given and draw(st.booleans())]
        schema = {"type": "object", "properties": {n: s for n, (s, _) in members.items()}, "required": required}
        return schema, {name: value for name, (_, value) in members.items() if name in given}

    @st.composite
    def choices(draw: st.DrawFn) -> Example:
        options = draw(st.lists(children, min_size=1, max_size=3))
        return {"anyOf": [schema for schema, _ in options]}, draw(st.sampled_from(options))[1]

    @st.composite
    def references(draw: st.DrawFn) -> Example:
        schema, example = draw(children)
        return {**schema, "description": "a note"}, example

    return st.one_of(arrays(), objects(), choices(), references())


SCHEMAS = st.recursive(scalars(), extend, max_leaves=8)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "enum", "const", "anyOf", "$ref", "$defs", "required", "maxLength"]
            )
            | st.text(max_size=5),
            inner
            | st.sampled_from(["object", "array", "string", "integer", "#/$defs/a"])
            | st.lists(st.sampled_from(["object", "string", "null"]), max_size=3),
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(SCHEMAS)
@settings(max_examples=150)
def test_an_example_of_a_schema_is_a_sentence_of_its_grammar(example: Example) -> None:
    schema, value = example
    jsonschema.validate(value, schema)
    grammar = compile_schema(schema)
    assert matches(grammar, json.dumps(value, ensure_ascii=False))
    assert matches(grammar, json.dumps(value, ensure_ascii=False, separators=(",", ":")))


@given(JUNK)
@settings(max_examples=300)
def test_whatever_is_given_is_refused_or_compiles(junk: Any) -> None:
    try:
        grammar = compile_schema(junk)
    except SchemaRefused:
        return
    assert len(grammar) <= MAX_GRAMMAR * 2
    assert compiles(grammar)
