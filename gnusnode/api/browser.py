"""What keeps web pages away from a node on the same machine: DNS rebinding and cross-site requests. Pure functions."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from gnusnode.api.options import LOOPBACK_NAMES
from gnusnode.errors import Forbidden, MisdirectedRequest, RequestError

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

SECURITY_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)


def host_name(host: str) -> str:
    """The name in a ``Host`` header, without its port; lower case."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def check_host(host: str | None, allowed: Collection[str]) -> None:
    """A page that rebinds its own name to this machine still sends that name.

    Raises:
        MisdirectedRequest: the name is neither a loopback name, nor an address, nor one of ``allowed``.
    """
    name = host_name(host or "")
    if name in LOOPBACK_NAMES or name in allowed or _is_address(name):
        return
    raise MisdirectedRequest(
        f"this node does not answer for the host {name!r}",
        where="Host",
        hint="call it by its address, or add the name to api.allowed_hosts",
    )


def check_site(method: str, headers: Mapping[str, str], allowed_origins: Collection[str]) -> None:
    """A browser says where a request comes from; programs say nothing and need no such check.

    Raises:
        Forbidden: an unsafe method, asked for by a page of another site.
    """
    if method in SAFE_METHODS:
        return
    origin = headers.get("origin")
    if origin is not None:
        if origin in allowed_origins or _same_origin(origin, headers.get("host", "")):
            return
    elif headers.get("sec-fetch-site") in (None, "same-origin", "none"):
        return
    raise Forbidden(
        "a page of another site may not do this",
        where="Origin",
        hint="list the page's origin in api.cors_origins if you trust it",
    )


def check_media_type(method: str, headers: Mapping[str, str]) -> None:
    """A body must say that it is JSON: a form on a foreign page cannot.

    Raises:
        RequestError: it says something else, or nothing.
    """
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if method in SAFE_METHODS or not has_body:
        return
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise RequestError(
            "the body must be JSON", where="content-type", hint="send the header 'Content-Type: application/json'"
        )


def cors_headers(origin: str | None, allowed: Collection[str]) -> list[tuple[bytes, bytes]]:
    """What lets a page of a listed origin read the answer; nothing for all others."""
    if origin is None or origin not in allowed:
        return []
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-allow-headers", b"authorization, content-type"),
        (b"access-control-expose-headers", b"x-request-id, x-gnus-node, x-gnus-task, retry-after"),
        (b"vary", b"origin"),
    ]


def _same_origin(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower() != ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
