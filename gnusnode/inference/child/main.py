"""The process: descriptors, confinement, the reader thread, and the loop around ``step``."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
from collections.abc import Iterator
from typing import Any, Final, Protocol

from gnusnode.errors import EngineFailed, GnusError, InternalError
from gnusnode.inference.child.channel import NativeLog, Outbox
from gnusnode.inference.child.intake import (
    Cancel,
    Command,
    Intake,
    Pause,
    Ping,
    Quit,
    Refuse,
    Request,
    Resume,
    Submit,
    protocol_error,
    read_spec,
)
from gnusnode.inference.child.template import TemplateRenderer
from gnusnode.inference.frames import ChildSpec, FrameError
from sandbox import confine

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_PROTOCOL: Final = 2


def main() -> int:
    """Serve one model until the parent says quit or is gone; the exit status says how it ended."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    renderer = TemplateRenderer()
    outbox = Outbox(_claim_stdout())
    try:
        spec, unpacker, early = read_spec(0)
    except EOFError:
        return EXIT_OK
    except FrameError as error:
        return _give_up(outbox, protocol_error(error))
    try:
        confined = _confine(spec)
        engine = _load(spec, renderer, outbox)
    except GnusError as error:
        return _give_up(outbox, error)
    intake = Intake(0, unpacker, early, prepare=engine.prepare, on_cancel=engine.on_cancel)
    outbox.send({"ev": "ready", "info": {**engine.info(), "reason": f"{engine.choice}; {confined}"}})
    intake.start()
    try:
        return _serve(engine, intake, outbox)
    except BrokenPipeError:
        return EXIT_OK
    except Exception as error:  # noqa: BLE001 - whatever broke the engine, the parent must hear of it
        return _give_up(outbox, EngineFailed(f"{type(error).__name__}: {error}"))


def _leave(_signal: int, _frame: object) -> None:
    os._exit(EXIT_OK)


class _Engine(Protocol):
    """What the loop needs of an engine, whatever it computes."""

    choice: str
    """How threads and devices were chosen; for people."""

    def info(self) -> dict[str, Any]: ...

    def status(self) -> dict[str, Any]: ...

    def prepare(self, request: Request) -> None: ...

    def on_cancel(self, number: int) -> None: ...

    def submit(self, number: int, request: Request) -> None: ...

    def cancel(self, number: int) -> None: ...

    def pause(self, number: int) -> None: ...

    def resume(self, number: int) -> None: ...

    def begin_step(self) -> None: ...

    def step(self) -> bool: ...


def _serve(engine: _Engine, intake: Intake, outbox: Outbox) -> int:
    busy = False
    while True:
        engine.begin_step()
        for command in _drain(intake.commands, wait=not busy):
            match command:
                case Submit(number, request):
                    _submit(engine, number, request, outbox)
                case Refuse(number, error):
                    outbox.error(number, error)
                case Cancel(number):
                    engine.cancel(number)
                case Pause(number):
                    engine.pause(number)
                case Resume(number):
                    engine.resume(number)
                case Ping(number):
                    outbox.send({"ev": "pong", "n": number, **engine.status()})
                case Quit(error):
                    return EXIT_OK if error is None else _give_up(outbox, error)
        busy = engine.step()
        outbox.flush(everything=not busy)


def _drain(commands: queue.SimpleQueue[Command], *, wait: bool) -> Iterator[Command]:
    """What is queued now; with ``wait``, at least one command."""
    if wait:
        yield commands.get()
    while not commands.empty():
        yield commands.get_nowait()


def _submit(engine: _Engine, number: int, request: Request, outbox: Outbox) -> None:
    try:
        engine.submit(number, request)
    except GnusError as error:
        outbox.error(number, error)
    except Exception as error:  # noqa: BLE001 - a bug met by one request must not end the others
        outbox.error(number, InternalError(f"{type(error).__name__}: {error}"))


def _claim_stdout() -> int:
    """A descriptor for frames; what native code prints on the standard output goes to the standard error instead."""
    frames = os.dup(1)
    os.dup2(2, 1)
    return frames


def _confine(spec: ChildSpec) -> str:
    """Give up what a model runner does not need, while there is one thread; how that went, for people.

    Raises:
        EngineFailed: the process could still reach the network or start programs.
    """
    profile = confine.ConfineProfile(read_paths=(spec.model_path,), allow_gpu=spec.gpu_layers != 0, max_files=64)
    report = confine.apply(profile)
    if sys.platform == "linux":
        report.require("seccomp")
    missing = ", ".join(f"{control.name} ({control.detail})" for control in report.missing)
    return f"confined, but for {missing}" if missing else "confined"


def _load(spec: ChildSpec, renderer: TemplateRenderer, outbox: Outbox) -> _Engine:
    """The engine, once its model is loaded. Imports the native library: only now is the process confined.

    Raises:
        GnusError: the model or its context cannot be had.
    """
    import numpy as np

    from gnusnode.inference.child.embedding import EmbeddingEngine
    from gnusnode.inference.child.engine import GenerationEngine
    from gnusnode.inference.child.model import Model
    from gnusnode.inference.child.native import LogSink, NativeError

    np.seterr(over="ignore")  # see ``Softmax``, which looks at what it got
    log = NativeLog(outbox)
    LogSink(log).install()
    try:
        model = Model(spec, log.last_words)
        if spec.embeddings:
            return EmbeddingEngine(spec, model, outbox)
        return GenerationEngine(spec, model, renderer, outbox)
    except NativeError as error:
        raise EngineFailed(f"{error}: {log.last_words()}", where=spec.model_name) from error


def _give_up(outbox: Outbox, error: GnusError) -> int:
    """The last frame; the exit status says whose fault it was."""
    with contextlib.suppress(OSError):
        outbox.error(None, error)
        outbox.flush()
    return EXIT_PROTOCOL if isinstance(error, InternalError) else EXIT_FAILED
