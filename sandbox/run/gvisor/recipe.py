"""How gVisor's ``runsc`` is called: a bundle of the Open Container Initiative, without a network, as nobody."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final

from sandbox.run import boot, rootfs
from sandbox.run.local.recipe import Launch, process_limits
from sandbox.run.types import MIB, Boundary, Control, Feature, Limits, Strength

_USER: Final = 65534
_NOT_PROVED: Final = frozenset({Control.CPU, Control.NNP, Control.PIDS, Control.SECCOMP})
"""The limits of the group hold for it all the same. But its kernel ends when it gets no more threads and refuses none,
counts processor time too coarsely to show a share, has no filter, and does not say what rights can be gained."""
_SENTRY_FILES: Final = 16_384
_OLD: Final = 20240101
_CAPABILITIES: Final = ("ambient", "bounding", "effective", "inheritable", "permitted")


class GvisorRecipe:
    """A kernel in user space answers the program's system calls; ours sees a few of them from that kernel.

    Args:
        root: what ``rootfs.build`` made, where every user can read it.
    """

    name = "gvisor"
    extra_bytes = 256 * MIB
    extra_pids = 512
    """Its own threads, and room for those that it makes of the program's: it ends when it gets no more."""
    inherited = b""

    def __init__(self, root: Path) -> None:
        self._root = root

    def missing(self) -> str:
        if not _program():
            return "gVisor is not installed (Debian: runsc)"
        return rootfs.missing(self._root)

    def strength(self) -> Strength:
        return Strength(
            boundary=Boundary.USER_KERNEL,
            engine="runsc",
            engine_version=f"runsc {_version(_program() or '')}",
            image_digest=rootfs.image_id(self._root),
            seccomp_digest=None,
            controls=frozenset(Control) - _NOT_PROVED,
            features=frozenset(Feature),
        )

    def warnings(self) -> tuple[str, ...]:
        found = re.search(r"(20\d{6})", _version(_program() or ""))
        if found and int(found[1]) < _OLD:
            return (f"runsc of {found[1]} is years old: what was found in it since is not mended there",)
        return ()

    def launch(self, scratch: Path, limits: Limits, descriptor: int) -> Launch:
        del descriptor  # there is nothing to hand over
        bundle, state = scratch / "bundle", scratch / "state"
        bundle.mkdir()
        state.mkdir(mode=0o777)
        state.chmod(0o777)  # of nobody, inside a directory that only nobody can enter
        (bundle / "config.json").write_text(json.dumps(self.bundle(limits)))
        # The name has to be unique on this machine: gVisor listens on an abstract socket of that name.
        return Launch(
            command=(
                _program() or "runsc", "--rootless", "--network=none", "--ignore-cgroups", f"--root={state}", "run",
                f"--bundle={bundle}", scratch.name,
            ),
            limits={"CORE": 0, "NOFILE": _SENTRY_FILES},  # not of file size: what it gives as memory is a file
        )  # fmt: skip

    def bundle(self, limits: Limits) -> dict[str, Any]:
        """The bundle's ``config.json``."""
        tmp = ["nosuid", "nodev", "noexec", f"size={limits.tmp_bytes}", "mode=1777"]
        inside = process_limits(limits)
        return {
            "ociVersion": "1.0.0",
            "process": {
                "terminal": False,
                "user": {"uid": _USER, "gid": _USER},
                "args": list(boot.command()),
                "env": [f"{name}={value}" for name, value in sorted(rootfs.ENVIRONMENT.items())],
                "cwd": "/tmp",  # noqa: S108 - inside the sandbox
                "capabilities": {kind: [] for kind in _CAPABILITIES},
                "rlimits": [{"type": f"RLIMIT_{name}", "hard": value, "soft": value} for name, value in inside.items()],
                "noNewPrivileges": True,
            },
            "root": {"path": str(self._root), "readonly": True},
            "hostname": "sandbox",
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": tmp},  # noqa: S108 - as above
            ],
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
        }


def _program() -> str | None:
    return shutil.which("runsc", path="/usr/bin:/usr/local/bin:/bin")


@cache
def _version(path: str) -> str:
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    return "".join(re.findall(r"version (\S+)", done.stdout)[:1])
