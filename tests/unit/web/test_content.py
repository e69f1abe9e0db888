"""Declared types against first bytes, and the bounded decoder."""

from __future__ import annotations

import gzip
import zlib

import pytest

from gnusnode.web.content import PAGE_TYPES, TEXT_TYPES, actual_type, declared_type
from gnusnode.web.decoding import decoder_for
from gnusnode.web.refusals import Reason, WebRefused


@pytest.mark.parametrize(
    ("header", "media", "charset"),
    [
        ("text/html", "text/html", None),
        (" Text/HTML ; charset=UTF-8", "text/html", "utf-8"),
        ('text/plain;charset="iso-8859-1"', "text/plain", "iso-8859-1"),
        ("application/json; profile=x", "application/json", None),
    ],
)
def test_a_header_gives_type_and_character_set(header: str, media: str, charset: str | None) -> None:
    assert declared_type(header, TEXT_TYPES, "x") == (media, charset)


@pytest.mark.parametrize("header", ["", "text", "image/png", "text/html, text/plain", "text/html\n", "*/*", "x" * 500])
def test_a_header_that_names_no_accepted_type_is_refused(header: str) -> None:
    if header == "text/html\n":
        assert declared_type(header, TEXT_TYPES, "x")[0] == "text/html"
        return
    with pytest.raises(WebRefused) as caught:
        declared_type(header, TEXT_TYPES, "x")
    assert caught.value.reason is Reason.CONTENT_TYPE


@pytest.mark.parametrize(
    ("declared", "head", "actual"),
    [
        ("text/plain", b"just words", "text/plain"),
        ("text/plain", b"  \n<!DOCTYPE html><p>", "text/html"),
        ("text/plain", b"\xef\xbb\xbf<html>", "text/html"),
        ("application/json", b"<script>alert(1)</script>", "text/html"),
        ("text/markdown", b"<iframe src=x>", "text/html"),
        ("application/xhtml+xml", b"<html>", "application/xhtml+xml"),
        ("application/pdf", b"%PDF-1.7\n\0", "application/pdf"),
        ("text/plain", b"\xff\xfea\0b\0", "text/plain"),
        ("text/plain", b"", "text/plain"),
    ],
)
def test_the_bytes_decide_towards_the_stricter_reading(declared: str, head: bytes, actual: str) -> None:
    assert actual_type(declared, head, "x") == actual


@pytest.mark.parametrize(
    ("declared", "head"),
    [
        ("text/html", b"%PDF-1.7"),
        ("text/plain", b"\x7fELF\x02\x01"),
        ("text/plain", b"MZ\x90\0\x03"),
        ("application/json", b"PK\x03\x04"),
        ("text/plain", b"\x1f\x8b\x08"),
        ("text/csv", b"\x89PNG\r\n\x1a\n"),
        ("application/pdf", b"<html>"),
        ("application/pdf", b""),
        ("text/plain", b"a\0b"),
    ],
)
def test_bytes_of_another_type_are_refused(declared: str, head: bytes) -> None:
    assert declared in PAGE_TYPES
    with pytest.raises(WebRefused) as caught:
        actual_type(declared, head, "x")
    assert caught.value.reason is Reason.CONTENT_TYPE


def decoded(data: bytes, room: int, step: int) -> bytes:
    decoder = decoder_for("gzip", "x")
    done = b""
    for at in range(0, len(data), step):
        done += decoder.feed(data[at : at + step], room - len(done))
        if len(done) > room:
            return done
    decoder.finish()
    return done


@pytest.mark.parametrize("step", [1, 7, 1000, 10**9])
def test_compressed_pieces_of_any_size_give_the_same_text(step: int) -> None:
    text = bytes(range(256)) * 3000
    assert decoded(gzip.compress(text), len(text), step) == text


@pytest.mark.parametrize("step", [1, 1000, 10**9])
def test_no_more_than_a_byte_beyond_the_room_is_ever_made(step: int) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    assert len(decoded(bomb, 1000, step)) == 1001


def test_output_that_ends_exactly_at_a_step_is_not_taken_for_cut_off() -> None:
    text = bytes(256 * 1024)
    assert decoded(gzip.compress(text), len(text), 10**9) == text
    assert len(decoded(gzip.compress(text + b"x"), len(text), 10**9)) == len(text) + 1


@pytest.mark.parametrize("data", [b"plain", gzip.compress(b"x")[:-1], gzip.compress(b"x") + b"\0", zlib.compress(b"x")])
def test_what_is_not_one_whole_gzip_member_is_refused(data: bytes) -> None:
    with pytest.raises(WebRefused) as caught:
        decoded(data, 1000, 10**9)
    assert caught.value.reason is Reason.CONTENT_ENCODING


@pytest.mark.parametrize("encoding", ["br", "zstd", "deflate", "gzip, gzip", "compress", "x" * 200])
def test_encodings_that_were_not_offered_are_refused(encoding: str) -> None:
    with pytest.raises(WebRefused):
        decoder_for(encoding, "x")
