"""Chat templates are programs that come with a model file: they are rendered in a process of their own.

A template can loop for hours, ask for gigabytes, or keep one C call busy for minutes; neither an exception from a
signal handler nor a count of steps stops the last kind, and in the engine's process all streams would wait. So a helper
is forked while the child is still small and has one thread, gives up network, files and rights as the engine does, and
forks once more for every rendering: that process can start no other, has a second of CPU and a bounded address space,
and is ended by the kernel when it is late. Jinja's sandbox keeps the template away from Python's objects; it sees no
message content either, only placeholders.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

import psutil
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gnusnode.errors import GnusError, ModelInvalid, RequestError
from gnusnode.inference.frames import Unpacker, pack
from sandbox import confine

MAX_TEMPLATE: Final = 256 * 1024
MAX_RENDERED: Final = 2 * 1024 * 1024
_SECONDS: Final = 1.0
_PATIENCE: Final = 5.0
"""Seconds of the clock that a rendering may take: a busy machine gives it its second of CPU late."""
_MEMORY: Final = 256 * 1024 * 1024
"""Address space of a rendering beyond what the helper has."""


class _Refusal(Exception):
    """``raise_exception`` in a template: it does not take these messages."""


class HelperGone(Exception):
    """The template helper died: a bug, or the kernel was out of memory."""


class TemplateRenderer:
    """The helper process. Make it before anything that starts threads; it ends with this process.

    ``render`` may be called from any thread; renderings wait for each other.

    Attributes:
        pid: of the helper.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        requests, self._write = os.pipe()
        self._read, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._write)
            os.close(self._read)
            _serve(requests, answers)
        os.close(requests)
        os.close(answers)

    def render(self, template: str, values: dict[str, Any]) -> str:
        """The template's output for plain ``values``.

        Raises:
            ModelInvalid: the template is faulty, or exceeds its time, memory or output.
            RequestError: the template refuses these messages.
            HelperGone: only a new process can have another one.
        """
        try:
            with self._lock:
                _send(self._write, pack({"template": template, "values": values}))
                answer = _receive(self._read)
        except OSError as error:
            raise HelperGone(str(error)) from error
        if answer is None:
            raise HelperGone("it closed its end")
        if "error" in answer:
            raise GnusError.from_wire(answer["error"])
        return answer["text"]

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        os.waitpid(self.pid, 0)


def render_here(template: str, values: dict[str, Any]) -> str:
    """Render without limits of time and memory; errors as ``TemplateRenderer.render``."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    try:
        return environment.from_string(template).render({**values, "raise_exception": _refuse})
    except _Refusal as refusal:
        raise RequestError(
            f"the model's chat template refuses these messages: {refusal}", param="messages"
        ) from refusal
    except SecurityError as error:
        raise _faulty(f"reaches for what it may not touch: {error}") from error
    except MemoryError as error:
        raise _faulty("asks for too much memory") from error
    except RecursionError as error:
        raise _faulty("nests too deeply") from error
    except TemplateError as error:
        raise _faulty(f"is faulty: {error}") from error
    except Exception as error:  # a template can raise whatever Python's operators can
        raise _faulty(f"failed with {type(error).__name__}: {error}") from error


def _refuse(message: object) -> NoReturn:
    raise _Refusal(str(message))


def _faulty(how: str) -> ModelInvalid:
    return ModelInvalid(f"the model's chat template {how}"[:500], hint="give the model another template")


def _serve(requests: int, answers: int) -> NoReturn:
    """The helper's loop: one forked process for each rendering. It ends when the engine closes its pipe, or dies."""
    _keep_only(requests, answers)
    # What comes down the pipe is the engine's word, and the engine works for strangers.
    confine.apply(confine.ConfineProfile(max_files=16, allow_fork=True))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries what has rendered
    try:
        while (request := _receive(requests)) is not None:
            _send(answers, _render_apart(request))
    finally:
        os._exit(0)


def _keep_only(*descriptors: int) -> None:
    """Close every other descriptor but the standard error: above all, the pipes to the engine's parent."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    below = 3
    for descriptor in sorted(descriptors):
        os.closerange(below, descriptor)
        below = descriptor + 1
    os.closerange(below, os.sysconf("SC_OPEN_MAX"))


def _render_apart(request: dict[str, Any]) -> bytes:
    """The answer frame of one rendering in its own process.

    That process ends by a timer of the kernel: the helper may signal nobody.
    """
    space = psutil.Process().memory_info().vms + _MEMORY
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(read)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, _PATIENCE)
        # On top of what the helper has given up already. Not required: what the kernel lacks is reported by the
        # engine itself, and the limits are there everywhere.
        confine.apply(confine.ConfineProfile(max_memory=space, max_files=16, max_cpu_seconds=int(_SECONDS)))
        _answer(write, lambda: render_here(request["template"], request["values"]))
    os.close(write)
    try:
        data = _read_until(read, time.monotonic() + _PATIENCE)
    finally:
        os.close(read)
    if data is None:
        return _error_frame(_faulty(f"took longer than {_SECONDS:g} s of CPU or gave more than {MAX_RENDERED} bytes"))
    return data


def _answer(descriptor: int, render: Callable[[], str]) -> NoReturn:
    try:
        text = render()
        frame = pack({"text": text}) if len(text) <= MAX_RENDERED // 4 else b""
    except GnusError as error:
        frame = _error_frame(error)
    except (MemoryError, ValueError):
        frame = b""
    with contextlib.suppress(OSError):
        _send(descriptor, frame)
    os._exit(0)


def _error_frame(error: GnusError) -> bytes:
    return pack({"error": error.to_wire()})


def _read_until(descriptor: int, deadline: float) -> bytes | None:
    """All bytes up to the end of the pipe; None: none came, too many, or too late."""
    data = bytearray()
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return None
        chunk = os.read(descriptor, 65536)
        if not chunk:
            return bytes(data) or None
        data += chunk
        if len(data) > MAX_RENDERED:
            return None


def _receive(descriptor: int) -> dict[str, Any] | None:
    """The next frame; None at the end. One at a time: the other side waits for an answer before it sends again."""
    unpacker = Unpacker()
    while data := os.read(descriptor, 65536):
        if frames := unpacker.feed(data):
            return frames[0]
    return None


def _send(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
