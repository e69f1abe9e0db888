"""Chat templates are programs that come with a model file: they are rendered in a process of their own.

A template can loop for hours, ask for gigabytes, or keep one C call busy for minutes; neither an exception from a signal
handler nor a count of steps stops the last kind, and in the engine's process all streams would wait. So a helper process
is forked while the child is still small and has one thread, and it forks once more for every rendering: that process has
a second of CPU, a bounded address space and no way to write a file, and is killed when it is late. The sandbox of Jinja
keeps the template away from Python's objects; it sees no message content either, only placeholders.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gnusnode.errors import EngineFailed, GnusError, ModelInvalid, RequestError
from gnusnode.inference.frames import Unpacker, pack

MAX_TEMPLATE: Final = 256 * 1024
MAX_RENDERED: Final = 2 * 1024 * 1024
_SECONDS: Final = 1.0
_MEMORY: Final = 256 * 1024 * 1024
"""Address space of a rendering beyond what the helper has."""


class _Refusal(Exception):
    """``raise_exception`` in a template: it does not take these messages."""


class TemplateRenderer:
    """The helper process. Make it before anything that starts threads; it ends with this process.

    ``render`` may be called from one thread at a time.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            ours.close()
            _serve(theirs)
        theirs.close()
        self._socket = ours

    def render(self, template: str, values: dict[str, Any]) -> str:
        """The template's output for plain ``values``.

        Raises:
            ModelInvalid: the template is faulty, or exceeds its time, memory or output.
            RequestError: the template refuses these messages.
            EngineFailed: the helper is gone.
        """
        try:
            self._socket.sendall(pack({"template": template, "values": values}))
            answer = _receive(self._socket)
        except OSError as error:
            raise EngineFailed(f"the template helper is gone: {error}") from error
        if answer is None:
            raise EngineFailed("the template helper is gone")
        if "error" in answer:
            raise GnusError.from_wire(answer["error"])
        return answer["text"]

    def close(self) -> None:
        self._socket.close()
        os.waitpid(self._pid, 0)


def render_here(template: str, values: dict[str, Any]) -> str:
    """Render without limits of time and memory; errors as ``TemplateRenderer.render``."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(template).render(values)
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
    except Exception as error:  # noqa: BLE001 - a template can raise whatever Python's operators can
        raise _faulty(f"failed with {type(error).__name__}: {error}") from error


def _refuse(message: object) -> NoReturn:
    raise _Refusal(str(message))


def _faulty(how: str) -> ModelInvalid:
    return ModelInvalid(f"the model's chat template {how}"[:500], hint="give the model another template")


def _serve(requests: socket.socket) -> NoReturn:
    """The helper's loop: one forked process for each rendering."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        while (request := _receive(requests)) is not None:
            requests.sendall(_render_apart(request))
    os._exit(0)


def _render_apart(request: dict[str, Any]) -> bytes:
    """The answer frame of one rendering in its own process."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _confine()
        _answer(write, lambda: render_here(request["template"], request["values"]))
    os.close(write)
    try:
        data = _read_until(read, time.monotonic() + _SECONDS * 1.5)
    finally:
        os.close(read)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if data is None:
        return _error_frame(_faulty(f"took longer than {_SECONDS:g} s or gave more than {MAX_RENDERED} bytes"))
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
        while frame:
            frame = frame[os.write(descriptor, frame) :]
    os._exit(0)


def _confine() -> None:
    seconds = int(_SECONDS)
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[0])
    space = pages * resource.getpagesize() + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


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


def _receive(connection: socket.socket) -> dict[str, Any] | None:
    unpacker = Unpacker()
    while True:
        data = connection.recv(65536)
        if not data:
            return None
        frames = unpacker.feed(data)
        if frames:
            return frames[0]
