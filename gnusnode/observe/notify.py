"""systemd's notification protocol, from the standard library. Outside systemd every call does nothing.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


def notify(state: str, env: Mapping[str, str] = os.environ) -> bool:
    """Sends ``state``, such as ``READY=1`` or ``STATUS=…``; whether somebody took it. Never raises, never blocks."""
    address = env.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return False
    name = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)
            channel.sendto(state.encode("utf-8", "replace"), name)
    except (OSError, ValueError):  # ValueError: a null byte or a path too long; a service manager never sends one
        return False
    return True


def watchdog_seconds(env: Mapping[str, str] = os.environ) -> float | None:
    """How often to send ``WATCHDOG=1``: half of what systemd allows; None where it does not ask this process."""
    pid, limit = env.get("WATCHDOG_PID"), env.get("WATCHDOG_USEC", "")
    if not limit.isascii() or not limit.isdigit() or int(limit) == 0:
        return None
    if pid is not None and pid != str(os.getpid()):
        return None
    return int(limit) / 2_000_000
