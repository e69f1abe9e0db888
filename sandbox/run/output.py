"""What a job wrote: counted and hashed whole, kept up to a limit, never held back."""

from __future__ import annotations

import hashlib
from typing import Final

from sandbox.run.types import Output

STDOUT: Final = 1
STDERR: Final = 2


class Meter:
    """Collects both output streams of a job.

    A reader feeds it everything that arrives until the stream ends: an engine may hang when nobody reads. Past the
    limit the bytes are still counted and hashed, and dropped.

    Args:
        limit: bytes that are kept, over both streams.
    """

    def __init__(self, limit: int) -> None:
        self._room = limit
        self._kept = {STDOUT: bytearray(), STDERR: bytearray()}
        self._total = {STDOUT: 0, STDERR: 0}
        self._hashes = {STDOUT: hashlib.sha256(), STDERR: hashlib.sha256()}
        self.over = False
        """More than the limit has arrived."""

    def feed(self, stream: int, data: bytes | bytearray | memoryview) -> None:
        """Takes the next bytes of ``STDOUT`` or ``STDERR``."""
        self._total[stream] += len(data)
        self._hashes[stream].update(data)
        if self._room:
            kept = data[: self._room]
            self._kept[stream] += kept
            self._room -= len(kept)
            self.over = len(kept) < len(data)
        else:
            self.over = self.over or bool(data)

    def output(self, stream: int) -> Output:
        return Output(bytes(self._kept[stream]), self._total[stream], f"sha256:{self._hashes[stream].hexdigest()}")
