"""Runs WebAssembly modules that nobody vouches for: each in a worker process of its own, under one run's grants.

The daemon never loads wasmtime. It starts the worker, answers its requests by the grants, and kills it at the deadline;
the worker's word is believed only as far as its own module goes.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Final

import trio

from gnusnode.contracts import ids
from gnusnode.errors import GnusError, Unavailable
from sandbox import wire, worker
from sandbox.host.session import HostSession
from sandbox.host.types import MAX_REQUEST, Ending, ModuleLimits, ModuleResult

_WORKER: Final = "sandbox.host.worker"
_MAX_FRAME: Final = MAX_REQUEST + 4096
_GRACE: Final = 1.0
"""Seconds past the wall limit that the worker's own alarm gets before the process is killed."""


def unavailable_reason() -> str:
    """Why modules cannot run here; empty: as far as one can see they can."""
    if importlib.util.find_spec("wasmtime") is None:
        return "wasmtime is not installed"
    return ""


async def run_module(
    module: bytes, session: HostSession, limits: ModuleLimits | None = None, *, export: str = "run"
) -> ModuleResult:
    """Runs the function ``export`` of a WebAssembly module once. Cancelled, it leaves no process behind.

    What the module put out is ``session.output``, and ``session.attest`` signs what it asked for.

    Args:
        module: the binary format; the grants of ``session`` must be for exactly these bytes.
        session: a new one.
        export: a function without parameters.

    Raises:
        Unavailable: wasmtime is not installed, or this machine cannot confine the worker.
    """
    limits = limits or ModuleLimits()
    if reason := unavailable_reason():
        raise Unavailable(reason, hint="install gnusnode with the extra `wasm`: pip install 'gnusnode[wasm]'")
    if ids.sha256(module) != session.grants.artifact_hash:
        return ModuleResult(ending=Ending.REFUSED, reason="the grants are for another artifact")
    if len(module) > limits.module_bytes:
        reason = f"the module has {len(module)} bytes, the limit is {limits.module_bytes}"
        return ModuleResult(ending=Ending.REFUSED, reason=reason)
    with trio.move_on_after(limits.wall_seconds + _GRACE):
        return await _run(module, session, limits, export)
    return ModuleResult(ending=Ending.TIMEOUT, reason=f"it ran longer than {limits.wall_seconds:g} s and was killed")


async def _run(module: bytes, session: HostSession, limits: ModuleLimits, export: str) -> ModuleResult:
    try:
        async with worker.open_worker(_WORKER, max_frame=_MAX_FRAME) as process:
            await _begin(process, limits)
            await process.send({"op": "run", "module": module, "export": export})
            result = await _serve(process, session, limits)
    except wire.FrameError as error:
        return ModuleResult(ending=Ending.KILLED, reason=f"the worker sent what is no frame: {error}")
    except OSError as error:
        raise Unavailable(f"no worker can be started: {error.strerror or error}") from error
    return result or ModuleResult(ending=Ending.KILLED, reason=f"the worker died: {process.last_words[-500:]}")


async def _begin(process: worker.Worker, limits: ModuleLimits) -> None:
    """Waits until the worker is confined. Raises ``Unavailable`` when it cannot be."""
    await process.send({"op": "limits", **{name: getattr(limits, name) for name in ModuleLimits.__slots__}})
    frame = await process.receive()
    match frame:
        case {"ev": "ready"}:
            return
        case {"ev": "error", "error": dict()}:
            cause = GnusError.from_wire(frame["error"])
            raise Unavailable(cause.what, hint=cause.hint) from cause
        case _:
            await process.kill()
            reason = process.last_words[-500:] or "it said nothing"
            raise Unavailable(f"the worker for modules does not start: {reason}", hint="see `gnusnode doctor`")


async def _serve(process: worker.Worker, session: HostSession, limits: ModuleLimits) -> ModuleResult | None:
    """Answers requests until the run has ended. None: the worker died."""
    left = limits.host_calls
    while (frame := await process.receive()) is not None:
        match frame:
            case {"ev": "call", "request": bytes(request)} if left > 0:
                left -= 1
                answer = await session.answer(request)
                code = None if answer.code is None else int(answer.code)
                await process.send({"op": "answer", "code": code, "body": answer.body})
            case {"ev": "done"}:
                return _result(frame)
            case _:
                raise wire.FrameError("an unknown event, or a call over the quota")
    return None


def _result(frame: dict[str, Any]) -> ModuleResult:
    """Raises ``FrameError`` when the fields are not those of a result."""
    try:
        ending, reason = Ending(frame["ending"]), str(frame["reason"])[:1000]
    except (KeyError, ValueError) as error:
        raise wire.FrameError(f"a result is malformed: {error!r}") from error
    value, fuel = frame.get("value"), frame.get("fuel_used")
    if not all(item is None or type(item) is int for item in (value, fuel)):
        raise wire.FrameError("a result is malformed: value or fuel is no integer")
    return ModuleResult(ending=ending, value=value, fuel_used=fuel, reason=reason)
