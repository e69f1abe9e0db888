"""The host's side of a module's run: what it reads and writes, and what happens to a worker that is none."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import trio

from gnusnode.contracts import canonical
from gnusnode.errors import Unavailable
from sandbox import confine, linux, worker
from sandbox.host import wasm
from sandbox.host.types import Code, Ending, Grant, ModuleLimits
from sandbox.host.wasm import run_module
from tests.fakes.wasm_modules import IMPORT, assembled, calling, escaped, request, session_for

pytestmark = pytest.mark.skipif(not linux.IS_LINUX, reason="modules run only where the worker can be confined")

LIMITS = ModuleLimits(fuel=10_000_000, wall_seconds=20)


@pytest.fixture
def rogue(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replaces the worker with one that broke out."""
    launch = confine.launch_command

    def use(how: str) -> None:
        monkeypatch.setattr(wasm, "_WORKER", "tests.fakes.rogue_worker")
        monkeypatch.setattr(confine, "launch_command", lambda module: launch(module, how))

    return use


@pytest.mark.requirement("G-IF-4")
async def test_a_module_reads_its_input_asks_the_host_and_puts_out_what_it_got() -> None:
    asked = request("module.input", "own", offset=0, length=5)
    put = request("module.output", "own", bytes=b"?????")
    at = put.index(b"?????")
    text = f"""(module {IMPORT} (memory (export "memory") 1)
      (data (i32.const 0) {escaped(asked)}) (data (i32.const 512) {escaped(put)})
      (func (export "run") (result i32)
        (drop (call $call (i32.const 0) (i32.const {len(asked)}) (i32.const 1024) (i32.const 100)))
        (memory.copy (i32.const {512 + at}) (i32.const {1024 + 1 + 6 + 1}) (i32.const 5))
        (call $call (i32.const 512) (i32.const {len(put)}) (i32.const 2048) (i32.const 100))))"""
    module = assembled(text)
    session = session_for(module, data=b"hello world")
    result = await run_module(module, session, LIMITS)
    assert (result.ending, session.output) == (Ending.OK, b"hello")
    assert result.value == len(canonical.encode({"total": 5}))


async def test_what_the_host_does_for_a_module_may_take_a_while() -> None:
    module = calling(request("memory.retrieve"))
    started = trio.Event()

    async def slow(_request: Any) -> list[str]:
        started.set()
        await trio.sleep(0)
        return ["row"]

    grant = Grant(capability="memory.retrieve", scope="readonly")
    session = session_for(module, grant, operations={"memory.retrieve": slow})
    assert (await run_module(module, session, LIMITS)).value == len(canonical.encode(["row"]))
    assert started.is_set()


async def test_the_same_run_uses_the_same_fuel_and_gives_the_same_account(signer: Any) -> None:
    module = calling(request("clock.now", "coarse"))
    accounts = []
    for _ in range(2):
        session = session_for(module, clock="coarse")
        result = await run_module(module, session, LIMITS)
        accounts.append((result, session.attest(signer, 1)))
    assert accounts[0] == accounts[1]
    assert accounts[0][0].fuel_used


async def test_grants_are_for_one_module_only() -> None:
    module = calling(request("clock.now", "coarse"))
    result = await run_module(module, session_for(b"another", clock="coarse"), LIMITS)
    assert result.ending is Ending.REFUSED
    assert "another artifact" in result.reason


@pytest.mark.requirement("G-EX-5")
async def test_a_cancelled_caller_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    module = calling(request("memory.retrieve"))
    pids: list[int] = []
    begin = wasm._begin

    async def remember(process: worker.Worker, limits: ModuleLimits) -> None:
        pids.append(process.pid)
        await begin(process, limits)

    monkeypatch.setattr(wasm, "_begin", remember)
    with trio.CancelScope() as scope:

        async def leave(_request: Any) -> None:
            scope.cancel()
            await trio.sleep_forever()

        grant = Grant(capability="memory.retrieve", scope="readonly")
        session = session_for(module, grant, operations={"memory.retrieve": leave})
        await run_module(module, session, LIMITS)
    assert scope.cancelled_caught
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


async def test_an_operation_with_a_bug_ends_the_run_and_is_raised_as_it_is() -> None:
    module = calling(request("memory.retrieve"))

    async def bug(_request: Any) -> None:
        raise ZeroDivisionError

    grant = Grant(capability="memory.retrieve", scope="readonly")
    with pytest.raises(ZeroDivisionError):
        await run_module(module, session_for(module, grant, operations={"memory.retrieve": bug}), LIMITS)


@pytest.mark.parametrize("how", ["junk", "huge", "unknown", "half", "crash", "forged", "odd", ""])
@pytest.mark.requirement("G-EX-5")
async def test_a_worker_that_breaks_the_protocol_ends_as_killed(rogue: Callable[[str], None], how: str) -> None:
    rogue(how)
    result = await run_module(b"m", session_for(b"m"), LIMITS)
    assert result.ending is Ending.KILLED
    assert result.reason
    if how == "crash":
        assert "thread panicked" in result.reason


async def test_a_worker_that_floods_the_host_gets_its_quota_and_no_more(rogue: Callable[[str], None]) -> None:
    rogue("flood")
    session = session_for(b"m", clock="coarse")
    result = await run_module(b"m", session, ModuleLimits(host_calls=20))
    assert result.ending is Ending.KILLED
    assert session.calls == 20


async def test_a_worker_that_says_nothing_is_killed_at_the_deadline(rogue: Callable[[str], None]) -> None:
    rogue("deaf")
    result = await run_module(b"m", session_for(b"m"), ModuleLimits(wall_seconds=0.1))
    assert result.ending is Ending.TIMEOUT


async def test_a_worker_that_does_not_start_is_a_lack_of_this_machine(rogue: Callable[[str], None]) -> None:
    rogue("unready")
    with pytest.raises(Unavailable, match="no luck here"):
        await run_module(b"m", session_for(b"m"), LIMITS)


@pytest.mark.requirement("G-TI-12")
async def test_a_worker_that_cannot_be_confined_runs_nothing() -> None:
    # An address space limit that Python itself exceeds would end it; a missing control must be said in words.
    code = (
        "from sandbox import confine, seccomp\n"
        "def no(**_): raise OSError(38, 'no filters in this kernel')\n"
        "seccomp.install = no\n"
        "from sandbox.host import worker; worker.main()"
    )
    async with worker.open_worker("sandbox.host.worker") as proper:
        await proper.send({"op": "limits", **{name: getattr(LIMITS, name) for name in ModuleLimits.__slots__}})
        assert await proper.receive() == {"ev": "ready"}
    from sandbox import wire

    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=confine.launch_environment(),
        input=wire.pack({"op": "limits", **{name: getattr(LIMITS, name) for name in ModuleLimits.__slots__}}),
        capture_output=True,
        timeout=60,
        check=False,
    )
    (frame,) = wire.Unpacker().feed(done.stdout)
    assert frame["ev"] == "error"
    assert "seccomp" in frame["error"]["what"]


async def test_without_wasmtime_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wasmtime" else find(name))
    assert wasm.unavailable_reason()
    with pytest.raises(Unavailable) as unavailable:
        await run_module(b"m", session_for(b"m"), LIMITS)
    assert "gnusnode[wasm]" in (unavailable.value.hint or "")


def test_the_daemon_never_loads_wasmtime() -> None:
    code = "import sys, sandbox.host.wasm, sandbox.host.session; print('wasmtime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


async def test_a_floating_point_result_is_no_value() -> None:
    module = assembled('(module (func (export "run") (result f64) (f64.const 1.5)))')
    assert (await run_module(module, session_for(module), LIMITS)).value is None


def test_codes_are_negative_since_lengths_are_not() -> None:
    assert all(code < 0 for code in Code)


@pytest.mark.parametrize("name", ModuleLimits.__slots__)
def test_no_limit_can_be_switched_off(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        ModuleLimits(**{name: 0})
