"""Tool proposals and confidence: the pure parts of an expert."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnusnode.contracts.generation import MAX_LABELS, GenerateRequest, Message, Prompt
from gnusnode.contracts.services import ToolSpec
from gnusnode.errors import RequestError, SchemaRefused, UnsupportedField
from roles.answers import MAX_ANSWER, packaged
from roles.experts import tools
from roles.experts.confidence import confidence
from tests.fakes.world import task

WEATHER = ToolSpec(
    name="get_weather",
    description="Current weather\nof a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
TIME = ToolSpec(name="get_time", description="Time in a zone.")


def request(*messages: Message, **fields: object) -> GenerateRequest:
    return task(messages=messages or (Message(role="user", content="How warm is it in Rome?"),), **fields).generation  # type: ignore[arg-type]  # test data


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("auto", ["get_weather", "get_time"]),
        ("required", ["get_weather", "get_time"]),
        ("none", []),
        ("get_time", ["get_time"]),
    ],
)
def test_tool_choice_says_which_tools_are_offered(choice: str, names: list[str]):
    assert [tool.name for tool in tools.offered((WEATHER, TIME), choice)] == names


@pytest.mark.parametrize(("given_tools", "choice"), [((WEATHER,), "get_money"), ((), "required")])
def test_a_choice_that_nothing_offered_can_meet_is_refused(given_tools: tuple[ToolSpec, ...], choice: str):
    with pytest.raises(RequestError) as caught:
        tools.offered(given_tools, choice)
    assert caught.value.param == "tool_choice"


def test_tools_need_messages():
    text = GenerateRequest(request_id=request().request_id, prompt=Prompt(text="hi"), max_tokens=1)
    with pytest.raises(UnsupportedField):
        tools.messages_of(text)


def test_the_choice_is_scored_over_names_with_none_only_where_declining_is_allowed():
    free = tools.choice_request(request(), (WEATHER, TIME), may_decline=True)
    assert free is not None
    assert free.labels == (" get_weather", " get_time", " none")
    assert "Current weather of a city." in free.instruction
    assert free.text == "How warm is it in Rome?"
    assert free.calibrate
    forced = tools.choice_request(request(), (WEATHER, TIME), may_decline=False)
    assert forced is not None
    assert forced.labels == (" get_weather", " get_time")
    assert tools.choice_request(request(), (WEATHER,), may_decline=False) is None


def test_the_choice_looks_at_the_last_question_and_at_what_tools_said_since():
    conversation = (
        Message(role="user", content="old"),
        Message(role="assistant", content="answer"),
        Message(role="user", content="And in Oslo?"),
        Message(role="tool", content="4 degrees" + "x" * 5000),
    )
    scoring = tools.choice_request(request(*conversation), (WEATHER,), may_decline=True)
    assert scoring is not None
    assert scoring.text.startswith("And in Oslo?\nAlready known: 4 degrees")
    assert "old" not in scoring.text
    assert len(scoring.text) < 2100


def test_more_tools_than_labels_are_cut_to_those_that_the_request_speaks_of():
    many = (*(ToolSpec(name=f"tool_{number}") for number in range(60)), WEATHER)
    asked = (Message(role="user", content="what is the weather"),)
    short = tools.shortlist(many, asked, may_decline=True)
    assert len(short) == MAX_LABELS - 1
    assert WEATHER in short
    assert tools.shortlist((TIME, WEATHER), asked, may_decline=True) == (TIME, WEATHER)


def test_arguments_are_constrained_and_keep_the_conversation_as_prefix():
    system = Message(role="system", content="Be brief.")
    asked = request(system, Message(role="user", content="How warm is it in Rome?"), stop=("\n",), top_logprobs=3)
    made = tools.arguments_request(asked, WEATHER, 5000)
    assert made.json_schema == WEATHER.parameters
    assert made.max_tokens == tools.MAX_ARGUMENT_TOKENS
    assert (made.stop, made.top_logprobs) == ((), None)
    messages = tools.messages_of(made)
    assert messages[0] == system
    assert messages[1].content.startswith("How warm is it in Rome?")
    assert "get_weather" in messages[1].content
    after_tool = request(Message(role="user", content="q"), Message(role="tool", content="r"))
    assert [m.role for m in tools.messages_of(tools.arguments_request(after_tool, WEATHER, 9))] == [
        "user",
        "tool",
        "user",
    ]


def test_a_proposal_carries_the_arguments_and_the_reason():
    made = tools.proposal(WEATHER, '{"city": "Rome"}', "because")
    assert made is not None
    assert (made.tool_name, made.arguments, made.reason) == ("get_weather", {"city": "Rome"}, "because")
    again = tools.proposal(WEATHER, '{"city": "Rome"}', "because")
    assert again is not None
    assert again.tool_call_id != made.tool_call_id


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"city": "Ro',
        "[1]",
        '"text"',
        '{"a": NaN}',
        '{"a": Infinity}',
        "[" * 5000,
        '{"a":' * 40 + "1" + "}" * 40,
    ],
)
def test_what_is_not_a_bounded_json_object_is_no_proposal(text: str):
    assert tools.proposal(WEATHER, text, "") is None


@given(st.text())
def test_no_text_makes_the_parser_of_arguments_fail(text: str):
    tools.proposal(WEATHER, text, "")


def test_a_tool_without_parameters_needs_no_generation():
    assert tools.takes_no_arguments(TIME)
    assert not tools.takes_no_arguments(WEATHER)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"type": "object"},
        {"type": "object", "properties": {}, "required": []},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "additionalProperties": False},
        {"title": "Arguments", "description": "none", "$defs": {}},
    ],
)
def test_a_schema_that_asks_for_nothing_is_offered_and_needs_no_generation(parameters: dict[str, Any]):
    tool = ToolSpec(name="x", parameters=parameters)
    tools.check_parameters(0, tool)
    assert tools.takes_no_arguments(tool)


CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(
    "parameters",
    [
        {"$ref": "#/$defs/City", "$defs": {"City": CITY}},
        {"anyOf": [CITY, {"type": "object", "properties": {"place": {"type": "string"}}}]},
        {"type": ["object", "null"], "properties": {"city": {"type": "string"}}},
    ],
)
def test_a_schema_that_asks_by_reference_or_choice_needs_a_generation(parameters: dict[str, Any]):
    tool = ToolSpec(name="x", parameters=parameters)
    tools.check_parameters(0, tool)
    assert not tools.takes_no_arguments(tool)


REFUSED: dict[str, dict[str, Any]] = {
    "a reference to elsewhere": {"$ref": "https://example.org/city.json"},
    "a reference to itself": {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}},
    "all of": {"allOf": [CITY]},
    "one of": {"oneOf": [CITY]},
    "conditions": {"type": "object", "if": CITY, "then": CITY},
    "names by pattern": {"type": "object", "patternProperties": {"^a": {"type": "string"}}},
    "any further names": {"type": "object", "additionalProperties": True},
    "names that are required only": {"type": "object", "required": ["city"]},
    "a pattern": {"type": "object", "properties": {"city": {"type": "string", "pattern": "^a"}}},
    "no type": {"properties": {"city": {"type": "string"}}},
    "properties that are a list": {"type": "object", "properties": []},
    "a text": {"type": "string"},
    "a list": {"type": "array"},
    "one of two values": {"enum": ["a", "b"]},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_cannot_be_generated_is_refused_by_place(name: str):
    with pytest.raises(SchemaRefused) as refused:
        tools.check_parameters(1, ToolSpec(name="x", parameters=REFUSED[name]))
    assert refused.value.param == "tools.1.function.parameters"
    assert "'x'" in refused.value.what


@pytest.mark.requirement("G-EX-1")
def test_confidence_is_measured_and_its_spread_said():
    assert confidence(math.log(0.8)).value == pytest.approx(0.8)
    assert confidence(math.log(0.8)).uncertainty is None
    both = confidence(math.log(0.8), 0.5)
    assert (both.value, both.uncertainty) == (pytest.approx(0.4), pytest.approx(0.3))
    assert confidence(None, 0.6).value == pytest.approx(0.6)
    unknown = confidence(None)
    assert (unknown.value, unknown.uncertainty) == (0.0, 1.0)


@given(st.none() | st.floats(-1e6, 1e6), st.none() | st.floats(-2, 2))
def test_confidence_stays_between_0_and_1(logprob: float | None, label: float | None):
    found = confidence(logprob, label)
    assert 0 <= found.value <= 1
    assert found.uncertainty is None or 0 <= found.uncertainty <= 1


def test_an_answer_too_long_for_a_package_stands_there_by_digest():
    assert packaged("short") == "short"
    long = packaged("x" * (MAX_ANSWER + 1))
    assert isinstance(long, dict)
    assert long["characters"] == MAX_ANSWER + 1
    assert long["sha256"].startswith("sha256:")
