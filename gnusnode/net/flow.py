"""Who may send how much, and what goes next: the bookkeeping of one rpc stream, without tasks and without I/O."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

from gnusnode.net import frames

BATCH: Final = 64 * 1024
"""Bytes of frames that one message gathers. A part and its envelope may go over it; ``frames.MAX_MESSAGE`` holds."""


class Outbox:
    """Encoded frames that wait for the writer. Calls take turns, frame by frame; urgent frames go before all of them.

    So a body of many parts holds up nobody's token, and the frames of one call stay in order.
    """

    def __init__(self) -> None:
        self.size = 0
        """Bytes that wait."""
        self._urgent: deque[bytes] = deque()
        self._lanes: OrderedDict[int, deque[bytes]] = OrderedDict()

    def __bool__(self) -> bool:
        return self.size > 0

    @property
    def urgent(self) -> int:
        """Urgent frames that wait."""
        return len(self._urgent)

    def put(self, call: int, frame: bytes) -> None:
        lane = self._lanes.get(call)
        if lane is None:
            lane = self._lanes[call] = deque()
        lane.append(frame)
        self.size += len(frame)

    def put_urgent(self, frame: bytes) -> None:
        self._urgent.append(frame)
        self.size += len(frame)

    def drop(self, call: int) -> int:
        """Forgets what waits for ``call``; how many frames that were."""
        lane = self._lanes.pop(call, None)
        if lane is None:
            return 0
        self.size -= sum(map(len, lane))
        return len(lane)

    def take(self) -> bytes:
        """The next message; there must be a frame."""
        taken: list[bytes] = []
        room = BATCH
        while len(taken) < frames.MAX_FRAMES and self:
            if taken and len(self._peek()) > room:
                break
            taken.append(self._pop())
            room -= len(taken[-1])
        return frames.join(taken)

    def _peek(self) -> bytes:
        return self._urgent[0] if self._urgent else next(iter(self._lanes.values()))[0]

    def _pop(self) -> bytes:
        if self._urgent:
            frame = self._urgent.popleft()
        else:
            call, lane = self._lanes.popitem(last=False)
            frame = lane.popleft()
            if lane:
                self._lanes[call] = lane  # to the end of the row
        self.size -= len(frame)
        return frame


class Window:
    """The sender's half of the credit of one streaming call, in bytes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._credit = size

    def grant(self, amount: int) -> None:
        """
        Raises:
            ProtocolViolation: more than was ever taken.
        """
        if self._credit + amount > self._size:
            raise frames.violation("granted credit that was not used")
        self._credit += amount

    def next_part(self, length: int) -> int:
        """How many bytes of an item of which ``length`` are left may go now; 0: wait.

        A part is never cut smaller than half the window (or the end of the item): the receiver grants in such steps.
        """
        part = min(length, frames.MAX_PART, self._size // 2 - frames.PART_COST)
        return part if part + frames.PART_COST <= self._credit else 0

    def use(self, part: int) -> None:
        self._credit -= part + frames.PART_COST


class Assembly:
    """A body that arrives in parts."""

    def __init__(self, limit: int) -> None:
        self.size = 0
        self._limit = limit
        self._parts: list[bytes] = []

    def add(self, part: bytes) -> None:
        """
        Raises:
            OverflowError: the body is longer than ``limit``.
        """
        self.size += len(part)
        if self.size > self._limit:
            raise OverflowError(f"{self.size} bytes or more are over the {self._limit} allowed")
        self._parts.append(part)

    def take(self) -> bytes:
        """The whole body; the next one begins."""
        whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self.size = 0
        return whole


class Inbox:
    """The receiver's half of the credit, and the items of one call that its reader has not taken.

    Args:
        window: bytes that may be held, as told to the sender; None: no credit is kept, as for the response of a unary
            call, which its own limit bounds.
        limit: bytes of one item.
    """

    def __init__(self, window: int | None, limit: int) -> None:
        self._window = window
        self._allowance = window or 0
        self._freed = 0
        self._items: deque[tuple[bytes, int]] = deque()
        self._assembly = Assembly(limit)
        self._cost = 0
        self.partial = False
        """An item is under way."""

    def __bool__(self) -> bool:
        """Whether a whole item waits."""
        return bool(self._items)

    def add(self, part: bytes, *, more: bool) -> None:
        """Takes in a part.

        Raises:
            ProtocolViolation: the sender had no credit for it, or the item is over its limit.
        """
        cost = len(part) + frames.PART_COST
        if self._window is not None:
            if cost > self._allowance:
                raise frames.violation("sent more than it had credit for")
            self._allowance -= cost
        try:
            self._assembly.add(part)
        except OverflowError as error:
            raise frames.violation(f"sent a body of which {error}") from error
        self._cost += cost
        self.partial = more
        if not more:
            self._items.append((self._assembly.take(), self._cost))
            self._cost = 0

    def take(self) -> bytes:
        """The next whole item; there must be one."""
        item, cost = self._items.popleft()
        self._freed += cost
        return item

    def to_grant(self) -> int:
        """Credit to give the sender now; 0: none yet.

        What has arrived of an unfinished item is given back once nothing stands before it: an item may be larger than
        the window.
        """
        if self._window is None:
            return 0
        if not self._items:
            self._freed += self._cost
            self._cost = 0
        if self._freed < self._window // 2:
            return 0
        amount, self._freed = self._freed, 0
        self._allowance += amount
        return amount
