"""What tells one local sandbox from another: the program that isolates, and how it is called."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sandbox.run.types import MIB, Limits, Strength


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What the launcher is told.

    Attributes:
        command: what it becomes.
        tmp, tmp_options: where it mounts the file system that the job may write to; none when empty.
        limits: ``RLIMIT_*`` by name.
    """

    command: tuple[str, ...]
    tmp: str = ""
    tmp_options: str = ""
    limits: dict[str, int]


class Recipe(Protocol):
    """A way to isolate a program. ``extra_bytes`` and ``extra_pids`` are what the sandbox itself needs."""

    name: str
    extra_bytes: int
    extra_pids: int
    inherited: bytes
    """Content of a descriptor that the command inherits."""

    def missing(self) -> str:
        """What is not here; empty: nothing."""
        ...

    def strength(self) -> Strength:
        """What it declares to be, when nothing is missing."""
        ...

    def warnings(self) -> tuple[str, ...]:
        """What an operator should know although it works."""
        ...

    def launch(self, scratch: Path, limits: Limits, descriptor: int) -> Launch:
        """How one sandbox is started; it may write to the empty directory ``scratch``, which goes with the sandbox."""
        ...


def process_limits(limits: Limits) -> dict[str, int]:
    """``RLIMIT_*`` of a job's processes. Those of processor time are a backstop for a job whose node was killed."""
    return {
        "CORE": 0,
        "NOFILE": limits.open_files,
        "FSIZE": limits.tmp_bytes + MIB,
        "CPU": math.ceil(limits.wall_seconds * max(1.0, limits.cpus)) + 5,
    }
