"""The system calls that foreign code may make: one allow-list, in the format of the Open Container Initiative.

Only for x86_64, and only in its native calling convention: 32-bit and x32 calls end the process. Of the socket families
it knows Unix, IPv4 and IPv6; what is not named answers ``EPERM``, and ``clone3`` ``ENOSYS``, so that libc falls back to
``clone``, whose flags a filter can see.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from gnusnode.contracts import ids

MACHINE: Final = "x86_64"
_FILE: Final = Path(__file__).resolve().parent.parent / "data" / "seccomp-x86_64.json"


@cache
def profile() -> dict[str, Any]:
    """The list as plain data. Shared: do not change it."""
    return json.loads(_FILE.read_text("utf-8"))


@cache
def compact() -> str:
    """The list as Docker's ``--security-opt seccomp=`` takes it through the API: its JSON without spaces."""
    return json.dumps(profile(), separators=(",", ":"), sort_keys=True)


def digest_of(text: str) -> str:
    """``sha256:<hex>`` of a list in the form of ``compact``: what a ``Strength`` names."""
    return ids.sha256(text.encode())
