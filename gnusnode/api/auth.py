"""Who is calling, and what that caller may do. Everything that is not listed here is refused."""

from __future__ import annotations

import ipaddress
import time
from dataclasses import dataclass
from typing import Final

from gnusnode.api.keys import ApiKey, KeyStore, Scope
from gnusnode.api.options import LOOPBACK_NAMES
from gnusnode.errors import Forbidden, Unauthenticated

_ANYONE: Final = frozenset[Scope]()
_READERS: Final = frozenset({Scope.READ})
_CHATTERS: Final = frozenset({Scope.CHAT})
_ADMINS: Final = frozenset({Scope.ADMIN})

# The first rule whose path is a prefix decides; a caller needs one of its scopes.
_RULES: Final[tuple[tuple[str, frozenset[Scope]], ...]] = (
    ("/healthz", _ANYONE),
    ("/readyz", _ANYONE),
    ("/openapi.json", _ANYONE),
    ("/metrics", _READERS),
    ("/v1/models", _READERS | _CHATTERS),
    ("/v1/", _CHATTERS),
    ("/gnus/v1/status", _READERS),
    ("/gnus/v1/plans/", _READERS | _CHATTERS),
    ("/gnus/v1/events", _READERS),
    ("/gnus/", _ADMINS),
)


def needed_scopes(path: str) -> frozenset[Scope] | None:
    """One of these is needed for ``path``; empty: open to all; None: no such path, which the router will answer."""
    return next((scopes for prefix, scopes in _RULES if path.startswith(prefix)), None)


@dataclass(frozen=True)
class Principal:
    """An authenticated caller."""

    name: str
    scopes: frozenset[Scope]
    tenant: str = "local"
    key: ApiKey | None = None

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def require_any(self, scopes: frozenset[Scope], where: str) -> None:
        """Raises ``Forbidden`` when the caller has none of ``scopes``."""
        if scopes and not any(self.allows(scope) for scope in scopes):
            names = " or ".join(sorted(scopes))
            raise Forbidden(f"this needs a key with scope {names}", where=where, hint=_how_to_get(names))


def _how_to_get(scope: str) -> str:
    if scope == Scope.ADMIN:
        return "use the gnusnode command on the node's machine, or a key made with --scopes admin"
    return f"make one with: gnusnode keys create NAME --scopes {scope.split(' ')[0]}"


LOCAL_OWNER: Final = Principal("owner", frozenset({Scope.ADMIN}))
"""Whoever connects to the unix socket: the same user, or root."""
LOCAL_USER: Final = Principal("local", frozenset({Scope.READ, Scope.CHAT}))
"""Someone on this machine, while no key was ever made."""


def authenticate(
    keys: KeyStore, *, authorization: str | None, client: tuple[str, int] | None, unix: bool, open_loopback: bool
) -> Principal:
    """The caller of a request.

    Raises:
        Unauthenticated: no key where one is needed, an unknown one, or one that has expired.
    """
    if unix:
        return LOCAL_OWNER
    if open_loopback and is_loopback(client) and not keys.in_use():
        # Clients that insist on a key send a made-up one: there is nothing to compare it with.
        return LOCAL_USER
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated(
            "no API key was given",
            hint="send 'Authorization: Bearer gnus-…'; make a key with: gnusnode keys create NAME",
        )
    key = keys.find(token.strip())
    if key is None:
        raise Unauthenticated("this API key is not known here", hint="make one with: gnusnode keys create NAME")
    if key.expires is not None and key.expires <= time.time():
        raise Unauthenticated("this API key has expired", hint="make a new one with: gnusnode keys create NAME")
    return Principal(key.name, key.scopes, key.tenant, key)


def is_loopback(client: tuple[str, int] | None) -> bool:
    """Whether a caller's address is on this machine."""
    if client is None:
        return False
    host = client[0]
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
