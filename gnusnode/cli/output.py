"""What the terminal shows: JSON or aligned text, progress, and errors that say what, where and what next."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer

from gnusnode.errors import Conflict, Forbidden, GnusError, NotFound, storage_error

P = ParamSpec("P")
R = TypeVar("R")

HomeOption = Annotated[
    str | None,
    typer.Option("--home", help="The node's folder; moves everything, the key included.", envvar="GNUSNODE_HOME"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def emit(data: Any) -> None:
    """Prints ``data`` as one JSON document."""
    _write(sys.stdout, json.dumps(data, indent=2, ensure_ascii=not _utf8(sys.stdout)) + "\n")


def say(text: str) -> None:
    """Prints text, whatever the terminal's encoding."""
    _write(sys.stdout, text + "\n")


def note(text: str) -> None:
    """A remark beside the result: on stderr, so that pipes stay clean."""
    _write(sys.stderr, text + "\n")


def aside(text: str) -> None:
    """A remark that few need: as ``note``, and dim where the terminal can."""
    note(f"\x1b[2m{text}\x1b[0m" if sys.stderr and sys.stderr.isatty() and "NO_COLOR" not in os.environ else text)


def write(text: str) -> None:
    """Part of a line, shown at once."""
    _write(sys.stdout, text)
    _flush()


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Aligned columns with a heading; prints nothing for no rows. A terminal gets lines that fit into it."""
    if not rows:
        return
    cells = [[column.upper().replace("_", " ") for column in columns]]
    cells += [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    room = shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None
    for line in cells:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        say(text if room is None or len(text) <= room else f"{text[: room - 1]}…")


def fields(data: Mapping[str, Any]) -> None:
    """``name: value`` lines, aligned."""
    width = max((len(key) for key in data), default=0)
    for key, value in data.items():
        say(f"{key.ljust(width)}  {_cell(value)}")


def show(error: GnusError) -> None:
    """An error on stderr: what, where, what next."""
    note(f"error: {error.what}")
    if error.where:
        note(f"  where: {error.where}")
    if error.hint:
        note(f"  next:  {error.hint}")


def fail(error: GnusError, *, as_json: bool = False) -> NoReturn:
    """Shows an error and leaves with its documented exit code."""
    if as_json:
        note(json.dumps({"error": error.to_wire()}))
    else:
        show(error)
    raise typer.Exit(error.exit_code)


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """A command whose expected failures become messages and exit codes, and whose Ctrl-C becomes 130."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        as_json = bool(kwargs.get("as_json"))
        try:
            result = command(*args, **kwargs)
            _flush()  # here, where a failure can still be told, and not when the interpreter ends
            return result
        except GnusError as error:
            fail(error, as_json=as_json)
        except KeyboardInterrupt:
            note("")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader of a pipe left (`gnusnode … | head`): not an error of ours.
            _drop_output()
            raise typer.Exit(0) from None
        except OSError as error:
            if error.filename is None:
                _drop_output()
            fail(file_error(error), as_json=as_json)

    return run


def new_file(file: Path) -> None:
    """Refuses a file that cannot be made, before the work that fills it.

    Raises:
        Conflict: it exists. NotFound: its folder does not.
    """
    if os.path.lexists(file):
        raise Conflict("the file exists", where=str(file), hint="remove it, or choose another name")
    folder(file.parent)


def folder(path: Path) -> None:
    """Refuses a folder that does not exist.

    Raises:
        NotFound.
    """
    if not path.is_dir():
        raise NotFound("there is no such folder", where=str(path), hint="make it first, or choose another one")


def file_error(error: OSError) -> GnusError:
    """The typed error of a file that the user named, or of the terminal where none is named."""
    where = "standard output" if error.filename is None else str(error.filename)
    reason = error.strerror or str(error)
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return storage_error(error, where, "cannot write")
        case errno.EEXIST:
            return Conflict("the file exists", where=where, hint="remove it, or choose another name")
        case errno.ENOENT | errno.ENOTDIR:
            return NotFound(f"cannot open it: {reason}", where=where, hint="check the path")
        case _:
            return Forbidden(f"cannot use it: {reason}", where=where, hint="check its owner and mode")


@contextmanager
def progress(title: str) -> Generator[Callable[[int, int | None], None]]:
    """A progress bar on stderr, fed with ``(bytes done, bytes in all or None)``; silent when nobody watches."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def day(seconds: float | None) -> str:
    """Unix seconds for people, in UTC: ``2026-11-30 14:22``; None: ``never``."""
    return "never" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def size(count: float | None) -> str:
    """Bytes for people: ``93.1 MB``."""
    if count is None:
        return "?"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.2f}".rstrip("0").rstrip(".")
        case list() | tuple():
            return ", ".join(str(item) for item in value) or "-"  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case _:
            return str(value)


def _utf8(stream: Any) -> bool:
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"


def _flush() -> None:
    if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison] - None when the shell closed it (>&-)
        sys.stdout.flush()


def _drop_output() -> None:
    """What is still in the buffer goes nowhere: writing it at the end would fail once more."""
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write(stream: Any, text: str) -> None:
    if stream is None:
        return  # the shell closed it (>&-): nobody wants to know
    encoding = getattr(stream, "encoding", None) or "ascii"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
