"""A seccomp filter that takes the network, other processes and the machine out of a process's reach.

The program is classic BPF, assembled here from a table of system call numbers, so no native library is needed. Refused
calls answer ``EPERM``, as they would for want of permission; ``clone3`` answers ``ENOSYS``, because its flags cannot be
seen by a filter and libc then falls back to ``clone``, whose flags can: new threads start, new processes do not.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final

from sandbox import linux

_AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP: Final = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER: Final = 1
_TSYNC: Final = 1
"""Lay the filter on every thread of the process."""

_LOAD: Final = 0x20
_JUMP_EQUAL: Final = 0x15
_JUMP_AT_LEAST: Final = 0x35
_JUMP_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_KILL_PROCESS: Final = 0x80000000
_ERRNO: Final = 0x00050000

_NUMBER_OFFSET: Final = 0
_ARCH_OFFSET: Final = 4
_FIRST_ARGUMENT_OFFSET: Final = 16
_CLONE_THREAD: Final = 0x10000
_CLONE_NEW_ANY: Final = 0x7E020000
"""The flags that make ``clone`` put the new process into namespaces of its own."""
_X32: Final = 0x40000000

_ABSENT: Final = -1

DENIED: Final[dict[str, tuple[int, int]]] = {
    # name: (x86_64, aarch64)
    # network
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242), "sendto": (44, 206), "sendmsg": (46, 211), "sendmmsg": (307, 269),
    "recvmsg": (47, 212),
    # other programs and processes
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, _ABSENT), "vfork": (58, _ABSENT),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "move_mount": (429, 429),
    "open_tree": (428, 428), "mount_setattr": (442, 442), "setns": (308, 268), "unshare": (272, 97),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    # large kernel surfaces that a model runner has no use for
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "fanotify_init": (300, 262),
    "memfd_secret": (447, 447), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42), "remap_file_pages": (216, 234),
    "modify_ldt": (154, _ABSENT), "personality": (135, 92),
    # the machine
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "sethostname": (170, 161), "setdomainname": (171, 162), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "acct": (163, 89), "syslog": (103, 116), "clock_settime": (227, 112), "settimeofday": (164, 170),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "iopl": (172, _ABSENT), "ioperm": (173, _ABSENT),
    "vhangup": (153, 58),
    # identity and file attributes (Landlock does not cover the latter)
    "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143),
    "setresuid": (117, 147), "setresgid": (119, 149), "setgroups": (116, 159), "setfsuid": (122, 151),
    "setfsgid": (123, 152), "capset": (126, 91), "chmod": (90, _ABSENT), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchmodat2": (452, 452), "chown": (92, _ABSENT), "lchown": (94, _ABSENT), "fchown": (93, 55),
    "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "utime": (132, _ABSENT),
    "utimes": (235, _ABSENT), "futimesat": (261, _ABSENT), "utimensat": (280, 88),
    # shared memory and queues that are not files
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
}  # fmt: skip
"""Numbers as in the kernel's own headers, with which a test compares them where those are installed."""

_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_CLONE3: Final = 435
_SIGNALS_TO_SELF_ONLY: Final = {"x86_64": (62, 234), "aarch64": (129, 131)}
"""``kill`` and ``tgkill``: a process may still abort itself."""


def supported() -> bool:
    return linux.IS_LINUX and linux.MACHINE in _AUDIT_ARCH


def program(machine: str, pid: int, *, allow: frozenset[str] = frozenset(), forks: bool = False) -> bytes:
    """The filter as packed ``struct sock_filter``.

    Args:
        machine: ``x86_64`` or ``aarch64``.
        pid: the only process that may be signalled.
        allow: names of ``DENIED`` to leave open.
        forks: new processes may start; they have the same filter.
    """
    column = 0 if machine == "x86_64" else 1
    allow |= {"fork", "vfork"} if forks else frozenset()
    code = [
        (_LOAD, 0, 0, _ARCH_OFFSET),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]
    if machine == "x86_64":  # the x32 numbers would be a second door to every call
        code += [(_JUMP_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    for name, numbers in DENIED.items():
        if numbers[column] != _ABSENT and name not in allow:
            code += [(_JUMP_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    code += [(_JUMP_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    new = (_JUMP_ANY_BIT, 1, 0, _CLONE_NEW_ANY) if forks else (_JUMP_ANY_BIT, 0, 1, _CLONE_THREAD)
    code += _by_argument(_CLONE[machine], new)
    for number in _SIGNALS_TO_SELF_ONLY[machine]:
        code += _by_argument(number, (_JUMP_EQUAL, 0, 1, pid))
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _by_argument(number: int, test: tuple[int, int, int, int]) -> list[tuple[int, int, int, int]]:
    """Allows system call ``number`` when its first argument passes ``test``, else refuses it."""
    return [
        (_JUMP_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_OFFSET),
        test,
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
    ]


def install(*, allow: frozenset[str] = frozenset(), forks: bool = False) -> int:
    """Lays the filter of ``program`` on every thread of this process, for good. ``no_new_privs`` must be set.

    Returns:
        The number of instructions.

    Raises:
        OSError: the kernel or machine has no such filter; nothing is in force then.
    """
    if not supported():
        raise OSError(errno.EOPNOTSUPP, f"no filter is written for {linux.MACHINE}")
    instructions = program(linux.MACHINE, os.getpid(), allow=allow, forks=forks)
    code = ctypes.create_string_buffer(instructions, len(instructions))
    count = len(instructions) // 8
    header = ctypes.create_string_buffer(struct.pack("@HP", count, ctypes.addressof(code)))
    refused_by = linux.syscall(_SECCOMP[linux.MACHINE], _SET_MODE_FILTER, _TSYNC, header)
    if refused_by:
        raise OSError(errno.EBUSY, f"thread {refused_by} did not take the filter")
    return count
