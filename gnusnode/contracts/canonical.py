"""Deterministic CBOR (RFC 8949 §4.2) over plain data, strict both ways.

One value has one encoding: shortest integers and floats, definite lengths, sorted text keys, no tags. ``decode``
refuses every other spelling, so two nodes that agree on bytes agree on meaning and a hash names exactly one value.
"""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias, cast

import cbor2

MAX_BYTES: Final = 4 * 1024 * 1024
MAX_DEPTH: Final = 24
_INT_RANGE: Final = (-(2**63), 2**63 - 1)

Plain: TypeAlias = "bool | int | float | str | bytes | list[Plain] | dict[str, Plain] | None"
"""What a record may consist of."""


class NotCanonical(ValueError):
    """Bytes or a value that have no place in a record; the text says which rule is broken."""


def encode(value: object) -> bytes:
    """The one encoding of ``value``. Tuples are encoded as lists.

    Raises:
        NotCanonical: a type, key, number or depth outside ``Plain``.
    """
    _check(value, MAX_DEPTH)
    return encode_known(value)


def encode_known(value: object) -> bytes:
    """``encode`` without the check, for what is made of values that came out of ``decode``."""
    return cbor2.dumps(value, canonical=True)


def decode(data: bytes, *, max_bytes: int = MAX_BYTES) -> Any:
    """The value of ``data``, which must be its one encoding.

    Raises:
        NotCanonical: malformed, too large, too deep, or another spelling of the same value.
    """
    value = decode_loosely(data, max_bytes=max_bytes)
    if encode_known(value) != data:
        raise NotCanonical("not the deterministic encoding of its value")
    return value


def decode_loosely(data: bytes, *, max_bytes: int = MAX_BYTES) -> Any:
    """``decode`` for a caller who compares the encoding of what it makes of the value with ``data`` itself.

    Raises:
        NotCanonical: malformed, too large, too deep, or no ``Plain``.
    """
    if len(data) > max_bytes:
        raise NotCanonical(f"{len(data)} bytes are more than the {max_bytes} allowed")
    try:
        value = cbor2.loads(
            data, max_depth=MAX_DEPTH, allow_indefinite=False, allow_duplicate_keys=False, strict_hashable_types=True
        )
    except (cbor2.CBORError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise NotCanonical(f"malformed CBOR: {error}") from error
    _check(value, MAX_DEPTH)
    return value


def decode_known(data: bytes) -> Any:
    """The value of what ``encode`` of this process made."""
    return cbor2.loads(data)


def _check(value: object, depth: int) -> None:
    if depth < 0:
        raise NotCanonical(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        for key, item in cast("dict[object, object]", value).items():
            if not isinstance(key, str):
                raise NotCanonical("a map key is not a text")
            _check_text(key)
            _check(item, depth - 1)
    elif isinstance(value, list | tuple):
        for item in cast("list[object]", value):
            _check(item, depth - 1)
    elif isinstance(value, str):
        _check_text(value)
    else:
        _check_scalar(value)


def _check_text(value: str) -> None:
    if value.isascii():
        return
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise NotCanonical("a text holds a lone surrogate") from error


def _check_scalar(value: object) -> None:
    match value:
        case None | bool() | bytes():
            pass
        case int():
            if not _INT_RANGE[0] <= value <= _INT_RANGE[1]:
                raise NotCanonical("an integer does not fit 64 bits")
        case float():
            if not math.isfinite(value):
                raise NotCanonical("NaN and infinities have no place in a record")
        case _:
            raise NotCanonical(f"a {type(value).__name__} has no place in a record")
