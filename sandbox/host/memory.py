"""Pointers of a module, checked. WebAssembly hands them over as signed 32-bit integers; all of them are hostile."""

from __future__ import annotations

from typing import Final

_U32: Final = 0xFFFF_FFFF


def span(pointer: int, length: int, size: int) -> slice | None:
    """The bytes ``pointer`` to ``pointer + length`` of a memory of ``size`` bytes; None: they do not all lie inside.

    Both are read as unsigned, so that a negative one is a very large one, and their sum does not wrap.
    """
    start = pointer & _U32
    end = start + (length & _U32)
    return slice(start, end) if end <= size else None
