"""What is asked of the web and what comes back, as data; and which headers a caller may set. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from gnusnode import __version__
from gnusnode.web import decoding
from gnusnode.web.content import PAGE_TYPES
from gnusnode.web.refusals import Reason, WebFailed, WebRefused
from gnusnode.web.urls import Url

AGENT: Final = "gnusnode"
"""Our name for robots.txt."""
READING: Final = frozenset({"GET", "HEAD"})
"""Methods that follow redirects: they ask for nothing but an answer."""
METHODS: Final = READING | {"POST", "PUT", "PATCH", "DELETE"}

_HEADER_NAME: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]{0,4096}")
_MAX_HEADERS: Final = 32
_SUCCESS: Final = 200
_OURS: Final = frozenset(
    {
        *("host", "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect"),
        *("content-length", "accept-encoding", "user-agent", "cookie", "forwarded", "via", "range"),
    }
)
"""Headers that frame the exchange, name its parties or carry a session: no caller sets them."""
_OUR_PREFIXES: Final = ("proxy-", "sec-", "x-forwarded-")
_SAFE: Final = frozenset({"accept", "accept-language"})
"""Headers that go along when a redirect leaves the origin."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one exchange, redirects included. Sizes in bytes, times in seconds."""

    header_bytes: int = 64 * 1024
    body_bytes: int = 8 * 1024**2
    """Of the body, both as it comes over the wire and decoded."""
    redirects: int = 5
    connect: float = 5.0
    idle: float = 10.0
    """Without a byte."""
    total: float = 30.0
    wait: float = 5.0
    """For the turn of the host's rate limit, before each hop."""


@dataclass(frozen=True)
class WebRequest:
    """What is asked for.

    Args:
        headers: in any case of letters; see ``headers_for``.
        domains: hosts that may be reached, redirects included; None: every public one.
        types: media types that are accepted, by header and by first bytes; None: any.
        robots: whether the site's robots.txt is honoured; off only for interfaces that are made for programs.
    """

    url: Url
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    body: bytes = b""
    domains: Collection[str] | None = None
    types: Collection[str] | None = PAGE_TYPES
    robots: bool = True


@dataclass(frozen=True)
class Page:
    """A whole answer.

    Args:
        url: where it came from in the end.
        hops: every URL that was asked, the last one included.
        headers: names in lower case, in their order.
        media_type: what the body has to be treated as; empty where there is none.
    """

    url: Url
    hops: tuple[str, ...]
    status: int
    headers: tuple[tuple[str, str], ...]
    media_type: str
    charset: str | None
    body: bytes

    def require_success(self) -> None:
        """Refuses an answer that is not what was asked for.

        Raises:
            WebFailed: HTTP_STATUS.
        """
        if not _SUCCESS <= self.status < _SUCCESS + 100:
            raise WebFailed(Reason.HTTP_STATUS, f"HTTP status {self.status}", where=str(self.url))


def headers_for(request: WebRequest, url: Url) -> dict[str, str]:
    """The headers that go to ``url``, by lower-case name; those of the caller only to the origin they were meant for.

    Raises:
        WebRefused: METHOD_NOT_ALLOWED or HEADER_NOT_ALLOWED.
    """
    if request.method not in METHODS or (request.body and request.method in READING):
        raise WebRefused(Reason.METHOD_NOT_ALLOWED, f"{request.method[:16]!r} cannot be sent like this", where=str(url))
    if len(request.headers) > _MAX_HEADERS:
        raise WebRefused(Reason.HEADER_NOT_ALLOWED, f"more than {_MAX_HEADERS} headers", where=str(url))
    wanted: dict[str, str] = {}
    for name, value in request.headers.items():
        lower = name.lower()
        ours = lower in _OURS or lower.startswith(_OUR_PREFIXES) or lower in wanted
        if ours or not _HEADER_NAME.fullmatch(lower) or not _HEADER_VALUE.fullmatch(value):
            raise WebRefused(Reason.HEADER_NOT_ALLOWED, f"the header {name[:64]!r} cannot be set", where=str(url))
        if url.origin == request.url.origin or lower in _SAFE:
            wanted[lower] = value
    accept = ", ".join(sorted(request.types)) if request.types else "*/*"
    return {
        "accept": accept,
        **wanted,
        "user-agent": f"{AGENT}/{__version__}",
        "accept-encoding": decoding.ACCEPTED,
    }
