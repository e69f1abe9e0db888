"""Deterministic CBOR (RFC 8949 §4.2) over plain data, strict both ways.

One value has one encoding: shortest integers and floats, definite lengths, sorted text keys, no tags. ``decode`` refuses
every other spelling, so two nodes that agree on bytes agree on meaning and a hash names exactly one value.
"""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias

import cbor2

MAX_BYTES: Final = 4 * 1024 * 1024
MAX_DEPTH: Final = 24
_INT_RANGE: Final = (-(2**63), 2**63 - 1)

Plain: TypeAlias = "None | bool | int | float | str | bytes | list[Plain] | dict[str, Plain]"
"""What a record may consist of."""


class NotCanonical(ValueError):
    """Bytes or a value that have no place in a record; the text says which rule is broken."""


def encode(value: object) -> bytes:
    """The one encoding of ``value``. Tuples are encoded as lists.

    Raises:
        NotCanonical: a type, key, number or depth outside ``Plain``.
    """
    _check(value, MAX_DEPTH)
    return cbor2.dumps(value, canonical=True)


def decode(data: bytes, *, max_bytes: int = MAX_BYTES) -> Any:
    """The value of ``data``, which must be its one encoding.

    Raises:
        NotCanonical: malformed, too large, too deep, or another spelling of the same value.
    """
    if len(data) > max_bytes:
        raise NotCanonical(f"{len(data)} bytes are more than the {max_bytes} allowed")
    try:
        value = cbor2.loads(
            data, max_depth=MAX_DEPTH, allow_indefinite=False, allow_duplicate_keys=False, strict_hashable_types=True
        )
    except (cbor2.CBORError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise NotCanonical(f"malformed CBOR: {error}") from error
    if encode(value) != data:
        raise NotCanonical("not the deterministic encoding of its value")
    return value


def _check(value: object, depth: int) -> None:
    if depth < 0:
        raise NotCanonical(f"nested deeper than {MAX_DEPTH} levels")
    match value:
        case None | bool() | bytes():
            pass
        case int():
            if not _INT_RANGE[0] <= value <= _INT_RANGE[1]:
                raise NotCanonical("an integer does not fit 64 bits")
        case float():
            if not math.isfinite(value):
                raise NotCanonical("NaN and infinities have no place in a record")
        case str():
            if not value.isascii():
                try:
                    value.encode("utf-8")
                except UnicodeEncodeError as error:
                    raise NotCanonical("a text holds a lone surrogate") from error
        case list() | tuple():
            for item in value:  # pyright: ignore[reportUnknownVariableType]
                _check(item, depth - 1)  # pyright: ignore[reportUnknownArgumentType]
        case dict():
            for key, item in value.items():  # pyright: ignore[reportUnknownVariableType]
                if not isinstance(key, str):
                    raise NotCanonical("a map key is not a text")
                _check(key, depth)
                _check(item, depth - 1)  # pyright: ignore[reportUnknownArgumentType]
        case _:
            raise NotCanonical(f"a {type(value).__name__} has no place in a record")
