"""Tainted text never comes out as the user's own, however it is written."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st

from gnusnode.policy.labels import Integrity
from gnusnode.policy.provenance import How, Tracer
from gnusnode.policy.sinks import Sink, SinkKind, ToolDescription
from gnusnode.policy.sources import Source, SourceKind, leaves_of
from gnusnode.policy.wording import fold, layers, links, number_of, skeleton
from tests.property.policy_cases import RESPELL
from tests.unit.policy.cases import page, said

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
plain_texts = st.text("abehkloprstu .@/:%&0159-", min_size=1, max_size=30)
spellings = st.lists(st.sampled_from(RESPELL), min_size=1, max_size=3)
kinds = st.sampled_from(SinkKind)


def trace(kind: SinkKind, value: Any, *sources: Source) -> Any:
    tool = ToolDescription(name="t", capability="tool:t", sinks=(Sink(argument="x", kind=kind),))
    return Tracer(sources).trace(tool, {"x": value})


@given(plain_texts, plain_texts, spellings, kinds)
@example("ok", "o\u212a", [RESPELL[0]], SinkKind.RECIPIENT)
def test_a_respelled_foreign_text_is_the_users_only_if_the_user_wrote_just_that(
    query: str, foreign: str, respell: list[Any], kind: SinkKind
) -> None:
    value = foreign
    for way in respell:
        value = way(value)
    for found in trace(kind, value, said(query), page(foreign)):
        if found.label.integrity is Integrity.QUERY:
            literal = fold(value) in fold(query)
            number = kind is SinkKind.AMOUNT and number_of(value) is not None
            address = kind is SinkKind.URL and fold(value).strip("/").rpartition("://")[2] in fold(query)
            assert literal or number or address


@given(plain_texts, spellings, kinds)
def test_a_foreign_text_that_the_user_never_wrote_is_never_trusted(
    foreign: str, respell: list[Any], kind: SinkKind
) -> None:
    value = foreign
    for way in respell:
        value = way(value)
    for found in trace(kind, value, said("!"), page(foreign)):
        assert found.label.integrity in (Integrity.TAINTED, Integrity.MODEL)
        assert found.how in (How.READ, How.WRITTEN)


@given(st.text("abcdefgh", min_size=8, max_size=20), st.sampled_from(RESPELL))
def test_one_known_spelling_of_a_foreign_text_is_recognised(foreign: str, way: Any) -> None:
    (found,) = trace(SinkKind.RECIPIENT, way(foreign), said("!"), page(foreign))
    assert found.label.integrity is Integrity.TAINTED


@given(texts, st.lists(st.integers(1, 30), max_size=4), kinds)
def test_cutting_a_text_up_makes_no_piece_the_users(text: str, cuts: list[int], kind: SinkKind) -> None:
    bounds = [0, *sorted(cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    for found in trace(kind, pieces, said("!"), page(text)):
        assert found.label.integrity is not Integrity.QUERY or found.value == "!"


@given(texts, texts)
def test_nothing_but_the_query_makes_words_the_users(query: str, other: str) -> None:
    assume(fold(other) not in fold(query))
    for kind in (SourceKind.TOOL, SourceKind.LOWER_TRUST, SourceKind.HIGHER_TRUST):
        source = Source(id="s", kind=kind, text=other)
        for found in trace(SinkKind.BODY, other, said(query), source):
            assert found.label.integrity is not Integrity.QUERY


json_data = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(json_data)
def test_no_value_of_nested_data_goes_unseen(data: Any) -> None:
    found = [t.value for t in trace(SinkKind.BODY, data)]
    for leaf in leaves_of(data):
        if leaf is not None and leaf != "":
            assert (leaf if isinstance(leaf, str) else repr(leaf)) in found


@given(texts)
def test_the_loose_forms_are_total_and_stable(text: str) -> None:
    assert skeleton(skeleton(text)) == skeleton(text)
    assert next(iter(layers(text))) == text
    assert links(text) == links(text)
