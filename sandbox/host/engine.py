"""The WebAssembly engine of a worker, as strict as it can be set: no feature that is not needed, every run bounded.

Imports wasmtime: only for worker processes, which have confined themselves, and never for the daemon.
"""

from __future__ import annotations

from typing import Final, cast

import wasmtime

from sandbox.host.types import ModuleLimits

MODULE: Final = "gnus"
FUNCTION: Final = "call"
MEMORY: Final = "memory"
_BINARY: Final = b"\0asm\x01\0\0\0"
_GUARD: Final = 64 * 1024
_FEATURES_OFF: Final = (
    "threads", "shared_memory", "memory64", "multi_memory", "relaxed_simd", "exceptions", "gc", "function_references",
    "tail_call", "stack_switching", "component_model", "custom_page_sizes", "wide_arithmetic",
)  # fmt: skip


class ModuleRefused(Exception):
    """The module is none that we run; the text says why."""


def configured(*, memory_bytes: int, stack_bytes: int) -> wasmtime.Config:
    """One configuration for everything that runs here, so that compiled code of one build fits every worker.

    Fuel and epochs end a run, NaNs have one bit pattern, and memory is reserved as far as its limit only.
    """
    config = wasmtime.Config()
    for feature in _FEATURES_OFF:
        setting = feature if feature == "shared_memory" else f"wasm_{feature}"
        setattr(config, setting, False)
    config.consume_fuel = True
    config.epoch_interruption = True
    config.cranelift_nan_canonicalization = True
    config.max_wasm_stack = stack_bytes
    config.parallel_compilation = False
    config.memory_reservation = memory_bytes
    config.memory_guard_size = _GUARD
    config.memory_reservation_for_growth = 0
    return config


def new_store(engine: wasmtime.Engine, limits: ModuleLimits) -> wasmtime.Store:
    """A store for one instance with one memory, that ends with its fuel or with the next epoch."""
    store = wasmtime.Store(engine)
    store.set_fuel(limits.fuel)
    store.set_epoch_deadline(1)
    store.set_limits(
        memory_size=limits.memory_bytes,
        table_elements=limits.table_elements,
        instances=1,
        tables=4,
        memories=1,
    )
    return store


def compiled(engine: wasmtime.Engine, code: bytes, export: str) -> wasmtime.Module:
    """The module, which imports nothing but ``gnus.call`` and exports ``export`` without parameters.

    Raises:
        ModuleRefused: it is not that.
    """
    if not code.startswith(_BINARY):
        raise ModuleRefused("not a module in the binary format, version 1")  # the library would read text as well
    try:
        module = wasmtime.Module(engine, code)
    except wasmtime.WasmtimeError as error:
        raise ModuleRefused(f"not a valid module: {_first_line(error)}") from error
    _check_imports(module)
    exports = {item.name: item.type for item in module.exports}
    kind = exports.get(export)
    if not isinstance(kind, wasmtime.FuncType) or kind.params:
        raise ModuleRefused(f"it exports no function {export!r} without parameters")
    if module.imports and not isinstance(exports.get(MEMORY), wasmtime.MemoryType):
        raise ModuleRefused(f"it imports {MODULE}.{FUNCTION} and exports no memory for it to work on")
    return module


def _check_imports(module: wasmtime.Module) -> None:
    names = [(item.module, item.name) for item in module.imports]
    if foreign := [f"{place}.{name}" for place, name in names if (place, name) != (MODULE, FUNCTION)]:
        raise ModuleRefused(f"it imports {', '.join(foreign)[:500]}; a module may import {MODULE}.{FUNCTION} only")
    if len(names) > 1:
        raise ModuleRefused(f"it imports {MODULE}.{FUNCTION} more than once")
    if names:
        kind = module.imports[0].type
        i32 = wasmtime.ValType.i32()
        if not isinstance(kind, wasmtime.FuncType) or kind.params != [i32] * 4 or kind.results != [i32]:
            raise ModuleRefused(f"it imports {MODULE}.{FUNCTION} with another type than (i32 i32 i32 i32) -> i32")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:500]


def entry(instance: wasmtime.Instance, store: wasmtime.Store, export: str) -> wasmtime.Func:
    """The function ``export`` of an instance of a ``compiled`` module."""
    return cast("wasmtime.Func", instance.exports(store)[export])
