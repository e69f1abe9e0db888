"""Which kind of document some bytes are: by what was declared *and* by the bytes. What is not known is refused."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from gnusnode.sanitize.extract import Refusal, Refused, finding
from gnusnode.sanitize.findings import Kind, Severity


class Media(StrEnum):
    """Kinds of document that can be made safe."""

    TEXT = "text/plain"
    MARKDOWN = "text/markdown"
    JSON = "application/json"
    HTML = "text/html"
    PDF = "application/pdf"
    PNG = "image/png"
    JPEG = "image/jpeg"
    GIF = "image/gif"
    WEBP = "image/webp"
    WAV = "audio/wav"
    MP3 = "audio/mpeg"
    FLAC = "audio/flac"
    OGG = "audio/ogg"
    MP4 = "audio/mp4"


IMAGES: Final = frozenset({Media.PNG, Media.JPEG, Media.GIF, Media.WEBP})
AUDIO: Final = frozenset({Media.WAV, Media.MP3, Media.FLAC, Media.OGG, Media.MP4})
TEXTS: Final = frozenset({Media.TEXT, Media.MARKDOWN, Media.JSON})

_ALIASES: Final = {
    "image/jpg": Media.JPEG, "image/pjpeg": Media.JPEG, "application/x-pdf": Media.PDF, "audio/x-wav": Media.WAV,
    "audio/wave": Media.WAV, "audio/vnd.wave": Media.WAV, "audio/mp3": Media.MP3, "audio/x-flac": Media.FLAC,
    "application/ogg": Media.OGG, "audio/opus": Media.OGG, "audio/x-m4a": Media.MP4, "audio/aac": Media.MP4,
    "video/mp4": Media.MP4, "application/xhtml+xml": Media.HTML, "text/x-markdown": Media.MARKDOWN,
    "application/x-ndjson": Media.TEXT, "application/yaml": Media.TEXT, "application/x-yaml": Media.TEXT,
    "application/toml": Media.TEXT, "application/javascript": Media.TEXT, "application/x-sh": Media.TEXT,
    "application/csv": Media.TEXT,
}  # fmt: skip
_UNDECLARED: Final = frozenset({"", "application/octet-stream", "binary/octet-stream", "unknown/unknown", "*/*"})
_XML: Final = frozenset({"text/xml", "application/xml", "image/svg+xml", "text/xsl", "text/vtt+xml"})
_SNIFFED: Final = 1024

_MAGIC: Final[tuple[tuple[bytes, Media], ...]] = (
    (b"%PDF-", Media.PDF),
    (b"\x89PNG\r\n\x1a\n", Media.PNG),
    (b"\xff\xd8\xff", Media.JPEG),
    (b"GIF87a", Media.GIF),
    (b"GIF89a", Media.GIF),
    (b"fLaC", Media.FLAC),
    (b"OggS", Media.OGG),
    (b"ID3", Media.MP3),
)
_MARKS: Final = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_HTML: Final = re.compile(
    rb"(?:<!--.{0,512}?-->\s*)*(?:<!doctype\s+html|<(?:html|head|body|script|iframe|h1|div|font|table|style|title|br|p|meta"
    rb"|base)[\s>/])",
    re.IGNORECASE | re.DOTALL,
)
_WHOLE_PAGE: Final = re.compile(rb"(?:<!--.{0,512}?-->\s*)*<(?:!doctype\s+html|html[\s>])", re.IGNORECASE | re.DOTALL)
_XML_START: Final = re.compile(
    rb"<\?xml|<svg[\s>]|<!doctype\s+(?!html)|<(?:rss|feed|soap:envelope)[\s>]", re.IGNORECASE
)
_ENTITY: Final = re.compile(rb"<!ENTITY|<!DOCTYPE[^>\[]{0,512}\[", re.IGNORECASE)
_CONTROLS: Final = bytes(set(range(32)) - {9, 10, 12, 13, 27})


def essence(declared: str) -> str:
    """A content type without its parameters, in lower case."""
    return declared.partition(";")[0].strip().lower()


def charset(declared: str) -> str:
    """The ``charset`` of a content type; empty when it names none."""
    found = re.search(r"charset\s*=\s*\"?([a-zA-Z0-9_:.-]{1,40})", declared)
    return found.group(1) if found else ""


def identify(data: bytes, declared: str = "") -> Media:
    """The kind of ``data``.

    Args:
        declared: the content type that came with it; empty, or ``application/octet-stream``: none did.

    Raises:
        Refused: the kind is unknown, is one that is not handled, or is not what was declared.
    """
    name = essence(declared)
    found = _by_bytes(data)
    if found is None or name in _XML or (name.endswith("+xml") and name not in _ALIASES):
        raise _refused_xml(data)
    if name in _UNDECLARED:
        return found
    wanted = _declared(name)
    if wanted is None:
        raise Refused(Refusal.UNSUPPORTED_TYPE, f"documents of type {name[:80]!r} are not read")
    if wanted is found:
        return wanted
    if wanted in TEXTS and found in TEXTS:
        return wanted
    if wanted is Media.HTML and found is Media.TEXT:
        return wanted
    if wanted in (Media.TEXT, Media.MARKDOWN) and found is Media.HTML and not _WHOLE_PAGE.match(_start(data)):
        return wanted  # text that begins with a tag, as many a README does
    mismatch = finding(Kind.TYPE_MISMATCH, "type.mismatch", Severity.REMOVE)
    raise Refused(Refusal.TYPE_MISMATCH, f"declared as {wanted}, but the bytes are {found}", (mismatch,))


def _declared(name: str) -> Media | None:
    if name in _ALIASES:
        return _ALIASES[name]
    try:
        return Media(name)
    except ValueError:
        pass
    if name.endswith("+json"):
        return Media.JSON
    return Media.TEXT if name.startswith("text/") else None


def _start(data: bytes) -> bytes:
    for mark in _MARKS:
        if data.startswith(mark):
            data = data[len(mark) :]
    return data[:_SNIFFED].lstrip(b" \t\r\n\f")


def _by_bytes(data: bytes) -> Media | None:
    """The kind by the first bytes; None: XML, of whatever sort."""
    for magic, kind in _MAGIC:
        if data.startswith(magic):
            return kind
    if data[:4] == b"RIFF" and data[8:12] in (b"WEBP", b"WAVE"):
        return Media.WEBP if data[8:12] == b"WEBP" else Media.WAV
    if data[4:8] == b"ftyp":
        return Media.MP4
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2:  # MPEG audio, layer III
        return Media.MP3
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return _wide(data)
    if data[:_SNIFFED].translate(None, _CONTROLS) != data[:_SNIFFED] or b"\0" in data:
        raise Refused(Refusal.UNKNOWN_TYPE, "the bytes are of no kind that is read here")
    start = _start(data)
    if _XML_START.match(start):
        is_page = re.search(rb"<!doctype\s+html|<html[\s>]", start, re.IGNORECASE) and not _ENTITY.search(start)
        return Media.HTML if is_page else None
    if b"%PDF-" in start:
        hidden = finding(Kind.TYPE_MISMATCH, "type.pdf_inside", Severity.REMOVE)
        raise Refused(Refusal.TYPE_MISMATCH, "a PDF begins after other bytes", (hidden,))
    return Media.HTML if _HTML.match(start) else Media.TEXT


def _wide(data: bytes) -> Media:
    text = data[: 2 * _SNIFFED].decode("utf-16", "replace").encode("utf-8", "replace")
    return Media.HTML if _HTML.match(_start(text)) else Media.TEXT


def _refused_xml(data: bytes) -> Refused:
    if _ENTITY.search(data):
        found = finding(Kind.XML_ENTITY, "xml.entity", Severity.REMOVE)
        return Refused(Refusal.XML_ENTITY, "the document declares XML entities, which can grow without bound", (found,))
    return Refused(Refusal.UNSUPPORTED_TYPE, "XML documents are not read")
