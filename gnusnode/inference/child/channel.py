"""Frames out of the child: what the steps of a moment have to say leaves in one write."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Final

from gnusnode.errors import GnusError
from gnusnode.inference.frames import pack, pack_known

_GATHER_SECONDS: Final = 1 / 30
"""Tokens that come faster than an eye sees them leave together: each write wakes the parent, which costs more than its
tokens."""
_LOG_BURST: Final = 40
_LOG_RATE: Final = 10.0
"""Log lines per second after the burst; a native library in trouble prints without end."""
_LAST_LINES: Final = 8


class Outbox:
    """Collects frames and writes them. ``flush`` belongs to the main thread; ``log`` may come from any.

    The first token of a job and everything but tokens leaves with the next ``flush``.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.RLock()
        self._deltas: dict[int, dict[str, Any]] = {}
        self._unspoken: set[int] = set()
        """Jobs whose first token is still to come."""
        self._urgent = False
        self._written = 0.0
        self._before: list[bytes] = []
        self._after: list[bytes] = []

    def started(self, job: int, body: dict[str, Any]) -> None:
        self._before.append(pack({"ev": "started", "id": job, "body": body}))
        self._unspoken.add(job)

    def delta(self, job: int, body: dict[str, Any]) -> None:
        held = self._deltas.setdefault(job, body)
        if held is not body:
            held["text"] += body["text"]
            held["tokens"] += body["tokens"]
            held["logprobs"] += body["logprobs"]
        if job in self._unspoken:
            self._unspoken.discard(job)
            self._urgent = True

    def done(self, job: int, body: dict[str, Any]) -> None:
        self._after.append(pack({"ev": "done", "id": job, "body": body}))

    def result(self, job: int, body: dict[str, Any]) -> None:
        self._after.append(pack({"ev": "result", "id": job, "body": body}))

    def error(self, job: int | None, error: GnusError) -> None:
        self._after.append(pack({"ev": "error", "id": job, "error": error.to_wire()}))
        self._unspoken.discard(-1 if job is None else job)

    def flush(self, *, everything: bool = False) -> None:
        """Write what is due, or all there is: starts, then tokens, then ends. Call it after every step.

        Raises:
            OSError: the parent is gone.
        """
        due = self._before or self._after or self._urgent or everything
        if not due and (not self._deltas or time.perf_counter() - self._written < _GATHER_SECONDS):
            return
        parts = self._before
        if self._deltas:
            parts.append(pack_known({"ev": "step", "deltas": [[job, body] for job, body in self._deltas.items()]}))
        parts += self._after
        self._before, self._deltas, self._after, self._urgent = [], {}, [], False
        self._write(b"".join(parts))
        self._written = time.perf_counter()

    def send(self, frame: dict[str, Any]) -> None:
        """Write one frame now."""
        self._write(pack(frame))

    def _write(self, data: bytes) -> None:
        with self._lock:
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]


class NativeLog:
    """Log lines of the native library: the last ones are kept to explain a failure, a bounded number is passed on."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._allowance = float(_LOG_BURST)
        self._refilled = time.monotonic()
        self._dropped = 0
        self._last: list[str] = []

    def __call__(self, level: str, text: str) -> None:
        self._last = [*self._last[1 - _LAST_LINES :], text]
        now = time.monotonic()
        self._allowance = min(_LOG_BURST, self._allowance + (now - self._refilled) * _LOG_RATE)
        self._refilled = now
        if self._allowance < 1:
            self._dropped += 1
            return
        self._allowance -= 1
        if self._dropped:
            text = f"{text} ({self._dropped} lines before it were dropped)"
            self._dropped = 0
        self._outbox.send({"ev": "log", "level": level, "text": text[:2000]})

    def last_words(self) -> str:
        return "; ".join(self._last[-3:])
