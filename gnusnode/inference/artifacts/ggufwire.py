"""The byte level of a GGUF file: key-value pairs and tensor table, under hard limits. ``gguf`` says what they mean.

Every length and count is checked against a limit and against the bytes that are really there before it is used, so that
work and memory grow with the file's header, never with what the header claims.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little endian).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from gnusnode.errors import ModelInvalid

MAX_HEADER_BYTES: Final = 64 * 1024 * 1024
"""The largest vocabularies in use (262 144 tokens, 514 906 merges) need about 16 MiB."""
MAX_PAIRS: Final = 4096
MAX_TENSORS: Final = 32_768
MAX_KEY_BYTES: Final = 256
MAX_STRING_BYTES: Final = 1024 * 1024
MAX_ARRAY_ITEMS: Final = 4 * 1024 * 1024
MAX_TENSOR_NAME_BYTES: Final = 63
"""ggml keeps names in 64 bytes with a closing zero."""
MAX_DIMS: Final = 4
MAX_DIM: Final = 2**40
MAX_ALIGNMENT: Final = 64 * 1024
KEPT_ITEMS: Final = 1024
"""Numeric arrays up to this length are kept: per-layer values. Longer ones are vocabulary data and only measured."""

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_CHUNK: Final = 256 * 1024
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: _U32,
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: _U64,
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}

TENSOR_TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}
"""ggml type number -> (name, weights per block, bytes per block)."""

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Array:
    """An array of the metadata: its length, and its items where they are few and numeric."""

    count: int
    items: tuple[int | float | bool, ...] | None


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of the tensor table. ``offset`` counts from the start of the file."""

    name: str
    type: str
    dims: tuple[int, ...]
    """Fastest varying first, as ggml writes them."""
    bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class RawHeader:
    version: int
    pairs: dict[str, Scalar | Array]
    tensors: tuple[Tensor, ...]
    data_offset: int


def parse(read: Callable[[int], bytes], file_size: int, *, where: str) -> RawHeader:
    """The header of a file that ``read(n)`` delivers from its start, at most ``n`` bytes a call.

    Raises:
        ModelInvalid: malformed, over a limit, or tensors that do not lie in the file one after another.
    """
    cursor = _Cursor(read, file_size, where)
    version = _preamble(cursor)
    tensor_count = cursor.count("tensors", MAX_TENSORS, least_bytes=24)
    pair_count = cursor.count("metadata keys", MAX_PAIRS, least_bytes=13)
    pairs: dict[str, Scalar | Array] = {}
    for _ in range(pair_count):
        key = cursor.name("metadata key", MAX_KEY_BYTES)
        if key in pairs:
            cursor.fail(f"the metadata key {key!r} stands twice")
        pairs[key] = _value(cursor, key)
    return _tensors(cursor, version, pairs, tensor_count)


class _Cursor:
    """A position in the header and the bytes read so far."""

    def __init__(self, read: Callable[[int], bytes], file_size: int, where: str) -> None:
        self._read = read
        self._limit = min(file_size, MAX_HEADER_BYTES)
        self._where = where
        self.file_size = file_size
        self.data = bytearray()
        self.at = 0

    def fail(self, reason: str) -> NoReturn:
        raise ModelInvalid(
            f"{reason} (byte {self.at})", where=self._where, hint="the file is damaged or hostile; fetch it again"
        )

    def need(self, end: int) -> None:
        """Read on until ``end`` bytes of the file are here."""
        if end <= len(self.data):
            return
        if end > self._limit:
            if self._limit < self.file_size:
                self.fail(f"the header is longer than the {MAX_HEADER_BYTES} bytes allowed")
            self.fail(f"the file ends at byte {self.file_size}, inside its header")
        while len(self.data) < end:
            chunk = self._read(min(_CHUNK, self._limit - len(self.data)))
            if not chunk:
                self.fail(f"the file ends at byte {len(self.data)}, inside its header")
            self.data += chunk

    def number(self, form: struct.Struct) -> int | float | bool:
        end = self.at + form.size
        self.need(end)
        (value,) = form.unpack_from(self.data, self.at)
        self.at = end
        return value

    def u32(self) -> int:
        return int(self.number(_U32))

    def u64(self) -> int:
        return int(self.number(_U64))

    def count(self, of: str, limit: int, *, least_bytes: int) -> int:
        """A 64-bit count, plausible for the bytes that are left."""
        count = self.u64()
        if count > limit:
            self.fail(f"{count} {of} are over the limit of {limit}")
        if count * least_bytes > self.file_size - self.at:
            self.fail(f"{count} {of} do not fit the {self.file_size - self.at} bytes that are left")
        return count

    def text(self, of: str, limit: int) -> str:
        length = self.u64()
        if length > limit:
            self.fail(f"{of} of {length} bytes is over the limit of {limit}")
        end = self.at + length
        self.need(end)
        try:
            text = self.data[self.at : end].decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{of} is not UTF-8")
        self.at = end
        return text

    def name(self, of: str, limit: int) -> str:
        name = self.text(of, limit)
        if not name or not name.isascii() or not name.isprintable():
            self.fail(f"{of} {name[:80]!r} is empty or not printable ASCII")
        return name

    def skip_strings(self, count: int) -> None:
        """Step over ``count`` strings. The hot loop: a vocabulary has up to a million of them."""
        unpack, data, need = _U64.unpack_from, self.data, self.need
        at, have = self.at, len(self.data)
        for _ in range(count):
            if at + 8 > have:
                need(at + 8)
                have = len(data)
            (length,) = unpack(data, at)
            if length > MAX_STRING_BYTES:
                self.at = at
                self.fail(f"a string of {length} bytes is over the limit of {MAX_STRING_BYTES}")
            at += 8 + length
        need(at)
        self.at = at


def _preamble(cursor: _Cursor) -> int:
    cursor.need(4)
    if not cursor.data.startswith(_MAGIC):
        cursor.fail("this is not a GGUF file: it does not start with GGUF")
    cursor.at = 4
    version = cursor.u32()
    if version in (v << 24 for v in _VERSIONS):
        cursor.fail("a big-endian GGUF file does not run here")
    if version not in _VERSIONS:
        cursor.fail(f"GGUF version {version} is unknown; 2 and 3 are supported")
    return version


def _value(cursor: _Cursor, key: str) -> Scalar | Array:
    kind = cursor.u32()
    if kind == _STRING:
        return cursor.text(f"the value of {key}", MAX_STRING_BYTES)
    if kind == _ARRAY:
        return _array(cursor, key)
    return _number(cursor, kind, key)


def _number(cursor: _Cursor, kind: int, key: str) -> int | float | bool:
    form = _SCALARS.get(kind)
    if form is None:
        cursor.fail(f"{key} has the unknown value type {kind}")
    cursor.need(cursor.at + form.size)
    if form.format == "<?" and cursor.data[cursor.at] > 1:
        cursor.fail(f"{key} is a truth value of {cursor.data[cursor.at]}")
    value = cursor.number(form)
    if isinstance(value, float) and not math.isfinite(value):
        cursor.fail(f"{key} is not a finite number")
    return value


def _array(cursor: _Cursor, key: str) -> Array:
    kind = cursor.u32()
    if kind == _STRING:
        count = cursor.count(f"strings of {key}", MAX_ARRAY_ITEMS, least_bytes=8)
        cursor.skip_strings(count)
        return Array(count, None)
    form = _SCALARS.get(kind)
    if form is None:
        cursor.fail(f"{key} is an array of the unknown or nested type {kind}")
    count = cursor.count(f"items of {key}", MAX_ARRAY_ITEMS, least_bytes=form.size)
    if count <= KEPT_ITEMS:
        return Array(count, tuple(_number(cursor, kind, key) for _ in range(count)))
    end = cursor.at + count * form.size
    cursor.need(end)
    cursor.at = end
    return Array(count, None)


def _tensors(cursor: _Cursor, version: int, pairs: dict[str, Scalar | Array], count: int) -> RawHeader:
    alignment = pairs.get("general.alignment", 32)
    if type(alignment) is not int or not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        cursor.fail(f"general.alignment is {alignment!r}, not a power of two from 8 to {MAX_ALIGNMENT}")
    relative: list[Tensor] = []
    names: set[str] = set()
    expected = 0
    for _ in range(count):
        tensor = _tensor(cursor)
        if tensor.name in names:
            cursor.fail(f"the tensor {tensor.name!r} stands twice")
        if tensor.offset != expected:
            # llama.cpp demands the same; it also rules out overlaps and holes.
            cursor.fail(f"{tensor.name} starts at offset {tensor.offset}, but the one before it ends at {expected}")
        names.add(tensor.name)
        relative.append(tensor)
        expected = _aligned(tensor.offset + tensor.bytes, alignment)
    data_offset = _aligned(cursor.at, alignment)
    end = data_offset + (relative[-1].offset + relative[-1].bytes if relative else 0)
    if end > cursor.file_size:
        cursor.fail(f"the weights end at byte {end}, but the file has only {cursor.file_size} bytes")
    placed = (Tensor(t.name, t.type, t.dims, t.bytes, data_offset + t.offset) for t in relative)
    return RawHeader(version, pairs, tuple(placed), data_offset)


def _tensor(cursor: _Cursor) -> Tensor:
    name = cursor.name("a tensor's name", MAX_TENSOR_NAME_BYTES)
    dim_count = cursor.u32()
    if not 1 <= dim_count <= MAX_DIMS:
        cursor.fail(f"{name} has {dim_count} dimensions; 1 to {MAX_DIMS} are possible")
    dims = tuple(cursor.u64() for _ in range(dim_count))
    number = cursor.u32()
    if number not in TENSOR_TYPES:
        cursor.fail(f"{name} has the unknown tensor type {number}")
    kind, block, block_bytes = TENSOR_TYPES[number]
    if not all(1 <= dim <= MAX_DIM for dim in dims):
        cursor.fail(f"{name} has a dimension outside 1 … {MAX_DIM}: {dims}")
    if dims[0] % block:
        cursor.fail(f"{name} has rows of {dims[0]} weights, not a multiple of the {block} that {kind} packs together")
    size = math.prod(dims) // block * block_bytes
    if size > cursor.file_size:
        cursor.fail(f"{name} needs {size} bytes, more than the whole file")
    return Tensor(name, kind, dims, size, cursor.u64())


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
