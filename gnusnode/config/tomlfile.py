"""TOML files with the line of every key, so that an error can point at it."""

from __future__ import annotations

import errno
import os
import re
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gnusnode.errors import ConfigError

MAX_BYTES: Final = 256 * 1024

KeyPath = tuple[str | int, ...]
"""Names of tables and keys; the index follows the name of an array of tables: ``("inference", "remote", 0, "url")``."""


@dataclass(frozen=True)
class TomlFile:
    path: Path
    text: str = field(repr=False)
    values: dict[str, Any]
    lines: dict[KeyPath, int] = field(repr=False)
    """Line (from 1) where each table and key begins."""

    def origin(self, key: KeyPath) -> str:
        """``path:line`` of ``key`` or of its nearest enclosing table."""
        for end in range(len(key), 0, -1):
            if key[:end] in self.lines:
                return f"{self.path}:{self.lines[key[:end]]}"
        return str(self.path)


def read(path: Path) -> TomlFile:
    """The parsed file.

    Raises:
        FileNotFoundError: there is none.
        ConfigError: unreadable, no regular file, too large, not UTF-8, or not TOML; names the line.
    """
    try:
        data = _read_regular(path)
    except FileNotFoundError as error:
        if path.is_symlink():  # settings that were meant, perhaps the stricter ones, would silently not hold
            raise ConfigError("this link leads to no file", where=str(path), hint="repair or remove it") from error
        raise
    except OSError as error:
        reason = f"cannot read the file: {error.strerror}"
        raise ConfigError(reason, where=str(path), hint="check what stands there, and its owner and mode") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"the file has more than {MAX_BYTES} bytes", where=str(path), hint="is this the right file?")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError("the file is not UTF-8", where=f"{path}:{line}", hint="save it as UTF-8") from error
    return parse(text, path)


def _read_regular(path: Path) -> bytes:
    # O_NONBLOCK: a named pipe in the place of the file must not hang the start.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(MAX_BYTES + 1)


def parse(text: str, path: Path) -> TomlFile:
    """``text`` as the content of ``path``; raises ``ConfigError`` with the line of a syntax error."""
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        where = f"{path}:{_error_line(str(error), text)}"
        reason = re.sub(r" \(at .*\)$", "", str(error))
        raise ConfigError(f"not valid TOML: {reason}", where=where, hint="correct this line") from error
    return TomlFile(path, text, values, _index(text))


def _error_line(message: str, text: str) -> int:
    found = re.search(r"at line (\d+)", message)
    return int(found[1]) if found else text.count("\n") + 1


def _index(text: str) -> dict[KeyPath, int]:
    """Lines of all keys of a text that is known to be TOML.

    A statement ends with the first line at which what has been gathered is TOML of its own; so strings and arrays over
    several lines need no grammar here.
    """
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    gathered, begin = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if not gathered and (not line.strip() or line.lstrip().startswith("#")):
            continue
        gathered, begin = f"{gathered}{line}\n", begin or number
        try:
            statement = tomllib.loads(gathered)
        except tomllib.TOMLDecodeError:
            continue
        if gathered.lstrip().startswith("["):
            table = _enter(statement, counts)
            lines[table] = begin
            lines.setdefault(tuple(part for part in table if isinstance(part, str)), begin)
        else:
            for key in _keys(statement):
                lines.setdefault((*table, *key), begin)
        gathered, begin = "", 0
    return lines


def _enter(header: dict[str, Any], counts: dict[KeyPath, int]) -> KeyPath:
    """The path that a table header opens; ``counts`` holds the last index of each array of tables."""
    path: list[str | int] = []
    node: Any = header
    while node:
        name: str = next(iter(node))
        node = node[name]
        path.append(name)
        here = tuple(path)
        if isinstance(node, list):  # ``[[name]]`` begins a further element
            counts[here] = counts.get(here, -1) + 1
            return (*here, counts[here])
        if here in counts:  # a table inside the last element
            path.append(counts[here])
    return tuple(path)


def _keys(statement: dict[str, Any], prefix: KeyPath = ()) -> list[KeyPath]:
    found: list[KeyPath] = []
    for name, value in statement.items():
        found.append((*prefix, name))
        if isinstance(value, dict):
            found.extend(_keys(value, (*prefix, name)))  # pyright: ignore[reportUnknownArgumentType]
    return found
