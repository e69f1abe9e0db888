"""The log: the standard library's loggers, with a handler that makes every line safe to read and to keep.

A line is a short text with fields: ``log.warning("engine ended", extra={"model": name, "rc": rc})``. Values are
escaped, capped, and never prompts or outputs: a field whose name promises content is written as digest and length, and
the message of an unexpected exception as its digest (``debug`` shows it). Everything goes to stderr; journald or a
redirection keeps it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Literal, TextIO, cast

from gnusnode.contracts.events import names_content
from gnusnode.errors import GnusError
from gnusnode.observe.bus import Stamped

MAX_VALUE: Final = 300
"""Longest text of one field, in characters."""
MAX_EVENT: Final = 1000
"""Longest text of the event itself."""
_MAX_FRAMES: Final = 12
_MAX_LINES: Final = 40
_QUIET_LIBRARIES: Final = ("anycorn", "gguf", "httpcore2", "httpx2", "hpack", "asyncio")
_FREQUENT: Final = frozenset({"stage.ended", "pull.progressed"})
_RECORD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

_bound: ContextVar[MappingProxyType[str, Any]] = ContextVar("gnusnode_log_fields", default=MappingProxyType({}))
_events: Final = logging.getLogger("gnusnode.events")


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
    handler = logging.StreamHandler(out)
    handler.setFormatter((ConsoleFormatter if console else JsonFormatter)(with_messages=number <= logging.DEBUG))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    logging.raiseExceptions = False  # a full disk behind stderr must not raise in the middle of the work
    for name in _QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


@contextmanager
def bound(**fields: Any) -> Generator[None]:
    """Puts ``fields`` on every line that the body writes, in this task and in those it starts."""
    token = _bound.set(MappingProxyType({**_bound.get(), **fields}))
    try:
        yield
    finally:
        _bound.reset(token)


def log_event(stamped: Stamped) -> None:
    """The sink that writes each event as a line; frequent ones at ``debug``."""
    level = logging.DEBUG if stamped.event.name in _FREQUENT else logging.INFO
    if _events.isEnabledFor(level):
        _events.log(level, stamped.event.name, extra=stamped.event.fields())


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII.

    Args:
        with_messages: also show the messages of exceptions that are not ours.
    """

    def __init__(self, *, with_messages: bool = False) -> None:
        super().__init__()
        self._with_messages = with_messages

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _moment(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": escaped(_text(record), MAX_EVENT),
            **_fields(record),
        }
        if error := _error(record, self._with_messages):
            line["error"] = error
        return json.dumps(line)


class ConsoleFormatter(JsonFormatter):
    """One line for a person: time, level, event, fields; the places of an error below it."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={value}" for key, value in _fields(record).items())
        moment = _moment(record).astimezone().strftime("%H:%M:%S.%f")[:-3]
        event = escaped(_text(record), MAX_EVENT)
        line = f"{moment} {record.levelname:<7} {event}{fields}  [{record.name}]"
        return "\n".join([line, *_error(record, self._with_messages)])


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _text(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):  # a wrong placeholder must not lose the line
        return str(record.msg)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What was given by ``extra`` and by ``bound``, made safe."""
    own = {key: value for key, value in vars(record).items() if key not in _RECORD_ATTRIBUTES}
    return {key: _safe(key, value) for key, value in {**_bound.get(), **own}.items()}


def _safe(key: str, value: Any) -> Any:
    """A number or switch as it is, a list with each text capped, all else as one capped text; content as its digest."""
    if isinstance(value, float):
        return round(value, 3)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, bytes):
        return _digest(value)
    if names_content(key):
        return _digest(str(value))
    if isinstance(value, list | tuple):
        return [escaped(str(item), MAX_VALUE) for item in cast("list[object]", value)[:_MAX_LINES]]
    return escaped(str(value), MAX_VALUE)


def _error(record: logging.LogRecord, with_messages: bool) -> list[str]:
    """The exception of a record and its causes, each as ``Type: message`` followed by the innermost frames."""
    lines: list[str] = []
    current = record.exc_info[1] if record.exc_info else None
    while current is not None and len(lines) < _MAX_LINES:
        shown = with_messages or isinstance(current, GnusError | OSError)
        message = escaped(str(current), MAX_VALUE) if shown else _digest(str(current))
        frames = traceback.extract_tb(current.__traceback__)[-_MAX_FRAMES:]
        lines.append(f"{type(current).__name__}: {message}")
        lines.extend(f"  {escaped(frame.filename, MAX_VALUE)}:{frame.lineno} {frame.name}" for frame in frames)
        current = _cause(current)
    return lines[:_MAX_LINES]


def _cause(error: BaseException) -> BaseException | None:
    """What led to ``error``: the first member of a group, else the exception it was raised from or during."""
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def escaped(text: str, limit: int) -> str:
    """``text`` cut to ``limit``, control and format characters as escapes: it cannot begin a line or move a cursor."""
    cut = text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
    if cut.isprintable():
        return cut
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in cut
    )


def _digest(value: str | bytes) -> str:
    data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    return f"sha256:{hashlib.sha256(data).hexdigest()[:16]} ({len(data)} bytes)"
