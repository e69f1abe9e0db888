"""Turns and credit on one rpc stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnusnode.errors import ProtocolViolation
from gnusnode.net import frames
from gnusnode.net.flow import Assembly, Inbox, Outbox, Window

BIG = b"x" * frames.MAX_PART


def calls_of(message: bytes) -> list[int]:
    return [frame.call for frame in frames.decode(message) if not isinstance(frame, frames.Alive)]


def part(call: int, body: bytes) -> bytes:
    return frames.body_frame("part", call, body, more=True)


def test_a_body_of_many_parts_holds_up_no_other_call():
    outbox = Outbox()
    for frame in frames.body_frames("res", 1, BIG * 20):
        outbox.put(1, frame)
    outbox.put(2, frames.end(2))
    outbox.put(3, frames.end(3))
    messages: list[int] = []
    while outbox:
        messages += calls_of(outbox.take())
    assert messages == [1, 2, 3] + [1] * 19


def test_small_frames_leave_together_and_no_message_is_over_its_limit():
    outbox = Outbox()
    for call in range(1, 101):
        outbox.put(call, part(call, b"x" * 100))
    assert len(calls_of(outbox.take())) == 100
    for call in range(1, 2001):
        outbox.put(call, frames.end(call))
    assert len(calls_of(outbox.take())) == frames.MAX_FRAMES
    for call in range(1, 10):
        outbox.put(call, part(call, BIG))
        outbox.put(call, frames.end(call))
    while outbox:
        assert len(outbox.take()) <= frames.MAX_MESSAGE


def test_urgent_frames_go_first():
    outbox = Outbox()
    outbox.put(1, frames.end(1))
    outbox.put_urgent(frames.cancel(2))
    assert calls_of(outbox.take()) == [2, 1]


def test_what_was_not_written_can_be_taken_back():
    outbox = Outbox()
    for frame in frames.body_frames("res", 1, BIG * 3):
        outbox.put(1, frame)
    outbox.put(2, frames.end(2))
    assert calls_of(outbox.take())[0] == 1
    assert outbox.drop(1) == 2
    assert outbox.drop(9) == 0
    assert not outbox or calls_of(outbox.take()) == [2]
    assert outbox.size == 0


def test_an_assembly_holds_no_more_than_its_limit():
    assembly = Assembly(10)
    assembly.add(b"12345")
    assembly.add(b"67890")
    assert assembly.take() == b"1234567890"
    assembly.add(b"x" * 10)
    with pytest.raises(OverflowError):
        assembly.add(b"x")


def test_a_sender_without_credit_and_one_with_too_much_are_violations():
    inbox = Inbox(1000, 10_000)
    inbox.add(b"x" * 900, more=False)
    with pytest.raises(ProtocolViolation, match="credit"):
        inbox.add(b"x", more=False)
    window = Window(1000)
    window.use(100)
    window.grant(164)
    with pytest.raises(ProtocolViolation, match="credit"):
        window.grant(1)


def test_many_tiny_items_cost_what_it_costs_to_hold_them():
    inbox = Inbox(64 * 1024, 1000)
    for _ in range(64 * 1024 // (frames.PART_COST + 1)):
        inbox.add(b"x", more=False)
    with pytest.raises(ProtocolViolation):
        inbox.add(b"x", more=False)


@given(
    window=st.integers(frames.MIN_WINDOW, 5000),
    sizes=st.lists(st.integers(1, 20_000), min_size=1, max_size=10),
    turns=st.lists(st.booleans(), max_size=100),
)
def test_every_item_passes_any_window_and_never_more_is_held_than_window_and_one_item(
    window: int, sizes: list[int], turns: list[bool]
):
    sender, inbox = Window(window), Inbox(window, 20_000)
    unsent, unread, held = [bytes(size) for size in sizes], sizes.copy(), 0
    while unread:
        step = sender.next_part(len(unsent[0])) if unsent else 0
        if step and (not inbox or (turns and turns.pop())):
            sender.use(step)
            unsent[0] = unsent[0][step:]
            inbox.add(bytes(step), more=bool(unsent[0]))
            held += step
            if not unsent[0]:
                unsent.pop(0)
                continue  # whole items are granted as they are read
        else:
            assert inbox, "nothing to read, and no credit to send: a deadlock"
            assert len(inbox.take()) == unread[0]
            held -= unread.pop(0)
        if amount := inbox.to_grant():
            sender.grant(amount)
        assert held <= window + 20_000
