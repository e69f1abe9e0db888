"""The frames of ``/gnus/rpc/1``: pure encoding and decoding, every size checked before it costs anything.

A message is a deterministic CBOR array of 1 to ``MAX_FRAMES`` frames, at most ``MAX_MESSAGE`` bytes; each frame is a
map with ``kind`` and exactly the fields of its class here, absent only where the class has a default. Encoded records
travel as ``body``, cut into parts of at most ``MAX_PART`` bytes: ``req``, ``res`` and ``item`` carry the first one,
``part`` the next of the same body of the same call, each with ``more`` until the last. Whatever breaks a rule here is
a ``ProtocolViolation``: no sound peer sends it.

| kind | from | says |
|---|---|---|
| ``req`` | caller | begins call ``call``; ids rise, and are the caller's own within its stream |
| ``part`` | both | more of the body that is under way |
| ``cancel`` | caller | the call's answer is no longer wanted |
| ``credit`` | caller | the call may send ``amount`` more: a part costs its length and ``PART_COST`` |
| ``res`` | callee | the response of a unary call; its last part ends the call |
| ``item`` | callee | an item of a streaming call |
| ``end`` | callee | a streaming call ended well |
| ``err`` | callee | a call failed: an error of the tree, as ``GnusError.to_wire`` |
| ``alive`` | both | the calls that run on this stream, said every ten seconds while there are any |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from gnusnode.contracts import canonical
from gnusnode.errors import MAX_TEXT, GnusError, ProtocolViolation

MAX_PART: Final = 64 * 1024
MAX_MESSAGE: Final = 128 * 1024
MAX_FRAMES: Final = 256
PART_COST: Final = 64
"""Bytes of credit that a part costs besides its body: what it costs to hold one."""
MAX_CALLS: Final = 256
"""Calls that one peer may have running at once."""
MIN_WINDOW: Final = 512
MAX_WINDOW: Final = 16 * 1024 * 1024
MAX_REMAINING_MS: Final = 24 * 3600 * 1000
_MAX_NAME: Final = 64
_MAX_ID: Final = 128
_MAX_CALL: Final = 2**53
_MAX_ERROR_FIELDS: Final = 8
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Request:
    """``window``: credit for the items of a streaming call, in bytes. ``plan``: digest of the plan that it serves."""

    call: int
    service: str
    method: str
    version: int
    request_id: str
    remaining_ms: int
    window: int
    body: bytes
    more: bool
    trace: str | None = None
    plan: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    call: int
    body: bytes
    more: bool


@dataclass(frozen=True, slots=True)
class Response:
    call: int
    body: bytes
    more: bool


@dataclass(frozen=True, slots=True)
class Item:
    call: int
    body: bytes
    more: bool


@dataclass(frozen=True, slots=True)
class End:
    call: int


@dataclass(frozen=True, slots=True)
class Error:
    call: int
    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cancel:
    call: int


@dataclass(frozen=True, slots=True)
class Credit:
    call: int
    amount: int


@dataclass(frozen=True, slots=True)
class Alive:
    calls: tuple[int, ...]


Frame: TypeAlias = Request | Part | Response | Item | End | Error | Cancel | Credit | Alive


# --- encoding ---------------------------------------------------------------------------------------------------------


def request(head: Request) -> bytes:
    """An encoded ``req``.

    Raises:
        ValueError: a field that its receiver would refuse.
    """
    plain: dict[str, Any] = {"kind": "req"}
    for name, check in _FIELDS["req"].items():
        value = getattr(head, name)
        if value is None and name in _OPTIONAL:
            continue
        if not check(value):
            raise ValueError(f"the field {name!r} of a request cannot travel")
        plain[name] = value
    return canonical.encode_known(plain)


def body_frame(kind: str, call: int, body: bytes, *, more: bool) -> bytes:
    """An encoded ``part``, ``res`` or ``item``; ``body`` is at most ``MAX_PART`` bytes."""
    return canonical.encode_known({"kind": kind, "call": call, "body": body, "more": more})


def body_frames(kind: str, call: int, body: bytes) -> list[bytes]:
    """``body`` as encoded frames: one of ``kind`` and, where it is longer, further parts."""
    if len(body) <= MAX_PART:
        return [body_frame(kind, call, body, more=False)]
    view = memoryview(body)
    return [
        body_frame(
            kind if start == 0 else "part",
            call,
            bytes(view[start : start + MAX_PART]),
            more=start + MAX_PART < len(body),
        )
        for start in range(0, len(body), MAX_PART)
    ]


def end(call: int) -> bytes:
    return canonical.encode_known({"kind": "end", "call": call})


def error(call: int, failure: GnusError) -> bytes:
    """An encoded ``err``. Texts are cut to what may travel."""
    plain: dict[str, Any] = {}
    for key, value in failure.to_wire().items():
        if isinstance(value, str):
            plain[key] = value[:MAX_TEXT].encode("utf-8", "replace").decode()  # a lone surrogate has no encoding
        elif _is_number(value):
            plain[key] = value
    return canonical.encode_known({"kind": "err", "call": call, "error": plain})


def cancel(call: int) -> bytes:
    return canonical.encode_known({"kind": "cancel", "call": call})


def credit(call: int, amount: int) -> bytes:
    return canonical.encode_known({"kind": "credit", "call": call, "amount": amount})


def alive(calls: Sequence[int]) -> bytes:
    return canonical.encode_known({"kind": "alive", "calls": list(calls)})


def join(frames: Sequence[bytes]) -> bytes:
    """The message of 1 to ``MAX_FRAMES`` encoded frames."""
    count = len(frames)
    if count < 24:
        head = bytes((0x80 | count,))
    elif count < 256:
        head = bytes((0x98, count))
    else:
        head = bytes((0x99,)) + count.to_bytes(2, "big")
    return head + b"".join(frames)


# --- decoding ---------------------------------------------------------------------------------------------------------


def decode(message: bytes) -> list[Frame]:
    """The frames of a message from a peer.

    Raises:
        ProtocolViolation: it is not exactly what this module writes.
    """
    try:
        plain = canonical.decode(message, max_bytes=MAX_MESSAGE)
    except canonical.NotCanonical as failure:
        raise violation(f"sent a message that is {failure}") from failure
    frames = cast("list[object]", plain) if isinstance(plain, list) else []
    if not 1 <= len(frames) <= MAX_FRAMES:
        raise violation("sent a message that is no array of frames")
    return [_frame(frame) for frame in frames]


def _frame(plain: object) -> Frame:
    if not isinstance(plain, dict):
        raise violation("sent a frame that is no map")
    fields = cast("dict[str, Any]", plain)  # keys are texts: `canonical.decode` saw to it
    kind = fields.pop("kind", None)
    checks = _FIELDS.get(kind) if isinstance(kind, str) else None
    if checks is None:
        raise violation("sent a frame of unknown kind")
    for name, value in fields.items():
        check = checks.get(name)
        if check is None or not check(value):
            raise violation(f"sent a frame {kind!r} whose field {name[:_MAX_NAME]!r} is unknown or out of bounds")
    if kind == "alive":
        fields["calls"] = tuple(fields.get("calls", ()))
    try:
        return _CLASSES[kind](**fields)
    except TypeError as failure:
        raise violation(f"sent a frame {kind!r} that lacks a field") from failure


def violation(what: str) -> ProtocolViolation:
    """What is raised of a peer that ``what``."""
    return ProtocolViolation(f"the peer broke the rpc protocol: it {what}", hint="update the older of the two nodes")


def _whole(low: int, high: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _text(longest: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and 0 < len(value) <= longest and value.isprintable()


def _is_body(value: object) -> bool:
    return isinstance(value, bytes) and 0 < len(value) <= MAX_PART


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _is_calls(value: object) -> bool:
    if not isinstance(value, list):
        return False
    calls = cast("list[object]", value)
    return len(calls) <= MAX_CALLS and all(map(_is_call, calls))


def _is_error(value: object) -> bool:
    """Texts and numbers by name; which of them mean something is `GnusError.from_wire`'s to say."""
    if not isinstance(value, dict):
        return False
    fields = cast("dict[str, object]", value)
    return 0 < len(fields) <= _MAX_ERROR_FIELDS and all(
        _is_number(item) or (isinstance(item, str) and len(item) <= MAX_TEXT) for item in fields.values()
    )


_is_call: Final = _whole(1, _MAX_CALL)
_BODY: Final[dict[str, Callable[[object], bool]]] = {"call": _is_call, "body": _is_body, "more": _is_flag}
_OPTIONAL: Final = frozenset({"trace", "plan"})
_FIELDS: Final[dict[str, dict[str, Callable[[object], bool]]]] = {
    "req": {
        **_BODY,
        "service": _text(_MAX_NAME),
        "method": _text(_MAX_NAME),
        "version": _whole(1, 2**31),
        "request_id": _text(_MAX_ID),
        "remaining_ms": _whole(1, MAX_REMAINING_MS),
        "window": _whole(MIN_WINDOW, MAX_WINDOW),
        "trace": _text(256),
        "plan": _is_digest,
    },
    "part": _BODY,
    "res": _BODY,
    "item": _BODY,
    "end": {"call": _is_call},
    "err": {"call": _is_call, "error": _is_error},
    "cancel": {"call": _is_call},
    "credit": {"call": _is_call, "amount": _whole(1, MAX_WINDOW)},
    "alive": {"calls": _is_calls},
}
_CLASSES: Final[dict[str, Callable[..., Frame]]] = {
    "req": Request,
    "part": Part,
    "res": Response,
    "item": Item,
    "end": End,
    "err": Error,
    "cancel": Cancel,
    "credit": Credit,
    "alive": Alive,
}
