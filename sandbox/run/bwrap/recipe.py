"""How bubblewrap is called: new namespaces of every kind, no rights, nothing but the sandbox's files to be seen."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from sandbox.linux import MACHINE
from sandbox.run import boot, rootfs, seccomp
from sandbox.run.bwrap.filter import program
from sandbox.run.local.recipe import Launch, process_limits
from sandbox.run.types import MIB, Boundary, Control, Feature, Limits, Strength

_USER: Final = "65534"
_HIDDEN_FILES: Final = tuple(
    f"/proc/{name}"
    for name in (
        "cmdline", "config.gz", "diskstats", "interrupts", "kallsyms", "kcore", "keys", "latency_stats", "modules",
        "partitions", "sched_debug", "timer_list", "timer_stats",
    )
)  # fmt: skip
_HIDDEN_DIRECTORIES: Final = ("/proc/acpi", "/proc/asound", "/proc/scsi")


class BwrapRecipe:
    """The host's own kernel behind namespaces and our list of system calls. An operator has to ask for it.

    Args:
        root: what ``rootfs.build`` made, where every user can read it.
    """

    name = "bwrap"
    extra_bytes = 8 * MIB
    extra_pids = 2
    """Bubblewrap outside and inside."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.inherited = program(seccomp.profile())

    def missing(self) -> str:
        if MACHINE != seccomp.MACHINE:
            return f"the list of system calls is written for {seccomp.MACHINE}"
        if not _program():
            return "bubblewrap is not installed (Debian: bubblewrap)"
        return rootfs.missing(self._root)

    def strength(self) -> Strength:
        return Strength(
            boundary=Boundary.SHARED_KERNEL,
            engine="bubblewrap",
            engine_version=_version(_program() or ""),
            image_digest=rootfs.image_id(self._root),
            seccomp_digest=seccomp.digest_of(seccomp.compact()),
            controls=frozenset(Control),
            features=frozenset(Feature),
        )

    def warnings(self) -> tuple[str, ...]:
        return ()

    def launch(self, scratch: Path, limits: Limits, descriptor: int) -> Launch:
        del scratch  # all it needs it gets on the command line
        tmp, size = str(self._root / "tmp"), limits.tmp_bytes
        return Launch(
            command=(_program() or "bwrap", *self._arguments(tmp, descriptor), "--", *boot.command()),
            tmp=tmp,
            tmp_options=f"size={size},nr_inodes={max(256, size // 4096)},mode=1777",
            limits=process_limits(limits),
        )

    def _arguments(self, tmp: str, filter_descriptor: int) -> list[str]:
        environment = [item for name, value in rootfs.ENVIRONMENT.items() for item in ("--setenv", name, value)]
        return [
            "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv", *environment,
            "--ro-bind", str(self._root), "/", "--proc", "/proc", *_hidden(), "--dev", "/dev", "--remount-ro", "/dev",
            "--bind", tmp, "/tmp",  # noqa: S108 - inside the sandbox
            "--uid", _USER, "--gid", _USER, "--cap-drop", "ALL", "--hostname", "sandbox",
            "--chdir", "/tmp",  # noqa: S108 - inside the sandbox
            "--seccomp", str(filter_descriptor),
        ]  # fmt: skip


def _hidden() -> list[str]:
    """What says much of the machine and nothing that a program needs: closed files and empty directories."""
    files = [item for path in _HIDDEN_FILES if Path(path).exists() for item in ("--ro-bind", "/dev/null", path)]
    directories = [path for path in _HIDDEN_DIRECTORIES if Path(path).is_dir()]
    return files + [item for path in directories for item in ("--tmpfs", path, "--remount-ro", path)]


def _program() -> str | None:
    return shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin")


@cache
def _version(path: str) -> str:
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    return f"bubblewrap {''.join(re.findall(r'[0-9.]+', done.stdout)[:1])}"
