"""Content encodings, with a bound on what comes out: a few kilobytes must not become gigabytes. Pure."""

from __future__ import annotations

import zlib
from typing import Final, Protocol

from gnusnode.web.refusals import Reason, WebRefused

ACCEPTED: Final = "gzip"
_STEP: Final = 256 * 1024


class Decoder(Protocol):
    """Takes the body as it arrives and gives it back decoded, at most ``room`` bytes and one at a time."""

    def feed(self, data: bytes, room: int) -> bytes:
        """What ``data`` decodes to. One byte more than ``room`` means: more than that.

        Raises:
            WebRefused: CONTENT_ENCODING, ``data`` is not of the encoding.
        """
        ...

    def finish(self) -> None:
        """Called at the end of the body.

        Raises:
            WebRefused: CONTENT_ENCODING, something is missing.
        """
        ...


def decoder_for(encoding: str, where: str) -> Decoder:
    """The decoder of a ``Content-Encoding`` header; an empty one is the plain body.

    Raises:
        WebRefused: CONTENT_ENCODING, one that was not offered, or several upon each other.
    """
    match encoding.strip().lower():
        case "" | "identity":
            return _Plain()
        case "gzip" | "x-gzip":
            return _Gunzip(where)
        case other:
            raise WebRefused(Reason.CONTENT_ENCODING, f"the body is encoded as {other[:64]!r}", where=where)


class _Plain:
    def feed(self, data: bytes, room: int) -> bytes:
        return data[: room + 1]

    def finish(self) -> None:
        """Nothing can be missing: the length is the connection's matter."""


class _Gunzip:
    def __init__(self, where: str) -> None:
        self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._where = where

    def feed(self, data: bytes, room: int) -> bytes:
        done = bytearray()
        while len(done) <= room:
            if self._inflate.eof and data:
                raise self._refused("bytes after the end of the compressed body")
            limit = min(_STEP, room + 1 - len(done))
            try:
                piece = self._inflate.decompress(data, limit)
            except zlib.error as error:
                raise self._refused(f"not what its encoding says: {error}") from error
            done += piece
            data = self._inflate.unconsumed_tail or self._inflate.unused_data
            if not data and len(piece) < limit:
                break
        return bytes(done)

    def finish(self) -> None:
        if not self._inflate.eof:
            raise self._refused("the compressed body ends too early")

    def _refused(self, what: str) -> WebRefused:
        return WebRefused(Reason.CONTENT_ENCODING, what, where=self._where)
