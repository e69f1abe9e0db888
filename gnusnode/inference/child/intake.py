"""Frames in: read and checked on a thread of their own, so that the main thread only ever sees sound commands.

The thread also renders chat templates, which happens in another process and may take a second, and it sets the abort
flag: the main thread is inside a decode when a cancel arrives.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

from pydantic import ValidationError

from gnusnode.contracts.base import describe
from gnusnode.contracts.generation import ClassifyRequest, EmbedRequest, GenerateRequest, ScoreRequest
from gnusnode.errors import EngineFailed, GnusError, InternalError, Unprocessable
from gnusnode.inference.frames import ChildSpec, FrameError, Unpacker

Request: TypeAlias = GenerateRequest | ClassifyRequest | ScoreRequest | EmbedRequest

REQUESTS: Final[dict[str, type[Request]]] = {
    "generate": GenerateRequest,
    "classify": ClassifyRequest,
    "score": ScoreRequest,
    "embed": EmbedRequest,
}
_CHUNK: Final = 1 << 16


@dataclass(frozen=True)
class Submit:
    number: int
    request: Request


@dataclass(frozen=True)
class Refuse:
    """A request that is not sound, or whose template refuses it."""

    number: int
    error: GnusError


@dataclass(frozen=True)
class Cancel:
    number: int


@dataclass(frozen=True)
class Pause:
    number: int


@dataclass(frozen=True)
class Resume:
    number: int


@dataclass(frozen=True)
class Ping:
    number: int


@dataclass(frozen=True)
class Quit:
    """The parent wants an end or is gone; or, with an error, the process cannot go on."""

    error: GnusError | None = None


Command: TypeAlias = Submit | Refuse | Cancel | Pause | Resume | Ping | Quit


def parse(frame: dict[str, Any]) -> Command:
    """The command a frame stands for.

    Raises:
        FrameError: it stands for none.
    """
    match frame:
        case {"op": str(op), "id": int(number)} if op in REQUESTS:
            try:
                return Submit(number, REQUESTS[op].model_validate(frame.get("request")))
            except ValidationError as error:
                return Refuse(number, Unprocessable(describe(error)))
        case {"op": "cancel", "id": int(number)}:
            return Cancel(number)
        case {"op": "pause", "id": int(number)}:
            return Pause(number)
        case {"op": "resume", "id": int(number)}:
            return Resume(number)
        case {"op": "ping", "n": int(number)}:
            return Ping(number)
        case {"op": "quit"}:
            return Quit()
        case _:
            raise FrameError(f"no frame for an engine child: op {str(frame.get('op'))[:40]!r}")


def protocol_error(error: FrameError) -> GnusError:
    return InternalError(f"the parent broke the protocol: {error}")


def read_spec(descriptor: int) -> tuple[ChildSpec, Unpacker, list[dict[str, Any]]]:
    """The first frame, which must be ``load``; and the reading state to go on with.

    Raises:
        FrameError: it is something else.
        EOFError: the parent left.
    """
    unpacker = Unpacker()
    while data := os.read(descriptor, _CHUNK):
        if frames := unpacker.feed(data):
            if frames[0].get("op") != "load":
                raise FrameError("the first frame must be load")
            try:
                return ChildSpec.model_validate(frames[0].get("spec")), unpacker, frames[1:]
            except ValidationError as error:
                raise FrameError(f"load: {describe(error)}") from error
    raise EOFError


class Intake:
    """The reader thread. ``commands`` is in order; the last one is ``Quit``.

    Args:
        prepare: called for each sound request on this thread; what it raises refuses the request.
        on_cancel: called before a cancel is queued.
    """

    def __init__(
        self,
        descriptor: int,
        unpacker: Unpacker,
        early: list[dict[str, Any]],
        *,
        prepare: Callable[[Request], None],
        on_cancel: Callable[[int], None],
    ) -> None:
        self.commands: SimpleQueue[Command] = SimpleQueue()
        self._descriptor = descriptor
        self._unpacker = unpacker
        self._early = early
        self._prepare = prepare
        self._on_cancel = on_cancel
        self._thread = threading.Thread(target=self._read, name="intake", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _read(self) -> None:
        try:
            self._take(self._early)
            while data := os.read(self._descriptor, _CHUNK):
                self._take(self._unpacker.feed(data))
            self.commands.put(Quit())
        except FrameError as error:
            self.commands.put(Quit(protocol_error(error)))
        except Exception as error:  # noqa: BLE001 - without its reader the child would be deaf
            self.commands.put(Quit(EngineFailed(f"{type(error).__name__}: {error}")))

    def _take(self, frames: list[dict[str, Any]]) -> None:
        for frame in frames:
            command = parse(frame)
            if isinstance(command, Submit):
                try:
                    self._prepare(command.request)
                except GnusError as error:
                    command = Refuse(command.number, error)
            self.commands.put(command)
            if isinstance(command, Cancel):
                # Queued first: the main thread lowers the flag before it looks at the queue.
                self._on_cancel(command.number)
