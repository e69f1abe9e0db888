"""One child process and its three pipes. Knows frames, not what they mean.

The process is started by the thread that runs trio and not by one of its worker threads: children ask the kernel to die
with the *thread* that started them, and trio ends idle worker threads after seconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import trio

from gnusnode.inference.frames import Unpacker

_READ: Final = 64 * 1024
_KEPT_STDERR: Final = 4096
_MAX_POSTED: Final = 10_000
_LAST_FRAMES: Final = 0.2
"""Seconds in which what a process wrote before its end is still read."""
_TERM_GRACE: Final = 0.5
_KILL_GRACE: Final = 5.0
"""A killed process is gone at once unless the kernel holds it, as a GPU driver may."""


class ChildProcess:
    """A running child. Whoever makes one must await ``end``, which leaves no process behind.

    ``post`` never blocks and keeps the order; one task must run ``write_forever`` and one ``drain_stderr``. A writer
    task of its own, rather than a lock around the pipe, because a caller that is cancelled in the middle of a write
    would leave half a frame behind.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, nice: int = 0) -> None:
        """Starts the process in a session of its own, with ``environment`` as its whole environment.

        Raises:
            OSError: it could not be started.
        """
        child_in, to_child = os.pipe()
        from_child, child_out = os.pipe()
        errors, child_errors = os.pipe()
        ours, theirs = (to_child, from_child, errors), (child_in, child_out, child_errors)
        try:
            self._popen = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=child_in,
                stdout=child_out,
                stderr=child_errors,
                start_new_session=True,
            )
        except BaseException:  # whatever went wrong, our ends of the pipes must not leak; it is raised on
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._stdin, self._stdout, self._stderr = (trio.lowlevel.FdStream(descriptor) for descriptor in ours)
        self._unpacker = Unpacker()
        self._outbox: deque[bytes] = deque()
        self._posted = trio.Event()
        self._error_text = bytearray()
        if nice:
            os.setpriority(os.PRIO_PROCESS, self._popen.pid, nice)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def last_words(self) -> str:
        """The end of what the child wrote to stderr; for people, untrusted."""
        return self._error_text.decode("utf-8", "replace").strip()

    def post(self, frame: bytes) -> None:
        """Queues a packed frame. Frames posted after the child's death are lost, as are those it never read.

        A child that makes us answer and does not read the answers is killed: what waits for it is bounded.
        """
        if len(self._outbox) >= _MAX_POSTED:
            self.signal(signal.SIGKILL)
            return
        self._outbox.append(frame)
        self._posted.set()

    async def write_forever(self) -> None:
        """Writes what is posted; returns when the child no longer reads."""
        try:
            while True:
                self._posted = trio.Event()
                if self._outbox:
                    data = b"".join(self._outbox)
                    self._outbox.clear()
                    await self._stdin.send_all(data)
                else:
                    await self._posted.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def drain_stderr(self) -> None:
        """Reads what native code prints, so that it never blocks on a full pipe; keeps the end of it."""
        try:
            while data := await self._stderr.receive_some(_READ):
                self._error_text += data
                del self._error_text[:-_KEPT_STDERR]
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def receive(self) -> list[dict[str, Any]] | None:
        """The next frames, perhaps none; None: the child closed its end.

        Raises:
            FrameError: what came is no frame.
        """
        try:
            data = await self._stdout.receive_some(_READ)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return None
        return self._unpacker.feed(data) if data else None

    async def hang_up_after_exit(self) -> None:
        """Ends ``receive`` when the process has ended, even if something that it started still holds the pipe."""
        await self.exited()
        await trio.sleep(_LAST_FRAMES)
        await trio.aclose_forcefully(self._stdout)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal; does nothing when the process is gone."""
        self._popen.send_signal(number)

    async def exited(self) -> None:
        """Waits until the process has ended, without taking its status."""
        if self._popen.returncode is not None:
            return
        if hasattr(os, "pidfd_open"):
            descriptor = os.pidfd_open(self._popen.pid)
            try:
                await trio.lowlevel.wait_readable(descriptor)
            finally:
                os.close(descriptor)
        else:
            await trio.to_thread.run_sync(self._popen.wait, abandon_on_cancel=True)

    async def end(self, *, farewell: bytes = b"", grace: float = 0.0) -> int | None:
        """Ends the process: a last frame and ``grace`` seconds to leave, SIGTERM, SIGKILL; without, at once.

        What it started itself goes with it. Runs to its end even when cancelled; doing it twice does nothing.
        ``write_forever`` must not run any more when there is a ``farewell``.

        Returns:
            The exit status, negative for a signal; None when the kernel still holds the killed process.
        """
        with trio.CancelScope(shield=True):
            if grace:
                await self._say(farewell, grace)
                if not await self._gone_within(grace):
                    self.signal(signal.SIGTERM)
                    await self._gone_within(_TERM_GRACE)
            if self._popen.returncode is None:
                # The whole session, and before the status is taken: until then nobody else can have this number.
                with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a process that has ended
                    os.killpg(self._popen.pid, signal.SIGKILL)
                await self._gone_within(_KILL_GRACE)
            for stream in (self._stdin, self._stdout, self._stderr):
                await trio.aclose_forcefully(stream)
            return self._popen.poll()

    async def _say(self, farewell: bytes, seconds: float) -> None:
        with trio.move_on_after(seconds):
            try:
                await self._stdin.send_all(farewell)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return  # it is gone already

    async def _gone_within(self, seconds: float) -> bool:
        with trio.move_on_after(seconds) as scope:
            await self.exited()
        return not scope.cancelled_caught


def describe_exit(status: int | None) -> str:
    """An exit status in words: ``was killed by SIGSEGV``."""
    if status is None:
        return "does not end though it was killed"
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
