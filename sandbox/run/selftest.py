"""The proof that a sandbox is one: every backend must pass it before foreign code is given to it.

Canaries that are alive and open are put up on this machine; a program of ours is then run through the very path that
jobs take and must be refused each of them. After that the limits are tried out: time, memory, output.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from gnusnode.errors import GnusError
from sandbox.run import canaries
from sandbox.run.groups import leaves
from sandbox.run.types import (
    MIB,
    Boundary,
    Check,
    Control,
    Feature,
    Job,
    Limits,
    Result,
    SandboxBackend,
    SelfTestReport,
    Status,
    Strength,
)

LIMITS: Final = Limits(wall_seconds=30.0, cpus=0.5, pids=48, tmp_bytes=16 * MIB)
"""Of the probing program. Half a processor, so that the limit can be seen on a machine with a single one."""
_BRIEF: Final = Limits(wall_seconds=2.0)
_FLOOD: Final = Limits(wall_seconds=20.0)
_BOMB: Final = Limits(wall_seconds=30.0, memory_bytes=128 * MIB)
_STOPS_WITHIN: Final = 8.0
_MOST_CPU: Final = 0.75
_TRIED_FORKS: Final = 400

_CONTROLS: Final[dict[str, Control]] = {
    "tcp listener": Control.NET, "abstract socket": Control.NET, "interfaces": Control.NET, "route": Control.NET,
    "vsock": Control.NET, "packet socket": Control.NET,
    "file": Control.FS, "file by init's root": Control.FS, "socket file": Control.FS, "engine socket": Control.FS,
    "writing": Control.FS,
    "environment": Control.IPC, "shared memory": Control.IPC, "segment": Control.IPC,
    "seeing the marker": Control.PID, "signalling the marker": Control.PID,
    "root": Control.NONROOT,
    "effective capabilities": Control.NOCAPS, "bounding capabilities": Control.NOCAPS,
    "no new privileges": Control.NNP,
    "filter": Control.SECCOMP, "user namespace": Control.SECCOMP, "keyring": Control.SECCOMP, "bpf": Control.SECCOMP,
    "io_uring": Control.SECCOMP, "tracing": Control.SECCOMP, "page faults": Control.SECCOMP,
    "kernel log": Control.SECCOMP, "netlink": Control.SECCOMP, "crypto socket": Control.SECCOMP,
    "32-bit calls": Control.SECCOMP,
}  # fmt: skip
"""What each attempt of the probing program is about."""

_OWN_KERNEL_MAY_ALLOW: Final = frozenset({"vsock", "packet socket"})
"""A kernel of the sandbox's own answers these without reaching ours; so they are only shown there."""

_LOOP: Final = "while True:\n    pass\n"
_MEMORY_BOMB: Final = "held = []\nwhile True:\n    held.append(bytearray(b'x') * (8 << 20))\n"
_OUTPUT_FLOOD: Final = "while True:\n    print('A' * 4096)\n"
_LEAVE_TRACE: Final = "open('/tmp/trace', 'w').write('x')\nprint('left')\n"
_FIND_TRACE: Final = "import os\nprint(os.path.exists('/tmp/trace'))\n"


async def prove(backend: SandboxBackend) -> SelfTestReport:
    """Runs the whole test on ``backend``; takes seconds. Never raises."""
    at_ms = time.time_ns() // 1_000_000
    found = await backend.probe()
    if not found.available or found.strength is None:
        return SelfTestReport(backend=backend.name, declared=None, checks=(), at_ms=at_ms, error=found.reason)
    declared = found.strength
    checks: list[Check] = []
    error = ""
    try:
        checks, error = await _attempts(backend, declared)
        if not error:
            checks += [check async for check in _limits(backend, declared)]
    except* GnusError as failures:
        checks, error = [], "; ".join(map(str, leaves(failures)))
    return SelfTestReport(backend=backend.name, declared=declared, checks=tuple(checks), at_ms=at_ms, error=error)


async def _attempts(backend: SandboxBackend, declared: Strength) -> tuple[list[Check], str]:
    """What the probing program could and could not do, and why there is no answer when there is none."""
    async with canaries.alive() as targets:
        result = await backend.run(Job(source=_probe(), stdin=_parameters(targets, declared)), LIMITS)
        hits = sorted(set(targets.hits))
    try:
        answer = json.loads(result.stdout.data) if result.status is Status.OK else None
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        words = result.reason or result.stderr.text[-300:].strip() or result.stdout.text[-300:]
        return [], f"the probing program did not finish ({result.status}): {words}"
    checks = [*_judge(cast("dict[str, Any]", answer), declared)]
    checks.append(Check("visits to the canaries", Control.NET, not hits, ", ".join(hits) or "none"))
    return checks, ""


@cache
def _probe() -> str:
    return (Path(__file__).parent / "inside" / "probe.py").read_text("utf-8")


def _parameters(targets: canaries.Canaries, declared: Strength) -> bytes:
    names = ("secret", "file", "socket", "abstract", "tcp", "shared", "segment", "marker")
    known = {name: getattr(targets, name) for name in names}
    forks = _TRIED_FORKS if Control.PIDS in declared.controls else 0  # where nothing stops it, it would end the test
    return json.dumps({**known, "forks": forks, "tmp_files": 4, "tmp_bytes": 4 * LIMITS.tmp_bytes}).encode()


def _judge(answer: Mapping[str, Any], declared: Strength) -> Iterator[Check]:
    """The checks that follow from the probing program's answer. Pure."""

    def check(name: str, control: Control, passed: bool, found: str) -> Check:
        required = control in declared.controls
        if declared.boundary is not Boundary.SHARED_KERNEL and name in _OWN_KERNEL_MAY_ALLOW:
            required = False
        return Check(name, control, passed, found, required)

    denied: Mapping[str, tuple[bool, str]] = answer["denied"]
    for name, control in _CONTROLS.items():
        passed, found = denied.get(name, (False, "the probing program does not say"))
        yield check(name, control, passed, found)
    facts: Mapping[str, float] = answer["facts"]
    forks, share, written = facts["forks"], facts["cpu_share"], facts["tmp_bytes"]
    if Control.PIDS in declared.controls:
        yield check("forks", Control.PIDS, forks <= LIMITS.pids, f"{forks:g} processes of {LIMITS.pids} allowed")
    yield check("busy loop", Control.CPU, share <= _MOST_CPU, f"{share:g} of a processor, {LIMITS.cpus:g} allowed")
    yield check("tmp", Control.FS, written <= LIMITS.tmp_bytes, f"{written:g} bytes of {LIMITS.tmp_bytes} allowed")
    for feature in sorted(declared.features):
        works = bool(answer["works"].get(feature))
        yield Check(f"{feature} works", None, works, "it does" if works else "it does not")


async def _limits(backend: SandboxBackend, declared: Strength) -> AsyncIterator[Check]:
    """Jobs that must be stopped, and jobs that must not see each other."""
    loop = await backend.run(Job(source=_LOOP), _BRIEF)
    stopped = loop.status is Status.TIMEOUT and loop.wall_seconds <= _BRIEF.wall_seconds + _STOPS_WITHIN
    yield _limit("endless loop", Control.WALL, stopped, loop, declared)
    bomb = await backend.run(Job(source=_MEMORY_BOMB), _BOMB)
    # An interpreter that is refused memory ends with MemoryError; one that the kernel ends is out of memory.
    yield _limit("memory bomb", Control.MEM, bomb.status in (Status.OOM, Status.ERROR), bomb, declared)
    flood = await backend.run(Job(source=_OUTPUT_FLOOD), _FLOOD)
    held = flood.status is Status.OUTPUT_LIMIT and len(flood.stdout.data) <= _FLOOD.output_bytes
    yield _limit("output flood", Control.OUTPUT, held, flood, declared)
    if Feature.TMP in declared.features:
        left = await backend.run(Job(source=_LEAVE_TRACE), _FLOOD)
        seen = await backend.run(Job(source=_FIND_TRACE), _FLOOD)
        clean = (left.stdout.data, seen.stdout.data) == (b"left\n", b"False\n")
        yield _limit("another job's files", Control.FS, clean, seen, declared)


def _limit(name: str, control: Control, passed: bool, result: Result, declared: Strength) -> Check:
    found = " ".join(filter(None, (str(result.status), result.reason, result.stdout.text[:40].strip())))
    return Check(name, control, passed, found, control in declared.controls)
