"""``python -m sandbox.run.wasmpython.worker FD``: one interpreter for one job, confined, and then the end.

    to the worker                               from the worker
    {op: start, memory_bytes, tmp_bytes,        {ev: ready} or {ev: error, error: GnusError.to_wire()}
     open_files, cpus, wall_seconds}
    {op: job, data, output_bytes,               {ev: out, stream, data}
     wall_seconds}                              {ev: done, end, status, fuel_used}

``FD`` is the compiled interpreter, which the parent has checked: it is loaded before confinement, the job comes after.
The boot program inside says ``READY`` on its standard output; the worker keeps that and waits for the job.
"""

from __future__ import annotations

import math
import os
import sys
from typing import Any, Final

import wasmtime

from gnusnode.errors import GnusError
from sandbox import confine, wire
from sandbox.host.worker import REQUIRED
from sandbox.run import boot
from sandbox.run.output import STDERR, STDOUT
from sandbox.run.wasmpython.execution import Interpreter, OutputLimit, Tank, alarm, new_engine
from sandbox.run.wasmpython.memfs import MemoryFiles
from sandbox.run.wasmpython.virtual import FUEL_PER_SECOND, VirtualClock, VirtualRandom
from sandbox.run.wasmpython.wasi import Wasi

_BOOT_FUEL: Final = 4 * FUEL_PER_SECOND
"""For everything before the job, which takes about a quarter of it."""
_SEED: Final = b"gnusnode wasm-cpython"
_PRELUDE: Final = """
import time as _time
_time.process_time_ns = lambda: int(_time.monotonic_ns() * {cpus!r})
_time.process_time = lambda: _time.process_time_ns() / 1e9
"""
"""This build counts ticks where it should count nanoseconds, and has no clock of its processor: here they are one."""
_MIB: Final = 1024 * 1024
_OWN_BYTES: Final = 1024 * _MIB
"""Address space of the worker besides the guest's memory and files."""


def main() -> int:
    """Serves one job; the exit status only says whether the pipe held."""
    out = os.dup(1)
    os.dup2(2, 1)  # native code prints where it likes; frames go out over a copy
    engine = new_engine()
    module = wasmtime.Module.deserialize_file(engine, f"/proc/self/fd/{int(sys.argv[1])}")
    os.close(int(sys.argv[1]))
    start = wire.read_frame(0)
    if start is None:
        return 0
    try:
        _confine(start)
    except GnusError as error:
        wire.write_frame(out, {"ev": "error", "error": error.to_wire()})
        return 1
    tank = Tank(engine)
    tank.fill(_BOOT_FUEL)
    *command, program = boot.command("python3")
    guest = _Guest(out, tank, start["cpus"])
    wasi = Wasi(
        arguments=(*command, _PRELUDE.format(cpus=start["cpus"]) + program),
        environment=boot.ENVIRONMENT,
        stdin=guest.read,
        stdout=lambda data: guest.write(STDOUT, data),
        stderr=lambda data: guest.write(STDERR, data),
        files=MemoryFiles(start["tmp_bytes"]),
        max_open=start["open_files"],
        clock=VirtualClock(tank, start["cpus"]),
        random=VirtualRandom(_SEED),
    )
    interpreter = Interpreter(engine, module, wasi, tank, memory_bytes=start["memory_bytes"])
    guest.stop = interpreter.stop
    wire.write_frame(out, {"ev": "done", **interpreter.run()})
    return 0


def _confine(start: dict[str, Any]) -> None:
    """Raises ``EngineFailed`` when a required control is not in force."""
    profile = confine.ConfineProfile(
        # Memory is moved when it outgrows what was reserved: both places exist for a moment.
        max_memory=_OWN_BYTES + 2 * start["memory_bytes"] + start["tmp_bytes"],
        max_files=32,
        max_cpu_seconds=math.ceil(start["wall_seconds"]) + 10,
    )
    confine.apply(profile).require(*REQUIRED)


class _Guest:
    """The standard streams of the guest. It has said ``READY`` before it reads, and reads before it runs the job."""

    def __init__(self, out: int, tank: Tank, cpus: float) -> None:
        self._out = out
        self._cpus = cpus
        self._tank = tank
        self._ready = bytearray()
        self._input: memoryview | None = None
        self._room = len(boot.READY)
        self.stop = lambda: None

    def write(self, stream: int, data: bytes) -> None:
        """Raises ``OutputLimit`` with the write that goes over the limit; a byte past it is passed on to show that."""
        if self._input is None and stream == STDOUT and len(self._ready) < len(boot.READY):
            self._ready += data
            return
        over = len(data) > self._room
        data = data[: self._room + 1]
        self._room -= min(len(data), self._room)
        if data:
            wire.write_frame(self._out, {"ev": "out", "stream": stream, "data": data})
        if over:
            raise OutputLimit

    def read(self, most: int) -> bytes:
        if self._input is None:
            self._input = self._receive()
        piece, self._input = self._input[:most], self._input[most:]
        return bytes(piece)

    def _receive(self) -> memoryview:
        if (said := bytes(self._ready)) != boot.READY:
            raise RuntimeError(f"the boot program said {said[:80]!r}")
        wire.write_frame(self._out, {"ev": "ready"})
        job = wire.read_frame(0)
        if job is None:
            os._exit(0)  # nobody wants this worker any more
        self._room = job["output_bytes"]
        self._tank.fill(int(job["wall_seconds"] * self._cpus * FUEL_PER_SECOND))
        alarm(job["wall_seconds"], self.stop)
        return memoryview(job["data"])


if __name__ == "__main__":
    # Not sys.exit: threads of the native library have been seen to abort the process while the interpreter shuts down.
    os._exit(main())
