"""What the terminal shows: JSON or aligned text, progress, and errors that say what, where and what next."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer

from gnusnode.errors import GnusError

P = ParamSpec("P")
R = TypeVar("R")

HomeOption = Annotated[
    str | None,
    typer.Option("--home", help="The node's folder; moves everything, the key included.", envvar="GNUSNODE_HOME"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def emit(data: Any) -> None:
    """Prints ``data`` as one JSON document."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=not _utf8(sys.stdout)) + "\n")


def say(text: str) -> None:
    """Prints text, whatever the terminal's encoding."""
    _write(sys.stdout, text + "\n")


def note(text: str) -> None:
    """A remark beside the result: on stderr, so that pipes stay clean."""
    _write(sys.stderr, text + "\n")


def write(text: str) -> None:
    """Part of a line, shown at once."""
    _write(sys.stdout, text)
    sys.stdout.flush()


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Aligned columns with a heading; prints nothing for no rows."""
    if not rows:
        return
    cells = [[column.upper() for column in columns]]
    cells += [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def fields(data: Mapping[str, Any]) -> None:
    """``name: value`` lines, aligned."""
    width = max((len(key) for key in data), default=0)
    for key, value in data.items():
        say(f"{key.ljust(width)}  {_cell(value)}")


def fail(error: GnusError, *, as_json: bool = False) -> NoReturn:
    """Shows an error and leaves with its documented exit code."""
    if as_json:
        note(json.dumps({"error": error.to_wire()}))
    else:
        note(f"error: {error.what}")
        if error.where:
            note(f"  where: {error.where}")
        if error.hint:
            note(f"  next:  {error.hint}")
    raise typer.Exit(error.exit_code)


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """A command whose expected failures become messages and exit codes, and whose Ctrl-C becomes 130."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except GnusError as error:
            fail(error, as_json=bool(kwargs.get("as_json")))
        except KeyboardInterrupt:
            note("")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader of a pipe left (`gnusnode … | head`): not an error of ours.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None

    return run


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


def _write(stream: Any, text: str) -> None:
    encoding = getattr(stream, "encoding", None) or "ascii"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
