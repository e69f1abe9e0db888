"""Frames between the daemon and a worker process: 4-byte big-endian length, then canonical CBOR of one map."""

from __future__ import annotations

import os
import struct
from typing import Any, Final, cast

from gnusnode.contracts import canonical

MAX_FRAME: Final = 64 * 1024 * 1024
_HEADER: Final = struct.Struct(">I")


class FrameError(ValueError):
    """The other end does not speak our protocol."""


def pack(frame: dict[str, Any]) -> bytes:
    """One frame. Raises ``FrameError`` when it is over ``MAX_FRAME``."""
    return framed(canonical.encode(frame))


def framed(body: bytes) -> bytes:
    """A frame around the encoding of a map. Raises ``FrameError`` when it is over ``MAX_FRAME``."""
    if len(body) > MAX_FRAME:
        raise FrameError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME}")
    return _HEADER.pack(len(body)) + body


class Unpacker:
    """Bytes in, frames out; ``feed`` takes any split of the stream.

    Args:
        limit: bytes of the longest frame that the other end may send.
    """

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The frames completed by ``data``.

        Raises:
            FrameError: oversize, malformed or not a map.
        """
        self._buffer += data
        frames: list[dict[str, Any]] = []
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer, start)
            if length > self._limit:
                raise FrameError(f"a frame announces {length} bytes, the limit is {self._limit}")
            end = start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            frames.append(_parse(bytes(self._buffer[start + _HEADER.size : end])))
            start = end
        del self._buffer[:start]
        return frames


def _parse(body: bytes) -> dict[str, Any]:
    try:
        frame = canonical.decode(body, max_bytes=MAX_FRAME)
    except canonical.NotCanonical as error:
        raise FrameError(str(error)) from error
    if not isinstance(frame, dict):
        raise FrameError("a frame is not a map")
    return cast("dict[str, Any]", frame)


def read_frame(descriptor: int) -> dict[str, Any] | None:
    """The next frame of a pipe, for a worker that does one thing at a time; None: the other end closed it.

    Raises:
        FrameError: cut off, oversize, malformed or not a map.
    """
    head = _read(descriptor, _HEADER.size)
    if not head:
        return None
    (length,) = _HEADER.unpack(head)
    if length > MAX_FRAME:
        raise FrameError(f"a frame announces {length} bytes, the limit is {MAX_FRAME}")
    body = _read(descriptor, length)
    if len(body) < length:
        raise FrameError("a frame is cut off")
    return _parse(body)


def write_frame(descriptor: int, frame: dict[str, Any]) -> None:
    """Writes one frame whole."""
    view = memoryview(pack(frame))
    while view:
        view = view[os.write(descriptor, view) :]


def _read(descriptor: int, count: int) -> bytes:
    """``count`` bytes; none at the end of the stream.

    Raises:
        FrameError: the stream ends in between.
    """
    data = bytearray()
    while len(data) < count:
        piece = os.read(descriptor, count - len(data))
        if not piece:
            if data:
                raise FrameError("a frame is cut off")
            return b""
        data += piece
    return bytes(data)
