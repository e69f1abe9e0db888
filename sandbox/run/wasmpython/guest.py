"""The memory of the guest as WASI calls see it: every pointer checked, little-endian numbers in and out."""

from __future__ import annotations

import struct
from typing import Final, Protocol

from sandbox.host.memory import span
from sandbox.run.wasmpython.memfs import Errno, WasiError

MAX_PATH: Final = 4096
_IOVEC: Final = struct.Struct("<II")
_MAX_IOVECS: Final = 1024


class Bytes(Protocol):
    """The linear memory, as long as it is now."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, stop: int) -> bytes: ...

    def write(self, start: int, data: bytes) -> None: ...


class Guest:
    """Reads and writes what pointers of the guest name. Every method raises ``WasiError(FAULT)`` outside its memory."""

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory

    def read(self, pointer: int, length: int) -> bytes:
        place = self._span(pointer, length)
        return self._memory.read(place.start, place.stop)

    def write(self, pointer: int, data: bytes) -> None:
        place = self._span(pointer, len(data))
        if data:
            self._memory.write(place.start, data)

    def put_u32(self, pointer: int, value: int) -> None:
        self.write(pointer, struct.pack("<I", value & 0xFFFF_FFFF))

    def put_u64(self, pointer: int, value: int) -> None:
        self.write(pointer, struct.pack("<Q", value & 0xFFFF_FFFF_FFFF_FFFF))

    def path(self, pointer: int, length: int) -> str:
        """A path. ``NAMETOOLONG`` over ``MAX_PATH`` bytes, ``INVAL`` when it is not UTF-8."""
        if length & 0xFFFF_FFFF > MAX_PATH:
            raise WasiError(Errno.NAMETOOLONG)
        try:
            return self.read(pointer, length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise WasiError(Errno.INVAL) from error

    def buffers(self, pointer: int, count: int) -> list[tuple[int, int]]:
        """The (pointer, length) pairs of an array of buffers; all of them lie inside."""
        if not 0 <= count <= _MAX_IOVECS:
            raise WasiError(Errno.INVAL)
        found = list(_IOVEC.iter_unpack(self.read(pointer, count * _IOVEC.size)))
        for start, length in found:
            self._span(start, length)
        return found

    def gather(self, pointer: int, count: int) -> bytes:
        """The content of an array of buffers. ``INVAL`` when overlapping buffers make more of it than memory holds."""
        buffers = self.buffers(pointer, count)
        if sum(length for _, length in buffers) > self._memory.size:
            raise WasiError(Errno.INVAL)
        return b"".join(self.read(start, length) for start, length in buffers)

    def scatter(self, buffers: list[tuple[int, int]], data: bytes) -> None:
        """Spreads ``data`` over buffers, which have room for it."""
        done = 0
        for start, length in buffers:
            piece = data[done : done + length]
            self.write(start, piece)
            done += len(piece)

    def put_strings(self, pointers: int, texts: int, strings: list[bytes]) -> None:
        """Writes NUL-terminated strings at ``texts`` and the address of each at ``pointers``."""
        texts &= 0xFFFF_FFFF
        addresses = [texts]
        for text in strings[:-1]:
            addresses.append(addresses[-1] + len(text) + 1)
        self.write(texts, b"".join(text + b"\0" for text in strings))
        self.write(pointers, struct.pack(f"<{len(strings)}I", *addresses[: len(strings)]))

    def _span(self, pointer: int, length: int) -> slice:
        place = span(pointer, length, self._memory.size)
        if place is None:
            raise WasiError(Errno.FAULT)
        return place
