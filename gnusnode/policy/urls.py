"""Which host an address really names: read as a browser reads it, refused where other readers would differ."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_DIVISIVE: Final = re.compile(r"[\x00-\x20\x7f\\]")
"""What some readers of addresses drop or take for a slash, and others do not."""
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*):(.*)", re.IGNORECASE | re.DOTALL)
_AUTHORITY: Final = re.compile(r"/*([^/?#]*)(.*)", re.DOTALL)
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?")
_NUMERIC: Final = re.compile(r"\d+|0x[0-9a-f]*")
_PORTS: Final = {"http": "80", "https": "443"}


class Address(NamedTuple):
    """An http(s) address in its one spelling."""

    scheme: str
    host: str
    rest: str
    """Path, query and fragment as they were written."""


def parse(text: str) -> Address | str:
    """The address that ``text`` is, or a word that says why it is none that a tool may use.

    A missing scheme means https. Refused are other schemes and ports, user names, hosts that are numbers in any
    spelling or hold escapes, letters that readers disagree about, and hosts with letters outside ASCII, which look like
    others: such a host is written in punycode.
    """
    cleaned = text.strip()
    if _DIVISIVE.search(cleaned):
        return "divisive_letters"
    scheme, rest = "https", cleaned
    match = _SCHEME.fullmatch(cleaned)
    if match and not _is_port(match[2]):
        scheme, rest = match[1].lower(), match[2]
        if scheme not in _PORTS:
            return "scheme"
    split = _AUTHORITY.fullmatch(rest)
    authority, tail = (split[1], split[2]) if split else ("", "")
    if "@" in authority:
        return "user_name"
    host, colon, port = authority.partition(":")
    if "[" in authority or authority.count(":") > 1:
        return "numeric_host"
    if colon and port not in ("", _PORTS[scheme]):
        return "port"
    return _checked(scheme, host, tail)


def _is_port(rest: str) -> bool:
    """Whether what follows a colon is a port, so that what stands before it is a host and no scheme."""
    return bool(re.match(r"\d+([/?#]|$)", rest))


def _checked(scheme: str, host: str, tail: str) -> Address | str:
    host = host.removesuffix(".")
    if not host.isascii():
        return "foreign_letters"
    labels = host.lower().split(".")
    if _NUMERIC.fullmatch(labels[-1]):
        return "numeric_host"
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return "host"
    return Address(scheme, ".".join(labels), "" if tail == "/" else tail)


def same(a: Address, b: Address) -> bool:
    """Whether both fetch the same: the scheme may be raised to https, never lowered."""
    return a.host == b.host and a.rest == b.rest and (a.scheme == b.scheme or a.scheme == "https")
