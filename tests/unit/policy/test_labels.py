"""Who may see what, and what becomes of labels when data is mixed."""

from __future__ import annotations

from gnusnode.policy.labels import Confidentiality, Integrity, Label, Width, join


def tainted(source: str, level: Confidentiality = Confidentiality.PUBLIC) -> Label:
    return Label(integrity=Integrity.TAINTED, sources=(source,), confidentiality=level)


def test_a_mixture_is_as_bad_as_its_worst_part() -> None:
    mixed = join([Label(integrity=Integrity.QUERY), tainted("b", Confidentiality.INTERNAL), tainted("a")])
    assert mixed == Label(integrity=Integrity.TAINTED, sources=("a", "b"), confidentiality=Confidentiality.INTERNAL)


def test_of_nothing_only_the_users_own_can_be_made() -> None:
    assert join([]) == Label(integrity=Integrity.QUERY)


def test_each_level_stays_within_its_circle() -> None:
    widest = {
        Confidentiality.PUBLIC: Width.PUBLIC,
        Confidentiality.INTERNAL: Width.MEMBERS,
        Confidentiality.PRIVATE: Width.OWN,
        Confidentiality.SECRET: None,
    }
    order = list(Width)
    for level, last in widest.items():
        label = Label(integrity=Integrity.QUERY, confidentiality=level)
        allowed = [width for width in order if label.may_flow_to(width)]
        assert allowed == (order[: order.index(last) + 1] if last else [])


def test_a_named_reader_may_see_private_data_and_nobody_else_with_him() -> None:
    label = Label(integrity=Integrity.QUERY, confidentiality=Confidentiality.PRIVATE, readers=("ann@x.org",))
    assert label.may_flow_to(Width.THIRD_PARTY, ["ann@x.org"])
    assert not label.may_flow_to(Width.THIRD_PARTY, ["ann@x.org", "eve@x.org"])
    assert not label.may_flow_to(Width.THIRD_PARTY)
    assert not label.may_flow_to(Width.PUBLIC, ["ann@x.org"])


def test_readers_of_a_mixture_are_those_of_all_its_parts() -> None:
    a = Label(integrity=Integrity.QUERY, confidentiality=Confidentiality.PRIVATE, readers=("ann", "bob"))
    b = a.model_copy(update={"readers": ("bob", "eve")})
    assert a.join(b).readers == ("bob",)
    assert a.join(tainted("page")).readers == ("ann", "bob")


def test_a_secret_is_for_nobody_whoever_is_named() -> None:
    label = Label(integrity=Integrity.QUERY, confidentiality=Confidentiality.SECRET, readers=("ann",))
    assert not label.may_flow_to(Width.OWN, ["ann"])
