"""Pure checks of option values. Each returns the value in its one spelling or raises ``ValueError`` with the reason."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args
from urllib.parse import urlsplit

RoleName = Literal["ingress", "router", "core", "elm"]
ROLES: Final[tuple[RoleName, ...]] = get_args(RoleName)

_HOST_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*\.?")
_MULTIADDR: Final = re.compile(r"(/[A-Za-z0-9._:%+-]+){2,16}")


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``[V6]:PORT``."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{text!r} is not HOST:PORT with a port from 0 to 65535")
    if host.startswith("[") or ":" in host:
        if not (host.startswith("[") and host.endswith("]")):
            raise ValueError(f"{text!r}: write an IPv6 address in brackets, as in [::1]:8477")
        ipaddress.IPv6Address(bare)
    elif not _HOST_NAME.fullmatch(bare):
        raise ValueError(f"{text!r} has no valid host; 0.0.0.0 stands for all addresses")
    return bare, int(port)


def host_port(text: str) -> str:
    split_address(text)
    return text


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def multiaddr(text: str) -> str:
    if not _MULTIADDR.fullmatch(text):
        raise ValueError(f"{text!r} is not a multiaddr such as /ip4/192.0.2.1/tcp/4001/p2p/12D3KooW…")
    return text


def web_url(text: str) -> str:
    """An http(s) URL without user, query and fragment; a closing slash is dropped."""
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0:  # .port raises when it is none
        raise ValueError(f"{text!r} is not an http or https URL")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("the URL must not carry a user, a password, a query or a fragment")
    return text.rstrip("/")


def expand(path: Path) -> Path:
    """``~`` expanded; a relative path is refused, since a daemon has no obvious working directory."""
    try:
        full = path.expanduser()
    except RuntimeError as error:
        raise ValueError(f"{str(path)!r}: there is no such user") from error
    if "\0" in str(path):
        raise ValueError("a path cannot hold a null character")
    if not full.is_absolute():
        raise ValueError(f"{str(path)!r} is relative: give the whole path, or begin it with ~/")
    return full


def role_names(value: Any) -> Any:
    """``all`` becomes every role; doubles go and the order is that of ``ROLES``. Unknown names stay, for the error."""
    names = list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [value]
    if "all" in names:
        return ROLES
    return tuple(sorted(dict.fromkeys(names), key=lambda name: ROLES.index(name) if name in ROLES else len(ROLES)))
