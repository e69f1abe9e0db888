"""Stands in for the parser process and goes wrong in the way that the document asks for."""

from __future__ import annotations

import os
import signal
import sys
import time

from sandbox import wire


def main() -> None:
    job = wire.read_frame(0)
    assert job is not None
    match job["data"].rpartition(b" ")[2]:
        case b"crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case b"leave":
            sys.exit(3)
        case b"hang":
            time.sleep(600)
        case b"garbage":
            os.write(1, b"\0\0\0\4junk")
        case b"shape":
            wire.write_frame(1, {"ev": "done", "text": 5})
        case b"unknown":
            wire.write_frame(1, {"ev": "refused", "reason": "because", "detail": ""})
        case _:
            wire.write_frame(1, {"ev": "something"})


if __name__ == "__main__":
    main()
