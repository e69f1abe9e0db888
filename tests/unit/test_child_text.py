"""Token bytes to text: whole characters, stop strings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnusnode.inference.child.text import TextAssembler, printable


def assemble(pieces: list[bytes], stop: tuple[str, ...] = ()) -> tuple[list[str], TextAssembler]:
    assembler = TextAssembler(stop)
    out: list[str] = []
    for piece in pieces:
        out.append(assembler.feed(piece))
        if assembler.stopped:
            break
    return out, assembler


def test_a_character_is_withheld_until_its_last_byte() -> None:
    raw = "é😀".encode()
    out, _ = assemble([raw[i : i + 1] for i in range(len(raw))])
    assert out == ["", "é", "", "", "", "😀"]


def test_a_character_that_never_ends_becomes_the_replacement_character() -> None:
    out, assembler = assemble([b"a\xf0\x9f"])
    assert [*out, assembler.flush()] == ["a", "\N{REPLACEMENT CHARACTER}"]


@given(st.text(), st.integers(1, 5))
def test_any_split_of_utf8_gives_the_text_back(text: str, width: int) -> None:
    raw = text.encode()
    out, assembler = assemble([raw[i : i + width] for i in range(0, len(raw), width)])
    assert "".join(out) + assembler.flush() == text


@pytest.mark.parametrize(
    ("pieces", "stop", "shown", "stopped"),
    [
        (["Hello", " STOP", " more"], ("STOP",), "Hello ", True),
        (["Hello S", "T", "OP"], ("STOP",), "Hello ", True),
        (["Hello ST", "ART"], ("STOP",), "Hello START", False),
        (["aab"], ("ab",), "a", True),
        (["one\n\n", "User:"], ("\n\nUser:", "###"), "one", True),
        (["ab", "c"], ("bcd", "c"), "ab", True),
        (["ST"], ("STOP",), "ST", False),
    ],
)
def test_text_ends_before_a_stop_string(pieces: list[str], stop: tuple[str, ...], shown: str, stopped: bool) -> None:
    out, assembler = assemble([piece.encode() for piece in pieces], stop)
    assert "".join(out) + assembler.flush() == shown
    assert assembler.stopped is stopped


def test_what_may_begin_a_stop_string_is_withheld() -> None:
    out, _ = assemble([b"Hi S", b"TO", b"RE"], ("STOP",))
    assert out == ["Hi ", "", "STORE"]


@given(st.text(alphabet="abc", max_size=40), st.text(alphabet="abc", min_size=1, max_size=4), st.integers(1, 4))
def test_a_stream_shows_what_the_whole_text_would_show(text: str, stop: str, width: int) -> None:
    out, assembler = assemble([text[i : i + width].encode() for i in range(0, len(text), width)], (stop,))
    assert "".join(out) + assembler.flush() == text.split(stop)[0]
    assert assembler.stopped is (stop in text)


def test_bytes_of_half_a_character_are_spelled_out() -> None:
    assert printable(b"ok \xf0") == "ok \\xf0"
