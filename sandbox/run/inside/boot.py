"""Takes one job from standard input and becomes it: the first thing that runs in every sandbox.

Says on standard output that it is ready, then reads a row of byte strings: how many, then each with its length before
it (4 bytes, big-endian). The first is the program, the others are paths and contents of files. What follows on standard
input is the job's own. Given to the interpreter as ``-c`` text; with the argument ``warm`` it imports what most
programs need before it is ready. Without, it imports nothing: a cold start should not pay for what may not be used.
"""

import importlib
import os
import sys
from types import ModuleType, TracebackType

COMMON = (
    "collections dataclasses datetime decimal functools itertools json linecache math random re statistics string "
    "traceback typing"
)
WORK = "/tmp/job"  # noqa: S108 - the sandbox's own, fresh for this job
NAME = "main.py"


def take(count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = os.read(0, min(count - len(data), 1 << 20))
        if not piece:
            os._exit(0)  # nobody wants this sandbox any more
        data += piece
    return data


def number() -> int:
    return int.from_bytes(take(4), "big")


def main() -> None:
    if sys.argv[1:] == ["warm"]:
        for name in COMMON.split():
            importlib.import_module(name)
    os.write(1, b"gnusnode:ready\n")
    source, *files = [take(number()) for _ in range(number())]
    os.mkdir(WORK)
    os.chdir(WORK)
    for path, content in zip(files[::2], files[1::2], strict=True):
        place = os.path.join(WORK, path.decode())
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as file:
            file.write(content)
    text = source.decode("utf-8", "surrogatepass")

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Prints a traceback without the frames of this program, and with the lines of the job's."""
        import linecache
        import traceback

        linecache.cache[NAME] = (len(text), None, text.splitlines(keepends=True), NAME)
        while trace and trace.tb_frame.f_globals is globals():
            trace = trace.tb_next
        traceback.print_exception(kind, error.with_traceback(trace), trace)

    sys.excepthook = report
    sys.path.insert(0, WORK)
    sys.argv = [NAME]
    program = ModuleType("__main__")
    program.__file__ = NAME
    sys.modules["__main__"] = program
    exec(compile(text, NAME, "exec", dont_inherit=True), vars(program))  # noqa: S102 - what a sandbox is for


main()
