"""The two networks that keep one contract: nodes in memory, and real ones on the loopback interface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from gnusnode.identity import NodeIdentity
from gnusnode.net.memory import MemoryNetwork
from gnusnode.net.port import Net


def seed(number: int) -> bytes:
    return bytes([number]) * 32


def peer_id(number: int) -> str:
    return NodeIdentity(seed(number)).peer_id


class MemoryWorld:
    name = "memory"

    def __init__(self) -> None:
        self.network = MemoryNetwork()

    def join(self, number: int) -> AbstractAsyncContextManager[Net]:
        return self.network.join(peer_id(number))


class RealWorld:
    name = "p2p"

    def __init__(self, **options: Any) -> None:
        self.options = options

    def join(self, number: int, **options: Any) -> AbstractAsyncContextManager[Net]:
        # Here, not above: the library takes most of a second to import.
        from gnusnode.net.p2p.host import open_net
        from gnusnode.net.p2p.options import NetOptions

        chosen = {"listen": ("/ip4/127.0.0.1/tcp/0",), **self.options, **options}
        return open_net(seed(number), NetOptions(**chosen))


World = MemoryWorld | RealWorld


@asynccontextmanager
async def pair(world: World) -> AsyncIterator[tuple[Net, Net]]:
    """Two nodes, the first connected to the second."""
    async with world.join(1) as a, world.join(2) as b:
        await a.connect(b.peer_id, b.addresses())
        yield a, b
