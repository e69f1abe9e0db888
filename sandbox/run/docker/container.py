"""The life of one container: made, compared with what was asked, started, given one job, ended, removed."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, Self

import trio

from gnusnode.errors import Conflict, DeadlineExceeded, GnusError, NotFound, Unavailable
from sandbox.run import boot
from sandbox.run.docker.engine import Attached, Engine
from sandbox.run.docker.spec import ContainerSpec
from sandbox.run.output import STDERR, STDOUT, Meter
from sandbox.run.types import Job, Limits, Result, Status

_READY_WITHIN: Final = 30.0
"""Seconds in which Python must have started inside."""
_LAST_OUTPUT: Final = 0.5
"""Seconds in which what a program wrote before its end is still read."""
_KILL_GRACE: Final = 10.0
_REMOVE_WITHIN: Final = 15.0


class Container:
    """A container of ours. ``start`` makes one; whoever has it must await ``remove``, or use it with ``async with``."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        self._streams: Attached | None = None

    @classmethod
    async def start(cls, engine: Engine, spec: ContainerSpec) -> Container:
        """A running container in which Python waits for a job. Leaves nothing behind when it fails or is cancelled.

        Raises:
            Unavailable: the engine made something else than was asked, or nothing at all, or it does not start.
        """
        async with AsyncExitStack() as stack:
            container = cls(engine, f"gnusnode-{secrets.token_hex(8)}")
            stack.push_async_callback(container.remove)
            await container._start(spec)
            stack.pop_all()
            return container

    async def _start(self, spec: ContainerSpec) -> None:
        with trio.CancelScope(shield=True):  # else the engine might make it after we have asked to remove it
            await self._engine.create(self._name, spec.body())
        if differences := spec.differences(await self._engine.inspect(self._name)):
            raise Unavailable(
                f"the container engine made another container than was asked: {'; '.join(differences[:4])}",
                hint="look for defaults in the engine's own configuration",
            )
        self._streams = await self._engine.attach(self._name)
        await self._engine.start(self._name)
        with trio.move_on_after(_READY_WITHIN) as scope:
            await self._until_ready(self._streams)
        if scope.cancelled_caught:
            raise DeadlineExceeded(f"the sandbox did not become ready within {_READY_WITHIN:g} s")

    async def _until_ready(self, streams: Attached) -> None:
        said = {STDOUT: b"", STDERR: b""}
        while len(said[STDOUT]) < len(boot.READY):
            frames = await streams.receive()
            if frames is None:
                break
            for stream, data in frames:
                said[stream] += data[:500]
        if said[STDOUT] != boot.READY:
            text = (said[STDERR] or said[STDOUT])[-300:].decode("utf-8", "replace").strip()
            raise Unavailable(f"Python did not start in the sandbox: {text or 'it ended without a word'}")

    def alive(self) -> bool:
        """Whether it still waits for its job."""
        return self._streams is not None and not self._streams.ended()

    async def perform(self, job: Job, limits: Limits, *, since: float, warm: bool) -> Result:
        """Gives the container its one job and waits for the end of it.

        Args:
            since: ``time.monotonic()`` of the call that the result's seconds are counted from.

        Raises:
            GnusError: the engine failed.
        """
        assert self._streams is not None, "a container that was not started"
        run = _Run(self._engine, self._name, self._streams, limits)
        await run.carry_out(job)
        state = (await self._engine.inspect(self._name))["State"]
        status, exit_code, reason = verdict(state, run.limit_hit, limits)
        return Result(
            status=status,
            exit_code=exit_code,
            stdout=run.meter.output(STDOUT),
            stderr=run.meter.output(STDERR),
            wall_seconds=time.monotonic() - since,
            reason=reason,
            warm=warm,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        with trio.move_on_after(_REMOVE_WITHIN, shield=True):
            await self.remove()

    async def remove(self) -> None:
        """Ends and removes the container. Cancellation does not stop it; what it cannot do is left to the sweeper."""
        with trio.CancelScope(shield=True), trio.move_on_after(_REMOVE_WITHIN):
            if self._streams is not None:
                await self._streams.aclose()
            try:
                await self._engine.remove(self._name)
            except GnusError:
                return  # its labels stay: the next sweep finds it


class _Run:
    """One job in one container: what is sent, what is read, and who ends it."""

    def __init__(self, engine: Engine, container: str, streams: Attached, limits: Limits) -> None:
        self._engine = engine
        self._container = container
        self._streams = streams
        self._limits = limits
        self.meter = Meter(limits.output_bytes)
        self._too_much = trio.Event()
        self._read_all = trio.Event()
        self._ending: Status | None = None

    @property
    def limit_hit(self) -> Status | None:
        """The limit that ended the job, if one did. Too much output counts even if the program ended before us."""
        return Status.OUTPUT_LIMIT if self.meter.over else self._ending

    async def carry_out(self, job: Job) -> None:
        """Returns when the container has ended and its output is read.

        Raises:
            GnusError: the engine failed; alone or in a group.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._streams.send, boot.message(job))
            nursery.start_soon(self._read)
            nursery.start_soon(self._end_at_limit)
            await self._engine.wait(self._container)
            with trio.move_on_after(_LAST_OUTPUT):
                await self._read_all.wait()
            nursery.cancel_scope.cancel()

    async def _read(self) -> None:
        # Never stops before the end: a kill waits inside the engine until the output has been read (moby#41827).
        while (frames := await self._streams.receive()) is not None:
            for stream, data in frames:
                self.meter.feed(stream, data)
            if self.meter.over:
                self._too_much.set()
        self._read_all.set()

    async def _end_at_limit(self) -> None:
        with trio.move_on_after(self._limits.wall_seconds):
            await self._too_much.wait()
        self._ending = Status.OUTPUT_LIMIT if self.meter.over else Status.TIMEOUT
        try:
            await self._engine.kill(self._container)
        except (Conflict, NotFound):
            self._ending = None  # it ended by itself just now
            return
        await trio.sleep(_KILL_GRACE)
        raise Unavailable("a sandbox does not end though it was killed", where=self._container)


def verdict(state: Mapping[str, Any], limit_hit: Status | None, limits: Limits) -> tuple[Status, int | None, str]:
    """Status, exit code and reason from the engine's ``State`` of an ended container. Pure."""
    code: int = state["ExitCode"]
    if state.get("Running") or state.get("Error"):
        return Status.INFRA, None, f"the container engine: {state.get('Error') or 'the container still runs'}"
    if limit_hit is Status.OUTPUT_LIMIT:
        return limit_hit, code, f"it wrote more than {limits.output_bytes} bytes"
    if limit_hit is Status.TIMEOUT:
        return limit_hit, code, f"it ran longer than {limits.wall_seconds:g} s"
    if code == 0:
        return Status.OK, code, ""
    if state.get("OOMKilled"):
        return Status.OOM, code, f"it used more than {limits.memory_bytes} bytes of memory"
    if code > 128 and (name := _signal_name(code - 128)):
        return Status.KILLED, code, f"it was killed by {name}"
    return Status.ERROR, code, ""


def _signal_name(number: int) -> str | None:
    try:
        return signal.Signals(number).name
    except ValueError:
        return None
