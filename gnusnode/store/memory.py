"""How much address space this process may map."""

from __future__ import annotations

import mmap
from typing import Final

DEFAULT_MAP: Final = 64 << 30
"""Bytes. The map is sparse: it costs address space, neither memory nor disk."""
SMALLEST_MAP: Final = 16 << 20


def address_space_allows(size: int) -> bool:
    """Whether ``size`` bytes can be mapped now; nothing stays mapped."""
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0), prot=mmap.PROT_READ).close()
    except (OSError, OverflowError, ValueError):
        return False
    return True


def fitting_map(wanted: int) -> int:
    """The largest of ``wanted``, its half, its quarter and so on that fits; the store grows it when it must."""
    size = wanted
    while size > SMALLEST_MAP and not address_space_allows(size):
        size //= 2
    return size
