"""The sockets that the API listens on: TCP, and a unix socket that only this user can open."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from gnusnode.api.options import ApiOptions, BoundAddresses
from gnusnode.errors import CannotBind

_MAX_UNIX_PATH: Final = 107
"""Bytes of a socket address on Linux, without the final zero."""
_UCRED: Final = struct.Struct("=iII")


@dataclass(frozen=True)
class Listeners:
    tcp: tuple[trio.SocketListener, ...]
    unix: trio.SocketListener | None
    addresses: BoundAddresses


@asynccontextmanager
async def bound(options: ApiOptions) -> AsyncGenerator[Listeners]:
    """Everything that ``options`` names, bound and listening; closed, and the socket file removed, at the end.

    Raises:
        CannotBind: an address is taken, not ours, or not allowed.
    """
    tcp = await _bind_tcp(options)
    try:
        unix = None if options.unix_socket is None else _bind_unix(options.unix_socket)
    except BaseException:
        _close(tcp)
        raise
    names = tuple(listener.socket.getsockname()[:2] for listener in tcp)
    addresses = BoundAddresses(tcp=names, unix=options.unix_socket, secure=options.tls_cert is not None)
    try:
        yield Listeners(tcp=tuple(tcp), unix=unix, addresses=addresses)
    finally:
        _close([*tcp, unix] if unix is not None else tcp)
        if options.unix_socket is not None:
            with contextlib.suppress(OSError):
                options.unix_socket.unlink()


def _close(listeners: list[trio.SocketListener]) -> None:
    for listener in listeners:
        listener.socket.close()


async def _bind_tcp(options: ApiOptions) -> list[trio.SocketListener]:
    try:
        listeners = await trio.open_tcp_listeners(options.port, host=options.host)
    except (OSError, UnicodeError) as error:
        raise CannotBind(
            f"cannot listen on {options.address}: {_reason(error)}",
            where=f"api.listen = {options.address!r}",
            hint=_what_next(error, options.port),
        ) from error
    if options.port == 0:
        # A name with several addresses would get a different port on each: keep the first only.
        _close(listeners[1:])
        del listeners[1:]
    return listeners


def _reason(error: Exception) -> str:
    inner = error.__cause__ or error.__context__
    if isinstance(error, OSError) and error.errno is None and isinstance(inner, OSError):
        error = inner
    return getattr(error, "strerror", None) or str(error)


def _errno(error: Exception) -> int | None:
    inner = error.__cause__ or error.__context__
    own = getattr(error, "errno", None)
    return own if own is not None or not isinstance(inner, OSError) else inner.errno


def _what_next(error: Exception, port: int) -> str:
    match _errno(error):
        case errno.EADDRINUSE:
            return f"see who holds it with `ss -ltnp 'sport = :{port}'` (or `lsof -i :{port}`), or choose port 0"
        case errno.EACCES:
            return "choose a port above 1023"
        case _:
            return "give an address of this machine as HOST:PORT, such as 127.0.0.1:8477"


def _bind_unix(path: Path) -> trio.SocketListener:
    if len(os.fsencode(path)) > _MAX_UNIX_PATH:
        raise CannotBind(
            f"the path of the API socket is longer than {_MAX_UNIX_PATH} bytes",
            where=str(path),
            hint="use a home with a shorter path",
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        sock.bind(str(path))
        # Nobody can connect before listen(), so there is no moment at which others could.
        path.chmod(0o600)
        sock.listen(64)
    except OSError as error:
        sock.close()
        raise CannotBind(
            f"cannot listen on the API socket: {_reason(error)}",
            where=str(path),
            hint="check that the home is writable, and that no other node runs on it",
        ) from error
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


def _remove_stale(path: Path) -> None:
    """Removes a socket that nobody listens on; anything else stays and makes ``bind`` fail."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


def peer_is_owner(sock: trio.socket.SocketType) -> bool:
    """Whether the other end of a unix socket runs as this user or as root.

    Where the system does not tell (no ``SO_PEERCRED``), the 0600 mode of the socket is what decides.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _pid, uid, _gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return uid in (os.getuid(), 0)
