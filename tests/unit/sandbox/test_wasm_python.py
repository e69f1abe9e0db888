"""The deterministic interpreter, for real: the same bytes and the same fuel, every ending, nothing of this machine."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from gnusnode.contracts import ids
from sandbox import confine, worker
from sandbox.run.types import Feature, Grants, Job, Limits, ReadGrant, Status
from sandbox.run.wasmpython import guestprocess
from sandbox.run.wasmpython.backend import WasmPythonBackend, strength
from sandbox.run.wasmpython.virtual import FUEL_PER_SECOND
from tests.fakes import wasm_python

BRIEF = Limits(wall_seconds=5.0)

CHANCE = """
import os, random, time, uuid, datetime, tempfile, hashlib
print(os.urandom(8).hex(), random.random(), uuid.uuid4(), hash("x"), id(object()), {"a", "b", "c"})
print(time.time(), time.monotonic(), time.perf_counter(), time.process_time(), datetime.datetime.now())
time.sleep(0.25)
print(time.time(), tempfile.mktemp(), os.getcwd(), sorted(os.environ.items()), os.stat("."), os.listdir("/tmp"))
open("f", "w").write("x"); print(os.stat("f"))
"""


@pytest.fixture(scope="module")
def directory() -> Path:
    return wasm_python.directory()


@pytest.fixture
async def backend(directory: Path) -> AsyncGenerator[WasmPythonBackend]:
    made = WasmPythonBackend(directory)
    yield made
    await made.aclose()


@pytest.mark.requirement("G-TI-12")
async def test_the_same_job_gives_the_same_bytes_and_burns_the_same_fuel(backend: WasmPythonBackend) -> None:
    first, second = [await backend.run_metered(Job(source=CHANCE), BRIEF) for _ in range(2)]
    assert first.result.status is Status.OK, first.result.stderr.text
    assert first.fuel_used
    assert first.fuel_used == second.fuel_used
    assert first.result.stdout == second.result.stdout


async def test_a_warm_interpreter_gives_the_same_as_a_cold_one(directory: Path) -> None:
    backend = WasmPythonBackend(directory, warm_limits=BRIEF)
    cold = await backend.run_metered(Job(source=CHANCE), BRIEF)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.keep_warm)
        while not backend.waiting:
            await trio.sleep(0.01)
        warm = await backend.run_metered(Job(source=CHANCE), BRIEF)
        nursery.cancel_scope.cancel()
    assert (cold.result.warm, warm.result.warm) == (False, True)
    assert (warm.fuel_used, warm.result.stdout) == (cold.fuel_used, cold.result.stdout)
    assert backend.waiting == 0


async def test_another_job_gives_another_answer(backend: WasmPythonBackend) -> None:
    first = await backend.run(Job(source="print(1)"), BRIEF)
    second = await backend.run(Job(source="print(2)"), BRIEF)
    assert (first.stdout.data, second.stdout.data) == (b"1\n", b"2\n")


@pytest.mark.parametrize(
    ("source", "limits", "status", "code"),
    [
        ("print('fine')", BRIEF, Status.OK, 0),
        ("import sys; sys.exit(3)", BRIEF, Status.ERROR, 3),
        ("1/0", BRIEF, Status.ERROR, 1),
        ("def broken(:", BRIEF, Status.ERROR, 1),
        ("while True: pass", replace(BRIEF, wall_seconds=0.5), Status.TIMEOUT, None),
        ("import time; time.sleep(1e9)", BRIEF, Status.TIMEOUT, None),
        ("while True: print('A' * 4096)", BRIEF, Status.OUTPUT_LIMIT, None),
        ("import sys; sys.stderr.write('A' * 10**6)", BRIEF, Status.OUTPUT_LIMIT, None),
        ("held = []\nwhile True: held.append(bytearray(b'x') * (8 << 20))", BRIEF, Status.OOM, None),
        ("def f(): f()\nf()", BRIEF, Status.ERROR, 1),
        ("x = None\nfor _ in range(10**5): x = [x]\ndel x", BRIEF, Status.OK, 0),
    ],
    ids=[
        "ok",
        "exit",
        "exception",
        "syntax",
        "loop",
        "sleep",
        "flood",
        "errors",
        "memory",
        "depth",
        "nesting",
    ],
)
async def test_every_ending_has_its_status(
    backend: WasmPythonBackend, source: str, limits: Limits, status: Status, code: int | None
) -> None:
    result = await backend.run(Job(source=source), limits)
    assert (result.status, result.exit_code) == (status, code), (result.reason, result.stderr.text)
    assert len(result.stdout.data) + len(result.stderr.data) <= limits.output_bytes
    assert bool(result.reason) is (status not in (Status.OK, Status.ERROR))


async def test_a_job_has_its_files_its_input_and_a_place_to_write(backend: WasmPythonBackend) -> None:
    source = """
import sys, pathlib, helper
from package import part
pathlib.Path("out").mkdir(); pathlib.Path("out/x").write_text("w")
print(helper.x, part.y, pathlib.Path("data/d.bin").read_bytes(), sys.stdin.read(), pathlib.Path("out/x").read_text())
print(__name__, __file__, sys.argv, pathlib.Path.cwd())
"""
    files = (("helper.py", b"x = 1"), ("package/part.py", b"y = 2"), ("data/d.bin", b"\0\xff"))
    result = await backend.run(Job(source=source, files=files, stdin=b"in"), BRIEF)
    assert result.stdout.text == "1 2 b'\\x00\\xff' in w\n__main__ main.py ['main.py'] /tmp/job\n", result.stderr.text


async def test_a_traceback_shows_the_programs_own_lines(backend: WasmPythonBackend) -> None:
    result = await backend.run(Job(source="def f():\n    raise ValueError('no')\nf()\n"), BRIEF)
    assert 'File "main.py", line 2, in f' in result.stderr.text
    assert "raise ValueError('no')" in result.stderr.text
    assert "<string>" not in result.stderr.text


async def test_half_a_processor_gets_half_the_instructions_and_sees_it(backend: WasmPythonBackend) -> None:
    share = replace(BRIEF, wall_seconds=10.0, cpus=0.0625)  # of a clock so slow that no real machine is slower
    loop = await backend.run_metered(Job(source="while True: pass"), share)
    assert (loop.result.status, loop.fuel_used) == (Status.TIMEOUT, FUEL_PER_SECOND * 10 // 16)
    source = """
import time
began, used = time.monotonic(), time.process_time()
while time.monotonic() - began < 0.3: pass
print(round((time.process_time() - used) / (time.monotonic() - began), 2))
"""
    assert (await backend.run(Job(source=source), replace(BRIEF, cpus=0.5))).stdout.data == b"0.5\n"


async def test_tmp_is_bounded(backend: WasmPythonBackend) -> None:
    source = """
written = 0
try:
    with open("/tmp/f", "wb", buffering=0) as file:
        while True:
            written += file.write(bytes(1 << 16))
except OSError as error:
    print(written, error.strerror)
"""
    result = await backend.run(Job(source=source), replace(BRIEF, tmp_bytes=1 << 20))
    written, _, reason = result.stdout.text.strip().partition(" ")
    assert 900_000 < int(written) <= 1 << 20, result.stderr.text
    assert "space" in reason


async def test_open_files_are_bounded(backend: WasmPythonBackend) -> None:
    source = "held = []\ntry:\n  while True: held.append(open('/tmp/f', 'w'))\nexcept OSError as e: print(len(held))"
    result = await backend.run(Job(source=source), replace(BRIEF, open_files=20))
    assert 0 < int(result.stdout.text) <= 20


@pytest.mark.parametrize("feature", ["threads", "subprocess", "native"])
async def test_features_that_are_not_declared_do_not_work(backend: WasmPythonBackend, feature: str) -> None:
    assert strength().features == {Feature.TMP}
    source = {
        "threads": "import threading; threading.Thread(target=print).start()",
        "subprocess": "import subprocess, sys; subprocess.run([sys.executable, '-c', ''])",
        "native": "import ctypes; ctypes.CDLL(None)",
    }[feature]
    assert (await backend.run(Job(source=source), BRIEF)).status is Status.ERROR


async def test_a_grant_of_files_is_not_given_quietly_less(backend: WasmPythonBackend, tmp_path: Path) -> None:
    result = await backend.run(Job(source="print(1)"), BRIEF, Grants(read=(ReadGrant(str(tmp_path), "/data"),)))
    assert result.status is Status.INFRA
    assert result.stdout.data == b""


@pytest.mark.slow
async def test_the_self_test_proves_what_is_declared(backend: WasmPythonBackend) -> None:
    report = await backend.self_test()
    assert report.faults == ()
    assert report.declared == strength()


async def test_without_the_interpreter_the_reason_says_what_to_do(tmp_path: Path) -> None:
    pytest.importorskip("wasmtime", reason="needs the extra `wasm`")
    backend = WasmPythonBackend(tmp_path / "none")
    found = await backend.probe()
    assert not found.available
    assert "gnusnode sandbox install" in found.reason
    result = await backend.run(Job(source="print(1)"), BRIEF)
    assert (result.status, result.stdout.data) == (Status.INFRA, b"")
    assert not (await backend.self_test()).passed


async def test_a_closed_backend_runs_nothing(directory: Path) -> None:
    backend = WasmPythonBackend(directory)
    await backend.aclose()
    assert (await backend.run(Job(source="print(1)"), BRIEF)).status is Status.INFRA


async def test_a_cancelled_caller_leaves_no_process(
    backend: WasmPythonBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    serve = guestprocess.GuestProcess._serve
    running = trio.Event()

    async def remember(self: guestprocess.GuestProcess, *rest: object) -> object:
        pids.append(self._process.pid)
        running.set()
        return await serve(self, *rest)  # type: ignore[arg-type] - whatever it was called with

    monkeypatch.setattr(guestprocess.GuestProcess, "_serve", remember)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.run, Job(source="while True: pass"), Limits(wall_seconds=60.0))
        await running.wait()
        nursery.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


ROGUE = {
    "forged": "wire.write_frame(1, {'ev': 'done', 'end': 'splendid', 'status': 0, 'fuel_used': 1})",
    "no status": "wire.write_frame(1, {'ev': 'done', 'end': 'exit', 'status': None, 'fuel_used': 1})",
    "junk": "os.write(1, b'\\0\\0\\0\\3abc')",
    "flood": "while True: wire.write_frame(1, {'ev': 'out', 'stream': 1, 'data': bytes(60000)})",
    "crash": "os.abort()",
    "stream": "wire.write_frame(1, {'ev': 'out', 'stream': 3, 'data': b'x'})",
}


@pytest.fixture
def rogue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], WasmPythonBackend]:
    """A backend whose worker broke out: it answers the start, and then does what the test says."""
    launch = confine.launch_command

    def use(deed: str) -> WasmPythonBackend:
        lines = ("import os", "from sandbox import wire", "wire.read_frame(0)")
        code = "\n".join([*lines, "wire.write_frame(1, {'ev': 'ready'})", "wire.read_frame(0)", deed])

        def launcher(module: str, *_arguments: str) -> list[str]:
            return [*launch(module)[:-2], "-c", code]

        monkeypatch.setattr(confine, "launch_command", launcher)
        backend = WasmPythonBackend(tmp_path / "store")
        backend.store._keep(b"never loaded")
        return backend

    return use


@pytest.mark.parametrize("deed", ROGUE, ids=str)
async def test_a_worker_that_breaks_the_protocol_is_the_sandboxes_fault(
    rogue: Callable[[str], WasmPythonBackend], deed: str
) -> None:
    result = await rogue(ROGUE[deed]).run(Job(source="print(1)"), BRIEF)
    assert result.status is Status.INFRA
    assert result.reason
    assert len(result.stdout.data) <= BRIEF.output_bytes


async def test_a_worker_that_says_nothing_more_is_killed(rogue: Callable[[str], WasmPythonBackend]) -> None:
    backend = rogue("import time; time.sleep(60)")
    assert (await backend.run(Job(source="print(1)"), replace(BRIEF, wall_seconds=0.1))).status is Status.TIMEOUT


async def test_a_worker_that_does_not_start_is_infra_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("wasmtime", reason="needs the extra `wasm`")
    backend = WasmPythonBackend(tmp_path / "store")
    backend.store._keep(b"no machine code")
    result = await backend.run(Job(source="print(1)"), BRIEF)
    assert result.status is Status.INFRA
    assert "does not start" in result.reason


def test_the_output_that_is_kept_is_hashed_whole() -> None:
    assert ids.sha256(b"") == guestprocess.Meter(1).output(1).sha256


async def test_open_worker_leaves_no_descriptor_open(directory: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with worker.open_worker("sandbox.host.worker"):
        pass
    backend = WasmPythonBackend(directory)
    await backend.run(Job(source="print(1)"), BRIEF)
    assert len(os.listdir("/proc/self/fd")) == before
