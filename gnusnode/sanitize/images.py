"""Images: their structure is walked by hand and no pixel is decoded. What they say about themselves is scanned.

Nothing of an image goes on but a line that names its format and size.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from gnusnode.sanitize import binary
from gnusnode.sanitize.extract import Extract, Refusal, Refused, finding
from gnusnode.sanitize.findings import Finding, Kind, Severity
from gnusnode.sanitize.kinds import Media

MAX_PIXELS: Final = 100_000_000
_MAX_CHUNKS: Final = 65_536
_PNG_TEXT: Final = frozenset({b"tEXt", b"zTXt", b"iTXt"})
_PNG_KNOWN: Final = frozenset(
    {
        b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"cHRM", b"gAMA", b"iCCP", b"sBIT", b"sRGB", b"bKGD", b"hIST",
        b"pHYs", b"sPLT", b"tIME", b"acTL", b"fcTL", b"fdAT", b"cICP", b"mDCv", b"cLLi",
    }
)  # fmt: skip
_JPEG_ALONE: Final = frozenset({0x01, *range(0xD0, 0xD8)})
_JPEG_SIZES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_WEBP_PIXELS: Final = frozenset({b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ANIM", b"ANMF", b"ICCP"})


@dataclass
class _Walk:
    """What a walk through an image has found."""

    size: tuple[int, int] = (0, 0)
    texts: list[str] = field(default_factory=list[str])
    findings: list[Finding] = field(default_factory=list[Finding])
    end: int | None = None
    """Where the image ends; None: it was cut short."""

    def note(self, data: bytes) -> None:
        self.texts += binary.texts(data)

    def private(self, data: bytes, rule: str) -> None:
        """A piece that no standard names."""
        severity = Severity.FLAG if binary.is_dense(data) else Severity.NOTICE
        self.findings.append(finding(Kind.METADATA, rule, severity))
        self.note(data)


def extract_image(data: bytes, kind: Media) -> Extract:
    """Takes an image apart. Linear in its size.

    Raises:
        Refused: the header claims more than ``MAX_PIXELS`` pixels, or there is no header.
    """
    walk = _WALKERS[kind](data)
    width, height = walk.size
    if not width or not height:
        raise Refused(Refusal.MALFORMED, "the image has no header", tuple(walk.findings))
    if width * height > MAX_PIXELS:
        raise Refused(Refusal.TOO_LARGE, f"the image has more than {MAX_PIXELS} pixels", tuple(walk.findings))
    if walk.end is None:
        walk.findings.append(binary.cut_short("image.cut_short"))
    else:
        walk.findings += binary.trailing(data, walk.end)
        walk.texts += binary.texts(data[walk.end :])
    if walk.texts:
        walk.findings.append(finding(Kind.METADATA, "image.metadata"))
    name = kind.value.partition("/")[2].upper()
    return Extract(
        text=f"[image: {name}, {width} × {height} pixels]",
        metadata=tuple(walk.texts),
        findings=tuple(dict.fromkeys(walk.findings)),
    )


def _png(data: bytes) -> _Walk:
    walk = _Walk()
    at = 8
    for _ in range(_MAX_CHUNKS):
        name, length = data[at + 4 : at + 8], int.from_bytes(data[at : at + 4])
        body, end = data[at + 8 : at + 8 + length], at + 12 + length
        if len(name) < 4 or end > len(data):
            return walk
        if zlib.crc32(body, zlib.crc32(name)) != int.from_bytes(data[end - 4 : end]):
            walk.findings.append(binary.cut_short("png.checksum"))
        if name == b"IHDR":
            walk.size = int.from_bytes(body[:4]), int.from_bytes(body[4:8])
        elif name in _PNG_TEXT:
            _png_text(name, body, walk)
        elif name == b"eXIf":
            walk.note(body)
        elif name not in _PNG_KNOWN:
            walk.private(body, "png.private_chunk")
        if name == b"IEND":
            walk.end = end
            return walk
        at = end
    return walk


def _png_text(name: bytes, body: bytes, walk: _Walk) -> None:
    keyword, _, rest = body.partition(b"\0")
    walk.note(keyword)
    if name == b"tEXt":
        walk.note(rest)
    elif name == b"zTXt":
        walk.note(binary.inflate(rest[1:]))
    else:
        _language, _, rest_of_it = rest[2:].partition(b"\0")
        translated, _, text = rest_of_it.partition(b"\0")
        walk.note(translated)
        walk.note(binary.inflate(text) if rest[:1] == b"\1" else text)


def _jpeg(data: bytes) -> _Walk:
    walk = _Walk()
    at, several = 2, False
    for _ in range(_MAX_CHUNKS):
        while data[at : at + 1] == b"\xff" and data[at + 1 : at + 2] == b"\xff":
            at += 1
        if data[at : at + 1] != b"\xff" or at + 2 > len(data):
            return walk
        marker = data[at + 1]
        at += 2
        if marker == 0xD9:
            # Phones append further pictures, and say so in an MPF segment.
            walk.end = len(data) if several and data[at : at + 3] == b"\xff\xd8\xff" else at
            return walk
        if marker in _JPEG_ALONE:
            continue
        length = int.from_bytes(data[at : at + 2])
        body = data[at + 2 : at + length]
        if length < 2 or at + length > len(data):
            return walk
        at += length
        if marker in _JPEG_SIZES:
            walk.size = int.from_bytes(body[3:5]), int.from_bytes(body[1:3])
        elif marker == 0xFE or 0xE1 <= marker <= 0xEF:
            several = several or body.startswith(b"MPF\0")
            if not body.startswith((b"ICC_PROFILE", b"MPF\0", b"Adobe")):
                walk.note(body)
        if marker == 0xDA:
            at = _end_of_scan(data, at)
    return walk


def _end_of_scan(data: bytes, at: int) -> int:
    """The next marker in compressed data that is neither a stuffed byte nor a restart."""
    while (at := data.find(b"\xff", at)) >= 0:
        following = data[at + 1 : at + 2]
        if following and following[0] not in (0x00, 0xFF) and following[0] not in _JPEG_ALONE:
            return at
        at += 1 if following == b"\xff" else 2
    return len(data)


def _gif(data: bytes) -> _Walk:
    walk = _Walk(size=(int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")))
    if len(data) < 13:
        return walk
    at = 13 + _color_table(data[10])
    while at < len(data):
        kind = data[at]
        if kind == 0x3B:
            walk.end = at + 1
            return walk
        if kind == 0x21 and at + 2 < len(data):
            label, end = data[at + 1], _end_of_blocks(data, at + 2)
            if label in (0xFE, 0x01):
                walk.note(b"".join(_blocks(data, at + 2)))
            elif label == 0xFF:
                walk.note(data[at + 3 : at + 14])  # the name of the application, then what it left
                walk.note(data[at + 14 : end])
        elif kind == 0x2C and at + 10 < len(data):
            end = _end_of_blocks(data, at + 11 + _color_table(data[at + 9]))
        else:
            return walk
        at = end
    return walk


def _color_table(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _blocks(data: bytes, at: int) -> Iterator[bytes]:
    while at < len(data) and data[at]:
        yield data[at + 1 : at + 1 + data[at]]
        at += 1 + data[at]


def _end_of_blocks(data: bytes, at: int) -> int:
    while at < len(data) and data[at]:
        at += 1 + data[at]
    return at + 1


def _webp(data: bytes) -> _Walk:
    walk = _Walk()
    end = 8 + int.from_bytes(data[4:8], "little")
    at = 12
    for _ in range(_MAX_CHUNKS):
        if at + 8 > min(end, len(data)):
            break
        name, length = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        body = data[at + 8 : at + 8 + length]
        walk.size = max(walk.size, _webp_size(name, body))
        if name in (b"EXIF", b"XMP "):
            walk.note(body)
        elif name not in _WEBP_PIXELS:
            walk.private(body, "webp.private_chunk")
        at += 8 + length + (length & 1)
    if end <= len(data):
        walk.end = end + (end & 1)
    return walk


def _webp_size(name: bytes, body: bytes) -> tuple[int, int]:
    if name == b"VP8X" and len(body) >= 10:
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if name == b"VP8 " and len(body) >= 10:
        return int.from_bytes(body[6:8], "little") & 0x3FFF, int.from_bytes(body[8:10], "little") & 0x3FFF
    if name == b"VP8L" and len(body) >= 5:
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return 0, 0


_WALKERS: Final = {Media.PNG: _png, Media.JPEG: _jpeg, Media.GIF: _gif, Media.WEBP: _webp}
