"""Every key of a TOML file is found at the line where it was written, whatever stands around it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnusnode.config import tomlfile
from gnusnode.errors import ConfigError

VALUES = st.sampled_from(
    [
        "1",
        "true",
        '"x"',
        '"#"',
        '"""\n[not]\na = 1\n"""',
        "'''\n# x\n'''",
        "[\n1, # one\n\n2,\n]",
        "{ a = 1 }",
        '"\\u2028"',
    ]
)
NOISE = st.lists(st.sampled_from(["", "# a = 1", "   ", "#[x]"]), max_size=3)
TABLES = st.lists(
    st.tuples(NOISE, st.booleans(), st.lists(st.tuples(NOISE, VALUES), max_size=4)), min_size=1, max_size=4
)


@given(TABLES)
def test_lines_are_those_of_the_text(tables: list[tuple[list[str], bool, list[tuple[list[str], str]]]]) -> None:
    text: list[str] = []
    expected: dict[tuple[str | int, ...], int] = {}
    many = 0

    def write(statement: str) -> int:
        begin = sum(line.count("\n") + 1 for line in text) + 1
        text.append(statement)
        return begin

    for index, (noise, is_array, entries) in enumerate(tables):
        text.extend(noise)
        table = ("a", "many", many) if is_array else ("a", f"t{index}")
        expected[table] = write("[[a.many]] # here" if is_array else f"[a.t{index}]")
        many += is_array
        for number, (between, value) in enumerate(entries):
            text.extend(between)
            expected[*table, f"k{number}"] = write(f"  k{number} = {value}")
    found = tomlfile.parse("\n".join(text), Path("x.toml")).lines
    assert {key: found.get(key) for key in expected} == expected


def test_keys_of_tables_inside_an_array_belong_to_its_last_element() -> None:
    text = "[[a]]\n[a.b]\nx = 1\n[[a]]\n[a.b]\nx = 2\ny.z = 3\n"
    lines = tomlfile.parse(text, Path("x.toml")).lines
    assert lines["a", 0, "b", "x"] == 3
    assert lines["a", 1, "b", "x"] == 6
    assert lines["a", 1, "b", "y", "z"] == 7


def test_what_has_no_line_of_its_own_is_found_at_its_table() -> None:
    file = tomlfile.parse("\n[a]\nb = [1,\n2]\n", Path("x.toml"))
    assert file.origin(("a", "b", 1)) == "x.toml:3"
    assert file.origin(("a", "c")) == "x.toml:2"
    assert file.origin(("z",)) == "x.toml"


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused_with_its_line(text: str) -> None:
    try:
        tomlfile.parse(text, Path("x.toml"))
    except ConfigError as error:
        line = int((error.where or "").removeprefix("x.toml:"))
        assert 1 <= line <= text.count("\n") + 1


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_both_kinds_of_line_ends_count(end: str) -> None:
    text = end.join(["[a]", 'b = """', "x", '"""', "c = 1"])
    assert tomlfile.parse(text, Path("x.toml")).lines["a", "c"] == 5
