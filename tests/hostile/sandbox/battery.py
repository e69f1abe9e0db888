"""The hostile battery: programs that try to get out of a sandbox, and how it is judged whether they did.

A case says what it tries and by what it is judged. Its program has ``W`` (what is there to be found on this machine),
``attempt`` (whatever returns instead of raising has got out), ``escaped`` (a finding of its own) and ``door`` (a system
call that must be refused as such, not for its arguments). Besides the program's own word there are outside oracles: the
canaries of ``sandbox.run.canaries``, and the state of the host before and after.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox.run import canaries
from sandbox.run.types import MIB, Boundary, Control, Feature, Job, Limits, Result, SandboxBackend, Status, Strength

LIMITS = Limits(wall_seconds=10.0, memory_bytes=128 * MIB, pids=48, tmp_bytes=16 * MIB, output_bytes=64 * 1024)
BRIEF = Limits(wall_seconds=2.0, memory_bytes=128 * MIB, pids=48, tmp_bytes=16 * MIB, output_bytes=64 * 1024)

PRELUDE = """
import json, sys
W = json.loads(sys.stdin.read())
def escaped(what):
    print("ESCAPED", what, flush=True)
def attempt(function, *arguments):
    try:
        result = function(*arguments)
    except Exception as error:
        print("refused:", type(error).__name__, str(error)[:80])
    else:
        escaped(f"{getattr(function, '__name__', function)}: {str(result)[:80]}")
def connect(family, kind, address):
    import socket
    with socket.socket(family, kind) as client:
        client.settimeout(1)
        client.connect(address)
        return client.recv(64)
def syscall(number, *arguments):
    import ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(number, *(ctypes.c_long(argument) for argument in arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def door(number, *arguments):
    try:
        return syscall(number, *arguments)
    except OSError as error:
        if error.errno in (1, 38):
            raise
        return f"the kernel answered with error {error.errno}"
def apart(function):
    import os
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            os.write(writer, b"+" + str(function()).encode())
        except BaseException as error:
            os.write(writer, b"-" + str(error).encode())
        os._exit(0)
    os.close(writer)
    answer = os.read(reader, 200)
    os.close(reader)
    os.wait()
    if answer[:1] != b"+":
        raise OSError(answer.decode() or "it ended the process")
    return answer.decode()
"""
DONE = "\nprint('DONE')\n"

Judge = Callable[[Result], str]
"""Why the result is not what a sandbox gives; empty: it is."""


@dataclass(frozen=True)
class Case:
    """One program of the battery.

    Attributes:
        name: group and number.
        tries: what it tries, in words.
        source: the program after the prelude.
        judge: what is asked of the result.
        control: the control that it is about, None for what must work; a backend that does not declare it is not asked.
        needs: features without which it says nothing.
        limits: of the job.
        shared_kernel: only meaningful where the host's own kernel answers.
        files: beside the program.
        stdin: instead of ``W``, for programs without the prelude.
    """

    name: str
    tries: str
    source: str
    judge: Judge
    control: Control | None
    needs: frozenset[Feature] = frozenset()
    limits: Limits = LIMITS
    shared_kernel: bool = False
    files: tuple[tuple[str, bytes], ...] = ()
    bare: bool = False

    def __str__(self) -> str:
        return f"{self.name}-{self.tries.replace(' ', '-')}"

    def applies_to(self, strength: Strength) -> bool:
        declared = self.control is None or self.control in strength.controls
        kernel = not self.shared_kernel or strength.boundary is Boundary.SHARED_KERNEL
        return declared and kernel and self.needs <= strength.features

    def job(self, targets: canaries.Canaries) -> Job:
        if self.bare:
            return Job(source=self.source, files=self.files)
        names = ("secret", "file", "socket", "abstract", "tcp", "shared", "segment", "marker")
        known = {name: getattr(targets, name) for name in names} | {"host_uid": os.getuid()}
        return Job(source=PRELUDE + self.source + DONE, files=self.files, stdin=json.dumps(known).encode())


def refused(result: Result) -> str:
    """The program finished, and nothing that it tried worked."""
    text = result.stdout.text
    if "ESCAPED" in text:
        return next(line for line in text.splitlines() if "ESCAPED" in line)
    if result.status is not Status.OK or not text.endswith("DONE\n"):
        return f"the attempt was not made to its end: {result.status} {result.reason} {result.stderr.text[-300:]}"
    return ""


def refused_or_ended(result: Result) -> str:
    """As ``refused``, where the sandbox may also end the program for trying."""
    if result.status in (Status.KILLED, Status.ERROR, Status.OOM) and "ESCAPED" not in result.stdout.text:
        return ""
    return refused(result)


def refused_for_want_of_it(result: Result) -> str:
    """As ``refused``, in a world without system calls: it has not even the names, so that the program ends before it
    has made its attempt. Only an exception that says so counts."""
    last = result.stderr.text.strip().rsplit("\n", 1)[-1]
    words = ("has no attribute", "Not supported", "not implemented", "No such file", "No module named")
    if result.status is Status.ERROR and "ESCAPED" not in result.stdout.text and any(word in last for word in words):
        return ""
    return refused(result)


def ends_as(*statuses: Status) -> Judge:
    """The engine says that it ended in one of these ways."""

    def judge(result: Result) -> str:
        if "ESCAPED" in result.stdout.text:
            return result.stdout.text[:200]
        return "" if result.status in statuses else f"it ended as {result.status} ({result.reason}), not {statuses}"

    return judge


def prints(text: str, status: Status = Status.OK) -> Judge:
    """It works: exactly this text on standard output."""

    def judge(result: Result) -> str:
        if result.status is not status or result.stdout.text != text:
            return f"{result.status}: {result.stdout.text[:200]!r} {result.stderr.text[-300:]}"
        return ""

    return judge


@dataclass(frozen=True)
class Host:
    """What must be the same on this machine before and after."""

    name: str
    core_pattern: str
    canary: str
    marker_lives: bool
    traces: tuple[str, ...]

    @classmethod
    def now(cls, targets: canaries.Canaries) -> Host:
        directory = Path(targets.file).parent
        content = {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}
        places = ("/", "/etc", "/tmp", "/var/tmp", "/dev/shm", "/run", "/root", "/usr", "/usr/lib", str(directory))
        return cls(
            name=os.uname().nodename,
            core_pattern=Path("/proc/sys/kernel/core_pattern").read_text(),
            canary=hashlib.sha256(repr(content).encode()).hexdigest(),
            marker_lives=Path(f"/proc/{targets.marker}/cmdline").read_bytes().find(targets.secret.encode()) > 0,
            traces=tuple(f"{place}/{name}" for place in places for name in _names(place) if "gnusnode-trace" in name)
            + tuple(_survivors()),
        )


def _names(place: str) -> list[str]:
    try:
        return os.listdir(place)
    except OSError:
        return []


def _survivors() -> list[str]:
    """Processes that a program of the battery left running."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"gnusnode-trace" in path.read_bytes():
                found.append(str(path))
        except OSError:
            continue
    return found


@asynccontextmanager
async def world() -> AsyncGenerator[canaries.Canaries]:
    async with canaries.alive() as targets:
        yield targets


async def fault(case: Case, backend: SandboxBackend, targets: canaries.Canaries) -> str:
    """Runs ``case`` on ``backend`` and says what got out; empty: it was contained."""
    before = Host.now(targets)
    targets.hits.clear()
    result = await backend.run(case.job(targets), case.limits)
    if result.status is Status.INFRA:
        return f"the sandbox failed: {result.reason}"
    if targets.hits:
        return f"canaries were visited: {targets.hits}"
    if targets.secret.encode() in result.stdout.data + result.stderr.data:
        return "the secret came out"
    after = Host.now(targets)
    if before != after:
        return f"the host has changed: {before} -> {after}"
    found = (await backend.probe()).strength
    if case.judge is refused and found is not None and found.boundary is Boundary.WASM:
        return refused_for_want_of_it(result)
    return case.judge(result)
