"""The process around the engine: what ends it, and how."""

from __future__ import annotations

import signal
import struct
from pathlib import Path
from typing import Any

import psutil
import pytest

from gnusnode.inference.frames import ChildSpec
from tests.child_driver import Child, child, model_path, raw_child

SPEC: dict[str, Any] = {"model_path": "", "model_name": "test", "artifact_hash": "sha256:" + "0" * 64, "threads": 1}


def load(engine: Child, path: Path | str, **fields: Any) -> dict[str, Any]:
    spec = ChildSpec.model_validate({**SPEC, "model_path": str(path), **fields})
    engine.send({"op": "load", "spec": spec.to_plain()})
    return engine.wait_for(lambda f: f["ev"] in ("ready", "error"))


@pytest.mark.model
def test_quit_ends_it_in_order() -> None:
    with child() as engine:
        engine.send({"op": "quit"})
        assert engine.exit_status() == 0


@pytest.mark.model
def test_the_parent_leaving_ends_it_and_its_helper() -> None:
    with child() as engine:
        helpers = psutil.Process(engine.process.pid).children()
        assert engine.process.stdin is not None
        engine.process.stdin.close()
        assert engine.exit_status() == 0
        assert len(helpers) == 1
        psutil.wait_procs(helpers, timeout=10)
        assert not any(helper.is_running() for helper in helpers)


@pytest.mark.model
def test_a_kill_leaves_no_helper_and_no_open_pipe_behind() -> None:
    with child() as engine:
        helpers = psutil.Process(engine.process.pid).children()
        engine.process.kill()
        assert engine.process.stdout is not None
        while engine.process.stdout.read(65536):
            pass
        psutil.wait_procs(helpers, timeout=10)
        assert not any(helper.is_running() for helper in helpers)


@pytest.mark.model
def test_the_loss_of_its_helper_ends_it_so_that_the_parent_starts_another() -> None:
    with child() as engine:
        for helper in psutil.Process(engine.process.pid).children():
            helper.kill()
        engine.generate("Hello")
        error = engine.wait_for(lambda f: f["ev"] == "error")
        assert (error["id"], error["error"]["code"]) == (None, "engine_failed")
        assert engine.exit_status() == 1


@pytest.mark.model
def test_sigterm_ends_it_in_the_middle_of_an_answer() -> None:
    with child() as engine:
        job = engine.generate("Tell me a long story.", max_tokens=900)
        engine.started(job)
        engine.process.send_signal(signal.SIGTERM)
        assert engine.exit_status() == 0


def test_sigterm_ends_it_before_it_was_told_anything() -> None:
    with raw_child() as engine:
        engine.process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
        assert engine.exit_status() == 0


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 2**31),
        struct.pack(">I", 3) + b"\xff\xff\xff",
        struct.pack(">I", 1) + b"\x80",
    ],
)
def test_bytes_that_are_no_frames_end_it_with_a_reason(data: bytes) -> None:
    with raw_child() as engine:
        assert engine.process.stdin is not None
        engine.process.stdin.write(data)
        engine.process.stdin.flush()
        error = engine.wait_for(lambda f: f["ev"] == "error")
        assert error["id"] is None
        assert "protocol" in error["error"]["what"]
        assert engine.exit_status() == 2


@pytest.mark.parametrize(
    "frame",
    [
        {"op": "generate", "id": 1, "request": {}},
        {"op": "load", "spec": {"model_path": 7}},
        {"op": "load"},
    ],
)
def test_a_first_frame_that_is_no_load_ends_it(frame: dict[str, Any]) -> None:
    with raw_child() as engine:
        engine.send(frame)
        assert engine.wait_for(lambda f: f["ev"] == "error")["id"] is None
        assert engine.exit_status() == 2


@pytest.mark.model
@pytest.mark.parametrize("frame", [{"op": "dance"}, {"op": "cancel"}, {"op": "generate", "request": {}}, {"x": 1}])
def test_a_frame_it_does_not_know_ends_it(frame: dict[str, Any]) -> None:
    with child() as engine:
        engine.send(frame)
        error = engine.wait_for(lambda f: f["ev"] == "error")
        assert (error["id"], "protocol" in error["error"]["what"]) == (None, True)
        assert engine.exit_status() == 2


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no model at all" * 100])
def test_a_file_that_is_no_model_is_named_invalid(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mödel with spaces.gguf"
    path.write_bytes(content)
    path.chmod(0o644)
    tmp_path.chmod(0o755)
    with raw_child() as engine:
        answer = load(engine, path)
        assert answer["error"]["code"] == "model_invalid"
        assert "cannot load" in answer["error"]["what"]
        assert answer["error"]["where"] == str(path)
        assert engine.exit_status() == 1


@pytest.mark.model
def test_weights_that_are_not_numbers_are_not_loaded(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    data = bytearray(model_path().read_bytes())
    data[-4_000_000:] = b"\xff" * 4_000_000
    broken.write_bytes(data)
    tmp_path.chmod(0o755)
    with raw_child() as engine:
        assert load(engine, broken)["error"]["code"] == "model_invalid"


@pytest.mark.model
def test_what_the_library_complains_of_is_passed_on_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(model_path().read_bytes()[:3_000_000])
    tmp_path.chmod(0o755)
    with raw_child() as engine:
        load(engine, path)
        logs = [f for f in engine.frames if f["ev"] == "log"]
        assert 0 < len(logs) <= 40
        assert all(log["level"] in ("warning", "error") and log["text"] for log in logs)


@pytest.mark.model
def test_a_context_that_does_not_fit_memory_is_an_engine_failure() -> None:
    with raw_child() as engine:
        answer = load(engine, model_path(), n_ctx=2**31 - 256)
        assert answer["error"]["code"] == "engine_failed"
        assert engine.exit_status() == 1


@pytest.mark.model
def test_a_loaded_child_says_how_it_is_confined() -> None:
    with child() as engine:
        assert "confined" in engine.info["reason"]
        assert "1 thread (as configured)" in engine.info["reason"]


@pytest.mark.model
def test_threads_are_measured_when_none_are_named() -> None:
    with child(threads=0) as engine:
        assert engine.info["threads"] >= 1
        assert "measured" in engine.info["reason"]
        assert engine.info["prefill_rate"] > 0
