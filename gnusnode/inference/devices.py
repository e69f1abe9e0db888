"""What this machine can run a model on, asked of llama.cpp itself in a throw-away child."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import psutil
import trio
from pydantic import ValidationError

from gnusnode.contracts.base import Record, describe
from gnusnode.inference.childproc import ChildProcess, describe_exit
from gnusnode.inference.frames import FrameError
from sandbox import confine

TIMEOUT: Final = 30.0
"""Seconds: a GPU driver that starts for the first time may compile for a while."""
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
_CGROUP_USE: Final = Path("/sys/fs/cgroup/memory.current")


class Device(Record):
    """One device; sizes in bytes."""

    record_name: ClassVar[str] = "device"

    name: str
    description: str
    kind: Literal["cpu", "gpu", "igpu", "accelerator", "other"]
    free: int
    total: int


class DeviceReport(Record):
    """The outcome of a probe. Without libraries or after a crash ``devices`` is empty and ``error`` says why."""

    record_name: ClassVar[str] = "device-report"

    devices: tuple[Device, ...] = ()
    offload: bool = False
    """Whether this build of llama.cpp can use a GPU at all."""
    error: str = ""

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The devices that layers can be put on: real GPUs, else integrated ones."""
        if not self.offload:
            return ()
        real = tuple(device for device in self.devices if device.kind == "gpu")
        return real or tuple(device for device in self.devices if device.kind == "igpu")


async def probe_devices(*, timeout: float = TIMEOUT, command: Sequence[str] | None = None) -> DeviceReport:
    """Asks a child what llama.cpp sees; whatever the child does, there is an answer within ``timeout`` seconds."""
    try:
        child = ChildProcess(
            command or confine.launch_command("gnusnode.inference.probe"), confine.launch_environment()
        )
    except OSError as error:
        return DeviceReport(error=f"the probe could not be started: {error}")
    frame: dict[str, Any] | str = ""
    status = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.drain_stderr)
            with trio.move_on_after(timeout) as scope:
                frame = await _first_frame(child)
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):  # bounded by ``end`` itself
            status = await child.end()
    if scope.cancelled_caught:
        return DeviceReport(error=f"the probe did not answer within {timeout:g} s; is a GPU driver hanging?")
    return _report(frame, status)


async def _first_frame(child: ChildProcess) -> dict[str, Any] | str:
    """The first frame; a text says why there is none."""
    try:
        while (batch := await child.receive()) is not None:
            if batch:
                return batch[0]
    except FrameError as error:
        return f"the probe answered nonsense: {error}"
    await child.exited()
    return ""


def _report(frame: dict[str, Any] | str, status: int | None) -> DeviceReport:
    if isinstance(frame, str):
        return DeviceReport(error=frame or f"the probe {describe_exit(status)}")
    try:
        return DeviceReport.model_validate({key: value for key, value in frame.items() if key != "ev"})
    except ValidationError as error:
        return DeviceReport(error=f"the probe answered nonsense: {describe(error)}")


def available_ram() -> int:
    """Bytes of memory that this process and its children may still take, a container's limit included."""
    free = psutil.virtual_memory().available
    try:
        limit, used = _CGROUP_LIMIT.read_text().strip(), _CGROUP_USE.read_text().strip()
        return free if limit == "max" else max(0, min(free, int(limit) - int(used)))
    except (OSError, ValueError):
        return free
