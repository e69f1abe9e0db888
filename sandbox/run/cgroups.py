"""Control groups of our own, version 1 or 2: memory, processes and processor time of one job, and its end as a whole.

Where the kernel or the permissions allow no real limit there is no group, with the reason why; nothing is approximated.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from gnusnode.errors import Unavailable
from sandbox.run.types import Limits

_PREFIX: Final = "gnusnode-sandbox-"
_PERIOD: Final = 100_000
_MOUNT: Final = Path("/sys/fs/cgroup")
_CONTROLLERS: Final = ("memory", "pids", "cpu")
_EMPTY_WITHIN: Final = 5.0
_LOOK_AGAIN: Final = 0.01
"""Seconds: version 1 has no event that says that a group is empty."""
_HINT: Final = "run the node as root, or choose another sandbox"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups of ours may be made.

    Attributes:
        version: 1 or 2.
        parents: controller -> the directory in which a group is made; in version 2 the same for all.
    """

    version: int
    parents: Mapping[str, Path]

    def missing(self) -> str:
        """Why no group can be made here; empty: it can."""
        for name, parent in self.parents.items():
            if not parent.is_dir():
                return f"there is no cgroup controller {name}"
            if not os.access(parent, os.W_OK):
                return f"{parent} is not writable: {_HINT}"
        if self.version == 1:
            swap = self.parents["memory"] / "memory.memsw.limit_in_bytes"
            if not swap.exists() and _has_swap():
                return "this kernel does not limit swap: boot it with swapaccount=1, or switch swap off"
            return ""
        enabled = (self.parents["memory"] / "cgroup.subtree_control").read_text().split()
        lacking = [name for name in _CONTROLLERS if name not in enabled]
        return f"cgroup controllers are not enabled for groups of ours: {', '.join(lacking)}" if lacking else ""


def detect(mount: Path = _MOUNT) -> Hierarchy:
    """Version 2 where the whole tree is of it, else version 1, with the groups beside one another at the top."""
    if (mount / "cgroup.controllers").exists():
        return Hierarchy(2, dict.fromkeys(_CONTROLLERS, mount))
    return Hierarchy(1, {name: mount / name for name in _CONTROLLERS})


def _has_swap() -> bool:
    return len(Path("/proc/swaps").read_text().splitlines()) > 1


class Group:
    """One job's group. Whoever makes one must await ``remove``."""

    def __init__(self, hierarchy: Hierarchy, name: str) -> None:
        self._version = hierarchy.version
        self._places = {controller: parent / name for controller, parent in hierarchy.parents.items()}

    @classmethod
    def make(cls, hierarchy: Hierarchy, owner: str, limits: Limits, *, extra_bytes: int = 0) -> Group:
        """A group with ``limits`` in force.

        Args:
            owner: part of its name, ``<owner>-<session>``, by which ``sweep`` finds it.
            extra_bytes: memory for the sandbox's own processes besides the job's.

        Raises:
            Unavailable: it cannot be made, or a limit was not taken.
        """
        group = cls(hierarchy, f"{_PREFIX}{owner}-{secrets.token_hex(8)}")
        try:
            for place in set(group._places.values()):
                place.mkdir()
            for controller, name, value in group._settings(limits, limits.memory_bytes + extra_bytes):
                (group._places[controller] / name).write_text(value)
        except OSError as error:
            group._discard()
            raise Unavailable(f"no control group can be made: {error}", hint=_HINT) from error
        return group

    def _settings(self, limits: Limits, memory: int) -> list[tuple[str, str, str]]:
        quota = max(int(limits.cpus * _PERIOD), 1000)
        if self._version == 2:
            return [
                ("memory", "memory.max", str(memory)),
                ("memory", "memory.swap.max", "0"),
                ("memory", "memory.oom.group", "1"),
                ("pids", "pids.max", str(limits.pids)),
                ("cpu", "cpu.max", f"{quota} {_PERIOD}"),
            ]
        settings = [("memory", "memory.limit_in_bytes", str(memory))]
        if (self._places["memory"] / "memory.memsw.limit_in_bytes").exists():
            settings.append(("memory", "memory.memsw.limit_in_bytes", str(memory)))
        return [
            *settings,
            ("pids", "pids.max", str(limits.pids)),
            ("cpu", "cpu.cfs_period_us", str(_PERIOD)),
            ("cpu", "cpu.cfs_quota_us", str(quota)),
        ]

    @property
    def entrances(self) -> list[str]:
        """The files into which a process writes ``0`` to enter."""
        return sorted({str(place / "cgroup.procs") for place in self._places.values()})

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel ended a process of the group for want of memory."""
        name = "memory.events" if self._version == 2 else "memory.oom_control"
        with suppress(OSError):
            for line in (self._places["memory"] / name).read_text().splitlines():
                key, _, count = line.partition(" ")
                if key == "oom_kill":
                    return int(count) > 0
        return False

    def kill(self) -> None:
        """Ends every process of the group; new ones cannot start."""
        with suppress(OSError):
            (self._places["pids"] / "pids.max").write_text("0")
        for pid in self._members():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def remove(self) -> None:
        """Ends what is in it and removes it. Not interrupted by cancellation; what stays is left to ``sweep``."""
        with trio.move_on_after(_EMPTY_WITHIN, shield=True):
            while True:
                self.kill()
                if self._discard():
                    return
                await trio.sleep(_LOOK_AGAIN)

    def _members(self) -> set[int]:
        found: set[int] = set()
        for place in set(self._places.values()):
            with suppress(OSError):
                found |= {int(line) for line in (place / "cgroup.procs").read_text().split()}
        return found

    def _discard(self) -> bool:
        """Whether nothing of it is left."""
        for place in set(self._places.values()):
            with suppress(OSError):
                place.rmdir()
        return not any(place.exists() for place in self._places.values())


async def sweep(hierarchy: Hierarchy, owner: str, *, but: str) -> int:
    """Removes the groups that were made for ``<owner>-<session>`` by other sessions than ``but``.

    Sessions are 16 hexadecimal digits.

    Returns:
        How many they were.
    """
    named = re.compile(rf"{_PREFIX}{re.escape(owner)}-(?!{but})[0-9a-f]{{16}}-[0-9a-f]{{16}}")
    places = [parent for parent in set(hierarchy.parents.values()) if parent.is_dir()]
    names = {name for parent in places for name in os.listdir(parent) if named.fullmatch(name)}
    for name in names:
        await Group(hierarchy, name).remove()
    return len(names)
