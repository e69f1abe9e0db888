"""``python -m sandbox.run.local.launch JSON``: the last steps on this side, then it becomes the sandbox.

Enters the control groups, stops being root, makes the one place that the job may write to where the sandbox cannot (a
small ``tmpfs`` from which nothing can be executed, in a mount namespace of its own), sets limits, and executes.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from typing import Any, Final

from sandbox import linux, privileges
from sandbox.privileges import NOBODY

_PR_SET_DUMPABLE: Final = 4
_NEW_USER_AND_MOUNTS: Final = 0x1002_0000
_PRIVATE_RECURSIVE: Final = 0x4_4000
_NOSUID_NODEV_NOEXEC: Final = 0xE


def main() -> None:
    plan: dict[str, Any] = json.loads(sys.argv[1])
    for entrance in plan["entrances"]:
        with open(entrance, "w") as file:
            file.write("0")
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        linux.call("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)  # else the next files would still be root's
    privileges.die_with_parent()
    if plan["tmp"]:
        _private_tmp(plan["tmp"], plan["tmp_options"])
    for name, value in plan["limits"].items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    os.execve(plan["command"][0], plan["command"], {})  # noqa: S606 - what this process is for


def _private_tmp(place: str, options: str) -> None:
    """Mounts a fresh file system at ``place``, seen by this process and what it starts."""
    user, group = os.getuid(), os.getgid()
    linux.call("unshare", _NEW_USER_AND_MOUNTS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    linux.call("mount", None, _text("/"), None, _PRIVATE_RECURSIVE, None)
    linux.call("mount", _text("tmpfs"), _text(place), _text("tmpfs"), _NOSUID_NODEV_NOEXEC, _text(options))


def _text(value: str) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(value.encode())


if __name__ == "__main__":
    main()
