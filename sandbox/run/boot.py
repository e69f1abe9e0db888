"""How a job gets into a sandbox: the small program that waits inside, and what it is sent.

One protocol for every backend that can give a program standard input and output. The boot program says ``READY`` on
standard output before it has seen anything foreign; everything that comes after it is the job's own.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Final

from sandbox.run.types import Job

INTERPRETER: Final = "/usr/bin/python3"
"""Where the image that we make has Python."""
READY: Final = b"gnusnode:ready\n"
ENVIRONMENT: Final = {"HOME": "/tmp", "LANG": "C.UTF-8", "PATH": "/usr/bin"}  # noqa: S108 - inside the sandbox
"""The whole environment of a program, besides what the image itself needs."""


@cache
def program() -> str:
    """The text of the boot program."""
    return (Path(__file__).parent / "inside" / "boot.py").read_text("utf-8")


def command(interpreter: str = INTERPRETER, *, warm: bool = False) -> tuple[str, ...]:
    """The command line that waits for a job: isolated from the environment, without bytecode of its own.

    Args:
        interpreter: its path inside the sandbox.
        warm: import what most programs need before the job is there.
    """
    return (interpreter, "-I", "-B", "-u", "-c", program(), *(("warm",) if warm else ()))


def message(job: Job) -> bytes:
    """What is written to standard input after ``READY``: the job, then what it finds on its own standard input."""
    parts = [job.source.encode("utf-8", "surrogatepass")]
    for path, content in job.files:
        parts += [path.encode(), content]
    framed = b"".join(struct.pack(">I", len(part)) + part for part in parts)
    return struct.pack(">I", len(parts)) + framed + job.stdin
