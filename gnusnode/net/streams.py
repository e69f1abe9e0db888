"""What holds for the message streams of both twins: a bound on messages, and one task for each direction."""

from __future__ import annotations

from types import TracebackType

import trio

from gnusnode.errors import TooLarge
from gnusnode.net.port import MAX_MESSAGE


def check_size(message: bytes, protocol: str) -> None:
    """
    Raises:
        TooLarge: over ``MAX_MESSAGE``.
    """
    if len(message) > MAX_MESSAGE:
        raise TooLarge(f"a message of {len(message)} bytes is over the limit of {MAX_MESSAGE}", where=protocol)


class Direction:
    """One direction of a stream of ``protocol``; enter it to use it. Two tasks at once are a bug of the caller.

    Raises:
        trio.BusyResourceError: another task is inside.
    """

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._taken = False

    def __enter__(self) -> None:
        if self._taken:
            raise trio.BusyResourceError(f"another task uses this stream of {self._protocol} already")
        self._taken = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._taken = False
