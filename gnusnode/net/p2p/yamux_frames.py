"""What stands on the wire between two muxers, and the bounds that hold there.

https://github.com/hashicorp/yamux/blob/master/spec.md
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from gnusnode.net.port import NetStatistics

WINDOW: Final = 256 * 1024
"""Bytes that a stream may send before it hears of credit: fixed by the protocol at the start."""
MAX_WINDOW: Final = 2 * 1024 * 1024
"""What the window of a fast reader grows to."""
MAX_GROWTH: Final = 8 * 1024 * 1024
"""All that the windows of one connection may grow by."""
MAX_HELD: Final = 24 * 1024 * 1024
"""Bytes of one connection that wait for their readers before it is ended."""
MAX_HELD_IN_ALL: Final = 256 * 1024 * 1024
"""The same of all connections of a node together: a peer may have several, and there may be many such peers."""
FAIR_HELD: Final = 1024 * 1024
"""What one connection may hold however much the others do."""
MAX_INBOUND_STREAMS: Final = 256
OPENINGS: Final = 512
"""Streams that a peer may open at once, whatever becomes of them; a handler costs more than the 24 bytes that open and
reset its stream."""
OPENINGS_PER_SECOND: Final = 100.0
OUTBOX: Final = 64 * 1024
"""Bytes that wait for the socket before writers do: few, so that a token overtakes a body."""
MAX_OUTBOX: Final = 1024 * 1024
"""Answers that a peer may cause without reading them before the connection is ended."""
CHUNK: Final = 16 * 1024
BATCH: Final = 65519
"""Largest plaintext of one Noise message."""
WRITE_SECONDS: Final = 5.0
"""Time that a writer waits for a reader that takes nothing."""
CLOSE_SECONDS: Final = 0.3
"""Time that a connection has to send what is left when it is closed in order."""
HALF_CLOSED_SECONDS: Final = 120.0
"""Time that a peer has to close a stream that was closed here, if it sends nothing."""
HANDLER_GRACE: Final = 1.0
"""Time that the handlers of a dead connection have to end by themselves."""

DATA, WINDOW_UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8
HEADER: Final = struct.Struct("!BBHII")
"""Version, kind, flags, stream, length."""


class Holdings:
    """Bytes that wait for their readers, of all connections that share it."""

    def __init__(self) -> None:
        self.total = 0

    def overdrawn(self, held: int, size: int) -> bool:
        """Counts ``size`` bytes more, or less; whether a connection that now holds ``held`` has to give way for it."""
        self.total += size
        return size > 0 and (held > MAX_HELD or (held > FAIR_HELD and self.total > MAX_HELD_IN_ALL))


@dataclass(frozen=True)
class YamuxOptions:
    """``ping_seconds``: how often a quiet connection is asked for a sign of life; after three times that it ends."""

    ping_seconds: float
    statistics: NetStatistics
    holdings: Holdings = field(default_factory=Holdings)


class Openings:
    """How many streams the peer may still open; time gives them back."""

    def __init__(self, now: float) -> None:
        self._left = float(OPENINGS)
        self._at = now

    def take(self, now: float) -> bool:
        """Whether one more may be opened at ``now``."""
        self._left = min(float(OPENINGS), self._left + (now - self._at) * OPENINGS_PER_SECOND)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def lost_by(error: BaseException) -> str:
    """What a fault of the library says about the end of a connection."""
    text = str(error) or type(error).__name__
    return f"the connection was lost ({text[:200]})"
