"""The wall clock, as records have it. How long something takes is measured by steady clocks, never by this one."""

from __future__ import annotations

import time


def unix_ms() -> int:
    """Milliseconds since the epoch, UTC."""
    return time.time_ns() // 1_000_000
