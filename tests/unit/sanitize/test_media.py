"""Images, audio, kinds: structure walked by hand, what files say about themselves scanned, contradictions refused."""

from __future__ import annotations

import random
import zlib

import pytest

from gnusnode.sanitize import binary
from gnusnode.sanitize.document import extract, identify
from gnusnode.sanitize.extract import Refusal, Refused, scrub_extract
from gnusnode.sanitize.findings import Kind, Severity
from gnusnode.sanitize.kinds import Media
from gnusnode.sanitize.text import scrub
from tests.unit.sanitize import media
from tests.unit.sanitize.media import ORDER, chunk, segment

TEXT = ORDER.encode()
WIDE = ORDER.encode("utf-16-le")


@pytest.mark.parametrize(
    "data",
    [
        media.png(chunk(b"tEXt", b"Comment\0" + TEXT)),
        media.png(chunk(b"zTXt", b"Comment\0\0" + zlib.compress(TEXT))),
        media.png(chunk(b"iTXt", b"Comment\0\0\0en\0\0" + TEXT)),
        media.png(chunk(b"iTXt", b"Comment\0\1\0en\0\0" + zlib.compress(TEXT))),
        media.png(chunk(b"eXIf", b"MM\0*\0\0\0\x08" + TEXT)),
        media.png(chunk(b"prVt", TEXT)),
        media.png(behind=TEXT),
        media.jpeg(segment(0xFE, TEXT)),
        media.jpeg(segment(0xE1, b"Exif\0\0MM\0*" + TEXT)),
        media.jpeg(segment(0xE1, b"Exif\0\0II*\0" + WIDE)),
        media.jpeg(segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta>" + TEXT + b"</x:xmpmeta>")),
        media.jpeg(segment(0xED, b"Photoshop 3.0\0" + TEXT)),
        media.jpeg(behind=TEXT),
        media.gif(b"\x21\xfe" + media.blocks(TEXT)),
        media.gif(b"\x21\xff\x0bXMP DataXMP" + TEXT + b"\0"),
        media.webp((b"EXIF", TEXT)),
        media.webp((b"XMP ", TEXT)),
        media.webp((b"abcd", TEXT)),
        media.wav((b"LIST", b"INFOICMT\x50\0\0\0" + TEXT)),
        media.wav((b"id3 ", TEXT)),
        media.mp3(media.frame(b"COMM", b"\0eng\0" + TEXT)),
        media.mp3(media.frame(b"TXXX", b"\1\xff\xfe" + WIDE)),
        media.mp3(b"") + b"TAG" + TEXT[:125].ljust(125, b"\0"),
        media.flac(b"\x04\0\0\0lib \1\0\0\0" + b"\x50\0\0\0comment=" + TEXT),
        b"OggS\0\2" + b"\0" * 20 + b"\1\x1eOpusTags\0\0\0\0" + TEXT,
        media.atom(b"ftyp", b"M4A ")
        + media.atom(b"moov", b"\0" * 99 + media.atom(b"udta", media.atom(b"meta", b"\0\0\0\0" + TEXT)))
        + media.atom(b"mdat", b"\0" * 64),
    ],
)
def test_an_order_in_what_a_file_says_of_itself_is_found_and_goes_nowhere(data: bytes) -> None:
    found = scrub_extract(extract(data), scrub)
    assert any(item.kind is Kind.OVERRIDE for item in found.findings)
    assert found.suspect
    assert "attacker" not in found.text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (media.png(), "[image: PNG, 2 × 3 pixels]"),
        (media.png(chunk(b"tEXt", b"Software\0An editor 1.2")), "[image: PNG, 2 × 3 pixels]"),
        (media.png(behind=b"\0" * 64), "[image: PNG, 2 × 3 pixels]"),
        (media.jpeg(), "[image: JPEG, 2 × 3 pixels]"),
        (media.jpeg(segment(0xE1, b"Exif\0\0MM\0*Canon EOS 5D")), "[image: JPEG, 2 × 3 pixels]"),
        (media.gif(), "[image: GIF, 2 × 3 pixels]"),
        (media.gif(b"\x21\xff\x0bNETSCAPE2.0\3\1\0\0\0"), "[image: GIF, 2 × 3 pixels]"),
        (media.webp(), "[image: WEBP, 2 × 3 pixels]"),
        (media.wav(), "[audio: WAV]"),
        (media.mp3(media.frame(b"TIT2", b"\0A song")), "[audio: MP3]"),
        (media.flac(b"\4\0\0\0lib \0\0\0\0"), "[audio: FLAC]"),
        (media.atom(b"ftyp", b"M4A ") + media.atom(b"mdat", b"\0" * 8), "[audio: MP4]"),
    ],
)
def test_a_plain_file_raises_no_suspicion_and_names_its_format(data: bytes, text: str) -> None:
    found = scrub_extract(extract(data), scrub)
    assert found.text == text
    assert not found.suspect


@pytest.mark.requirement("G-TI-9")
@pytest.mark.parametrize("make", [media.png, media.jpeg, media.gif, media.webp, media.wav])
def test_data_behind_the_end_is_reported_and_dense_data_is_named(make: object) -> None:
    noise = random.Random(1).randbytes(4096)
    plain, dense = (
        [item.rule for item in extract(make(behind=tail)).findings if item.kind is Kind.TRAILING_DATA]  # type: ignore[operator] - each takes it
        for tail in (b"<html>" + b"x" * 64, noise)
    )
    assert plain == ["trailing.data"]
    assert dense == ["trailing.dense"]


def test_a_private_piece_of_dense_data_is_flagged_and_a_small_one_noticed() -> None:
    noise = random.Random(2).randbytes(4096)
    for body, severity in ((noise, Severity.FLAG), (b"abc", Severity.NOTICE)):
        found = {item.rule: item.severity for item in extract(media.png(chunk(b"prVt", body))).findings}
        assert found["png.private_chunk"] is severity


@pytest.mark.parametrize("cut", range(1, 8))
@pytest.mark.parametrize("data", [media.png(), media.jpeg(), media.gif(), media.webp(), media.wav()])
def test_a_file_that_is_cut_short_says_so(data: bytes, cut: int) -> None:
    try:
        found = extract(data[:-cut])
    except Refused as refused:
        assert refused.reason is Refusal.MALFORMED  # noqa: PT017 - refusing is as good as reporting
    else:
        assert Kind.MALFORMED in {item.kind for item in found.findings}


def test_a_wrong_checksum_is_reported() -> None:
    data = bytearray(media.png(chunk(b"tEXt", b"a\0b")))
    data[20] ^= 0
    data[-20] ^= 1
    assert "png.checksum" in {item.rule for item in extract(bytes(data)).findings}


def test_a_picture_of_absurd_size_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        extract(media.png(width=100_000, height=100_000))
    assert refused.value.reason is Refusal.TOO_LARGE


def test_a_compressed_comment_cannot_grow_without_bound() -> None:
    bomb = zlib.compress(b"a" * 50_000_000)
    found = extract(media.png(chunk(b"zTXt", b"Comment\0\0" + bomb)))
    assert sum(map(len, found.metadata)) <= binary.MAX_TEXT + 16


def test_entropy_tells_dense_data_from_text() -> None:
    assert binary.entropy(b"") == 0
    assert binary.entropy(b"ab" * 100) == 1
    assert binary.is_dense(random.Random(3).randbytes(4096))
    assert not binary.is_dense(b"plain words " * 100)


@pytest.mark.parametrize(
    ("data", "declared", "kind"),
    [
        (media.png(), "image/png", Media.PNG),
        (media.png(), "", Media.PNG),
        (media.png(), "application/octet-stream", Media.PNG),
        (media.jpeg(), "image/jpg", Media.JPEG),
        (b"%PDF-1.7\n", "application/pdf", Media.PDF),
        (b"<!doctype html><p>x", "text/html; charset=utf-8", Media.HTML),
        (b"\xef\xbb\xbf <!-- x --> <html>", "", Media.HTML),
        (b"just words", "text/html", Media.HTML),
        (b"<?xml version='1.0'?><!DOCTYPE html><html>", "application/xhtml+xml", Media.HTML),
        ("<html>".encode("utf-16"), "text/html", Media.HTML),
    ],
)
def test_the_kind_is_what_header_and_bytes_agree_on(data: bytes, declared: str, kind: Media) -> None:
    assert identify(data, declared) is kind


@pytest.mark.parametrize(
    ("data", "declared", "reason"),
    [
        (media.png(), "image/jpeg", Refusal.TYPE_MISMATCH),
        (media.png(), "text/html", Refusal.TYPE_MISMATCH),
        (b"<html>", "image/png", Refusal.TYPE_MISMATCH),
        (b"<html>", "text/plain", Refusal.TYPE_MISMATCH),
        (b"%PDF-1.7", "text/html", Refusal.TYPE_MISMATCH),
        (b"words before %PDF-1.7", "", Refusal.TYPE_MISMATCH),
        (b"\0\1\2\3", "", Refusal.UNKNOWN_TYPE),
        (b"PK\3\4\0\0", "application/zip", Refusal.UNKNOWN_TYPE),
        (b"\x7fELF\2\1\1\0", "", Refusal.UNKNOWN_TYPE),
        (media.png(), "application/x-shockwave-flash", Refusal.UNSUPPORTED_TYPE),
        (b"<?xml version='1.0'?><a/>", "", Refusal.UNSUPPORTED_TYPE),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml", Refusal.UNSUPPORTED_TYPE),
        (b"<?xml version='1.0'?><!DOCTYPE l [<!ENTITY a 'b'>]><svg/>", "image/svg+xml", Refusal.XML_ENTITY),
        (b"<?xml version='1.0'?><!DOCTYPE html [<!ENTITY a 'b'>]><html/>", "text/html", Refusal.XML_ENTITY),
        (b"plain words", "text/plain", Refusal.UNSUPPORTED_TYPE),
    ],
)
def test_what_is_unknown_or_contradicts_itself_is_refused(data: bytes, declared: str, reason: Refusal) -> None:
    with pytest.raises(Refused) as refused:
        identify(data, declared)
    assert refused.value.reason is reason
