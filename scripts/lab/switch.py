"""A network switch in a thread: virtual cables (TAP devices) with delay, loss and a rate, and that can be cut.

The kernel's ``tc netem`` would do the same, but many kernels of containers, small virtual machines and CI runners lack
it; this needs ``/dev/net/tun`` only. It moves thousands of frames a second: enough for faults, not for records.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import random
import selectors
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

TUNSETIFF: Final = 0x400454CA
IFF_TAP: Final = 0x0002
IFF_NO_PI: Final = 0x1000
FRAME_BYTES: Final = 65_536
BURST: Final = 64
"""Frames that are taken from one cable before the others are looked at."""
QUEUE_SECONDS: Final = 2.0
"""A frame that would wait longer than this for its cable's rate is dropped, as a full queue does."""
LOOK_SECONDS: Final = 0.2


@dataclass
class Cable:
    """One end of the switch. Its properties may be changed at any time, by any thread."""

    name: str
    """Of the TAP device when it was made; it may be renamed and moved into a namespace."""
    fd: int
    delay_s: float = 0.0
    """Each way: a round trip takes twice as long."""
    loss: float = 0.0
    """Probability, for each frame and each way."""
    bytes_per_second: float = 0.0
    """Each way; 0: no limit."""
    is_cut: bool = False
    """Frames vanish and both ends still see a carrier: a cable cut behind the next switch."""
    sent: int = 0
    """Bytes of the frames that the host sent, lost ones included …"""
    received: int = 0
    """… and of those that reached it."""
    free_at: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """When the cable has sent what is under way, to the switch and from it."""

    @classmethod
    def open(cls, name: str) -> Cable:
        """A new TAP device. Needs root; it goes when ``fd`` is closed, also in another namespace."""
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        try:
            fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
        except OSError:
            os.close(fd)
            raise
        return cls(name, fd)

    def passage(self, size: int, way: int, now: float, chance: float) -> float | None:
        """When a frame of ``size`` that enters now comes out; None: it is lost. ``chance`` lies in [0, 1)."""
        if self.is_cut or chance < self.loss:
            return None
        start = now
        if self.bytes_per_second:
            start = max(now, self.free_at[way])
            if start - now > QUEUE_SECONDS:
                return None
            start += size / self.bytes_per_second
            self.free_at[way] = start
        return start + self.delay_s


class Switch:
    """Carries frames between ``cables`` while the context is open, then closes them."""

    def __init__(self, cables: list[Cable], seed: int = 1) -> None:
        self.cables = cables
        self._random = random.Random(seed)
        self._ports: dict[bytes, Cable] = {}
        self._waiting: list[tuple[float, int, Cable, bytes]] = []
        self._order = itertools.count()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="switch", daemon=True)

    def __enter__(self) -> Switch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for cable in self.cables:
            os.close(cable.fd)

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for cable in self.cables:
                selector.register(cable.fd, selectors.EVENT_READ, cable)
            while not self._stop.is_set():
                wait = LOOK_SECONDS
                if self._waiting:
                    wait = min(wait, max(0.0, self._waiting[0][0] - time.monotonic()))
                for key, _ in selector.select(wait):
                    for frame in _frames(key.data):
                        self._take(key.data, frame)
                self._deliver()

    def _take(self, source: Cable, frame: bytes) -> None:
        now = time.monotonic()
        source.sent += len(frame)
        arrived = source.passage(len(frame), 0, now, self._random.random())
        if arrived is None:
            return
        target, sender = frame[:6], frame[6:12]
        self._ports[sender] = source
        known = self._ports.get(target)
        to = [known] if known and not target[0] & 1 else [cable for cable in self.cables if cable is not source]
        for cable in to:
            if cable is not source:
                due = cable.passage(len(frame), 1, arrived, self._random.random())
                if due is not None:
                    heapq.heappush(self._waiting, (due, next(self._order), cable, frame))

    def _deliver(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, cable, frame = heapq.heappop(self._waiting)
            with suppress(OSError):  # the interface is down, or its queue is full: the frame is lost
                cable.received += os.write(cable.fd, frame)


def _frames(cable: Cable) -> Iterator[bytes]:
    for _ in range(BURST):
        try:
            yield os.read(cable.fd, FRAME_BYTES)
        except OSError:  # nothing more, or the interface is down
            return
