"""Giving model files to peers: who gets something, how many, how fast, and what is remembered."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from gnusnode.errors import (
    Forbidden,
    GnusError,
    Unavailable,
)
from gnusnode.net.blobs import BlobServer, FetchLimits, ServeLimits, wire
from gnusnode.net.blobs.holdings import Holdings
from gnusnode.net.port import MessageStream, Net
from tests.fakes.blobworld import CHUNK, DATA, HOLDERS, QUICK, SHA256, world
from tests.fakes.ggufs import tiny_gguf

A, B = HOLDERS[:2]


@pytest.fixture
def patient_clock(autojump_clock: MockClock) -> MockClock:
    """Virtual time that lets threads finish before it jumps."""
    autojump_clock.autojump_threshold = 0.2
    return autojump_clock


def limits(**changes: object) -> FetchLimits:
    return FetchLimits(**{**vars(QUICK), **changes})


# --- serving ----------------------------------------------------------------------------------------------------------


async def test_whom_the_gate_refuses_gets_the_reason_and_nothing_else(tmp_path: Path) -> None:
    def gate(peer: str) -> GnusError | None:
        return Forbidden("you are no member of this swarm", where=peer)

    async with world(tmp_path) as w:
        server, _ = await w.holder(A, gate=gate)
        with pytest.raises(Unavailable, match="you are no member of this swarm"):
            await w.puller.pull(SHA256)
        assert server.statistics.refused == {"gate": 1}
        assert server.statistics.bytes_sent == 0


async def test_a_holder_that_is_no_member_is_not_believed(tmp_path: Path) -> None:
    async with world(tmp_path, members=[B]) as w:
        await w.holder(A)
        with pytest.raises(Unavailable, match="not to be believed"):
            await w.puller.pull(SHA256)


async def test_streams_are_bounded_for_each_peer_and_in_all(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server, _ = await w.holder(A, limits=ServeLimits(streams=3, streams_per_peer=2))

        async def answer(net: Net) -> str:
            stream = await net.open_stream(A.peer_id, wire.PROTOCOL)
            streams.append(stream)
            await stream.send(wire.encode(wire.Have(hash=SHA256)))
            return wire.reply((await stream.receive()) or b"").kind

        streams: list[MessageStream] = []
        other = await w.stack.enter_async_context(w.network.join(B.peer_id))
        await other.connect(A.peer_id, w.nets[A.peer_id].addresses())
        assert [await answer(w.net) for _ in range(3)] == ["held", "held", "err"]
        assert [await answer(other) for _ in range(2)] == ["held", "err"]
        assert server.statistics.refused == {"busy": 2}
        await streams[0].reset()
        await trio.testing.wait_all_tasks_blocked()
        assert await answer(other) == "held"


async def test_a_stream_that_only_holds_its_place_is_closed(tmp_path: Path, patient_clock: MockClock) -> None:
    async with world(tmp_path) as w:
        server, _ = await w.holder(A)
        stream = await w.net.open_stream(A.peer_id, wire.PROTOCOL)
        assert await stream.receive() is None
        assert server.statistics.streams == 0


async def test_a_busy_holder_is_asked_again_later(tmp_path: Path, patient_clock: MockClock) -> None:
    async with world(tmp_path, limits=limits(attempts=5, backoff=1.0)) as w:
        server, _ = await w.holder(A, limits=ServeLimits(streams=1, idle=3.0))

        async def hold() -> None:
            stream = await w.nets[B.peer_id].open_stream(A.peer_id, wire.PROTOCOL)
            await stream.receive()

        await w.holder(B, tiny_gguf())
        await w.nets[B.peer_id].connect(A.peer_id, w.nets[A.peer_id].addresses())
        survey = await w.puller.pull(SHA256)
        assert survey.model.sha256 == SHA256
        await w.store.remove("theirs")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(Unavailable, match="as many as it can"):
                await w.puller.pull(SHA256)
        assert server.statistics.refused["busy"] >= 1
        assert (await w.puller.pull(SHA256)).model.sha256 == SHA256


async def test_a_file_is_hashed_once_and_again_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path) as w:
        _, store = await w.holder(A)
        await w.puller.pull(SHA256)
        sidecar = store.chunks(SHA256)
        assert sidecar.exists()
        before = sidecar.stat().st_mtime_ns
        await w.store.remove("theirs")
        await w.puller.pull(SHA256)
        assert sidecar.stat().st_mtime_ns == before
        with store.file(SHA256).open("r+b") as file:
            file.seek(CHUNK)
            file.write(b"other weights")
        await w.store.remove("theirs")
        with pytest.raises(Unavailable):
            await w.puller.pull(SHA256)
        assert w.blamed == {}, "the holder itself noticed"


async def test_what_is_remembered_of_the_chunks_goes_with_the_file(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        _, store = await w.holder(A)
        await w.puller.pull(SHA256)
        await store.remove("theirs")
        assert not store.chunks(SHA256).exists()


async def test_a_manifest_that_was_damaged_on_the_disk_is_made_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        _, store = await w.holder(A)
        store.chunks(SHA256).write_bytes(b"\xa1astamp")
        assert (await w.puller.pull(SHA256)).model.sha256 == SHA256


# --- bandwidth --------------------------------------------------------------------------------------------------------


async def test_a_pull_keeps_to_its_bandwidth_over_all_sources(tmp_path: Path, patient_clock: MockClock) -> None:
    rate = len(DATA) // 6
    async with world(tmp_path, limits=limits(bytes_per_second=rate)) as w:
        await w.holder(A)
        await w.holder(B)
        started = trio.current_time()
        pulled = await w.puller.pull(SHA256)
        assert trio.current_time() - started >= (len(DATA) - 4 * CHUNK) / rate
        assert set(pulled.received) == {A.peer_id, B.peer_id}


async def test_a_holder_keeps_to_its_bandwidth(tmp_path: Path, patient_clock: MockClock) -> None:
    rate = len(DATA) // 6
    async with world(tmp_path) as w:
        await w.holder(A, limits=ServeLimits(bytes_per_second=rate, streams=2))
        started = trio.current_time()
        await w.puller.pull(SHA256)
        assert trio.current_time() - started >= (len(DATA) - CHUNK) / rate - 0.5


async def test_a_holder_sends_no_faster_than_it_is_asked_to(tmp_path: Path, patient_clock: MockClock) -> None:
    async with world(tmp_path) as w:
        await w.holder(A)
        stream = await w.net.open_stream(A.peer_id, wire.PROTOCOL)
        await stream.send(wire.encode(wire.Get(hash=SHA256, first=0, count=4, rate=CHUNK)))
        started, kinds = trio.current_time(), list[str]()
        while not kinds or kinds[-1] != "end":
            kinds.append(wire.reply((await stream.receive()) or b"").kind)
        assert kinds == ["part"] * 4 + ["end"]
        assert trio.current_time() - started >= 2.5


class Peer:
    """A stream of a peer that takes all it gets."""

    def __init__(self, peer: str) -> None:
        self.peer = peer

    async def send(self, message: bytes) -> None:
        await trio.lowlevel.checkpoint()


async def test_a_peer_with_many_streams_gets_no_more_than_one_with_a_single_stream(autojump_clock: MockClock) -> None:
    server = BlobServer(cast("Holdings", None), lambda peer: None, ServeLimits(bytes_per_second=1000))
    got = {A.peer_id: 0, B.peer_id: 0}

    async def draw(peer: str, scope: trio.CancelScope) -> None:
        stream = cast("MessageStream", Peer(peer))
        await trio.lowlevel.checkpoint()
        while got[B.peer_id] < 10:
            await server.send(stream, wire.Bytes(data=bytes(100)), 100)
            got[peer] += 1
        scope.cancel()

    async with trio.open_nursery() as nursery:
        for peer in (A.peer_id,) * 4 + (B.peer_id,):
            nursery.start_soon(draw, peer, nursery.cancel_scope)
    assert 9 <= got[A.peer_id] <= 11
