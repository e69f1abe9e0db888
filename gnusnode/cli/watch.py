"""Following something that changes: redrawn in a terminal, told line by line anywhere else."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import Final

from gnusnode.cli import output

_CLEAR: Final = "\x1b[2J\x1b[H"
_SECONDS: Final = 1.0


def captured(draw: Callable[[], None]) -> list[str]:
    """The lines that ``draw`` prints."""
    page = io.StringIO()
    with redirect_stdout(page):
        draw()
    return page.getvalue().splitlines()


def follow(
    look: Callable[[], list[str]], *, restless: Sequence[str] = (), pause: Callable[[float], None] = time.sleep
) -> None:
    """Shows the lines of ``look`` until Ctrl-C, again whenever they have changed.

    Args:
        restless: beginnings of lines that change all the time: they are drawn, but are no reason to draw.
    """
    terminal = sys.stdout.isatty()
    before: list[str] = []
    while True:
        lines = look()
        steady = [line for line in lines if not line.startswith(tuple(restless))]
        if steady != before:
            if terminal:
                output.write(_CLEAR + "\n".join(lines) + "\n")
            else:
                known = set(before)
                output.write("".join(f"{line}\n" for line in steady if line not in known))
            before = steady
        pause(_SECONDS)  # the node is another process: there is nothing to await but the next look
