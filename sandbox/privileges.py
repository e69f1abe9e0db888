"""Giving up what a process may do by who it is: namespaces, user id, capabilities, limits. Linux; POSIX for the limits.

Each function does one thing to this process, for good, and returns a line that says what it did; it raises ``OSError``
with the reason when it could not.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import struct
from collections.abc import Sequence
from typing import Final

from sandbox import linux

NOBODY: Final = 65534
_CAPABILITY_VERSION_3: Final = 0x20080522
_LAST_CAPABILITY: Final = 63


def limit(name: str, value: int) -> str:
    """Lowers the limit ``RLIMIT_<name>`` to ``value``; never raises one."""
    which = getattr(resource, f"RLIMIT_{name}")
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    try:
        resource.setrlimit(which, (value, value))
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from error
    return f"at most {value}"


def leave_network() -> str:
    """Moves this process into a new, empty network namespace (and IPC namespace); one thread only."""
    if os.geteuid() == 0:
        try:
            linux.call("unshare", linux.CLONE_NEWNET | linux.CLONE_NEWIPC)
            return "an empty network namespace"
        except PermissionError:
            pass  # root of a container without CAP_SYS_ADMIN: as any other user
    linux.call("unshare", linux.CLONE_NEWUSER | linux.CLONE_NEWNET | linux.CLONE_NEWIPC)
    return "an empty network namespace, by way of a new user namespace"


def drop_identity(needed: Sequence[str], devices: Sequence[str]) -> str:
    """Stops being root, and gives up every capability.

    Root becomes ``nobody`` where ``nobody`` can read ``needed`` and use ``devices``; else root stays root by name.
    """
    by_user = f"user {os.geteuid()}"
    if os.geteuid() == 0:
        by_user = _become_nobody(needed, devices)
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            linux.call("prctl", linux.PR_CAPBSET_DROP, capability, 0, 0, 0)
        except OSError:
            break  # past the kernel's last one, or not ours to drop
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    linux.call("capset", header, ctypes.create_string_buffer(24))
    return f"{by_user}, no capabilities"


def _become_nobody(needed: Sequence[str], devices: Sequence[str]) -> str:
    groups = os.getgroups()
    try:
        os.setgroups([])
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
    except PermissionError:
        return "user 0 (this container may not change users)"
    lost = _first_lost(needed, devices)
    os.seteuid(0)
    os.setegid(0)
    if lost:
        os.setgroups(groups)
        return f"user 0 ({lost} is closed to other users)"
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    return f"user {NOBODY}"


def _first_lost(needed: Sequence[str], devices: Sequence[str]) -> str | None:
    for path in needed:
        mode = os.R_OK | (os.X_OK if os.path.isdir(path) else 0)
        if not os.access(path, mode, effective_ids=True):
            return path
    return next((path for path in devices if not os.access(path, os.R_OK | os.W_OK, effective_ids=True)), None)


def die_with_parent() -> str:
    """Has the kernel kill this process when the *thread* that started it ends. A change of identity undoes it."""
    linux.call("prctl", linux.PR_SET_PDEATHSIG, signal.SIGKILL.value, 0, 0, 0)
    return "killed when the parent's thread ends"


def no_new_privileges() -> str:
    linux.call("prctl", linux.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return "no program can give more rights"
