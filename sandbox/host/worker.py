"""``python -m sandbox.host.worker``: runs one hostile module for the host, confined, and ends.

    to the worker                                  from the worker
    {op: limits, ...ModuleLimits}                  {ev: ready} or {ev: error, error: GnusError.to_wire()}
    {op: run, module, export}                      {ev: call, request}
    {op: answer, code or None, body}               {ev: done, ending, value, fuel_used, reason}

It holds no grant and no secret: every request goes to the host as it is. The quota of calls is kept on both sides.
"""

from __future__ import annotations

import math
import os
from typing import Final

from gnusnode.errors import GnusError
from sandbox import confine, wire
from sandbox.host.types import ModuleLimits

REQUIRED: Final = ("seccomp", "landlock", "no-new-privileges", "limit-as")
"""Without these the worker does not touch a module."""


def main() -> int:
    """Serves one run; the exit status only says whether the pipe held."""
    out = os.dup(1)
    os.dup2(2, 1)  # native code prints where it likes; frames go out over a copy
    first = wire.read_frame(0)
    if first is None:
        return 0
    limits = ModuleLimits(**{name: first[name] for name in ModuleLimits.__slots__})
    try:
        _confine(limits)
    except GnusError as error:
        wire.write_frame(out, {"ev": "error", "error": error.to_wire()})
        return 1
    from sandbox.host.execution import execute  # wasmtime: only now is the process confined

    wire.write_frame(out, {"ev": "ready"})
    job = wire.read_frame(0)
    if job is not None:
        wire.write_frame(out, {"ev": "done", **execute(job["module"], job["export"], limits, HostPipe(0, out))})
    return 0


def _confine(limits: ModuleLimits) -> None:
    """Raises ``EngineFailed`` when a required control is not in force."""
    profile = confine.ConfineProfile(
        max_memory=limits.process_bytes, max_files=32, max_cpu_seconds=math.ceil(limits.wall_seconds) + 2
    )
    confine.apply(profile).require(*REQUIRED)


class HostPipe:
    """The one way out of a module: what it asks goes to the host, what the host answers comes back."""

    def __init__(self, read_from: int, write_to: int) -> None:
        self._from, self._to = read_from, write_to

    def ask(self, request: bytes) -> tuple[int | None, bytes]:
        """The host's code, None when it grants, and the answer.

        Raises:
            EOFError, FrameError: the host is gone.
        """
        wire.write_frame(self._to, {"ev": "call", "request": request})
        answer = wire.read_frame(self._from)
        if answer is None:
            raise EOFError
        return answer["code"], answer["body"]


if __name__ == "__main__":
    # Not sys.exit: threads of the native library have been seen to abort the process while the interpreter shuts down.
    os._exit(main())
