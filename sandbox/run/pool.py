"""Sandboxes that are started before anybody asks: a job that gets one does not wait for a start.

A sandbox does one job and is destroyed; none is ever handed out twice. How many wait follows from how many were asked
for lately: none on an idle node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar, runtime_checkable

import trio

from gnusnode.errors import GnusError

RECENT: Final = 60.0
"""Seconds over which requests are counted: as many as came in it are kept ready."""
REMEMBERED: Final = 600.0
"""Seconds after the last request for which one sandbox still waits."""
MAX_AGE: Final = 600.0
"""Seconds after which a sandbox that nobody wanted is replaced."""
_SETTLE: Final = 0.3
"""Seconds after a request before another sandbox is started: starting one slows down the job that was just given."""
_RETRY: Final = 15.0
_DRAIN_WITHIN: Final = 60.0


@runtime_checkable
class KeepsWarm(Protocol):
    """A backend that has a pool."""

    async def keep_warm(self) -> None:
        """Keeps sandboxes ready until cancelled; then ends those that wait."""
        ...


class Waiting(Protocol):
    """A sandbox that waits for its job."""

    def alive(self) -> bool:
        """Whether it still waits; answers at once."""
        ...

    async def remove(self) -> None:
        """Ends it and leaves nothing. Not interrupted by cancellation, never raises."""
        ...


S = TypeVar("S", bound=Waiting)


class WarmPool(Generic[S]):
    """Keeps sandboxes ready while ``serve`` runs; without, ``take`` never has one.

    Args:
        open_one: starts a sandbox that waits for a job; leaves nothing behind when it fails or is cancelled.
        most: how many may wait at once.
        failed: told why one could not be started; another try is made a little later.
    """

    def __init__(
        self, open_one: Callable[[], Awaitable[S]], *, most: int = 4, failed: Callable[[GnusError], None] | None = None
    ) -> None:
        self._open = open_one
        self._most = most
        self._failed = failed
        self._idle: deque[tuple[float, S]] = deque()
        self._dead: list[S] = []
        self._asked: deque[float] = deque(maxlen=max(most, 1))
        self._changed = trio.Event()
        self._serving = False

    @property
    def waiting(self) -> int:
        return len(self._idle)

    @property
    def wanted(self) -> int:
        """How many should wait now."""
        now = trio.current_time()
        recent = sum(now - at < RECENT for at in self._asked)
        remembered = bool(self._asked) and now - self._asked[-1] < REMEMBERED
        return min(self._most, max(recent, int(remembered)))

    def take(self) -> S | None:
        """A waiting sandbox, the oldest first, which is the caller's from now on; None when there is none.

        Counts as a request either way.
        """
        self._asked.append(trio.current_time())
        self._changed.set()
        while self._idle:
            sandbox = self._idle.popleft()[1]
            if sandbox.alive():
                return sandbox
            self._dead.append(sandbox)
        return None

    def retire(self, sandbox: S) -> bool:
        """Takes over a sandbox that has done its job, to remove it soon. False: the caller must remove it now.

        Nobody has to wait for the removal then; only a few may be on their way out at a time.
        """
        if not self._serving or len(self._dead) >= self._most:
            return False
        self._dead.append(sandbox)
        self._changed.set()
        return True

    async def serve(self) -> None:
        """Fills the pool and keeps it fresh until it is cancelled; then ends what waits."""
        if self._serving:
            raise RuntimeError("this pool is already being served")
        self._serving = True
        try:
            while True:
                self._changed = trio.Event()
                pause = await self._adjust()
                with trio.move_on_after(pause):
                    await self._changed.wait()
                    await trio.sleep(_SETTLE)
        finally:
            self._serving = False
            with trio.move_on_after(_DRAIN_WITHIN, shield=True):
                await self.drain()

    async def drain(self) -> None:
        """Ends everything that waits or was retired."""
        with trio.CancelScope(shield=True):
            while self._idle or self._dead:
                await (self._dead.pop() if self._dead else self._idle.popleft()[1]).remove()

    async def _adjust(self) -> float:
        """Drops what is too many, too old or dead, and starts what is missing.

        Returns:
            For how many seconds the pool is right then.
        """
        now = trio.current_time()
        fresh = [entry for entry in self._idle if now - entry[0] < MAX_AGE and entry[1].alive()]
        kept = fresh[max(0, len(fresh) - self.wanted) :]
        self._dead += [entry[1] for entry in self._idle if entry not in kept]
        self._idle = deque(kept)
        while self._dead:
            await self._dead.pop().remove()
        while len(self._idle) < self.wanted:
            try:
                self._idle.append((trio.current_time(), await self._open()))
            except GnusError as error:
                if self._failed:
                    self._failed(error)
                return _RETRY
        return RECENT / 2 if self._idle or self.wanted else float("inf")
