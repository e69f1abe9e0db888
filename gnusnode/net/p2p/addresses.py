"""Which of our addresses we tell others: real ones, the local network's first, loopback only where nothing else is."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias, cast

import psutil

_IP: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

FRESH_SECONDS: Final = 10.0
"""How long what the interfaces said is believed: a laptop changes networks, but is asked often."""


def announced(listening: Iterable[str], interfaces: Iterable[str]) -> tuple[str, ...]:
    """The multiaddrs to announce for ``listening``, the bound ones, on a host with these ``interfaces``' addresses.

    An unspecified address stands for every interface of its family. Link-local addresses of IPv6 are left out: they
    mean nothing without the name of an interface.
    """
    hosts = [ip for text in interfaces if (ip := _ip(text)) is not None and not _useless(ip)]
    found: dict[str, _IP | None] = {}
    for address in listening:
        _, family, host, *rest = address.split("/")
        ip = _ip(host)
        if ip is None or not ip.is_unspecified:
            found[address] = ip
            continue
        for each in hosts:
            if each.version == ip.version:
                found["/".join(("", family, str(each), *rest))] = each
    beyond = {address: ip for address, ip in found.items() if ip is None or not ip.is_loopback}
    return tuple(sorted(beyond or found, key=lambda address: _rank(found[address])))


def interface_addresses() -> tuple[str, ...]:
    """The addresses of this host's interfaces."""
    families = (socket.AF_INET, socket.AF_INET6)
    found = cast("dict[str, list[Any]]", psutil.net_if_addrs())
    return tuple(str(each.address) for all_ in found.values() for each in all_ if each.family in families)


class Interfaces:
    """``interface_addresses``, remembered for ``FRESH_SECONDS``."""

    def __init__(
        self, read: Callable[[], tuple[str, ...]] = interface_addresses, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._clock = clock
        self._until = float("-inf")
        self._addresses: tuple[str, ...] = ()

    def addresses(self) -> tuple[str, ...]:
        if self._clock() >= self._until:
            self._addresses = self._read()
            self._until = self._clock() + FRESH_SECONDS
        return self._addresses


def _ip(text: str) -> _IP | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _useless(ip: _IP) -> bool:
    return ip.is_unspecified or ip.is_multicast or (ip.version == 6 and ip.is_link_local)


def _rank(ip: _IP | None) -> int:
    if ip is None or not ip.is_private:
        return 1
    return 2 if ip.is_loopback or ip.is_link_local else 0
