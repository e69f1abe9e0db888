"""Audio: containers are walked by hand, no sample is decoded. Tags are scanned; only the format's name goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gnusnode.sanitize import binary
from gnusnode.sanitize.extract import Extract, finding
from gnusnode.sanitize.findings import Finding, Kind
from gnusnode.sanitize.kinds import Media

_MAX_CHUNKS: Final = 4096
_RIFF_SOUND: Final = frozenset({b"fmt ", b"data", b"fact", b"PAD ", b"JUNK", b"peak", b"PEAK"})
_OGG_HEAD: Final = 64 * 1024


def extract_audio(data: bytes, kind: Media) -> Extract:
    """Takes a sound file apart. Linear in its size; never raises."""
    pieces, end = _READERS[kind](data)
    texts = tuple(text for piece in pieces for text in binary.texts(piece))
    findings: list[Finding] = []
    if end is None:
        findings.append(binary.cut_short("audio.cut_short"))
    else:
        findings += binary.trailing(data, end)
        texts += binary.texts(data[end:])
    if texts:
        findings.append(finding(Kind.METADATA, "audio.metadata"))
    name = {Media.MP3: "MP3", Media.MP4: "MP4"}.get(kind, kind.value.partition("/")[2].upper())
    return Extract(text=f"[audio: {name}]", metadata=texts, findings=tuple(findings))


_Read = tuple[list[bytes], int | None]
"""Pieces that may hold text, and where the file ends; None: it was cut short."""


def _wav(data: bytes) -> _Read:
    end = 8 + int.from_bytes(data[4:8], "little")
    pieces = [body for name, body in _riff(data, 12, min(end, len(data))) if name not in _RIFF_SOUND]
    return pieces, end + (end & 1) if end <= len(data) else None


def _riff(data: bytes, at: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    for _ in range(_MAX_CHUNKS):
        if at + 8 > end:
            return
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        yield data[at : at + 4], data[at + 8 : min(at + 8 + length, end)]
        at += 8 + length + (length & 1)


def _mp3(data: bytes) -> _Read:
    pieces: list[bytes] = []
    if data.startswith(b"ID3") and len(data) >= 10:
        size = 0
        for byte in data[6:10]:
            size = size << 7 | byte & 0x7F
        pieces.append(data[10 : 10 + size])
    if data[-128:-125] == b"TAG":
        pieces.append(data[-125:])
    ape = data.rfind(b"APETAGEX", max(0, len(data) - binary.MAX_TEXT))
    if ape >= 0:
        pieces.append(data[max(0, ape - binary.MAX_TEXT) : ape] if ape > len(data) - 256 else data[ape:])
    return pieces, len(data)


def _flac(data: bytes) -> _Read:
    pieces: list[bytes] = []
    at = 4
    for _ in range(_MAX_CHUNKS):
        if at + 4 > len(data):
            return pieces, None
        last, kind = data[at] & 0x80, data[at] & 0x7F
        length = int.from_bytes(data[at + 1 : at + 4])
        if kind not in (0, 1, 3):  # stream facts, padding, seek table
            pieces.append(data[at + 4 : at + 4 + length])
        at += 4 + length
        if last:
            break
    return pieces, len(data) if at <= len(data) else None


def _ogg(data: bytes) -> _Read:
    """The headers of Vorbis and Opus stand at the beginning; pages are cut every 64 KiB at most."""
    return [data[:_OGG_HEAD]], len(data)


def _mp4(data: bytes) -> _Read:
    pieces: list[bytes] = []
    at = 0
    for _ in range(_MAX_CHUNKS):
        if at == len(data):
            return pieces, at
        if at + 8 > len(data):
            return pieces, None
        length, name = int.from_bytes(data[at : at + 4]), data[at + 4 : at + 8]
        if length == 0:
            length = len(data) - at
        elif length == 1:
            length = int.from_bytes(data[at + 8 : at + 16])
        if length < 8 or at + length > len(data):
            return pieces, at if pieces else None
        if name not in (b"mdat", b"free", b"skip", b"wide"):
            pieces += _udta(data[at : at + length]) if name == b"moov" else [data[at + 8 : at + length]]
        at += length
    return pieces, None


def _udta(moov: bytes) -> list[bytes]:
    """User data of a movie header: what stands between ``udta`` and its end; the tables before it hold no text."""
    at = moov.find(b"udta")
    return [moov[at:]] if at >= 0 else [moov]


_READERS: Final = {Media.WAV: _wav, Media.MP3: _mp3, Media.FLAC: _flac, Media.OGG: _ogg, Media.MP4: _mp4}
