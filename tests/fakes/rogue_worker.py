"""A worker that broke out: instead of running a module it does to the host what its first argument says."""

from __future__ import annotations

import os
import sys
import time

from sandbox import wire
from tests.fakes.wasm_modules import request

HOW = os.environ.get("ROGUE", sys.argv[1] if len(sys.argv) > 1 else "")


def say(frame: dict[str, object]) -> None:
    wire.write_frame(1, frame)


wire.read_frame(0)
if HOW == "unready":
    print("no luck here", file=sys.stderr)
    os._exit(3)
say({"ev": "ready"})
wire.read_frame(0)
match HOW:
    case "junk":
        os.write(1, b"\0\0\0\x03abc")
    case "huge":
        os.write(1, b"\xff\xff\xff\xff")
    case "unknown":
        say({"ev": "grant", "name": "net.connect"})
    case "half":
        os.write(1, b"\0\0\0\x20\xa1")
    case "crash":
        print("thread panicked", file=sys.stderr, flush=True)
        os.abort()
    case "forged":
        say({"ev": "done", "ending": "splendid", "value": 1, "fuel_used": 0, "reason": ""})
    case "odd":
        say({"ev": "done", "ending": "ok", "value": "1", "fuel_used": 0, "reason": ""})
    case "flood":
        while True:
            say({"ev": "call", "request": request("clock.now", "coarse")})
    case "deaf":
        time.sleep(60)
    case _:
        os._exit(2)
