"""Landlock: a process gives up, for good, every file but those it names. Needs Linux 5.13 or later.

What is not named cannot be opened, listed, written, created, renamed or executed. From kernel 6.7 on TCP, from 6.12 on
abstract sockets and signals to other processes are given up too. Files that are open already stay usable.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable
from typing import Final

from sandbox import linux

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_QUERY_VERSION: Final = 1
_PATH_BENEATH: Final = 1

_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
_IOCTL_DEV: Final = 1 << 15
_FS_RIGHTS_BY_ABI: Final = ((1, (1 << 13) - 1), (2, 1 << 13), (3, 1 << 14), (5, _IOCTL_DEV))
_TCP_BIND_AND_CONNECT: Final = 0b11
_SCOPE_SOCKETS_AND_SIGNALS: Final = 0b11


def abi() -> int:
    """The kernel's Landlock version; 0 when it has none or it is switched off."""
    try:
        return linux.syscall(_CREATE_RULESET, None, 0, _QUERY_VERSION)
    except OSError:
        return 0


def restrict(read: Iterable[str], devices: Iterable[str]) -> int:
    """Restricts this thread and those it starts later; call it before any other thread exists.

    Args:
        read: files and directories that may be read; what does not exist is passed over.
        devices: device nodes that may be opened, written and controlled.

    Returns:
        The Landlock version in force.

    Raises:
        OSError: the kernel cannot or will not; nothing is restricted then.
    """
    version = abi()
    if not version:
        raise OSError(errno.EOPNOTSUPP, "this kernel has no Landlock")
    handled = 0
    for since, rights in _FS_RIGHTS_BY_ABI:
        handled |= rights if version >= since else 0
    fields = [handled]
    if version >= 4:
        fields.append(_TCP_BIND_AND_CONNECT)
    if version >= 6:
        fields.append(_SCOPE_SOCKETS_AND_SIGNALS)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = linux.syscall(_CREATE_RULESET, ctypes.create_string_buffer(attributes), len(attributes), 0)
    try:
        for path in read:
            _allow(ruleset, path, _READ_FILE | _READ_DIR)
        for path in devices:
            _allow(ruleset, path, (_READ_FILE | _READ_DIR | _WRITE_FILE | _IOCTL_DEV) & handled)
        linux.syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return version


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # what cannot be reached needs no permission
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= ~_READ_DIR  # the kernel refuses directory rights on a file
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, descriptor))
        linux.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
