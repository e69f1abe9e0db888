"""One local sandbox: started, given one job, ended, removed. Its group of processes ends with it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import trio

from gnusnode.errors import Unavailable
from sandbox import confine
from sandbox.privileges import NOBODY
from sandbox.run import boot
from sandbox.run.cgroups import Group, Hierarchy
from sandbox.run.local.recipe import Recipe
from sandbox.run.output import STDERR, STDOUT, Meter
from sandbox.run.types import Job, Limits, Result, Status

_LAUNCHER: Final = "sandbox.run.local.launch"
_READY_SECONDS: Final = 30.0
_LAST_OUTPUT: Final = 0.5
"""Seconds in which what a program wrote before its end is still read."""
_END_SECONDS: Final = 15.0
"""Killed processes are gone at once unless the kernel holds them."""
_READ: Final = 64 * 1024
_SCRATCH: Final = "gnusnode-box-"


class Box:
    """A running sandbox in which Python waits for a job. Whoever has one must await ``remove``."""

    def __init__(self, process: subprocess.Popen[bytes], pipes: Sequence[int], group: Group) -> None:
        self._process = process
        self._group = group
        self._owned = AsyncExitStack()
        to_child, from_child, errors = (trio.lowlevel.FdStream(descriptor) for descriptor in pipes)
        self._stdin = to_child
        self._outputs = {STDOUT: from_child, STDERR: errors}

    @classmethod
    async def start(cls, recipe: Recipe, hierarchy: Hierarchy, owner: str, limits: Limits) -> Box:
        """A sandbox that waits for a job. Leaves nothing behind when it fails or is cancelled.

        Args:
            owner: whose groups and directories they are: ``<owner>-<session>``, see ``cgroups.sweep``.

        Raises:
            Unavailable: there is no group with real limits, or it does not start.
        """
        room = replace(limits, pids=limits.pids + recipe.extra_pids)
        async with AsyncExitStack() as stack:
            group = Group.make(hierarchy, owner, room, extra_bytes=recipe.extra_bytes)
            stack.push_async_callback(group.remove)
            try:
                scratch = _scratch(owner)
                stack.callback(shutil.rmtree, scratch, ignore_errors=True)
                box = _launched(recipe, scratch, group, limits)
            except OSError as error:
                raise Unavailable(f"{recipe.name} cannot be started: {error}") from error
            stack.push_async_callback(box._end)
            with trio.move_on_after(_READY_SECONDS) as scope:
                await box._until_ready()
            if scope.cancelled_caught:
                raise Unavailable("the sandbox did not become ready in time", hint="try again when less is running")
            box._owned = stack.pop_all()
            return box

    def alive(self) -> bool:
        """Whether it still waits for its job."""
        return self._process.poll() is None

    async def remove(self) -> None:
        """Ends every process of the sandbox and leaves nothing of it. Not interrupted by cancellation, never raises."""
        with trio.CancelScope(shield=True):
            await self._owned.aclose()

    async def _end(self) -> None:
        with trio.move_on_after(_END_SECONDS, shield=True):
            await self._group.remove()
            for stream in (self._stdin, *self._outputs.values()):
                await trio.aclose_forcefully(stream)
            await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)

    async def _until_ready(self) -> None:
        said = b""
        while len(said) < len(boot.READY) and (data := await self._outputs[STDOUT].receive_some(len(boot.READY))):
            said += data
        if said != boot.READY:
            with trio.move_on_after(_LAST_OUTPUT):
                said = await self._outputs[STDERR].receive_some(_READ) or said
            words = said[-300:].decode("utf-8", "replace").strip() or "it ended without a word"
            raise Unavailable(f"Python did not start in the sandbox: {words}")

    async def perform(self, job: Job, limits: Limits, *, since: float, warm: bool) -> Result:
        """Gives the sandbox its one job and waits for the end of it. ``since``: when its seconds began to count."""
        meter = Meter(limits.output_bytes)
        too_much, read_all = trio.Event(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send, boot.message(job))
            nursery.start_soon(self._read_both, meter, too_much, read_all)
            nursery.start_soon(self._kill_on, too_much)
            with trio.move_on_after(limits.wall_seconds) as scope:
                await self._ended()
            if scope.cancelled_caught:
                self._group.kill()
                await self._ended()
            with trio.move_on_after(_LAST_OUTPUT):
                await read_all.wait()
            nursery.cancel_scope.cancel()
        status, code, reason = self._verdict(meter, limits, timed_out=scope.cancelled_caught)
        return Result(
            status=status,
            exit_code=code,
            stdout=meter.output(STDOUT),
            stderr=meter.output(STDERR),
            wall_seconds=time.monotonic() - since,
            reason=reason,
            warm=warm,
        )

    async def _send(self, message: bytes) -> None:
        with suppress(trio.BrokenResourceError):
            await self._stdin.send_all(message)
            await self._stdin.aclose()

    async def _read_both(self, meter: Meter, too_much: trio.Event, read_all: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            for stream in self._outputs:
                nursery.start_soon(self._read, stream, meter, too_much)
        read_all.set()

    async def _read(self, stream: int, meter: Meter, too_much: trio.Event) -> None:
        while data := await self._outputs[stream].receive_some(_READ):
            meter.feed(stream, data)
            if meter.over:
                too_much.set()

    async def _kill_on(self, too_much: trio.Event) -> None:
        await too_much.wait()
        self._group.kill()

    async def _ended(self) -> None:
        """Waits for the end of the process without taking its status."""
        descriptor = os.pidfd_open(self._process.pid)
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)

    def _verdict(self, meter: Meter, limits: Limits, *, timed_out: bool) -> tuple[Status, int | None, str]:
        code = self._process.wait()
        code = 128 - code if code < 0 else code
        if meter.over:
            return Status.OUTPUT_LIMIT, code, f"it wrote more than {limits.output_bytes} bytes"
        if timed_out:
            return Status.TIMEOUT, code, f"it ran longer than {limits.wall_seconds:g} s"
        if code == 0:
            return Status.OK, code, ""
        if self._group.ran_out_of_memory():
            return Status.OOM, code, f"it used more than {limits.memory_bytes} bytes of memory"
        if code > 128 and code - 128 in set(signal.Signals):
            return Status.KILLED, code, f"it was killed by {signal.Signals(code - 128).name}"
        return Status.ERROR, code, ""


def _launched(recipe: Recipe, scratch: Path, group: Group, limits: Limits) -> Box:
    """Started by the thread that runs trio: the kernel is asked to end it with the *thread* that started it."""
    descriptor = os.memfd_create("inherited", 0)
    child_in, to_child = os.pipe()
    from_child, child_out = os.pipe()
    errors, child_errors = os.pipe()
    ours, theirs = (to_child, from_child, errors), (child_in, child_out, child_errors, descriptor)
    try:
        os.write(descriptor, recipe.inherited)
        os.lseek(descriptor, 0, os.SEEK_SET)
        launch = recipe.launch(scratch, limits, descriptor)
        process = subprocess.Popen(
            confine.launch_command(_LAUNCHER, json.dumps({"entrances": group.entrances, **asdict(launch)})),
            env=confine.launch_environment(),
            stdin=child_in,
            stdout=child_out,
            stderr=child_errors,
            start_new_session=True,
            pass_fds=(descriptor,),
        )
        return Box(process, ours, group)
    except BaseException:  # whatever went wrong, our ends of the pipes must not leak; it is raised on
        for number in ours:
            os.close(number)
        raise
    finally:
        for number in theirs:
            os.close(number)


def _scratch(owner: str) -> Path:
    """An empty directory for the user that the sandbox runs as."""
    path = Path(tempfile.mkdtemp(prefix=f"{_SCRATCH}{owner}-"))
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    return path


def sweep_directories(owner: str, session: str) -> None:
    """Removes the directories that other sessions of ``owner`` left. Blocks."""
    named = re.compile(rf"{_SCRATCH}{re.escape(owner)}-(?!{session})[0-9a-f]{{16}}-\w+")
    for path in Path(tempfile.gettempdir()).iterdir():
        if named.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
