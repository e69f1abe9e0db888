"""Finding peers on the local network by multicast DNS.

Each network name has a service type of its own, so nodes of other networks do not even hear each other. What is found
is a hint from anybody on the LAN: it is parsed strictly, bounded, counted where it is refused, and proves nothing.

``zeroconf`` lives in threads of its own; its blocking calls run in worker threads, its callbacks only hand a name over.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import re
import socket
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio
from zeroconf import Error as ZeroconfError
from zeroconf import InterfaceChoice, ServiceBrowser, ServiceInfo, ServiceStateChange, Zeroconf

from gnusnode.errors import CannotBind
from gnusnode.net.port import PeerAddresses

MAX_ADDRESSES: Final = 8
MAX_PEERS: Final = 1024
"""Peers remembered at once, and names waiting to be looked up; what is over that is refused and counted."""

_RECHECK_SECONDS: Final = 5.0
_RESOLVE_SECONDS: Final = 3.0
_RESOLVERS: Final = 4
_STOP_SECONDS: Final = 3.0
_TTL_SECONDS: Final = 120
_PEER_KEY: Final = b"peer"
_ADDRESS_KEY: Final = re.compile(rb"a[0-7]\Z")
_PEER: Final = re.compile(r"12D3KooW[1-9A-HJ-NP-Za-km-z]{44}\Z")
"""The base58 of every PeerID made of an Ed25519 key."""
_ADDRESS: Final = re.compile(r"/(ip4|ip6)/([0-9a-fA-F.:]{2,45})/tcp/([1-9][0-9]{0,4})\Z")

_log = logging.getLogger(__name__)


def service_type(network_name: str | None) -> str:
    """The DNS-SD type of the network, at most 15 characters before the protocol as the standard wants."""
    digest = hashlib.sha256((network_name or "").encode()).hexdigest()
    return f"_gnus-{digest[:8]}._udp.local."


def records(peer: str, addresses: Sequence[str]) -> dict[str, str]:
    """The TXT record of ``peer``: its id, and the first of its TCP addresses without the id at their end."""
    plain = (address.partition("/p2p/")[0] for address in addresses if "/p2p-circuit" not in address)
    usable = list(dict.fromkeys(each for each in plain if _is_address(each)))[:MAX_ADDRESSES]
    return {"peer": peer, **{f"a{index}": address for index, address in enumerate(usable)}}


def parse(name: str, kind: str, properties: Mapping[bytes, bytes | None]) -> PeerAddresses | None:
    """What a record of service type ``kind`` says; None: it is not one that a node of ours writes.

    Unknown keys are left for later versions; a known one that does not parse spoils the whole record.
    """
    try:
        peer = (properties.get(_PEER_KEY) or b"").decode("ascii")
        said = sorted((key, value or b"") for key, value in properties.items() if _ADDRESS_KEY.match(key))
        addresses = [value.decode("ascii") for _, value in said]
    except UnicodeDecodeError:
        return None
    if not _PEER.match(peer) or name != f"{peer}.{kind}" or not addresses:
        return None
    if not all(_is_address(each) for each in addresses):
        return None
    return PeerAddresses(peer, tuple(dict.fromkeys(f"{each}/p2p/{peer}" for each in addresses)))


def _is_address(text: str) -> bool:
    match = _ADDRESS.match(text)
    if match is None or int(match[3]) > 0xFFFF:
        return False
    try:
        host = ipaddress.IPv4Address(match[2]) if match[1] == "ip4" else ipaddress.IPv6Address(match[2])
    except ValueError:
        return False
    return not (host.is_unspecified or host.is_multicast)


@dataclass
class MdnsStatistics:
    found: int = 0
    refused: int = 0
    """Records that did not parse, and names over ``MAX_PEERS``."""


@dataclass(eq=False)
class Mdns:
    """Iterate for peers: once each, and again when their addresses change or they come back."""

    peer_id: str
    kind: str
    statistics: MdnsStatistics = field(default_factory=MdnsStatistics)
    _known: OrderedDict[str, PeerAddresses] = field(default_factory=OrderedDict[str, PeerAddresses])
    _names: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])
    _named: trio.Event = field(default_factory=trio.Event)
    _found: OrderedDict[str, PeerAddresses] = field(default_factory=OrderedDict[str, PeerAddresses])
    _arrived: trio.Event = field(default_factory=trio.Event)

    def __aiter__(self) -> Mdns:
        return self

    async def __anext__(self) -> PeerAddresses:
        await trio.lowlevel.checkpoint()
        while not self._found:
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self._found.popitem(last=False)[1]

    def heard(self, name: str, change: ServiceStateChange) -> None:
        """A name was added, updated or removed, in trio's thread."""
        if change is ServiceStateChange.Removed:
            self._known.pop(name, None)
            return
        if name == f"{self.peer_id}.{self.kind}":
            return
        if name not in self._names and len(self._names) >= MAX_PEERS:
            self.statistics.refused += 1
            return
        self._names[name] = None
        self._named.set()

    def learned(self, name: str, info: ServiceInfo | None) -> None:
        """What a lookup of ``name`` gave; None: no answer."""
        if info is None:
            return
        said = parse(name, self.kind, info.properties)
        if said is None:
            self.statistics.refused += 1
            return
        if self._known.get(name) == said:
            return
        self._known[name] = said
        if len(self._known) > MAX_PEERS:
            self._known.popitem(last=False)
        self.statistics.found += 1
        self._found[name] = said
        if len(self._found) > MAX_PEERS:
            self._found.popitem(last=False)
        self._arrived.set()

    async def resolve(self, zeroconf: Zeroconf) -> None:
        """Looks up the names that were heard, one after the other. Never returns; several may run at once."""
        while True:
            while not self._names:
                self._named = trio.Event() if self._named.is_set() else self._named
                await self._named.wait()
            name, _ = self._names.popitem(last=False)
            info: ServiceInfo | None = None
            try:
                info = await trio.to_thread.run_sync(self._look_up, zeroconf, name, abandon_on_cancel=True)
            except (ZeroconfError, OSError) as error:
                _log.debug("mdns lookup failed: %r", error)
            self.learned(name, info)

    def _look_up(self, zeroconf: Zeroconf, name: str) -> ServiceInfo | None:
        return zeroconf.get_service_info(self.kind, name, timeout=int(_RESOLVE_SECONDS * 1000))


class _Announcement:
    """Our own record, kept as the addresses are."""

    def __init__(self, peer: str, kind: str, addresses: Callable[[], Sequence[str]]) -> None:
        self._peer = peer
        self._kind = kind
        self._addresses = addresses
        self._said: dict[str, str] = {}

    async def run(self, zeroconf: Zeroconf) -> None:
        """Announces, and again whenever the addresses have changed. Never returns.

        The system tells nobody when an interface comes or goes: they are compared every few seconds.
        """
        while True:
            wanted = records(self._peer, self._addresses())
            if wanted != self._said:
                try:
                    await trio.to_thread.run_sync(self._say, zeroconf, wanted, abandon_on_cancel=True)
                    self._said = wanted
                except (ZeroconfError, OSError) as error:
                    _log.warning("cannot announce this node by mDNS, trying again: %r", error)
            await trio.sleep(_RECHECK_SECONDS)

    def _say(self, zeroconf: Zeroconf, wanted: dict[str, str]) -> None:
        hosts = [match for match in (_ADDRESS.match(wanted[key]) for key in wanted if key != "peer") if match]
        if not hosts:
            # Nothing to dial: a goodbye, if anything was said before.
            zeroconf.unregister_all_services()
            return
        info = ServiceInfo(
            self._kind,
            f"{self._peer}.{self._kind}",
            addresses=[ipaddress.ip_address(match[2]).packed for match in hosts],
            port=int(hosts[0][3]),
            properties=wanted,
            server=f"{self._peer}.local.",
            host_ttl=_TTL_SECONDS,
            other_ttl=_TTL_SECONDS,
        )
        if any(key != "peer" for key in self._said):
            zeroconf.update_service(info)
        else:
            zeroconf.register_service(info, cooperating_responders=True)


@asynccontextmanager
async def open_mdns(
    peer_id: str,
    network_name: str | None,
    addresses: Callable[[], Sequence[str]],
    *,
    interfaces: Sequence[str] = (),
) -> AsyncGenerator[Mdns, None]:
    """Announces ``addresses()`` of ``peer_id`` on the LAN and finds the others of the same network.

    ``interfaces``: IP addresses of the interfaces to use; empty: all of them.

    Raises:
        CannotBind: an interface cannot be used for multicast.
    """
    kind = service_type(network_name)
    mdns = Mdns(peer_id, kind)
    token = trio.lowlevel.current_trio_token()

    def heard(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        try:
            token.run_sync_soon(mdns.heard, name, state_change, idempotent=True)
        except trio.RunFinishedError:
            return

    try:
        zeroconf = await trio.to_thread.run_sync(_start, tuple(interfaces))
    except (OSError, ValueError) as error:
        raise CannotBind(
            f"multicast on {', '.join(interfaces) or 'this machine'} is not possible: {error}",
            where="net.mdns_interfaces",
            hint="name other interfaces, or set net.mdns = false",
        ) from error
    try:
        browser = await trio.to_thread.run_sync(lambda: ServiceBrowser(zeroconf, kind, handlers=[heard]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_Announcement(peer_id, kind, addresses).run, zeroconf)
            for _ in range(_RESOLVERS):
                nursery.start_soon(mdns.resolve, zeroconf)
            yield mdns
            nursery.cancel_scope.cancel()
        del browser
    finally:
        # Says goodbye; on a dead interface that may take long, and then the process need not wait for it.
        with trio.move_on_after(_STOP_SECONDS, shield=True):
            await trio.to_thread.run_sync(zeroconf.close, abandon_on_cancel=True)


def _start(interfaces: tuple[str, ...]) -> Zeroconf:
    # zeroconf leaves a socket behind where an interface is not there: that is tried with one of our own first.
    for interface in interfaces:
        family = socket.AF_INET if ipaddress.ip_address(interface).version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((interface, 0))
    return Zeroconf(interfaces=list(interfaces) if interfaces else InterfaceChoice.All)
