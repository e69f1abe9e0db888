"""The stream of an attached container: standard output and standard error, taken apart."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from gnusnode.errors import ProtocolViolation
from sandbox.run.output import STDERR, STDOUT

_HEADER: Final = struct.Struct(">BxxxL")
_STREAMS: Final = {0: STDOUT, 1: STDOUT, 2: STDERR}


class Demultiplexer:
    """Takes apart ``<stream: 1 byte><0, 0, 0><length: 4 bytes, big-endian><payload>``, repeated.

    Holds at most one header: a payload is passed on as it arrives, however long its frame says it is.
    """

    def __init__(self) -> None:
        self._header = bytearray()
        self._stream = STDOUT
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """The (``STDOUT`` or ``STDERR``, payload) pairs in ``data``, in order. Consume them all.

        Raises:
            ProtocolViolation: a stream that does not exist.
        """
        view = memoryview(data)
        while view:
            if self._left:
                payload, view = view[: self._left], view[self._left :]
                self._left -= len(payload)
                yield self._stream, payload
                continue
            missing = _HEADER.size - len(self._header)
            self._header += view[:missing]
            view = view[missing:]
            if len(self._header) == _HEADER.size:
                number, self._left = _HEADER.unpack(self._header)
                self._header.clear()
                if number not in _STREAMS:
                    raise ProtocolViolation(f"the container engine sent a stream with the number {number}")
                self._stream = _STREAMS[number]
