"""Work stealing over chunks: nothing is lost, whatever sources come, go and lie about being quick."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from trio.testing import MockClock

from gnusnode.errors import ProtocolViolation
from gnusnode.net.blobs import TokenBucket, wire
from gnusnode.net.blobs.schedule import Schedule

CHUNKS = 6
PEERS = ["a", "b", "c"]
peers = st.sampled_from(PEERS)


class Sources(RuleBasedStateMachine):
    """``owed`` is what each source believes that it fetches."""

    def __init__(self) -> None:
        super().__init__()
        self.here = {5}
        self.schedule = Schedule(CHUNKS, self.here)
        self.owed: dict[str, set[int]] = {peer: set() for peer in PEERS}
        self.now = 0.0

    @rule(peer=peers)
    def claim(self, peer: str) -> None:
        chunk = self.schedule.claim(peer, self.now)
        taken = self.here.union(*self.owed.values())
        assert chunk == min(set(range(CHUNKS)) - taken, default=None)
        if chunk is not None:
            self.owed[peer].add(chunk)

    @rule(peer=peers, patience=st.floats(0, 3))
    def steal(self, peer: str, patience: float) -> None:
        chunk = self.schedule.steal(peer, self.now, patience)
        if chunk is not None:
            owners = [other for other in PEERS if chunk in self.owed[other]]
            assert chunk not in self.here
            assert len(owners) == 1
            assert owners != [peer]
            self.owed[peer].add(chunk)

    @rule(peer=peers, data=st.data())
    def bring(self, peer: str, data: Any) -> None:
        if self.owed[peer]:
            chunk = data.draw(st.sampled_from(sorted(self.owed[peer])))
            self.schedule.complete(chunk)
            self.here.add(chunk)
            for owed in self.owed.values():
                owed.discard(chunk)

    @rule(peer=peers)
    def lose(self, peer: str) -> None:
        self.schedule.release(peer)
        self.owed[peer].clear()

    @rule()
    def wait(self) -> None:
        self.now += 1.0

    @invariant()
    def what_is_here_is_done(self) -> None:
        assert {chunk for chunk in range(CHUNKS) if self.schedule.is_done(chunk)} == self.here
        assert self.schedule.finished == (len(self.here) == CHUNKS)


TestSources = Sources.TestCase


def test_a_chunk_is_stolen_only_after_the_patience_and_the_oldest_first() -> None:
    schedule = Schedule(2)
    assert (schedule.claim("slow", 0.0), schedule.claim("slow", 1.0)) == (0, 1)
    assert schedule.steal("quick", 1.5, 2.0) is None
    assert schedule.steal("quick", 2.5, 2.0) == 0
    assert schedule.steal("third", 2.5, 2.0) is None, "two at a time are enough"
    assert schedule.steal("third", 3.5, 2.0) == 1


async def test_a_bucket_gives_its_rate_to_all_takers_together(autojump_clock: MockClock) -> None:
    bucket, started = TokenBucket(1000), trio.current_time()

    async def take() -> None:
        for _ in range(10):
            await bucket.take(100)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(take)
    assert trio.current_time() - started == pytest.approx(2.9 - 0.25)


async def test_a_bucket_without_a_rate_gives_at_once(autojump_clock: MockClock) -> None:
    bucket, started = TokenBucket(0), trio.current_time()
    await bucket.take(2**40)
    assert trio.current_time() == started


MESSAGES = [
    wire.Have(hash="sha256:" + "a" * 64),
    wire.WantManifest(hash="sha256:" + "a" * 64),
    wire.Get(hash="sha256:" + "a" * 64, first=3, count=2, rate=7),
]
REPLIES = [
    wire.Held(sha256="sha256:" + "a" * 64, size=1, name="x", elm=wire.ElmParts(manifest=b"m", capability=b"c")),
    wire.Wait(),
    wire.Manifest(record=b"r"),
    wire.Bytes(data=b"d"),
    wire.End(),
    wire.Refusal(error={"code": "not_found", "what": "no"}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.kind)
def test_a_request_survives_the_wire(message: wire.Request) -> None:
    assert wire.request(wire.encode(message)) == message
    with pytest.raises(ProtocolViolation):
        wire.reply(wire.encode(message))


@pytest.mark.parametrize("message", REPLIES, ids=lambda message: message.kind)
def test_an_answer_survives_the_wire(message: wire.Reply) -> None:
    assert wire.reply(wire.encode(message)) == message
    with pytest.raises(ProtocolViolation):
        wire.request(wire.encode(message))


@given(st.binary(max_size=120), st.sampled_from([wire.request, wire.reply]))
def test_arbitrary_bytes_are_no_message(data: bytes, parse: Any) -> None:
    with pytest.raises(ProtocolViolation):
        parse(data)


@given(st.sampled_from([*MESSAGES, *REPLIES]), st.data())
def test_a_cut_or_longer_message_is_refused(message: Any, data: st.DataObject) -> None:
    parse = wire.request if message in MESSAGES else wire.reply
    good = wire.encode(message)
    for bad in (good[: data.draw(st.integers(0, len(good) - 1))], good + b"\x00"):
        with pytest.raises(ProtocolViolation):
            parse(bad)
