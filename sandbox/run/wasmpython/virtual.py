"""Time and chance of a guest: both are made here, both are the same in every run.

A guest's second is a number of instructions. So a loop sees time pass, a program that is given half a processor sees
itself use half of the time, and a program that runs out of time does so at the same instruction everywhere.
"""

from __future__ import annotations

import hashlib
from typing import Final, Protocol

FUEL_PER_SECOND: Final = 2_000_000_000
"""Instructions of a whole processor in a second of the guest's time; real ones do two to four times as many."""
EPOCH_NS: Final = 1_577_836_800 * 10**9
"""What the clock shows at the start: 2020-01-01T00:00:00Z. Nothing real is behind it."""
_SECOND: Final = 10**9


class Fuel(Protocol):
    """What a guest has burnt and may still burn."""

    def burnt(self) -> int: ...

    def burn(self, amount: int) -> None:
        """Takes fuel away as if instructions had run; all that is left when it is less."""
        ...


class VirtualClock:
    """Runs on fuel. To sleep is to burn what would have been used meanwhile; it takes no real time.

    Args:
        cpus: the share of a processor that the guest has.
    """

    def __init__(self, fuel: Fuel, cpus: float) -> None:
        self._fuel = fuel
        self._per_second = max(int(FUEL_PER_SECOND * cpus), 1)

    def realtime(self) -> int:
        """Nanoseconds since the Unix epoch."""
        return EPOCH_NS + self.monotonic()

    def monotonic(self) -> int:
        """Nanoseconds since the start."""
        return self._fuel.burnt() * _SECOND // self._per_second

    def sleep(self, nanoseconds: int) -> None:
        self._fuel.burn(max(nanoseconds, 0) * self._per_second // _SECOND)


class VirtualRandom:
    """SHA-256 in counter mode over a seed. Looks random and is known to everybody: no use for secrets."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._counter = 0

    def take(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            data += hashlib.sha256(self._seed + self._counter.to_bytes(8, "big")).digest()
            self._counter += 1
        return bytes(data[:count])
