"""Modules that attack: pointers, imports, loops, memory, floods, compilers. Each runs in the real worker process."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from gnusnode.contracts import canonical
from sandbox import linux
from sandbox.host.types import MAX_REQUEST, Code, Ending, ModuleLimits, ModuleResult
from sandbox.host.wasm import run_module
from tests.fakes.wasm_modules import IMPORT, OUT, assembled, calling, request, session_for

pytestmark = [
    pytest.mark.skipif(not linux.IS_LINUX, reason="modules run only where the worker can be confined"),
    pytest.mark.requirement("G-EX-5", "G-TI-12"),
]

CLOCK = request("clock.now", "coarse")
SMALL = ModuleLimits(fuel=5_000_000, wall_seconds=20)
PAGE = 65536


async def run(module: bytes, limits: ModuleLimits = SMALL, *, export: str = "run", **options: Any) -> ModuleResult:
    return await run_module(module, session_for(module, clock="coarse", **options), limits, export=export)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("wasi_snapshot_preview1", "fd_write"),
        ("wasi_snapshot_preview1", "clock_time_get"),
        ("wasi_unstable", "random_get"),
        ("wasi:io/streams", "write"),
        ("env", "system"),
        ("gnus", "call2"),
        ("gnus", ""),
        ("", "call"),
        ("Gnus", "call"),
        ("gnus\\00", "call"),
    ],
)
@pytest.mark.requirement("G-IF-4")
async def test_any_import_but_the_one_function_is_refused_before_it_runs(place: str, name: str) -> None:
    kind = "(param i32 i32 i32 i32) (result i32)"
    module = assembled(
        f'(module {IMPORT} (import "{place}" "{name}" (func {kind})) (memory (export "memory") 1) '
        '(func $s unreachable) (start $s) (func (export "run")))'
    )
    result = await run(module)
    assert result.ending is Ending.REFUSED
    assert "imports" in result.reason


@pytest.mark.parametrize(
    "thing",
    [
        '(import "gnus" "call" (memory 1))',
        '(import "gnus" "call" (global i32))',
        '(import "gnus" "call" (table 1 funcref))',
        '(import "gnus" "call" (func (param i32) (result i32)))',
        '(import "gnus" "call" (func (param i32 i32 i32 i32) (result i64)))',
        '(import "gnus" "call" (func (param i64 i32 i32 i32) (result i32)))',
        IMPORT + IMPORT.replace("$call", "$again"),
    ],
)
async def test_the_one_import_has_one_type_and_comes_once(thing: str) -> None:
    memory = "" if "memory" in thing else '(memory (export "memory") 1)'
    result = await run(assembled(f'(module {thing} {memory} (func (export "run")))'))
    assert result.ending is Ending.REFUSED


POINTERS = {
    "request past the end": (PAGE - 4, 100, OUT, 100),
    "request one byte past the end": (PAGE - 4, 5, OUT, 100),
    "request starts past the end": (PAGE + 1, 0, OUT, 100),
    "length negative": (0, -1, OUT, 100),
    "pointer negative": (-4, 4, OUT, 100),
    "request wraps round": (-16, 33, OUT, 100),
    "answer past the end": (0, len(CLOCK), PAGE - 4, 100),
    "answer one byte past the end": (0, len(CLOCK), PAGE - 100, 101),
    "room negative": (0, len(CLOCK), OUT, -1),
    "answer wraps round": (0, len(CLOCK), -100, 200),
    "both at the far end": (-1, -1, -1, -1),
}


@pytest.mark.parametrize("case", POINTERS, ids=str)
@pytest.mark.requirement("G-IF-4")
async def test_pointers_outside_the_memory_are_a_fault_and_nothing_is_asked(case: str) -> None:
    module = calling(CLOCK, pointers=" ".join(f"(i32.const {number})" for number in POINTERS[case]))
    session = session_for(module, clock="coarse")
    result = await run_module(module, session, SMALL)
    assert (result.ending, result.value) == (Ending.OK, Code.FAULT)
    assert session.calls == 0


async def test_a_request_and_its_answer_may_touch_the_last_byte_and_overlap() -> None:
    answer = canonical.encode({"seconds": 1_700_000_000})
    at = PAGE - len(CLOCK)
    body = (
        f"(memory.copy (i32.const {at}) (i32.const 0) (i32.const {len(CLOCK)})) "
        f"(call $call (i32.const {at}) (i32.const {len(CLOCK)}) "
        f"(i32.const {PAGE - len(answer)}) (i32.const {len(answer)}))"
    )
    result = await run(calling(CLOCK, body=body))
    assert (result.ending, result.value) == (Ending.OK, len(answer))


@pytest.mark.requirement("G-IF-4")
async def test_a_buffer_that_is_too_small_stays_as_it_was() -> None:
    length = len(canonical.encode({"seconds": 1_700_000_000}))
    call = f"(call $call (i32.const 0) (i32.const {len(CLOCK)}) (i32.const {OUT}) (i32.const %d))"
    body = f"(i64.store (i32.const {OUT}) (i64.const -1)) (drop {call % (length - 1)}) (i32.load8_u (i32.const {OUT}))"
    assert (await run(calling(CLOCK, body=body))).value == 0xFF
    assert (await run(calling(CLOCK, body=call % (length - 1)))).value == Code.TOO_SMALL
    assert (await run(calling(CLOCK, body=call % 0))).value == Code.TOO_SMALL
    assert (await run(calling(CLOCK, body=call % length))).value == length


@pytest.mark.parametrize("junk", [b"", b"\x00", b"{}", CLOCK + b"\x00", b"\xbf" + CLOCK[1:]], ids=repr)
async def test_a_request_that_is_none_gets_its_code(junk: bytes) -> None:
    assert (await run(calling(junk))).value == Code.BAD_REQUEST


async def test_a_request_that_is_too_long_is_refused_without_carrying_it_all() -> None:
    pointers = f"(i32.const 0) (i32.const {64 * PAGE}) (i32.const {OUT}) (i32.const 0)"
    module = calling(CLOCK, pointers=pointers, pages=64)
    assert 64 * PAGE > MAX_REQUEST
    assert (await run(module)).value == Code.BAD_REQUEST


@pytest.mark.requirement("G-IF-4")
async def test_an_ungranted_request_is_denied_and_accounted() -> None:
    module = calling(request("net.connect", host="198.51.100.1"))
    session = session_for(module, clock="coarse")
    result = await run_module(module, session, SMALL)
    assert result.value == Code.DENIED
    assert (session.calls, session.denied) == (1, 1)


async def test_a_loop_ends_with_its_fuel_and_the_same_fuel_every_time() -> None:
    module = assembled('(module (func (export "run") (loop br 0)))')
    results = [await run(module) for _ in range(2)]
    assert [(r.ending, r.fuel_used) for r in results] == [(Ending.FUEL, SMALL.fuel)] * 2


async def test_a_loop_with_fuel_for_ever_ends_with_its_time() -> None:
    module = assembled('(module (func (export "run") (loop br 0)))')
    result = await run(module, ModuleLimits(fuel=2**62, wall_seconds=0.5))
    assert result.ending is Ending.TIMEOUT


async def test_recursion_ends_with_the_stack() -> None:
    assert (await run(assembled('(module (func $r (export "run") (call $r)))'))).ending is Ending.STACK


async def test_a_flood_of_host_calls_ends_with_the_quota() -> None:
    call = f"(call $call (i32.const 0) (i32.const {len(CLOCK)}) (i32.const {OUT}) (i32.const 100))"
    module = calling(CLOCK, body=f"(loop (drop {call}) (br 0)) (i32.const 0)")
    session = session_for(module, clock="coarse")
    result = await run_module(module, session, ModuleLimits(host_calls=50, wall_seconds=20))
    assert result.ending is Ending.HOST_CALLS
    assert session.calls == 50


async def test_memory_does_not_grow_past_its_limit() -> None:
    limits = ModuleLimits(memory_bytes=4 * PAGE, wall_seconds=20)
    grow = '(module (memory (export "memory") 1) (func (export "run") (result i32) (memory.grow (i32.const %d))))'
    assert (await run(assembled(grow % 3), limits)).value == 1
    assert (await run(assembled(grow % 4), limits)).value == -1
    born_large = assembled('(module (memory (export "memory") 5) (func (export "run")))')
    assert (await run(born_large, limits)).ending is Ending.REFUSED


async def test_tables_do_not_grow_past_their_limit() -> None:
    limits = ModuleLimits(table_elements=100, wall_seconds=20)
    grow = (
        '(module (table $t 1 funcref) (func (export "run") (result i32) '
        "(table.grow $t (ref.null func) (i32.const %d))))"
    )
    assert (await run(assembled(grow % 99), limits)).value == 1
    assert (await run(assembled(grow % 100), limits)).value == -1
    assert (await run(assembled('(module (table 101 funcref) (func (export "run")))'), limits)).ending is Ending.REFUSED


@pytest.mark.parametrize(
    "text",
    [
        '(module (memory (export "memory") 1 2 shared) (func (export "run")))',
        '(module (memory (export "memory") i64 1) (func (export "run")))',
        '(module (memory 1) (memory 1) (func (export "run")))',
        '(module (func (export "run") (drop (struct.new $t))) (type $t (struct)))',
        '(module (tag $e) (func (export "run") (throw $e)))',
        '(module (func $f (export "run") (return_call $f)))',
    ],
    ids=["threads", "memory64", "two memories", "garbage collection", "exceptions", "tail calls"],
)
async def test_features_that_no_module_needs_are_off(text: str) -> None:
    assert (await run(assembled(text))).ending is Ending.REFUSED


@pytest.mark.parametrize(
    "code", [b"", b"\0asm", b"\0asm\x01\0\0\0", b"\0asm\x0d\0\x01\0", b"(module)", b"\0asm\x01\0\0\0\x01\xff\xff\xff"]
)
async def test_bytes_that_are_no_module_are_refused(code: bytes) -> None:
    # The text format is refused too: what is hashed and signed is what runs.
    assert (await run(code)).ending is Ending.REFUSED


async def test_a_module_in_the_text_format_does_not_run() -> None:
    assert (await run(b'(module (func (export "run")))')).ending is Ending.REFUSED


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("unreachable", "unreachable"),
        ("(drop (i32.div_s (i32.const 1) (i32.const 0)))", "divide by zero"),
        ("(drop (i32.load (i32.const 65533)))", "out of bounds"),
        ("(i32.store (i32.const -4) (i32.const 1))", "out of bounds"),
        ("(drop (i32.trunc_f64_s (f64.const nan)))", "conversion"),
    ],
)
async def test_what_webassembly_forbids_is_a_trap(body: str, what: str) -> None:
    result = await run(assembled(f'(module (memory (export "memory") 1 1) (func (export "run") {body}))'))
    assert result.ending is Ending.TRAP
    assert what in result.reason


async def test_a_start_function_is_bounded_as_everything_else() -> None:
    module = assembled('(module (func $s (loop br 0)) (start $s) (func (export "run")))')
    assert (await run(module)).ending is Ending.FUEL


@pytest.mark.parametrize("export", ["missing", "memory", "takes", "_start"])
async def test_only_a_function_without_parameters_can_be_run(export: str) -> None:
    module = assembled('(module (memory (export "memory") 1) (func (export "takes") (param i32)))')
    assert (await run(module, export=export)).ending is Ending.REFUSED


async def test_nan_has_one_bit_pattern() -> None:
    # x86 makes a negative NaN of 0/0, ARM a positive one.
    nan = (
        '(module (func (export "run") (result i32) (i32.reinterpret_f32 '
        "(f32.div (f32.mul (f32.const 0) (f32.const 0)) (f32.const 0)))))"
    )
    (pattern,) = struct.unpack("<i", bytes.fromhex("0000c07f"))
    assert (await run(assembled(nan))).value == pattern


def leb(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


def section(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + leb(len(body)) + body


def many_functions(count: int, size: int) -> bytes:
    """A valid module of ``count`` functions with ``size`` loads and stores each; the first is ``run``."""
    store = bytes.fromhex("41002d0000 4101 6a 4100 2d0000 6a 21 00".replace(" ", ""))
    body = b"\x01\x01\x7f" + store * size + b"\x0b"
    return (
        b"\0asm\x01\0\0\0"
        + section(1, b"\x01\x60\0\0")
        + section(3, leb(count) + bytes(count))
        + section(5, b"\x01\0\x01")
        + section(7, b"\x01\x03run\0\0")
        + section(10, leb(count) + (leb(len(body)) + body) * count)
    )


async def test_the_compiler_works_on_the_modules_time() -> None:
    assert (await run(many_functions(1, 3))).ending is Ending.OK
    result = await run(many_functions(2000, 500), ModuleLimits(wall_seconds=0.2))
    assert result.ending is Ending.TIMEOUT


async def test_the_compiler_works_in_the_workers_memory() -> None:
    limits = ModuleLimits(wall_seconds=20, process_bytes=400 << 20)
    assert (await run(many_functions(1, 3), limits)).ending is Ending.OK
    result = await run(many_functions(3, 300_000), limits)
    assert result.ending is Ending.KILLED


async def test_a_module_over_its_size_is_not_even_sent() -> None:
    module = assembled('(module (func (export "run")))')
    result = await run(module, ModuleLimits(module_bytes=len(module) - 1))
    assert result.ending is Ending.REFUSED
    assert "bytes" in result.reason
