"""One interpreter in its worker process, from its start to its end: waits for a job, does it, is gone."""

from __future__ import annotations

import os
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

import trio

from gnusnode.errors import GnusError, Unavailable
from sandbox import wire, worker
from sandbox.run import boot
from sandbox.run.output import STDERR, STDOUT, Meter
from sandbox.run.types import Job, Limits, Result, Status
from sandbox.run.wasmpython.supply import InterpreterStore

_WORKER: Final = "sandbox.run.wasmpython.worker"
_MAX_FRAME: Final = 1024 * 1024
_START_SECONDS: Final = 30.0
_FIXED_AT_START: Final = ("memory_bytes", "tmp_bytes", "open_files", "cpus", "wall_seconds")
_GRACE: Final = 1.0
"""Seconds past the wall limit that the worker's own alarm gets before the process is killed."""

_STATUS: Final = {
    "fuel": (Status.TIMEOUT, "it ran longer than {limits.wall_seconds:g} s of its own time"),
    "time": (Status.TIMEOUT, "it ran longer than {limits.wall_seconds:g} s"),
    "output": (Status.OUTPUT_LIMIT, "it wrote more than {limits.output_bytes} bytes"),
    "memory": (Status.OOM, "it needed more than {limits.memory_bytes} bytes of memory"),
    "trap": (Status.KILLED, "the interpreter crashed"),
}


@dataclass(frozen=True, slots=True)
class Metered:
    """A result, and the instructions that the job burnt: the same wherever the same job runs. None: not counted."""

    result: Result
    fuel_used: int | None = None


class GuestProcess:
    """A started interpreter that waits for its job. ``remove`` leaves nothing of it."""

    def __init__(self, process: worker.Worker, owned: AsyncExitStack) -> None:
        self._process = process
        self._owned = owned

    @classmethod
    async def start(cls, store: InterpreterStore, limits: Limits) -> GuestProcess:
        """Starts an interpreter that enforces ``limits``; leaves nothing behind when it fails or is cancelled.

        Raises:
            DataError: the interpreter is not installed, or is damaged.
            Unavailable: it does not start, or this machine cannot confine it.
        """
        code = await trio.to_thread.run_sync(store.open)
        try:
            async with AsyncExitStack() as stack:
                opened = worker.open_worker(_WORKER, str(code), pass_fds=(code,), max_frame=_MAX_FRAME)
                process = await stack.enter_async_context(opened)
                with trio.move_on_after(_START_SECONDS) as scope:
                    await _begin(process, limits)
                if scope.cancelled_caught:
                    raise Unavailable("the interpreter does not start in time", hint="try again when less is running")
                return cls(process, stack.pop_all())
        except OSError as error:
            raise Unavailable(f"no worker can be started: {error.strerror or error}") from error
        finally:
            os.close(code)

    def alive(self) -> bool:
        """Whether it still waits."""
        return self._process.running

    async def remove(self) -> None:
        """Ends the process. Not interrupted by cancellation, never raises."""
        await self._owned.aclose()

    async def perform(self, job: Job, limits: Limits, *, since: float, warm: bool) -> Metered:
        """Runs ``job``; to be called once.

        Args:
            since: when the caller was called, of ``time.monotonic``.
            warm: it waited for the job.
        """
        meter = Meter(limits.output_bytes)
        done: dict[str, Any] | None = None
        reason = "the worker died"
        with trio.move_on_after(limits.wall_seconds + _GRACE) as scope:
            try:
                done = await self._serve(job, limits, meter)
            except wire.FrameError as error:
                reason = f"the worker sent what is no frame: {error}"
        if scope.cancelled_caught:
            done = {"end": "time"}
        if done is None:
            await self._process.kill()
            reason = f"{reason}: {self._process.last_words[-300:]}"
        status, exit_code, reason = _judge(done, limits) if done else (Status.INFRA, None, reason)
        fuel = done.get("fuel_used") if done else None
        result = Result(
            status=status,
            exit_code=exit_code,
            stdout=meter.output(STDOUT),
            stderr=meter.output(STDERR),
            wall_seconds=time.monotonic() - since,
            reason=reason,
            warm=warm,
        )
        return Metered(result, fuel if type(fuel) is int else None)

    async def _serve(self, job: Job, limits: Limits, meter: Meter) -> dict[str, Any] | None:
        """Passes the job in and its output on, until the end. None: the worker died.

        Raises:
            FrameError: it said what no sound worker says.
        """
        await self._process.send(
            {
                "op": "job",
                "data": boot.message(job),
                "output_bytes": limits.output_bytes,
                "wall_seconds": limits.wall_seconds,
            }
        )
        while (frame := await self._process.receive()) is not None:
            match frame:
                case {"ev": "out", "stream": 1 | 2 as stream, "data": bytes(data)} if not meter.over:
                    meter.feed(stream, data)
                case {"ev": "done", "end": str(end)} if end in _STATUS or end == "exit":
                    return frame
                case _:
                    raise wire.FrameError("an unknown event, or output past the limit")
        return None


async def _begin(process: worker.Worker, limits: Limits) -> None:
    await process.send({"op": "start", **{name: getattr(limits, name) for name in _FIXED_AT_START}})
    try:
        frame = await process.receive()
    except wire.FrameError as error:
        raise Unavailable(f"the worker sent what is no frame: {error}") from error
    match frame:
        case {"ev": "ready"}:
            return
        case {"ev": "error", "error": dict()}:
            raise GnusError.from_wire(frame["error"])
        case _:
            await process.kill()
            reason = process.last_words[-500:] or str(frame)
            raise Unavailable(f"the interpreter does not start: {reason}", hint="see `gnusnode doctor`")


def _judge(done: dict[str, Any], limits: Limits) -> tuple[Status, int | None, str]:
    """The status, exit code and reason of a run that ended."""
    if done["end"] in _STATUS:
        status, reason = _STATUS[done["end"]]
        return status, None, reason.format(limits=limits)
    code = done.get("status")
    if type(code) is not int:
        return Status.INFRA, None, "the worker gave no exit status"
    return (Status.OK if code == 0 else Status.ERROR), code, ""
