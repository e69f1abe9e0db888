"""An engine child without a model: speaks the frames, and misbehaves as its input says.

The model path says how loading goes: ``refuse``, ``die``, ``never-ready``, ``garbage``; anything else loads. The prompt
text says what a generation does; see ``_GENERATIONS``. ``count`` is the well-behaved one: tokens 0 … max_tokens - 1.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from gnusnode.contracts.generation import (
    CapabilityRequest,
    ClassifyResult,
    Delta,
    Done,
    EmbedResult,
    GenerateRequest,
    ScoreResult,
    Started,
    Timing,
    Usage,
)
from gnusnode.errors import Cancelled, ContextTooLong, ModelInvalid
from gnusnode.inference.frames import Unpacker, pack

_inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
_cancelled: set[int] = set()
_deaf = threading.Event()
_memory = {"rss": 1_000_000}


def say(frame: dict[str, Any]) -> None:
    write(pack(frame))


def write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def read_forever() -> None:
    unpacker = Unpacker()
    while data := os.read(0, 65536):
        if _deaf.is_set():
            time.sleep(600)
        for frame in unpacker.feed(data):
            if frame["op"] == "cancel":
                _cancelled.add(frame["id"])
            elif frame["op"] == "quit":
                os._exit(0)
            _inbox.put(frame)
    os._exit(0)


def die(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def started(number: int) -> None:
    say({"ev": "started", "id": number, "body": Started(prompt_tokens=(1, 2)).to_plain()})


def step(number: int, token: int, text: str | None = None) -> None:
    delta = Delta(text=f"{token} " if text is None else text, tokens=(token,))
    say({"ev": "step", "deltas": [[number, delta.to_plain()]]})


def done(number: int, tokens: int) -> None:
    body = Done(
        finish_reason="length",
        tokens=tuple(range(tokens)),
        usage=Usage(prompt_tokens=2, completion_tokens=tokens),
        timing=Timing(),
    )
    say({"ev": "done", "id": number, "body": body.to_plain()})


def count(number: int, request: GenerateRequest, _argument: str) -> None:
    for token in range(request.max_tokens):
        if number in _cancelled:
            say({"ev": "error", "id": number, "error": Cancelled("stopped").to_wire()})
            return
        step(number, token)
    done(number, request.max_tokens)


def forever(number: int, request: GenerateRequest, _argument: str) -> None:
    step(number, 0)
    _waiting.append(number)


def fat(number: int, request: GenerateRequest, argument: str) -> None:
    """Deltas of 10,000 characters."""
    for token in range(request.max_tokens):
        if number in _cancelled:
            say({"ev": "error", "id": number, "error": Cancelled("stopped").to_wire()})
            return
        step(number, token, "x" * 10_000)
    done(number, request.max_tokens)


def surplus(number: int, request: GenerateRequest, _argument: str) -> None:
    for token in range(request.max_tokens * 10 + 100):
        step(number, token)


def deaf(number: int, request: GenerateRequest, _argument: str) -> None:
    step(number, 0)  # and never anything more, cancelled or not


def crash(number: int, request: GenerateRequest, argument: str) -> None:
    step(number, 0)
    die(getattr(signal, argument))


def unfinished(number: int, request: GenerateRequest, _argument: str) -> None:
    step(number, 0)
    os._exit(0)


def orphan(number: int, request: GenerateRequest, _argument: str) -> None:
    """Ends, while a process that it started holds the pipe."""
    step(number, 0)
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)


def raw(number: int, request: GenerateRequest, argument: str) -> None:
    step(number, 0)
    write(bytes.fromhex(argument))


def too_long(number: int, request: GenerateRequest, _argument: str) -> None:
    say({"ev": "error", "id": number, "error": ContextTooLong("does not fit", param="messages").to_wire()})


def stranger(number: int, request: GenerateRequest, _argument: str) -> None:
    step(number + 1000, 0)


def twice(number: int, request: GenerateRequest, _argument: str) -> None:
    started(number)


def early(number: int, request: GenerateRequest, _argument: str) -> None:
    step(number, 0)


def unbegun(number: int, request: GenerateRequest, _argument: str) -> None:
    done(number, 0)


def beg(number: int, request: GenerateRequest, _argument: str) -> None:
    """Asks for capabilities without end, and reads no answer: the reader thread is made to hang."""
    _deaf.set()
    body = CapabilityRequest(name="net.fetch", scope="example.org").to_plain()
    while True:
        say({"ev": "capability", "n": 1, "body": body})


def grow(number: int, request: GenerateRequest, argument: str) -> None:
    """Holds more memory from now on, or says so."""
    _memory["rss"] = int(argument)
    forever(number, request, "")


def chatter(number: int, request: GenerateRequest, _argument: str) -> None:
    for line in range(1000):
        say({"ev": "log", "level": "warning", "text": f"line {line}"})
    count(number, request, "")


def ask_capability(number: int, request: GenerateRequest, _argument: str) -> None:
    body = CapabilityRequest(name="net.fetch", scope="example.org")
    say({"ev": "capability", "n": 1, "body": body.to_plain()})
    while (frame := _inbox.get())["op"] != "verdict":
        pass
    step(number, 0, f"{frame['body']['granted']}")
    done(number, 1)


_waiting: list[int] = []
_GENERATIONS = {
    "count": count,
    "forever": forever,
    "fat": fat,
    "surplus": surplus,
    "deaf": deaf,
    "crash": crash,
    "unfinished": unfinished,
    "raw": raw,
    "orphan": orphan,
    "too-long": too_long,
    "stranger": stranger,
    "twice": twice,
    "early": early,
    "unbegun": unbegun,
    "beg": beg,
    "chatter": chatter,
    "grow": grow,
    "capability": ask_capability,
}


def generate(number: int, request: GenerateRequest) -> None:
    name, _, argument = (request.prompt.text or "count").partition(":")
    if name == "crash-early":  # before it begins; with a file name: only while the file does not exist
        if not argument or not Path(argument).exists():
            if argument:
                Path(argument).touch()
            die(signal.SIGKILL)
        name = "count"
    if name not in ("too-long", "early", "unbegun"):
        started(number)
    _GENERATIONS[name](number, request, argument)


def load(spec: dict[str, Any]) -> None:
    match spec["model_path"]:
        case "refuse":
            say({"ev": "error", "id": None, "error": ModelInvalid("not a model", where="refuse").to_wire()})
            sys.exit(0)
        case "die":
            die(signal.SIGABRT)
        case "never-ready":
            time.sleep(600)
        case "garbage":
            write(b"Traceback (most recent call last):")
        case "odd":
            say({"ev": "ready", "info": {"slots": [], "prefill_rate": "fast"}})
        case _:
            info = {"n_ctx": spec["n_ctx"], "slots": spec["slots"], "prefill_rate": 10_000.0, "decode_rate": 50.0}
            say({"ev": "ready", "info": info | {"build": "fake", "n_vocab": 1000}})


def serve(frame: dict[str, Any]) -> None:
    match frame["op"]:
        case "load":
            load(frame["spec"])
        case "ping":
            say({"ev": "pong", "n": frame["n"], "active": 0, "queued": 0, "prefill_rate": 10_000.0, "decode_rate": 50.0,
                 "rss": _memory["rss"]})  # fmt: skip
        case "generate":
            generate(frame["id"], GenerateRequest.model_validate(frame["request"]))
        case "classify" if frame["request"]["instruction"] == "step":
            step(frame["id"], 0)
        case "classify" if frame["request"]["instruction"] == "started":
            started(frame["id"])
        case "classify":
            body = ClassifyResult(label="a", probabilities=(0.75, 0.25), margin=0.5, raw_logprobs=(-1.0, -2.0))
            say({"ev": "result", "id": frame["id"], "body": body.to_plain()})
        case "score":
            body = ScoreResult(gaps=(0.0,), ranks=(0,), logprobs=(-0.5,), argmax_match=1.0)
            say({"ev": "result", "id": frame["id"], "body": body.to_plain()})
        case "embed":
            body = EmbedResult(vectors=((1.0, 0.0),), prompt_tokens=3)
            say({"ev": "result", "id": frame["id"], "body": body.to_plain()})
        case "cancel" if frame["id"] in _waiting:
            _waiting.remove(frame["id"])
            say({"ev": "error", "id": frame["id"], "error": Cancelled("stopped").to_wire()})
        case _:
            pass


if __name__ == "__main__":
    threading.Thread(target=read_forever, daemon=True).start()
    while True:
        serve(_inbox.get())
