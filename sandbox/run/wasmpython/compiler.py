"""``python -m sandbox.run.wasmpython.compiler``: ``{op: compile, module}`` in, ``{ev: compiled, code}`` out.

Confined as a worker is, though what it compiles is pinned by its hash: a compiler has no need of anything either.
"""

from __future__ import annotations

import os
from typing import Final

from gnusnode.errors import DataError, GnusError
from sandbox import confine, wire
from sandbox.host.worker import REQUIRED

_PROCESS_BYTES: Final = 6 * 1024 * 1024 * 1024
_CPU_SECONDS: Final = 900


def main() -> int:
    """Compiles one module; the exit status only says whether the pipe held."""
    out = os.dup(1)
    os.dup2(2, 1)
    profile = confine.ConfineProfile(max_memory=_PROCESS_BYTES, max_files=32, max_cpu_seconds=_CPU_SECONDS)
    try:
        confine.apply(profile).require(*REQUIRED)
        frame = wire.read_frame(0)
        if frame is not None:
            wire.write_frame(out, {"ev": "compiled", "code": _compiled(frame["module"])})
    except GnusError as error:
        wire.write_frame(out, {"ev": "error", "error": error.to_wire()})
    return 0


def _compiled(module: bytes) -> bytes:
    import wasmtime  # only now is the process confined

    from sandbox.run.wasmpython.execution import new_engine

    try:
        return bytes(wasmtime.Module(new_engine(), module).serialize())
    except wasmtime.WasmtimeError as error:
        raise DataError(f"the interpreter cannot be compiled: {str(error)[:500]}") from error


if __name__ == "__main__":
    os._exit(main())  # not sys.exit: see ``sandbox.host.worker``
