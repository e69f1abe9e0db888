"""Which shared libraries a program needs: all of them, theirs included."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gnusnode.errors import DataError

_LINE: Final = re.compile(r"^\s*(?:(\S+) => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)
_MISSING: Final = re.compile(r"^\s*(\S+) => not found$", re.MULTILINE)
_OPENED_AT_RUN_TIME: Final = "libgcc_s.so.1"
"""The end of a thread loads it by name, so no program lists it; without it the process aborts."""


class Loader(NamedTuple):
    """The program that starts programs: the name under which they ask for it, and its file here."""

    name: str
    file: Path


def libraries(programs: Sequence[Path]) -> tuple[Loader, dict[str, Path]]:
    """The loader of ``programs``, and the name and file of every library that they load.

    ``programs`` must be trusted: the system's ``ldd`` may run them.

    Raises:
        DataError: ``ldd`` is missing or does not understand a program, or a library is missing here.
    """
    text = _ldd(programs)
    if missing := _MISSING.findall(text):
        raise DataError(f"a shared library of this Python is missing: {missing[0]}", hint="install it and build again")
    loader: Loader | None = None
    found: dict[str, Path] = {}
    for name, path in _LINE.findall(text):
        if name:
            found[name] = Path(os.path.realpath(path))
        else:
            loader = Loader(path, Path(os.path.realpath(path)))
    if loader is None:
        raise DataError("this Python is a static program", hint="use one that is linked to the system's C library")
    found.setdefault(_OPENED_AT_RUN_TIME, _beside(found.values(), _OPENED_AT_RUN_TIME))
    return loader, found


def _ldd(programs: Sequence[Path]) -> str:
    try:
        done = subprocess.run(
            ["ldd", *map(str, programs)], capture_output=True, text=True, env={"PATH": os.defpath}, check=False
        )
    except FileNotFoundError as error:
        raise DataError("there is no ldd here", hint="install the C library's tools (Debian: libc-bin)") from error
    if done.returncode:
        raise DataError(f"ldd failed: {done.stderr.strip()[:200]}", where=str(programs[0]))
    return done.stdout


def _beside(known: Iterable[Path], name: str) -> Path:
    """The file of library ``name``, looked for where the other libraries are."""
    for directory in sorted({str(path.parent) for path in known}):
        if (file := Path(directory, name)).exists():
            return Path(os.path.realpath(file))
    raise DataError(f"there is no {name} here", hint="install it (Debian: libgcc-s1)")
