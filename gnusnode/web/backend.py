"""Connections to checked addresses: the name is resolved once, every answer must pass, and the checked one is dialled.

So a name that answers differently the second time is never asked a second time. What the name stands for is decided
here and nowhere later: TLS and the ``Host`` header keep the name.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import IPv6Address
from typing import Any, Final, cast

import httpcore2
import trio

from gnusnode.web.addresses import Address, is_public, parse_address
from gnusnode.web.refusals import Reason, WebFailed, WebRefused

_MAX_ATTEMPTS: Final = 4
"""Addresses of one name that are dialled before we give up."""
_DISCARD_PORT: Final = 9
_LOOKUPS: Final = 8
"""Names that are looked up at the same time."""

Place = tuple[str, int]
"""Host and port, as in ``Url``."""
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host name, as text. Raises ``OSError`` when there are none."""


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Opens TCP connections to public addresses on ports 80 and 443, and to the places that the operator named.

    Args:
        allowed: places that may be anywhere, at any port: servers that the operator has put into the configuration.
        resolve: asks the name server; another one than the system's is for tests.
    """

    def __init__(self, *, allowed: Collection[Place] = (), resolve: Resolve | None = None) -> None:
        self._allowed = frozenset(allowed)
        self._resolve = resolve or SystemResolver()
        self._tcp = cast("httpcore2.AsyncNetworkBackend", httpcore2.TrioBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """See ``httpcore2``; ``timeout`` counts for the resolution and all attempts together.

        Raises:
            WebRefused: an address that may not be reached; nothing was sent there.
            WebFailed: the name has no address.
            httpcore2.ConnectError, httpcore2.ConnectTimeout: nobody answers.
        """
        failure: Exception = httpcore2.ConnectTimeout(f"no connection to {host} in time")
        with trio.move_on_after(timeout if timeout is not None else float("inf")) as patience:
            for address in await self.admitted(host, port):
                share = (patience.deadline - trio.current_time()) / 2
                try:
                    return await self._tcp.connect_tcp(address, port, share, local_address, socket_options)
                except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                    failure = error
        raise failure

    async def admitted(self, host: str, port: int) -> list[str]:
        """The addresses of ``host`` that may be dialled; all of its answers have passed.

        Raises:
            WebRefused, WebFailed: see ``connect_tcp``.
        """
        place = f"{host}:{port}"
        named = (host, port) in self._allowed
        if not named and port not in (80, 443):
            raise WebRefused(Reason.URL_PORT, f"port {port} is not a port of the web", where=place)
        await trio.lowlevel.checkpoint()
        literal = parse_address(host)
        # The dot keeps the search list of the system's resolver out: `intranet.example` stays what it says.
        question = host if named else f"{host}."
        try:
            answers = [host] if literal is not None else await self._resolve(question, port)
        except (OSError, UnicodeError) as error:
            raise WebFailed(Reason.DNS_FAILED, f"the name has no address: {error}", where=host) from error
        if not answers:
            raise WebFailed(Reason.DNS_FAILED, "the name has no address", where=host)
        if not named:
            for answer in answers:
                _require_reachable(answer, place)
        return list(dict.fromkeys(answers))[:_MAX_ATTEMPTS]

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """Always refused."""
        await trio.lowlevel.checkpoint()
        raise WebRefused(Reason.SSRF_ADDRESS, "a unix socket is not on the web", where=path)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class SystemResolver:
    """Asks the system's resolver, with threads of its own: names that take long to fail hold up nothing but names."""

    def __init__(self) -> None:
        self._threads = trio.CapacityLimiter(_LOOKUPS)

    async def __call__(self, host: str, port: int) -> list[str]:
        """See ``Resolve``; in the order in which the system would have the addresses tried."""
        found = await trio.to_thread.run_sync(
            partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM),
            abandon_on_cancel=True,
            limiter=self._threads,
        )
        return [str(sockaddr[0]) for _, _, _, _, sockaddr in found]


def _require_reachable(answer: str, place: str) -> None:
    address = parse_address(answer)
    if address is None or not is_public(address):
        raise WebRefused(Reason.SSRF_ADDRESS, f"{answer} is not a public address", where=place)
    if _is_this_machine(address):
        raise WebRefused(Reason.SSRF_ADDRESS, f"{answer} is an address of this machine", where=place)


def _is_this_machine(address: Address) -> bool:
    """Whether packets to ``address`` would not leave this machine: services here may trust it more than strangers."""
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((str(address), _DISCARD_PORT))  # chooses a route and sends nothing
        return parse_address(probe.getsockname()[0]) == address
    return False
