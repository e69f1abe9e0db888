"""The few Linux calls that Python does not offer, through libc. Import is safe everywhere; calls need Linux."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from typing import Final

IS_LINUX: Final = sys.platform.startswith("linux")
MACHINE: Final = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())

PR_SET_PDEATHSIG: Final = 1
PR_CAPBSET_DROP: Final = 24
PR_SET_NO_NEW_PRIVS: Final = 38

CLONE_NEWUSER: Final = 0x1000_0000
CLONE_NEWIPC: Final = 0x0800_0000
CLONE_NEWNET: Final = 0x4000_0000

_libc = ctypes.CDLL(None, use_errno=True) if IS_LINUX else None


def call(name: str, *args: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """Calls a libc function that answers -1 and errno on failure.

    Raises:
        OSError: what errno says; ``ENOSYS`` off Linux.
    """
    if _libc is None:
        raise OSError(38, f"{name} needs Linux")
    function = getattr(_libc, name)
    # Of those that we call only this one is declared to return a long; an int's -1 is not a long's.
    function.restype = ctypes.c_long if name == "syscall" else ctypes.c_int
    result = function(*(ctypes.c_ulong(arg) if isinstance(arg, int) else arg for arg in args))
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def syscall(number: int, *args: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """A raw system call, for those that libc has no function for."""
    return call("syscall", number, *args)


def thread_count() -> int:
    """Threads of this process, native ones included."""
    return len(os.listdir("/proc/self/task"))
