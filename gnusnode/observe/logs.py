"""Logging: structlog in front, the standard library behind, so that our lines and a library's look alike.

A line is one event name with fields. Values are escaped, capped, and never prompts or outputs: a field whose name
promises content is written as length and digest, and the message of an unexpected exception as its digest (``debug``
shows it). Everything goes to stderr; journald or a redirection keeps it.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import traceback
from collections.abc import Callable, MutableMapping
from typing import Any, Final, Literal, TextIO, cast

import structlog
from structlog.types import Processor

from gnusnode.contracts.events import names_content
from gnusnode.errors import GnusError
from gnusnode.observe.bus import Stamped

MAX_VALUE: Final = 300
"""Longest text of one field, in characters."""
_MAX_MESSAGE: Final = 1000
_MAX_FRAMES: Final = 12
_MAX_LINES: Final = 40
_OWN_FIELDS: Final = frozenset({"event", "level", "time", "logger", "error"})
_QUIET_LIBRARIES: Final = ("anycorn", "httpcore2", "httpx2", "hpack", "asyncio")

EventDict = MutableMapping[str, Any]


def configure(
    level: Literal["debug", "info", "warning", "error"] = "info",
    form: Literal["auto", "json", "console"] = "auto",
    stream: TextIO | None = None,
) -> None:
    """Sets up logging of the whole process. Called once by ``gnusnode start``; a later call replaces the set-up.

    Args:
        form: ``auto`` is ``console`` where ``stream`` is a terminal, else ``json``.
        stream: where lines go; None: stderr.
    """
    out = stream or sys.stderr
    number = logging.getLevelNamesMapping()[level.upper()]
    console = form == "console" or (form == "auto" and out.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper("iso", utc=True, key="time"),
        describe_exception(with_message=number <= logging.DEBUG),
        bound_values,
    ]
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _console if console else _json()],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    logging.raiseExceptions = False  # a full disk behind stderr must not raise in the middle of the work
    for name in _QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module: ``log = get_logger(__name__); log.warning("engine.ended", model=…, rc=…)``."""
    return structlog.stdlib.get_logger(name)


def log_event(stamped: Stamped) -> None:
    """The sink that writes each event as a line; frequent ones at ``debug``."""
    event = stamped.event
    level = logging.DEBUG if event.name in {"stage.ended", "pull.progressed"} else logging.INFO
    structlog.stdlib.get_logger("gnusnode.events").log(level, event.name, **event.fields())


def bound_values(_logger: Any, _method: str, fields: EventDict) -> EventDict:
    """Caps every value and takes control characters and content out of it."""
    for key, value in fields.items():
        if key == "event":
            fields[key] = _escaped(str(value), _MAX_MESSAGE)
        elif key not in _OWN_FIELDS and names_content(key):
            fields[key] = _digest(value if isinstance(value, str | bytes) else repr(value))
        else:
            fields[key] = _bounded(value)
    return fields


def describe_exception(*, with_message: bool) -> Callable[[Any, str, EventDict], EventDict]:
    """A processor that turns ``exc_info`` into plain data: types, places and, for our own errors, messages."""

    def processor(_logger: Any, _method: str, fields: EventDict) -> EventDict:
        error = _exception_of(fields.pop("exc_info", None))
        if error is not None:
            fields["error"] = _chain(error, with_message=with_message)
        fields.pop("stack_info", None)
        return fields

    return processor


def _exception_of(info: object) -> BaseException | None:
    """The exception that a logging call means by its ``exc_info``."""
    if info is True:
        return sys.exception()
    if isinstance(info, tuple) and len(cast("tuple[object, ...]", info)) == 3:
        info = cast("tuple[object, ...]", info)[1]
    return info if isinstance(info, BaseException) else None


def _chain(error: BaseException, *, with_message: bool) -> list[str]:
    """The error and its causes, each as ``Type: message`` followed by the innermost frames."""
    lines: list[str] = []
    current: BaseException | None = error
    while current is not None and len(lines) < _MAX_LINES:
        shown = with_message or isinstance(current, GnusError | OSError)
        message = _escaped(str(current), MAX_VALUE) if shown else _digest(str(current))
        frames = traceback.extract_tb(current.__traceback__)[-_MAX_FRAMES:]
        lines.append(f"{type(current).__name__}: {message}")
        lines.extend(f"  {frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
        current = _cause(current)
    return lines[:_MAX_LINES]


def _cause(error: BaseException) -> BaseException | None:
    """What led to ``error``: the first member of a group, else the exception it was raised from or during."""
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _bounded(value: Any) -> Any:
    """A number or switch as it is, a list of texts with each capped, all else as one capped text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes):
        return _digest(value)
    if isinstance(value, list | tuple):
        return [_escaped(str(item), MAX_VALUE) for item in cast("list[object]", value)[:_MAX_LINES]]
    return _escaped(str(value), MAX_VALUE)


def _escaped(text: str, limit: int) -> str:
    """``text`` with control and format characters as escapes: no value can begin a line or move a cursor."""
    cut = text if len(text) <= limit else text[:limit] + f"… ({len(text)} characters)"
    if cut.isprintable():
        return cut
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in cut
    )


def _digest(value: str | bytes) -> str:
    data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    return f"sha256:{hashlib.sha256(data).hexdigest()[:16]} ({len(data)} bytes)"


def _json() -> Processor:
    return structlog.processors.JSONRenderer(ensure_ascii=True)


def _console(_logger: Any, _method: str, fields: EventDict) -> str:
    """One line for a person: time, level, event, fields; the frames of an error below it."""
    moment = str(fields.pop("time", ""))[11:23]
    level = str(fields.pop("level", "")).upper()
    name, event = fields.pop("logger", ""), fields.pop("event", "")
    error: list[str] = fields.pop("error", [])
    rest = " ".join(f"{key}={value}" for key, value in fields.items())
    return "\n".join([f"{moment} {level:<7} {event} {rest}".rstrip() + f"  [{name}]", *error])
