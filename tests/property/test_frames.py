"""The frames of the rpc: what is written is read back, and no bytes of a stranger do more than raise one error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cbor2
from hypothesis import example, given
from hypothesis import strategies as st

from gnusnode.errors import GnusError, Overloaded, ProtocolViolation, RequestError
from gnusnode.net import frames

CALLS = st.integers(1, 2**53)
BODIES = st.binary(min_size=1, max_size=300)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz_.", min_size=1, max_size=64)
REQUESTS = st.builds(
    frames.Request,
    call=CALLS,
    service=NAMES,
    method=NAMES,
    version=st.integers(1, 2**31),
    request_id=NAMES,
    remaining_ms=st.integers(1, frames.MAX_REMAINING_MS),
    window=st.integers(frames.MIN_WINDOW, frames.MAX_WINDOW),
    body=BODIES,
    more=st.booleans(),
    trace=st.none() | NAMES,
    plan=st.none() | st.just("sha256:" + "0f" * 32),
)
ERRORS = st.builds(
    Overloaded,
    st.text(max_size=3000),
    where=st.none() | st.text(max_size=3000),
    hint=st.none() | st.text(max_size=10),
    param=st.none() | st.text(max_size=3000),
    retry_after=st.none() | st.floats(),
)


def _body(cls: Any, kind: str) -> st.SearchStrategy[tuple[frames.Frame, bytes]]:
    return st.tuples(CALLS, BODIES, st.booleans()).map(
        lambda drawn: (cls(*drawn), frames.body_frame(kind, drawn[0], drawn[1], more=drawn[2]))
    )


PAIRS: st.SearchStrategy[tuple[frames.Frame, bytes]] = st.one_of(
    REQUESTS.map(lambda head: (head, frames.request(head))),
    _body(frames.Part, "part"),
    _body(frames.Response, "res"),
    _body(frames.Item, "item"),
    CALLS.map(lambda call: (frames.End(call), frames.end(call))),
    CALLS.map(lambda call: (frames.Cancel(call), frames.cancel(call))),
    st.tuples(CALLS, st.integers(1, frames.MAX_WINDOW)).map(
        lambda drawn: (frames.Credit(*drawn), frames.credit(*drawn))
    ),
    st.lists(CALLS, max_size=frames.MAX_CALLS).map(lambda calls: (frames.Alive(tuple(calls)), frames.alive(calls))),
)


@given(st.lists(PAIRS, min_size=1, max_size=10))
def test_what_is_written_is_what_is_read(pairs: list[tuple[frames.Frame, bytes]]):
    assert frames.decode(frames.join([encoded for _, encoded in pairs])) == [frame for frame, _ in pairs]


@given(st.integers(1, frames.MAX_FRAMES))
def test_a_message_of_any_allowed_number_of_frames_is_readable(count: int):
    assert frames.decode(frames.join([frames.end(1)] * count)) == [frames.End(1)] * count


@given(CALLS, ERRORS)
@example(1, Overloaded("\ud800" * 5000, where="\ud800", hint="é" * 3000, param="x" * 10_000, retry_after=float("nan")))
@example(1, Overloaded("", where="", retry_after=1e300))
def test_every_error_travels_as_its_class_and_fits_a_frame(call: int, error: GnusError):
    encoded = frames.error(call, error)
    assert len(encoded) < frames.MAX_PART
    [frame] = frames.decode(frames.join([encoded]))
    assert isinstance(frame, frames.Error)
    assert frame.call == call
    assert type(GnusError.from_wire(frame.error)) is Overloaded


@given(st.binary(min_size=1, max_size=300_000))
def test_a_body_is_cut_into_parts_that_make_it_up(body: bytes):
    encoded = frames.body_frames("res", 7, body)
    decoded = [frame for each in encoded for frame in frames.decode(frames.join([each]))]
    assert [type(frame) for frame in decoded] == [frames.Response] + [frames.Part] * (len(encoded) - 1)
    parts = [frame for frame in decoded if isinstance(frame, frames.Response | frames.Part)]
    assert b"".join(part.body for part in parts) == body
    assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]


# --- strangers --------------------------------------------------------------------------------------------------------


def survives(message: bytes) -> None:
    try:
        found = frames.decode(message)
    except ProtocolViolation:
        return
    assert 1 <= len(found) <= frames.MAX_FRAMES


@given(st.binary(max_size=2000))
def test_no_bytes_do_more_than_raise_a_violation(message: bytes):
    survives(message)


@given(PAIRS, st.integers(0, 10_000), st.binary(min_size=1, max_size=4))
def test_no_change_to_a_message_does_more_than_raise_a_violation(
    pair: tuple[frames.Frame, bytes], at: int, change: bytes
):
    message = bytearray(frames.join([pair[1]]))
    at %= len(message)
    message[at : at + len(change)] = change
    survives(bytes(message))
    survives(bytes(message[:at]))


FIELDS = st.sampled_from(["call", "body", "more", "error", "amount", "calls", "service", "window", "trace", "else"])
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS | st.text(), inner, max_size=3),
    max_leaves=8,
)
KINDS = st.sampled_from(["req", "part", "res", "item", "end", "err", "cancel", "credit", "alive", "else"])


@given(
    st.lists(st.builds(lambda kind, more: {**more, "kind": kind}, KINDS, st.dictionaries(FIELDS, PLAIN)), max_size=4)
)
def test_frames_of_wrong_fields_do_no_more_than_raise_a_violation(plain: list[dict[str, Any]]):
    survives(cbor2.dumps(plain, canonical=True))


@given(REQUESTS, st.data())
def test_a_field_that_its_receiver_would_refuse_is_refused_by_its_sender(head: frames.Request, data: st.DataObject):
    name, value = data.draw(
        st.sampled_from(
            [
                ("call", 0),
                ("service", ""),
                ("service", "x" * 65),
                ("method", "\n"),
                ("version", 0),
                ("request_id", "x" * 129),
                ("remaining_ms", 0),
                ("window", 1),
                ("body", b""),
                ("body", b"x" * (frames.MAX_PART + 1)),
                ("trace", ""),
                ("plan", "sha256:xyz"),
            ]
        )
    )
    try:
        frames.request(replace(head, **{name: value}))
    except ValueError:
        return
    raise AssertionError(f"{name}={value!r} was written")


def test_the_error_of_a_stranger_becomes_one_of_the_tree():
    [frame] = frames.decode(frames.join([frames.error(1, RequestError("no", retry_after=2))]))
    assert isinstance(frame, frames.Error)
    assert GnusError.from_wire(frame.error).to_wire() == RequestError("no", retry_after=2).to_wire()
    with_unknown = cbor2.dumps([{"kind": "err", "call": 1, "error": {"code": "nonsense", "what": "x"}}], canonical=True)
    [frame] = frames.decode(with_unknown)
    assert isinstance(frame, frames.Error)
    assert GnusError.from_wire(frame.error).code == "internal_error"
