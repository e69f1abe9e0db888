"""Who comes and who goes, as the library tells it to its services."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable

import trio
from libp2p.abc import INetConn, INetStream, INetwork, INotifee
from libp2p.peer.id import ID
from multiaddr import Multiaddr


class Comings(INotifee):
    """Rings when a connection comes, until the reader replaces ``rung``; ``lost`` is told whose was lost."""

    def __init__(self, lost: Callable[[ID], None]) -> None:
        self.rung = trio.Event()
        self._lost = lost

    async def connected(self, network: INetwork, conn: INetConn) -> None:
        self.rung.set()

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:
        self._lost(conn.muxed_conn.peer_id)

    async def opened_stream(self, network: INetwork, stream: INetStream) -> None: ...
    async def closed_stream(self, network: INetwork, stream: INetStream) -> None: ...
    async def listen(self, network: INetwork, multiaddr: Multiaddr) -> None: ...
    async def listen_close(self, network: INetwork, multiaddr: Multiaddr) -> None: ...
