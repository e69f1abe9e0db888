"""One run of the interpreter inside a worker: WASI linked to the module, fuel and time bounded, and how it ended.

Imports wasmtime: only for worker processes, never for the daemon.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import wasmtime

from sandbox.host import engine as engines
from sandbox.run.wasmpython.guest import Guest
from sandbox.run.wasmpython.memfs import Errno, WasiError
from sandbox.run.wasmpython.wasi import MODULE, GuestExit, Wasi

STACK_BYTES: Final = 2 * 1024 * 1024
RESERVED_BYTES: Final = 256 * 1024 * 1024
"""Address space that one guest's memory starts with; compiled into the module. More is had by moving it."""
_NEAR: Final = 16 * 1024 * 1024
"""A guest that failed within this of its memory limit ran out of memory: it asks for memory in pieces."""
_TABLE_ELEMENTS: Final = 100_000
_START: Final = "_start"


class OutputLimit(Exception):
    """The guest wrote more than it may."""


class End(StrEnum):
    EXIT = "exit"
    FUEL = "fuel"
    TIME = "time"
    OUTPUT = "output"
    MEMORY = "memory"
    TRAP = "trap"


def new_engine() -> wasmtime.Engine:
    """The engine for which the interpreter is compiled, and in which it runs."""
    return wasmtime.Engine(engines.configured(memory_bytes=RESERVED_BYTES, stack_bytes=STACK_BYTES))


class Tank:
    """The fuel of one store: what was burnt since it was last filled. Exact whenever the guest calls the host."""

    def __init__(self, engine: wasmtime.Engine) -> None:
        self.store = wasmtime.Store(engine)
        self._filled = 0

    def fill(self, fuel: int) -> None:
        """Starts the count again, with ``fuel`` to burn."""
        self._filled = fuel
        self.store.set_fuel(fuel)

    def burnt(self) -> int:
        return self._filled - self.store.get_fuel()

    def burn(self, amount: int) -> None:
        self.store.set_fuel(max(self.store.get_fuel() - amount, 0))


class _Memory:
    """A guest's linear memory as it is during one call; callers keep to ``size``.

    By address, because a guest makes thousands of calls, and the library's own access costs more than most of them.
    """

    def __init__(self, memory: wasmtime.Memory, store: wasmtime.Store) -> None:
        self._base = ctypes.addressof(memory.data_ptr(store).contents)
        self.size = memory.data_len(store)

    def read(self, start: int, stop: int) -> bytes:
        return ctypes.string_at(self._base + start, stop - start)

    def write(self, start: int, data: bytes) -> None:
        ctypes.memmove(self._base + start, data, len(data))


class Interpreter:
    """One instance of the compiled interpreter, for one run.

    Args:
        engine, module: of ``new_engine``, and what was compiled for it.
        wasi: all that the guest can call.
        tank: its fuel.
        memory_bytes: linear memory.
    """

    def __init__(
        self, engine: wasmtime.Engine, module: wasmtime.Module, wasi: Wasi, tank: Tank, *, memory_bytes: int
    ) -> None:
        self._engine = engine
        self._tank = tank
        self._memory_bytes = memory_bytes
        self._store = tank.store
        self._store.set_epoch_deadline(1)
        self._store.set_limits(
            memory_size=memory_bytes, table_elements=_TABLE_ELEMENTS, instances=1, tables=1, memories=1
        )
        linker = wasmtime.Linker(engine)
        for item in module.imports:
            assert isinstance(item.type, wasmtime.FuncType)
            assert item.module == MODULE
            name = item.name or ""
            linker.define_func(MODULE, name, item.type, self._guarded(wasi.calls.get(name, _unknown)))
        instance = linker.instantiate(self._store, module)
        memory = instance.exports(self._store)[engines.MEMORY]
        assert isinstance(memory, wasmtime.Memory)
        self._memory = memory
        self._start = engines.entry(instance, self._store, _START)

    def stop(self) -> None:
        """Ends the run soon; may come from another thread."""
        self._engine.increment_epoch()

    def run(self) -> dict[str, Any]:
        """Runs it to its end: ``{end, status, fuel_used}``. ``status`` is the guest's own, None without one."""
        end, status = End.EXIT, 0
        try:
            self._start(self._store)
        except GuestExit as leaving:
            status = leaving.status
        except OutputLimit:
            end, status = End.OUTPUT, None
        except wasmtime.Trap as trap:
            status = None
            end = {wasmtime.TrapCode.OUT_OF_FUEL: End.FUEL, wasmtime.TrapCode.INTERRUPT: End.TIME}.get(
                trap.trap_code or wasmtime.TrapCode.UNREACHABLE, End.TRAP
            )
        if end in (End.EXIT, End.TRAP) and status != 0 and self._is_full():
            end = End.MEMORY
        used = None if end in (End.TIME, End.TRAP) else self._tank.burnt()
        return {"end": end, "status": status, "fuel_used": used}

    def _is_full(self) -> bool:
        return self._memory.data_len(self._store) + _NEAR > self._memory_bytes

    def _guarded(self, call: Callable[..., None]) -> Callable[..., int]:
        """A call as the engine wants it: an error number as result. ``proc_exit`` never gets that far."""

        def guarded(*numbers: int) -> int:
            try:
                call(Guest(_Memory(self._memory, self._store)), *numbers)
            except WasiError as error:
                return error.errno
            return Errno.SUCCESS

        return guarded


def _unknown(_guest: Guest, *_numbers: int) -> None:
    """What this world does not have: sockets, links, other processes' files."""
    raise WasiError(Errno.NOSYS)


def alarm(seconds: float, stop: Callable[[], None]) -> threading.Timer:
    """Calls ``stop`` after a time, from a thread that keeps nothing alive."""
    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    return timer
