"""One run of one module inside a worker: compile, refuse or instantiate, call, and say how it ended."""

from __future__ import annotations

import threading
from typing import Any, Final, Protocol

import wasmtime

from sandbox.host import engine as engines
from sandbox.host.memory import span
from sandbox.host.types import MAX_REQUEST, Code, Ending, ModuleLimits

_ENDINGS: Final = {
    wasmtime.TrapCode.OUT_OF_FUEL: Ending.FUEL,
    wasmtime.TrapCode.STACK_OVERFLOW: Ending.STACK,
    wasmtime.TrapCode.INTERRUPT: Ending.TIMEOUT,
}
_FUEL_IS_KNOWN: Final = (Ending.OK, Ending.FUEL)
"""Compiled code counts in a register, and leaves the count behind only where it ends in order."""


class Host(Protocol):
    def ask(self, request: bytes) -> tuple[int | None, bytes]:
        """The host's code, None when it grants, and the encoded answer."""
        ...


class QuotaSpent(Exception):
    """The module called the host more often than it may."""


class HostFunction:
    """``gnus.call``: checks pointers, carries the request out and the answer in. A failure leaves memory as it was."""

    def __init__(self, host: Host, calls: int) -> None:
        self._host = host
        self._left = calls

    def __call__(self, caller: wasmtime.Caller, pointer: int, length: int, out: int, room: int) -> int:
        self._left -= 1
        if self._left < 0:
            raise QuotaSpent
        memory = caller[engines.MEMORY]
        assert isinstance(memory, wasmtime.Memory)
        size = memory.data_len(caller)
        source, target = span(pointer, length, size), span(out, room, size)
        if source is None or target is None:
            return Code.FAULT
        # One byte too many is carried out, so that the host refuses and accounts what is too long.
        end = min(source.stop, source.start + MAX_REQUEST + 1)
        code, body = self._host.ask(bytes(memory.read(caller, source.start, end)))
        if code is not None:
            return code
        if len(body) > target.stop - target.start:
            return Code.TOO_SMALL
        if body:
            memory.write(caller, body, target.start)
        return len(body)


def execute(code: bytes, export: str, limits: ModuleLimits, host: Host) -> dict[str, Any]:
    """Runs ``export`` of the module ``code`` once; the fields of a ``ModuleResult``. Raises what ``host`` does."""
    config = engines.configured(memory_bytes=limits.memory_bytes, stack_bytes=limits.stack_bytes)
    engine = wasmtime.Engine(config)
    try:
        module = engines.compiled(engine, code, export)
    except engines.ModuleRefused as error:
        return {"ending": Ending.REFUSED, "value": None, "fuel_used": 0, "reason": str(error)}
    store = engines.new_store(engine, limits)

    def ended(ending: Ending, reason: str = "", value: int | None = None) -> dict[str, Any]:
        used = limits.fuel - store.get_fuel() if ending in _FUEL_IS_KNOWN else None
        return {"ending": ending, "value": value, "fuel_used": used, "reason": reason[:500]}

    alarm = threading.Timer(limits.wall_seconds, engine.increment_epoch)
    alarm.daemon = True
    alarm.start()
    try:
        value = _run(engine, store, module, export, HostFunction(host, limits.host_calls))
    except QuotaSpent:
        return ended(Ending.HOST_CALLS, f"more than {limits.host_calls} calls of the host")
    except wasmtime.Trap as trap:
        known = trap.trap_code
        return ended(_ENDINGS.get(known, Ending.TRAP) if known is not None else Ending.TRAP, _cause(trap))
    except wasmtime.WasmtimeError as error:
        return ended(Ending.REFUSED, f"it cannot be instantiated: {error}")
    finally:
        alarm.cancel()
    return ended(Ending.OK, value=value if type(value) is int else None)


def _cause(trap: wasmtime.Trap) -> str:
    """The last line of a trap's text: ``wasm trap: all fuel consumed by WebAssembly``; above it is a backtrace."""
    return trap.message.strip().rsplit("\n", 1)[-1].strip()


def _run(
    engine: wasmtime.Engine, store: wasmtime.Store, module: wasmtime.Module, export: str, function: HostFunction
) -> Any:
    linker = wasmtime.Linker(engine)
    i32 = wasmtime.ValType.i32()
    kind = wasmtime.FuncType([i32] * 4, [i32])
    linker.define_func(engines.MODULE, engines.FUNCTION, kind, function, access_caller=True)
    instance = linker.instantiate(store, module)
    return engines.entry(instance, store, export)(store)
