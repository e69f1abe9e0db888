"""A worker: one of our own modules in a process of its own that confines itself and is never left behind.

For runtimes that foreign code might break out of, such as a WebAssembly engine: what breaks out finds itself in a
process without network, files, other programs or secrets, that ends when its one task is done.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import trio

from sandbox import confine, wire

_READ: Final = 64 * 1024
_KEPT_STDERR: Final = 4096
KILL_SECONDS: Final = 5.0
"""A killed process is gone at once unless the kernel holds it."""


class Worker:
    """A running worker, made by ``open_worker``. One task speaks to it: a frame out, then what comes back."""

    def __init__(self, process: subprocess.Popen[bytes], pipes: Sequence[int], max_frame: int) -> None:
        self._process = process
        to_child, from_child, self._errors = pipes
        self._stdin, self._stdout = trio.lowlevel.FdStream(to_child), trio.lowlevel.FdStream(from_child)
        self._unpacker = wire.Unpacker(max_frame)
        self._ready: list[dict[str, Any]] = []
        self._last_words = ""
        self._closed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended; takes its status if it has."""
        return self._process.poll() is None

    @property
    def last_words(self) -> str:
        """The end of what it wrote to stderr, once it was killed; for people, untrusted."""
        return self._last_words

    async def send(self, frame: dict[str, Any]) -> bool:
        """Writes a frame; False: the worker no longer reads. Cancelled in between, the worker is of no more use."""
        try:
            await self._stdin.send_all(wire.pack(frame))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True

    async def receive(self) -> dict[str, Any] | None:
        """The next frame; None: the worker has ended.

        Raises:
            FrameError: what came is no frame.
        """
        while not self._ready:
            try:
                data = await self._stdout.receive_some(_READ)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return None
            if not data:
                return None
            self._ready += self._unpacker.feed(data)
        return self._ready.pop(0)

    async def kill(self) -> int | None:
        """Ends the process; runs to its end even when cancelled. Gives the exit status, negative for a signal."""
        with trio.move_on_after(2 * KILL_SECONDS, shield=True):
            if not self._closed:
                self._closed = True
                await self._end()
        return self._process.poll()

    async def _end(self) -> None:
        if self._process.returncode is None:
            # The whole session, and before the status is taken: until then nobody else can have this number.
            with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a process that has ended
                os.killpg(self._process.pid, signal.SIGKILL)
        with trio.move_on_after(KILL_SECONDS):
            await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        # Nobody reads stderr before: a worker that fills the pipe only stops itself.
        with suppress(BlockingIOError):
            self._last_words = os.read(self._errors, _READ)[-_KEPT_STDERR:].decode("utf-8", "replace").strip()
        os.close(self._errors)
        for stream in (self._stdin, self._stdout):
            await trio.aclose_forcefully(stream)


@asynccontextmanager
async def open_worker(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    max_frame: int = wire.MAX_FRAME,
) -> AsyncGenerator[Worker]:
    """Starts ``python -m module`` with an environment that holds no secret, and kills it at the end of the block.

    It is started by the thread that runs trio: the kernel is asked to end it with the *thread* that started it.

    Args:
        environment: variables besides those of ``confine.launch_environment``.
        pass_fds: descriptors that it inherits besides its pipes.
        max_frame: bytes of the longest frame that it may send.

    Raises:
        OSError: it could not be started.
    """
    worker = _start(confine.launch_command(module, *arguments), environment, pass_fds, max_frame)
    try:
        yield worker
    finally:
        with trio.move_on_after(2 * KILL_SECONDS, shield=True):
            await worker.kill()


def _start(
    command: Sequence[str], environment: Mapping[str, str] | None, pass_fds: Sequence[int], max_frame: int
) -> Worker:
    child_in, to_child = os.pipe()
    from_child, child_out = os.pipe()
    errors, child_errors = os.pipe()
    ours, theirs = (to_child, from_child, errors), (child_in, child_out, child_errors)
    try:
        process = subprocess.Popen(
            command,
            env=confine.launch_environment(environment),
            stdin=child_in,
            stdout=child_out,
            stderr=child_errors,
            start_new_session=True,
            pass_fds=pass_fds,
        )
        os.set_blocking(errors, False)
        return Worker(process, ours, max_frame)
    except BaseException:  # whatever went wrong, our ends of the pipes must not leak; it is raised on
        for descriptor in ours:
            os.close(descriptor)
        raise
    finally:
        for descriptor in theirs:
            os.close(descriptor)
