"""``python -m gnusnode.documents.worker``: parses one hostile document, confined, and ends.

    to the worker                              from the worker
    {op: read, data, declared, url, limits}    {ev: done, …} or {ev: refused, reason, detail}

Confinement comes before the document is looked at and before a native library is loaded.
"""

from __future__ import annotations

import os
from typing import Any, Final

from gnusnode.documents import passing
from gnusnode.errors import GnusError
from gnusnode.sanitize.extract import Refusal, Refused
from sandbox import confine, wire

REQUIRED: Final = ("seccomp", "landlock", "no-new-privileges", "limit-as", "limit-cpu")
"""Without these the worker does not touch a document."""


def main() -> int:
    """Serves one document; the exit status only says whether the pipe held."""
    out = os.dup(1)
    os.dup2(2, 1)  # native code prints where it likes; frames go out over a copy
    frame = wire.read_frame(0)
    if frame is None:
        return 0
    wire.write_frame(out, _answer(frame))
    return 0


def _answer(frame: dict[str, Any]) -> dict[str, Any]:
    profile = confine.ConfineProfile(max_memory=frame["memory"], max_files=32, max_cpu_seconds=frame["cpu_seconds"])
    try:
        confine.apply(profile).require(*REQUIRED)
    except GnusError as error:
        return passing.refusal_frame(Refused(Refusal.NOT_CONFINED, str(error)))
    from gnusnode.sanitize.document import extract  # loads native libraries: only now is the process confined

    try:
        return passing.to_frame(extract(frame["data"], frame["declared"], url=frame["url"]))
    except Refused as refused:
        return passing.refusal_frame(refused)
    except MemoryError:
        return passing.refusal_frame(Refused(Refusal.TOO_LARGE, "the document needs more memory than it may have"))
    except Exception as error:  # noqa: BLE001 - a fault of a parser must end in a refusal, whatever it raises
        name = type(error).__name__
        return passing.refusal_frame(Refused(Refusal.PARSER_FAILED, f"the parser failed: {name}"))


if __name__ == "__main__":
    # Not sys.exit: native libraries may abort while the interpreter shuts down.
    os._exit(main())
