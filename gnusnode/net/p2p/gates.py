"""Who may connect: networks, numbers per address and per peer, bans. Pure: it counts and says, and closes nothing."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Final, Literal, TypeAlias

from gnusnode.errors import ConfigError
from gnusnode.net.p2p.options import NetOptions
from gnusnode.net.port import NetStatistics

Reason: TypeAlias = Literal["denied", "per-ip", "per-peer", "full", "banned"]

MAX_PER_PEER: Final = 4
"""Connections of one peer: two that dial each other at once have two; a lost one may not be noticed yet."""

_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class Gates:
    """Admission of connections, with the counts of what was refused."""

    def __init__(self, options: NetOptions, statistics: NetStatistics) -> None:
        self.banned: frozenset[str] = frozenset()
        self._allow = _networks(options.allow, "net.allow")
        self._deny = _networks(options.deny, "net.deny")
        self._max_inbound = options.max_connections
        self._max_per_address = options.max_per_address
        self._statistics = statistics
        self._inbound: Counter[str] = Counter()

    def refuses_address(self, host: str | None) -> Reason | None:
        """Why a connection from ``host`` may not come in; None: it may. An address that cannot be read is denied."""
        return self._counted(self._judge_address(host))

    def refuses_peer(self, peer: str, connections: int, *, inbound: bool) -> Reason | None:
        """Why ``peer``, which has ``connections`` already, may not have another one; None: it may."""
        reason: Reason | None = None
        if peer in self.banned:
            reason = "banned"
        elif connections >= MAX_PER_PEER:
            reason = "per-peer"
        return self._counted(reason) if inbound else reason

    @contextmanager
    def slot(self, host: str | None) -> Generator[None, None, None]:
        """The place of an incoming connection, from its first byte to its end."""
        group = _group(host)
        self._inbound[group] += 1
        try:
            yield
        finally:
            self._inbound[group] -= 1
            if not self._inbound[group]:
                del self._inbound[group]

    @property
    def inbound(self) -> int:
        """Incoming connections now, those that are still shaking hands counted."""
        return self._inbound.total()

    def _judge_address(self, host: str | None) -> Reason | None:
        address = _address(host)
        if address is None:
            return "denied"
        if any(address in network for network in self._deny):
            return "denied"
        if self._allow and not any(address in network for network in self._allow):
            return "denied"
        if self._inbound.total() >= self._max_inbound:
            return "full"
        if self._inbound[_group(host)] >= self._max_per_address:
            return "per-ip"
        return None

    def failed_handshake(self) -> None:
        """A connection ended before anybody proved who they are: another network key, a scanner, or nobody."""
        self._count("handshake")

    def _counted(self, reason: Reason | None) -> Reason | None:
        if reason is not None:
            self._count(reason)
        return reason

    def _count(self, reason: str) -> None:
        refused = self._statistics.inbound_refused
        refused[reason] = refused.get(reason, 0) + 1


def _networks(texts: Iterable[str], key: str) -> tuple[_Network, ...]:
    try:
        return tuple(ipaddress.ip_network(text, strict=False) for text in texts)
    except ValueError as error:
        raise ConfigError(str(error), where=key, hint="write networks as 192.168.0.0/16 or 2001:db8::/32") from error


def _address(host: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _group(host: str | None) -> str:
    """What counts as one origin: an IPv4 address, or the /64 network that one IPv6 subscriber has."""
    address = _address(host)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return str(address)
