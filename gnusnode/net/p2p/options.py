"""What the network needs to know at start, in plain values: no library type crosses this line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

NETWORK_KEY_BYTES: Final = 32


@dataclass(frozen=True)
class NetOptions:
    """Settings of one endpoint.

    Attributes:
        listen: TCP multiaddrs to listen on; port 0 chooses one; empty: nobody can dial this node.
        announce: multiaddrs to tell others in place of the ones found.
        allow: networks in CIDR notation that may connect; empty: all that ``deny`` leaves.
        deny: networks in CIDR notation that may not.
        max_connections: to peers, both ways.
        max_per_address: incoming ones from one IP address (one /64 network of IPv6).
        dial_seconds: time that each dialled address has to become a connection.
        ping_seconds: how often a quiet connection is asked for a sign of life; after three times that it is dropped.
        network_key: pre-shared key of ``NETWORK_KEY_BYTES``; nodes with another one, or none, cannot connect.
        network_name: names the private DHT and the topics; None: the public DHT protocol.
        dht: take part in the distributed hash table.
        relay: ``client``: use relays, ``server``: relay for others too.
    """

    listen: tuple[str, ...] = ()
    announce: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    max_connections: int = 200
    max_per_address: int = 32
    dial_seconds: float = 5.0
    ping_seconds: float = 5.0
    network_key: bytes | None = None
    network_name: str | None = None
    dht: bool = False
    relay: Literal["off", "client", "server"] = "off"
