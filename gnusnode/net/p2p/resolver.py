"""Names in multiaddrs, asked of the system's resolver: it knows ``/etc/hosts``, ``.local`` and a VPN's names too."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import socket
from typing import Final

import trio
from multiaddr import Multiaddr

_FAMILIES: Final = {"dns": socket.AF_UNSPEC, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}
_MAX_ANSWERS: Final = 8
"""Addresses of one name that are used: the answer comes from outside."""


class SystemResolver:
    """Stands in for multiaddr's ``DNSResolver``, which brings a DNS library of its own and knows only DNS."""

    async def resolve(self, maddr: Multiaddr) -> list[Multiaddr]:
        """The addresses that ``/dns…/NAME`` at the beginning of ``maddr`` stands for; all else follows as it is.

        Raises:
            OSError: the name is not known.
            NotImplementedError: it is a ``/dnsaddr``, which names peers by TXT records.
        """
        _, kind, name, *rest = str(maddr).split("/")
        if kind not in _FAMILIES:
            raise NotImplementedError(f"/{kind} cannot be resolved here: name the address with /dns4 or /ip4")
        found = await trio.socket.getaddrinfo(name, None, family=_FAMILIES[kind], type=socket.SOCK_STREAM)
        hosts = dict.fromkeys(
            ("ip6" if family == socket.AF_INET6 else "ip4", str(to[0])) for family, _, _, _, to in found
        )
        return [Multiaddr("/".join(("", *host, *rest))) for host in list(hosts)[:_MAX_ANSWERS] if "%" not in host[1]]
