"""No operation on labels widens them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gnusnode.policy.labels import Confidentiality, Integrity, Label, Width, join

INTEGRITY = list(Integrity)
LEVELS = list(Confidentiality)
labels = st.builds(
    Label,
    integrity=st.sampled_from(Integrity),
    sources=st.lists(st.sampled_from("abc"), max_size=3).map(tuple),
    confidentiality=st.sampled_from(Confidentiality),
    readers=st.lists(st.sampled_from(["ann", "bob", "eve"]), max_size=3).map(tuple),
)


def is_as_strict(a: Label, b: Label) -> bool:
    """Whether everything that ``a`` allows is allowed by ``b`` too."""
    return (
        INTEGRITY.index(a.integrity) >= INTEGRITY.index(b.integrity)
        and set(a.sources) >= set(b.sources)
        and LEVELS.index(a.confidentiality) >= LEVELS.index(b.confidentiality)
        and all(b.may_be_seen_by(reader) for reader in a.readers)
    )


@given(labels, labels)
def test_what_is_made_of_two_is_as_strict_as_each(a: Label, b: Label) -> None:
    both = a.join(b)
    assert is_as_strict(both, a)
    assert is_as_strict(both, b)


@given(labels, labels, labels)
def test_the_order_of_mixing_does_not_matter(a: Label, b: Label, c: Label) -> None:
    assert a.join(b) == b.join(a)
    assert a.join(b).join(c) == a.join(b.join(c))
    assert a.join(a) == a


@given(
    st.lists(labels, max_size=5), st.sampled_from(Width), st.lists(st.sampled_from(["ann", "bob", "eve"]), max_size=2)
)
def test_a_mixture_flows_only_where_each_part_may(parts: list[Label], width: Width, parties: list[str]) -> None:
    if join(parts).may_flow_to(width, parties):
        assert all(part.may_flow_to(width, parties) for part in parts)


@given(labels, labels, st.sampled_from(Width), st.lists(st.sampled_from(["ann", "bob", "eve"]), max_size=2))
def test_a_stricter_label_flows_nowhere_that_a_looser_one_may_not(
    a: Label, b: Label, width: Width, parties: list[str]
) -> None:
    if is_as_strict(a, b) and a.may_flow_to(width, parties):
        assert b.may_flow_to(width, parties)
