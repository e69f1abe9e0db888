"""A CBOR writer that can spell a value in every way that RFC 8949 allows and the deterministic encoding forbids."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final


def head(major: int, argument: int, *, width: int = 0) -> bytes:
    """The head of an item, in the shortest form or with the argument in ``width`` bytes (1, 2, 4, 8)."""
    first = major << 5
    if not width:
        if argument < 24:
            return bytes([first | argument])
        width = next(size for size in (1, 2, 4, 8) if argument < 256**size)
    return bytes([first | {1: 24, 2: 25, 4: 26, 8: 27}[width]]) + argument.to_bytes(width, "big")


def write(value: Any, spell: Callable[[Any], bytes | None] = lambda _: None) -> bytes:
    """Deterministic CBOR of ``value``, but for the items that ``spell`` gives an own spelling for."""
    own = spell(value)
    if own is not None:
        return own
    match value:
        case None:
            return b"\xf6"
        case bool():
            return b"\xf5" if value else b"\xf4"
        case int():
            return head(0, value) if value >= 0 else head(1, -1 - value)
        case float():
            return short_float(value)
        case str():
            raw = value.encode("utf-8")
            return head(3, len(raw)) + raw
        case list():
            return head(4, len(value)) + b"".join(write(item, spell) for item in value)
        case dict():
            return head(5, len(value)) + b"".join(pairs(value, spell))
    raise TypeError(type(value))


def pairs(value: dict[str, Any], spell: Callable[[Any], bytes | None] = lambda _: None) -> list[bytes]:
    """Keys and values of a map, in the order of the encoded keys."""
    return [raw + write(item, spell) for raw, item in sorted((write(key), item) for key, item in value.items())]


def short_float(value: float) -> bytes:
    for code, form in ((0xF9, ">e"), (0xFA, ">f")):
        try:
            raw = struct.pack(form, value)
        except OverflowError:
            continue
        if struct.unpack(form, raw)[0] == value:
            return bytes([code]) + raw
    return long_float(value)


def long_float(value: float) -> bytes:
    return b"\xfb" + struct.pack(">d", value)


def first(plain: dict[str, Any], kind: type, spelling: Callable[[Any], bytes]) -> bytes:
    """``plain`` with the first item of exactly type ``kind`` spelled differently."""
    done: list[bool] = []

    def spell(value: Any) -> bytes | None:
        if done or type(value) is not kind:
            return None
        done.append(True)
        return spelling(value)

    return write(plain, spell)


def _indefinite_map(plain: dict[str, Any]) -> bytes:
    return b"\xbf" + b"".join(pairs(plain)) + b"\xff"


def _repeated(plain: dict[str, Any]) -> bytes:
    one = pairs(plain)
    return head(5, len(one) + 1) + one[0] + b"".join(one)


def _reversed(plain: dict[str, Any]) -> bytes:
    return head(5, len(plain)) + b"".join(reversed(pairs(plain)))


def _integer_key(plain: dict[str, Any]) -> bytes:
    return head(5, len(plain) + 1) + b"\x01\x01" + b"".join(pairs(plain))


OTHER_SPELLINGS: Final[dict[str, Callable[[dict[str, Any]], bytes]]] = {
    "indefinite map": _indefinite_map,
    "duplicate key": _repeated,
    "unsorted keys": _reversed,
    "integer as a key": _integer_key,
    "map head too long": lambda plain: head(5, len(plain), width=2) + b"".join(pairs(plain)),
    "text head too long": lambda plain: first(plain, str, lambda v: head(3, len(v.encode()), width=4) + v.encode()),
    "indefinite text": lambda plain: first(plain, str, lambda v: b"\x7f" + write(v) + b"\xff"),
    "text as bytes": lambda plain: first(plain, str, lambda v: head(2, len(v.encode())) + v.encode()),
    "tagged map": lambda plain: b"\xd9\xd9\xf7" + write(plain),
    "tagged text": lambda plain: first(plain, str, lambda v: b"\xc0" + write(v)),
    "trailing byte": lambda plain: write(plain) + b"\x00",
    "second item behind": lambda plain: write(plain) * 2,
    "cut short": lambda plain: write(plain)[:-1],
    "a list around": lambda plain: b"\x81" + write(plain),
    "invalid UTF-8": lambda plain: first(plain, str, lambda v: head(3, 2) + b"\xc3\x28"),
    "undefined": lambda plain: first(plain, str, lambda v: b"\xf7"),
    "unassigned simple value": lambda plain: first(plain, str, lambda v: b"\xf8\xff"),
    "reserved head": lambda plain: first(plain, str, lambda v: b"\x1c"),
}
"""By name: spellings that apply to every map with at least one text."""

NUMBER_SPELLINGS: Final[dict[str, tuple[type, Callable[[Any], bytes]]]] = {
    "integer too long": (
        int,
        lambda v: head(0, v, width=8) if 0 <= v < 2**32 else head(6, 2) + b"\x48" + v.to_bytes(8, "big"),
    ),
    "integer as a float": (int, lambda v: long_float(float(v))),
    "bignum": (int, lambda v: b"\xc2\x49" + (v % 2**64).to_bytes(9, "big")),
    "float too long": (float, lambda v: long_float(v) if short_float(v)[0] != 0xFB else b"\xfb\x7f\xf0" + bytes(6)),
    "NaN": (float, lambda v: b"\xf9\x7e\x00"),
    "signalling NaN": (float, lambda v: b"\xfb\x7f\xf0\x00\x00\x00\x00\x00\x01"),
    "infinity": (float, lambda v: b"\xf9\x7c\x00"),
    "float as an integer": (float, lambda v: write(int(v))),
    "boolean as an integer": (bool, lambda v: write(int(v))),
}
"""By name: the type of the item, and how to spell it wrongly."""
