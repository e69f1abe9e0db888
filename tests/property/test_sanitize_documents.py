"""Documents under any bytes: only ``Refused`` is ever raised, and hidden text never reaches what is passed on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnusnode.sanitize.document import extract
from gnusnode.sanitize.extract import Extract, Refused
from gnusnode.sanitize.headers import clean_headers
from gnusnode.sanitize.html import extract_html
from gnusnode.sanitize.htmldepth import check_depth
from gnusnode.sanitize.text import scrub
from tests.unit.sanitize import media

SECRET = "hush-hush-hush"
SAMPLES = [
    media.png(media.chunk(b"tEXt", b"Comment\0words")),
    media.jpeg(media.segment(0xFE, b"words")),
    media.gif(b"\x21\xfe" + media.blocks(b"words")),
    media.webp((b"XMP ", b"words")),
    media.wav((b"LIST", b"INFO")),
    media.mp3(media.frame(b"TIT2", b"\0words")),
    media.flac(b"words"),
    media.atom(b"ftyp", b"M4A ") + media.atom(b"moov", b"words"),
    b"<!doctype html><style>.a{display:none}</style><p class=a>x<b style='color:red'>y",
]

TAGS = st.sampled_from(
    ["div", "p", "b", "span", "table", "tr", "td", "a", "svg", "text", "style", "script", "template", "select",
     "option", "details", "summary", "math", "title", "noscript", "textarea", "frameset", "form", "h1"]
)  # fmt: skip
VALUES = st.sampled_from(
    ["none", "block", "0", "1px", "-9999px", "50%", "calc(1px + 2em)", "var(--a)", "#fff", "red", "hidden", "absolute",
     "rect(0,0,0,0)", "inset(50%)", "scale(0)", "url(x)", "1e999px", "nan", "rgb(1 2)", "!important", "inherit", "a"]
)  # fmt: skip
NAMES = st.sampled_from(
    ["display", "visibility", "opacity", "color", "background", "font-size", "font", "position", "left", "margin",
     "clip", "clip-path", "transform", "overflow", "height", "--a", "filter", "animation", "z-index", "text-indent"]
)  # fmt: skip
STYLES = st.lists(st.tuples(NAMES, VALUES).map(":".join), max_size=6).map(";".join)
SELECTORS = st.sampled_from(
    ["*", "div", ".a", "#b", "p > b", "a ~ b", ":not(.a)", ":is(", ":has(b)", ":nth-child(2n+1)", "[x^=y]", "::before",
     "&", "", "div:hover", ":nth-child(", ":where(*, p) b", "@media screen", "@layer x"]
)  # fmt: skip
SHEETS = st.lists(st.tuples(SELECTORS, STYLES).map(lambda rule: f"{rule[0]}{{{rule[1]}}}"), max_size=5).map("".join)


@st.composite
def markup(draw: st.DrawFn) -> str:
    """Something like a page: random elements, mostly not closed as they should be."""
    parts = [f"<style>{draw(SHEETS)}</style>"]
    for _ in range(draw(st.integers(0, 12))):
        tag, style = draw(TAGS), draw(STYLES)
        parts.append(
            draw(st.sampled_from([f'<{tag} style="{style}" class=a>', f"</{tag}>", "words", "<!-- x -->", "<"]))
        )
    return "".join(parts)


def total(data: bytes, declared: str = "") -> Extract | None:
    """The extract, or None for a refusal; anything else that is raised fails the test."""
    try:
        return extract(data, declared)
    except Refused:
        return None


@given(st.binary(max_size=400), st.sampled_from(["", "text/html", "image/png", "audio/mpeg", "x/y", "text/plain"]))
def test_no_bytes_raise_anything_but_a_refusal(data: bytes, declared: str) -> None:
    if b"%PDF-" not in data:
        total(data, declared)


@given(st.binary(max_size=400))
def test_no_bytes_break_the_reading_of_a_page(data: bytes) -> None:
    found = extract_html(data)
    assert isinstance(found.text, str)


@given(
    st.sampled_from(SAMPLES), st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=8)), max_size=6)
)
def test_damaged_files_are_read_or_refused(sample: bytes, damage: list[tuple[int, bytes]]) -> None:
    data = bytearray(sample)
    for at, patch in damage:
        data[at : at + len(patch)] = patch
    total(bytes(data))


@given(st.sampled_from(SAMPLES), st.integers(0, 400))
def test_files_that_are_cut_off_are_read_or_refused(sample: bytes, length: int) -> None:
    total(sample[:length])


@settings(max_examples=200)
@given(markup())
def test_any_markup_and_any_style_is_read_without_a_fault(page: str) -> None:
    assert isinstance(extract_html(page.encode()).text, str)


@settings(max_examples=200)
@given(markup(), st.sampled_from(["display:none", "visibility:hidden", "opacity:0", "font-size:0"]))
def test_hidden_text_stays_hidden_whatever_stands_before_it(before: str, style: str) -> None:
    ends = "></title></textarea></script></style></template></select></noscript></svg></math>"
    page = f'<!doctype html><body>{before}{ends}<p style="{style} !important">{SECRET}</p>'
    assert SECRET not in extract_html(page.encode()).text


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200))
def test_plain_text_survives_a_page_but_for_blanks(text: str) -> None:
    clean = " ".join(text.replace("\0", "").split())
    escaped = clean.replace("&", "&amp;").replace("<", "&lt;")
    found = extract_html(f"<!doctype html><meta charset=utf-8><p>{escaped}</p>".encode())
    # Blanks of other scripts stay as they are; those of HTML collapse.
    assert "".join(found.text.split()) == "".join(clean.split())


@given(st.lists(st.sampled_from(["<div>", "</div>", "<p>", "<b a='>'>", "<!--", "-->", "<style>", "</style>", "<br>"])))
def test_depth_is_judged_without_a_fault(parts: list[str]) -> None:
    check_depth("".join(parts))


@pytest.mark.parametrize(
    "trick", ["<div title='</div>'>", "<div><!--</div>-->", "<div><style></div></style>", "<div></x>"]
)
def test_no_trick_hides_how_deep_a_page_is(trick: str) -> None:
    with pytest.raises(Refused):
        check_depth(trick * 2000)


@given(st.lists(st.tuples(st.text(max_size=40), st.text(max_size=80)), max_size=8))
def test_headers_never_grow_and_never_raise(headers: list[tuple[str, str]]) -> None:
    found = clean_headers(headers, scrub)
    assert sum(map(len, found.kept.values())) <= sum(len(value) for _, value in headers)
