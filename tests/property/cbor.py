"""A CBOR writer that can spell a value in every way that RFC 8949 allows and the deterministic encoding forbids."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final


def head(major: int, argument: int, *, width: int = 0) -> bytes:
    """The head of an item, in the shortest form or with the argument in ``width`` bytes (1, 2, 4, 8)."""
    first = major << 5
    if not width:
        if argument < 24:
            return bytes([first | argument])
        width = next(size for size in (1, 2, 4, 8) if argument < 256**size)
    return bytes([first | {1: 24, 2: 25, 4: 26, 8: 27}[width]]) + argument.to_bytes(width, "big")


def write(value: Any) -> bytes:
    """Deterministic CBOR of ``value``."""
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
            return head(4, len(value)) + b"".join(write(item) for item in value)
        case dict():
            return head(5, len(value)) + b"".join(pairs(value))
    raise TypeError(type(value))


def pairs(value: dict[str, Any]) -> list[bytes]:
    """Keys and values of a map, in the order of the encoded keys."""
    return [raw + write(item) for raw, item in sorted((write(key), item) for key, item in value.items())]


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


def other_spellings(plain: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of everything that a sloppy writer might send for ``plain``."""
    for name, spell in _OF_THE_MAP.items():
        yield name, spell(plain)
    for field, value in plain.items():
        for name, raw in _of_value(value):
            yield f"{field}: {name}", _with(plain, field, raw)


def _with(plain: dict[str, Any], field: str, raw: bytes) -> bytes:
    keys = sorted(plain, key=write)
    return head(5, len(plain)) + b"".join(write(key) + (raw if key == field else write(plain[key])) for key in keys)


def _of_value(value: Any) -> list[tuple[str, bytes]]:
    match value:
        case bool():
            return [("as an integer", write(int(value)))]
        case int():
            return [
                ("head too long", head(0, value, width=8) if 0 <= value < 2**32 else b"\xc2" + write(str(value))),
                ("as a float", long_float(float(value))),
                ("bignum", b"\xc2\x49" + (value % 2**64).to_bytes(9, "big")),
            ]
        case float():
            return [
                ("NaN", b"\xf9\x7e\x00"),
                ("signalling NaN", b"\xfb\x7f\xf0\x00\x00\x00\x00\x00\x01"),
                ("infinity", b"\xf9\x7c\x00"),
                ("as an integer", write(int(value))),
                *([] if short_float(value)[0] == 0xFB else [("too long", long_float(value))]),
            ]
        case str():
            raw = value.encode("utf-8")
            return [
                ("head too long", head(3, len(raw), width=8) + raw),
                ("indefinite", b"\x7f" + write(value) + b"\xff"),
                ("as bytes", head(2, len(raw)) + raw),
                ("tagged", b"\xc0" + write(value)),
                ("invalid UTF-8", head(3, 2) + b"\xc3\x28"),
                ("undefined", b"\xf7"),
                ("unassigned simple value", b"\xf8\xff"),
                ("reserved head", b"\x1c"),
            ]
        case list():
            return [("indefinite", b"\x9f" + write(value)[1:] + b"\xff")] if len(value) < 24 else []
        case _:
            return []


def _indefinite_map(plain: dict[str, Any]) -> bytes:
    return b"\xbf" + b"".join(pairs(plain)) + b"\xff"


def _repeated(plain: dict[str, Any]) -> bytes:
    one = pairs(plain)
    return head(5, len(one) + 1) + one[0] + b"".join(one)


def _reversed(plain: dict[str, Any]) -> bytes:
    return head(5, len(plain)) + b"".join(reversed(pairs(plain)))


def _integer_key(plain: dict[str, Any]) -> bytes:
    return head(5, len(plain) + 1) + b"\x01\x01" + b"".join(pairs(plain))


_OF_THE_MAP: Final[dict[str, Callable[[dict[str, Any]], bytes]]] = {
    "indefinite map": _indefinite_map,
    "duplicate key": _repeated,
    "unsorted keys": _reversed,
    "integer as a key": _integer_key,
    "map head too long": lambda plain: head(5, len(plain), width=2) + b"".join(pairs(plain)),
    "tagged map": lambda plain: b"\xd9\xd9\xf7" + write(plain),
    "trailing byte": lambda plain: write(plain) + b"\x00",
    "second item behind": lambda plain: write(plain) * 2,
    "cut short": lambda plain: write(plain)[:-1],
    "a list around": lambda plain: b"\x81" + write(plain),
}
