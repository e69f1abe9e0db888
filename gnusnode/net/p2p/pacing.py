"""Reading no faster than a sender may make us work: the rest waits in its own windows, and then at its side."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import trio

if TYPE_CHECKING:
    from libp2p.abc import INetStream

BURST_SECONDS: Final = 8.0
"""How much of a quiet time a sender may catch up."""
_CAPACITY: Final = 4096


class Paces:
    """Bytes per second of each sender, over all its streams.

    Args:
        rate: bytes per second that a sender may have now.
    """

    def __init__(self, rate: Callable[[str], float]) -> None:
        self._rate = rate
        self._paid_at: OrderedDict[str, float] = OrderedDict()
        """When all that was read of a sender is paid for; whoever was not read for longest is forgotten first."""

    async def pay(self, sender: str, size: int) -> None:
        """Returns when ``size`` bytes of ``sender`` are paid for."""
        now = trio.current_time()
        before = self._paid_at.pop(sender, float("-inf"))
        paid_at = self._paid_at[sender] = max(before, now - BURST_SECONDS) + size / self._rate(sender)
        while len(self._paid_at) > _CAPACITY:
            self._paid_at.popitem(last=False)
        if paid_at > now:
            await trio.sleep_until(paid_at)


class PacedStream:
    """A stream of the library whose reads are paid for."""

    def __init__(self, stream: INetStream, paces: Paces) -> None:
        self._stream = stream
        self._sender = str(stream.muxed_conn.peer_id)
        self._paces = paces

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def read(self, n: int | None = None) -> bytes:
        data = await self._stream.read(n)
        await self._paces.pay(self._sender, len(data))
        return data
