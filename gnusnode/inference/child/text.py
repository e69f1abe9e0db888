"""From token bytes to the text a client may see: whole characters only, and nothing that may begin a stop string."""

from __future__ import annotations

import codecs


class TextAssembler:
    """Feed it the bytes of each token; it answers with the text that is now certain.

    ``stopped`` turns true when a stop string was completed; the text ends before it.
    """

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._held = ""
        self.stopped = False

    def feed(self, piece: bytes) -> str:
        text = self._decoder.decode(piece)
        if not self._stop:
            return text
        self._held += text
        cut = min((at for at in (self._held.find(stop) for stop in self._stop) if at >= 0), default=-1)
        if cut >= 0:
            self.stopped = True
            certain, self._held = self._held[:cut], ""
            return certain
        keep = self._may_begin_a_stop()
        certain, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return certain

    def flush(self) -> str:
        """The rest, once no more tokens come. A character that was cut off becomes U+FFFD."""
        rest = self._held + self._decoder.decode(b"", final=True)
        self._held = ""
        return "" if self.stopped else rest

    def _may_begin_a_stop(self) -> int:
        """Length of the longest tail that is the beginning of a stop string."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stop):
                return length
        return 0


def printable(piece: bytes) -> str:
    """A token's bytes as text; bytes that are not UTF-8 are written ``\\\\xNN``."""
    return piece.decode("utf-8", "backslashreplace")
