"""Turns: who gets a slot when long generations hold them all. The child is a list of the frames that it was sent."""

from __future__ import annotations

import uuid

import pytest
from trio.testing import MockClock

from gnusnode.contracts.generation import Delta, Done, GenerateRequest, Prompt, Started, Timing, Usage
from gnusnode.errors import EngineFailed
from gnusnode.inference.crashes import CrashLedger
from gnusnode.inference.dispatch import Dispatcher
from gnusnode.inference.frames import Unpacker
from gnusnode.inference.jobs import Job
from gnusnode.inference.queue import QueueLimits, Rates

PATIENCE = 3.0


class Desk:
    """A dispatcher with a child that does what the test says."""

    def __init__(self, slots: int = 1, *, turns: bool = True) -> None:
        limits = QueueLimits(patience=PATIENCE)
        self.dispatcher = Dispatcher(slots, limits, stream_bytes=10**6, stream_events=10**4, turns=turns)
        self.sent: list[tuple[str, int]] = []
        self._unpacker = Unpacker()
        self.dispatcher.attach(self._post, slots)

    def _post(self, data: bytes) -> None:
        self.sent += [(frame["op"], frame["id"]) for frame in self._unpacker.feed(data)]

    def submit(self, *, max_tokens: int = 2048, deadline_ms: int | None = None) -> Job:
        prompt = Prompt(text="hello")
        request = GenerateRequest(
            request_id=str(uuid.uuid4()), prompt=prompt, max_tokens=max_tokens, deadline_ms=deadline_ms
        )
        return self.dispatcher.submit("generate", request)

    def start(self, job: Job) -> None:
        body = Started(prompt_tokens=(1, 2)).to_plain()
        self.dispatcher.handle({"ev": "started", "id": job.number, "body": body})

    def tokens(self, job: Job, count: int) -> None:
        delta = Delta(text="x", tokens=tuple(range(count))).to_plain()
        self.dispatcher.handle({"ev": "step", "deltas": [[job.number, delta]]})

    def finish(self, job: Job) -> None:
        body = Done(
            finish_reason="stop", tokens=(1,), usage=Usage(prompt_tokens=2, completion_tokens=1), timing=Timing()
        )
        self.dispatcher.handle({"ev": "done", "id": job.number, "body": body.to_plain()})


def running(desk: Desk) -> Job:
    job = desk.submit()
    desk.start(job)
    return job


async def test_a_generation_that_had_its_turn_gives_way_and_goes_on_later(mock_clock: MockClock) -> None:
    desk = Desk()
    long, short, other = running(desk), desk.submit(), desk.submit()
    mock_clock.jump(PATIENCE)
    desk.tokens(long, 63)
    assert desk.sent == [("generate", 1)]
    desk.tokens(long, 1)
    assert desk.sent[1:] == [("pause", 1), ("generate", 2)]
    desk.start(short)
    desk.tokens(long, 2)  # were under way when it was paused
    desk.finish(short)
    desk.start(other)
    desk.finish(other)
    assert desk.sent[3:] == [("generate", 3), ("resume", 1)]
    desk.finish(long)
    assert desk.dispatcher.idle
    events = [event async for event in long.stream]
    assert [type(event) for event in events] == [Started, Delta, Delta, Delta, Done]


async def test_nobody_gives_way_to_one_that_has_just_come(mock_clock: MockClock) -> None:
    desk = Desk()
    long = running(desk)
    desk.submit()
    mock_clock.jump(PATIENCE - 0.1)
    desk.tokens(long, 500)
    assert desk.sent == [("generate", 1)]
    mock_clock.jump(0.1)
    desk.tokens(long, 1)
    assert desk.sent[1:] == [("pause", 1), ("generate", 2)]


async def test_new_requests_come_before_those_that_had_a_turn(mock_clock: MockClock) -> None:
    desk = Desk()
    first, second = running(desk), desk.submit()
    mock_clock.jump(PATIENCE)
    desk.tokens(first, 64)
    desk.start(second)
    third = desk.submit()
    mock_clock.jump(PATIENCE)
    desk.tokens(second, 64)
    assert third.number is not None
    assert ("resume", 1) not in desk.sent


async def test_later_turns_are_longer_because_more_is_fed_again(mock_clock: MockClock) -> None:
    desk = Desk()
    first, second = running(desk), desk.submit()
    mock_clock.jump(PATIENCE)
    desk.tokens(first, 64)
    desk.start(second)
    mock_clock.jump(PATIENCE)
    desk.tokens(second, 64)
    mock_clock.jump(PATIENCE)
    desk.tokens(first, 200)
    assert desk.sent[-1] == ("resume", 1)
    desk.tokens(first, 100)
    assert desk.sent[-2:] == [("pause", 1), ("resume", 2)]


async def test_without_turns_nothing_is_paused(mock_clock: MockClock) -> None:
    desk = Desk(turns=False)
    long = running(desk)
    desk.submit()
    mock_clock.jump(60)
    desk.tokens(long, 2000)
    assert desk.sent == [("generate", 1)]


async def test_a_generation_that_ended_before_its_pause_arrived_is_over(mock_clock: MockClock) -> None:
    desk = Desk()
    long, short = running(desk), desk.submit()
    mock_clock.jump(PATIENCE)
    desk.tokens(long, 64)
    desk.finish(long)
    assert long.over.is_set()
    desk.start(short)
    desk.finish(short)
    assert desk.dispatcher.idle
    assert desk.sent[-1] == ("generate", 2)


async def test_paused_generations_can_be_left_and_die_with_their_child(mock_clock: MockClock) -> None:
    desk = Desk()
    left, kept = running(desk), desk.submit()
    mock_clock.jump(PATIENCE)
    desk.tokens(left, 64)
    desk.start(kept)
    other = desk.submit()
    mock_clock.jump(PATIENCE)
    desk.tokens(kept, 64)
    desk.dispatcher.abandon(left)
    assert desk.sent[-1] == ("cancel", 1)
    desk.dispatcher.child_died("was killed", CrashLedger(), rerun=True)
    with pytest.raises(EngineFailed, match="was killed"):
        await anext(kept.stream)
    assert left.over.is_set()
    assert kept.over.is_set()
    assert not other.over.is_set()


async def test_jobs_without_room_in_the_child_are_told_and_get_it_in_turn(mock_clock: MockClock) -> None:
    desk = Desk(slots=4)
    long, held = running(desk), desk.submit()
    assert (desk.dispatcher.waiting, desk.dispatcher.free_slots) == (0, 2)
    desk.dispatcher.told(Rates(100.0, 100.0), without_room=1)
    assert (desk.dispatcher.waiting, desk.dispatcher.free_slots) == (1, 0)
    desk.tokens(long, 64)
    assert desk.sent[2:] == []  # it may be a moment's wait
    desk.dispatcher.told(Rates(100.0, 100.0), without_room=1)
    desk.tokens(long, 1)
    desk.tokens(long, 1)
    desk.tokens(long, 500)
    assert desk.sent[2:] == [("pause", 1), ("resume", 1)]  # once for each that was held back
    desk.start(held)
    desk.finish(held)
    desk.finish(long)
    assert (desk.dispatcher.waiting, desk.dispatcher.free_slots) == (0, 4)


async def test_a_long_line_is_no_reason_to_refuse_what_soon_gets_a_turn(mock_clock: MockClock) -> None:
    desk = Desk(slots=8)
    desk.dispatcher.told(Rates(200.0, 115.0), without_room=0)
    for _ in range(50):
        desk.submit(deadline_ms=600_000)
    assert not desk.submit(max_tokens=8, deadline_ms=60_000).over.is_set()
