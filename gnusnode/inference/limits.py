"""The numbers that bound an engine, and the two ways in which it speaks to its host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gnusnode.contracts.generation import CapabilityRequest, CapabilityVerdict
from gnusnode.inference.queue import QueueLimits

Notify = Callable[[str, dict[str, Any]], None]
"""``(event name, fields)``; must not block or raise. Every event has the field ``model``.

    engine_ready        pid
    engine_died         reason; cause: crash, hang or out-of-memory
    engine_quarantined  reason
    engine_log          level, text: a line of the native library
    engine_load_failed  reason: a model that was to be loaded at the start
    engine_step_down    layers, reason: the next attempt after a failed load
    engine_evicted      for: the model that needs the room
"""
Capabilities = Callable[[CapabilityRequest], CapabilityVerdict]


@dataclass(frozen=True)
class EngineLimits:
    """Bounds of an engine; seconds and bytes.

    Attributes:
        ping_every: between pings, deadline checks and checks for a hang.
        silent_after: without a frame, or without obeying a cancel, after which the child is killed.
        load_timeout: for loading the model.
        cancel_wait: that leaving a stream waits for the child's confirmation.
        quit_grace: that a child gets to leave by itself at shutdown.
        restart_delays: before the first, second, … restart in a row; the last one repeats.
        stream_bytes, stream_events: what may wait for a slow reader of one stream.
    """

    ping_every: float = 1.0
    silent_after: float = 30.0
    load_timeout: float = 600.0
    cancel_wait: float = 2.0
    quit_grace: float = 1.0
    restart_delays: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 5.0, 15.0, 30.0)
    stream_bytes: int = 256 * 1024
    stream_events: int = 4096
    queue: QueueLimits = field(default_factory=QueueLimits)


def deny_all(request: CapabilityRequest) -> CapabilityVerdict:
    """The host's answer where no manifest grants anything."""
    return CapabilityVerdict(name=request.name, granted=False, reason="no capability is granted to this engine")


def ignore(_name: str, _fields: dict[str, Any]) -> None:
    """A ``Notify`` for those who do not listen."""
