"""The peers of a node that takes part in no network: none, and the answers that say so."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gnusnode.errors import NotFound, Unavailable
from gnusnode.net.peers import PeerCounts


class Alone:
    """What ``Presence`` offers to operators, for a node without a network."""

    def overview(self) -> dict[str, Any]:
        return {"counts": asdict(PeerCounts()), "data": []}

    def show(self, name: str) -> dict[str, Any]:
        raise NotFound("this node knows no peers: its network is off", where=name, hint=_HINT)

    async def connect(self, address: str) -> dict[str, Any]:
        raise _off(address)

    async def ping(self, name: str) -> dict[str, Any]:
        raise _off(name)

    async def ban(self, name: str, reason: str = "") -> dict[str, Any]:
        del reason
        raise _off(name)

    async def unban(self, name: str) -> dict[str, Any]:
        raise _off(name)


_HINT = "join a swarm with `gnusnode swarm join TOKEN`, or set net.enabled to `on`, and start the node again"


def _off(where: str) -> Unavailable:
    return Unavailable("the network of this node is off", where=where, hint=_HINT)
