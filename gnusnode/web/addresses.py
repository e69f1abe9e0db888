"""Which addresses a request that somebody else had a say in may reach: public unicast ones, and nothing else. Pure.

An explicit table, because ``ipaddress`` calls NAT64, 6to4, IPv4-compatible and multicast addresses global, through
which a loopback or metadata address can be reached. What is not listed as public here is not public.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Address = IPv4Address | IPv6Address

_SPECIAL_V4: Final = tuple(
    IPv4Network(block)
    for block in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",  # the platform service of one cloud, in public space by an accident of history
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_GLOBAL_V6: Final = IPv6Network("2000::/3")
_SPECIAL_V6: Final = tuple(
    IPv6Network(block)
    for block in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarking
        "2001:db8::/32",
        "2002::/16",  # 6to4 carries an IPv4 address
        "3fff::/20",
    )
)


def is_public(address: Address) -> bool:
    """Whether ``address`` is a public unicast address that carries no other address inside."""
    if isinstance(address, IPv4Address):
        return not any(address in block for block in _SPECIAL_V4)
    return address.scope_id is None and address in _GLOBAL_V6 and not any(address in block for block in _SPECIAL_V6)


def parse_address(text: str) -> Address | None:
    """The address that ``text`` spells in its canonical or scoped form; None: it is no address."""
    try:
        return ip_address(text)
    except ValueError:
        return None
