"""How the HTTP surface is set up: plain values that the daemon fills from its settings."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gnusnode.contracts.generation import Sampling
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.errors import ConfigError

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

DEFAULT_SAMPLING: Final = Sampling(temperature=0.7, top_p=0.95, min_p=0.05)


@dataclass(frozen=True)
class ApiOptions:
    """Times are seconds, sizes bytes."""

    host: str = "127.0.0.1"
    port: int = 8477
    """0: the system chooses; the chosen one stands in ``BoundAddresses``."""
    unix_socket: Path | None = None
    """Where the CLI connects; mode 0600, same user or root only, all scopes."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    open_loopback: bool = True
    """While no API key was ever made, callers on this machine may read and chat without one."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that ``Host`` may have besides loopback names, addresses and ``host``."""
    cors_origins: tuple[str, ...] = ()
    """Web origins that may call from a browser; none by default."""
    max_connections: int = 256
    max_body_bytes: int = 8 * 1024 * 1024
    max_in_flight: int = 64
    """Inference requests that are answered at a time; more get 503 with ``Retry-After``."""
    header_seconds: float = 5.0
    body_seconds: float = 30.0
    keep_alive_seconds: float = 75.0
    stalled_write_seconds: float = 30.0
    """A connection whose client takes nothing for so long is aborted and its work cancelled."""
    grace_seconds: float = 3.0
    """What open connections get to finish in when the node stops."""
    sse_keepalive_seconds: float = 15.0
    sse_interval_seconds: float = 0.02
    """Tokens that come faster than this are put into one chunk."""
    request_seconds: float = 120.0
    default_max_tokens: int = 1024
    default_sampling: Sampling = DEFAULT_SAMPLING
    """Where a request is silent; the seed is then drawn anew for each request."""
    policy: PolicyEnvelope | None = None
    """What the operator allows at most; None: whatever a request's own policy says."""

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def address(self) -> str:
        return format_address(self.host, self.port)


@dataclass(frozen=True)
class BoundAddresses:
    """Where the API listens."""

    tcp: tuple[tuple[str, int], ...]
    unix: Path | None
    secure: bool

    @property
    def url(self) -> str:
        """Base URL of the first TCP address, without ``/v1``."""
        host, port = self.tcp[0]
        return f"{'https' if self.secure else 'http'}://{format_address(host, port)}"


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def refuse_exposure(options: ApiOptions, *, has_keys: bool) -> None:
    """A node must not serve a network in the clear or without keys.

    Raises:
        ConfigError: the address is not loopback and a key or TLS is missing.
    """
    if options.is_loopback:
        return
    missing = [what for what, given in (("an API key", has_keys), ("TLS", options.tls_cert is not None)) if not given]
    if missing:
        raise ConfigError(
            f"the API may not leave this machine without {' and '.join(missing)}",
            where=f"api.listen = {options.address!r}",
            hint="listen on 127.0.0.1, or make a key (gnusnode keys create NAME) and set api.tls_cert and api.tls_key",
        )


def tls_context(options: ApiOptions) -> ssl.SSLContext | None:
    """A server context without ALPN, so that clients speak HTTP/1.1; None when no certificate is set.

    Raises:
        ConfigError: the files cannot be read, or do not belong together.
    """
    if options.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"cannot use the TLS certificate: {error}",
            where=f"api.tls_cert = {str(options.tls_cert)!r}",
            hint="give a PEM chain and its unencrypted private key (api.tls_key), readable by this user",
        ) from error
    return context
