"""Peers that lie about model files, and what garbage does to a holder."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gnusnode.contracts import canonical
from gnusnode.contracts.artifacts import ChunkManifest
from gnusnode.errors import DiskFull, ModelInvalid, PeerUnreachable, Unavailable
from gnusnode.identity import NodeIdentity
from gnusnode.net.blobs import wire
from gnusnode.net.port import MessageStream
from tests.fakes.blobworld import (
    CHUNK,
    DATA,
    HOLDERS,
    QUICK,
    SHA256,
    Answer,
    FetchLimits,
    World,
    gives,
    lying,
    manifest_of,
    world,
)
from tests.fakes.ggufs import tiny_gguf

A, B, C = HOLDERS[:3]
FAKE = DATA[:-CHUNK] + bytes(CHUNK)
"""Another file of the same size."""


async def send(stream: MessageStream, *parts: bytes, end: bool = True) -> None:
    await trio.lowlevel.checkpoint()
    for part in parts:
        await stream.send(wire.encode(wire.Bytes(data=part)))
    if end:
        await stream.send(wire.encode(wire.End()))


def right(request: wire.Request) -> bytes:
    assert isinstance(request, wire.Get)
    return DATA[request.first * CHUNK : (request.first + 1) * CHUNK]


async def bad_bytes(stream: MessageStream, request: wire.Request) -> None:
    good = right(request)
    await send(stream, good[:-1] + bytes([good[-1] ^ 1]))


async def too_short(stream: MessageStream, request: wire.Request) -> None:
    await send(stream, right(request)[:-1])


async def too_long(stream: MessageStream, request: wire.Request) -> None:
    await send(stream, right(request), b"more", end=False)


async def endless(stream: MessageStream, request: wire.Request) -> None:
    while True:
        await stream.send(wire.encode(wire.Bytes(data=bytes(wire.PART_BYTES))))


async def garbage(stream: MessageStream, request: wire.Request) -> None:
    await stream.send(b"\xff" * 1000)


async def another_kind(stream: MessageStream, request: wire.Request) -> None:
    await stream.send(wire.encode(wire.Wait()))


async def empty_parts(stream: MessageStream, request: wire.Request) -> None:
    await stream.send(canonical.encode({"kind": "part", "data": b""}))


LIES = [bad_bytes, too_short, too_long, endless, garbage, another_kind, empty_parts]
by_lie = pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)


@pytest.fixture
def patient_clock(autojump_clock: MockClock) -> MockClock:
    """Virtual time that lets threads finish before it jumps."""
    autojump_clock.autojump_threshold = 0.2
    return autojump_clock


async def pulled_in_spite(w: World) -> None:
    await w.puller.pull(SHA256)
    assert w.store.file(SHA256).read_bytes() == DATA


@by_lie
async def test_a_liar_is_reported_and_the_file_comes_from_the_others(tmp_path: Path, lie: Answer) -> None:
    async with world(tmp_path) as w:
        await w.impostor(A, lying(A, DATA, lie))
        await w.holder(B)
        await pulled_in_spite(w)
        assert set(w.blamed) == {A.peer_id}


@by_lie
async def test_a_liar_alone_gives_nothing_and_is_asked_once(tmp_path: Path, lie: Answer) -> None:
    asked = 0

    async def counted(stream: MessageStream, request: wire.Request) -> None:
        nonlocal asked
        asked += 1
        await lie(stream, request)

    async with world(tmp_path) as w:
        await w.impostor(A, lying(A, DATA, counted))
        with pytest.raises(Unavailable, match=A.peer_id):
            await w.puller.pull(SHA256)
        assert asked <= 2, "a second chunk is asked for ahead"
        assert set(w.blamed) == {A.peer_id}
        assert await w.store.list() == ()


async def test_a_false_manifest_loses_against_more_true_ones(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.impostor(A, lying(A, FAKE, gives(FAKE)))
        await w.holder(B)
        await w.holder(C)
        await pulled_in_spite(w)
        assert w.blamed == {}, "nobody has to judge what was not used"


async def test_a_false_manifest_that_was_believed_is_found_out_by_the_files_own_hash(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.impostor(A, lying(A, FAKE, gives(FAKE)))
        await w.holder(B)
        await pulled_in_spite(w)
        assert "do not make up the file" in w.blamed[A.peer_id]
        assert set(w.blamed) == {A.peer_id}


async def test_false_manifests_alone_leave_nothing_behind(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.impostor(A, lying(A, FAKE, gives(FAKE)))
        with pytest.raises(ModelInvalid, match="no holder gave the file"):
            await w.puller.pull(SHA256)
        assert (w.leftovers(), await w.store.list()) == ([], ())


async def test_true_chunks_under_a_false_manifest_expose_their_sender_at_the_first_chunk(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.impostor(A, lying(A, DATA, gives(DATA), claims=bytes(len(DATA))))
        await w.holder(B)
        await pulled_in_spite(w)
        assert "not the one it vouched for" in w.blamed[A.peer_id]


async def test_a_manifest_of_somebody_else_or_of_another_file_is_a_lie(tmp_path: Path) -> None:
    async def answer(stream: MessageStream, request: wire.Request) -> None:
        if isinstance(request, wire.Have):
            await stream.send(wire.encode(wire.Held(sha256=SHA256, size=len(DATA), name="x")))
        else:
            await stream.send(wire.encode(wire.Manifest(record=records.pop())))

    foreign = manifest_of(DATA, B)
    forged = manifest_of(DATA, A).model_copy(update={"size": len(DATA) - 1})
    other = manifest_of(DATA, A, sha256="sha256:" + "0" * 64)
    records = [foreign.to_bytes(), forged.to_bytes(), other.to_bytes(), b"\xa0"]
    async with world(tmp_path) as w:
        await w.impostor(A, answer)
        for left in (3, 2, 1, 0):
            with pytest.raises(Unavailable):
                await w.puller.pull(SHA256)
            assert w.blamed.pop(A.peer_id)
            assert len(records) == left


async def test_a_file_that_is_no_model_is_refused_although_its_hash_is_right(tmp_path: Path) -> None:
    junk = b"not a model" * 20_000
    sha256 = "sha256:" + hashlib.sha256(junk).hexdigest()
    async with world(tmp_path) as w:
        await w.impostor(A, lying(A, junk, gives(junk), sha256=sha256))
        with pytest.raises(ModelInvalid):
            await w.puller.pull(sha256)
        assert (w.leftovers(), await w.store.list()) == ([], ())


async def test_what_a_peer_says_cannot_reach_the_terminal_raw(tmp_path: Path) -> None:
    async def answer(stream: MessageStream, request: wire.Request) -> None:
        error = {"code": "not_found", "what": "\x1b[2J\x07gone" + "x" * 5000}
        await stream.send(wire.encode(wire.Refusal(error=error)))

    async with world(tmp_path) as w:
        await w.impostor(A, answer)
        with pytest.raises(Unavailable, match="gone") as caught:
            await w.puller.pull(SHA256)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1000


async def test_a_peer_that_hashes_without_end_is_left(tmp_path: Path) -> None:
    async def answer(stream: MessageStream, request: wire.Request) -> None:
        if isinstance(request, wire.Have):
            await stream.send(wire.encode(wire.Held(sha256=SHA256, size=len(DATA), name="x")))
        while True:
            await stream.send(wire.encode(wire.Wait()))

    async with world(tmp_path) as w:
        await w.impostor(A, answer)
        with pytest.raises(Unavailable, match="without end"):
            await w.puller.pull(SHA256)
        assert set(w.blamed) == {A.peer_id}


async def test_an_answer_about_another_file_is_a_lie(tmp_path: Path) -> None:
    async def answer(stream: MessageStream, request: wire.Request) -> None:
        elm = wire.ElmParts(manifest=b"{}")
        await stream.send(wire.encode(wire.Held(sha256="sha256:" + "1" * 64, size=5, name="x", elm=elm)))

    async with world(tmp_path) as w:
        await w.impostor(A, answer)
        with pytest.raises(Unavailable, match="another file"):
            await w.puller.pull(SHA256)
        assert set(w.blamed) == {A.peer_id}


async def test_a_source_that_trickles_does_not_hold_up_the_end(tmp_path: Path, patient_clock: MockClock) -> None:
    async def trickle(stream: MessageStream, request: wire.Request) -> None:
        await trio.lowlevel.checkpoint()
        for at in range(0, CHUNK, 4096):
            await trio.sleep(5)
            await stream.send(wire.encode(wire.Bytes(data=right(request)[at : at + 4096])))

    async with world(tmp_path, limits=FetchLimits(**{**vars(QUICK), "steal_after": 2.0})) as w:
        await w.impostor(A, lying(A, DATA, trickle))
        await w.holder(B)
        started = trio.current_time()
        await pulled_in_spite(w)
        assert trio.current_time() - started < 60, "sixteen parts of five seconds, for each of two chunks"
        assert w.blamed == {}, "slow is no lie"


async def test_a_source_that_says_nothing_is_left(tmp_path: Path, patient_clock: MockClock) -> None:
    async def silent(stream: MessageStream, request: wire.Request) -> None:
        await trio.lowlevel.checkpoint()

    async with world(tmp_path) as w:
        await w.impostor(A, lying(A, DATA, silent))
        with pytest.raises(Unavailable, match="sent less than"):
            await w.puller.pull(SHA256)


# --- two stories about one file ---------------------------------------------------------------------------------------


def boasting(identity: NodeIdentity, size: int) -> Answer:
    """Vouches for chunks of a file that has the right hash and an absurd size."""
    record = ChunkManifest.signed(
        identity,
        artifact_hash=SHA256,
        size=size,
        chunk_bytes=CHUNK,
        chunks=("sha256:" + "0" * 64,) * -(-size // CHUNK),
        issued_at_ms=1,
    ).to_bytes()

    async def answer(stream: MessageStream, request: wire.Request) -> None:
        if isinstance(request, wire.Have):
            await stream.send(wire.encode(wire.Held(sha256=SHA256, size=size, name="theirs")))
        elif isinstance(request, wire.WantManifest):
            await stream.send(wire.encode(wire.Manifest(record=record)))

    return answer


async def test_who_says_that_the_file_is_too_large_does_not_keep_it_from_being_fetched_elsewhere(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, limits=replace(QUICK, max_bytes=2 * len(DATA))) as w:
        await w.impostor(A, boasting(A, 4 * len(DATA)))
        await w.holder(B)
        await pulled_in_spite(w)


async def test_who_says_that_the_file_fills_the_disk_does_not_keep_it_from_being_fetched_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def require_space(_: Path, size: int, __: int) -> None:
        if size > 2 * len(DATA):
            raise DiskFull("the disk is small")

    monkeypatch.setattr("gnusnode.net.blobs.transfer.filework.require_space", require_space)
    async with world(tmp_path) as w:
        await w.impostor(A, boasting(A, 4 * len(DATA)))
        await w.holder(B)
        await pulled_in_spite(w)


async def test_a_slow_liar_with_a_story_of_its_own_does_not_keep_the_others_waiting_for_ever(
    tmp_path: Path, patient_clock: MockClock
) -> None:
    async def trickle(stream: MessageStream, request: wire.Request) -> None:
        assert isinstance(request, wire.Get)
        await trio.lowlevel.checkpoint()
        piece = FAKE[request.first * CHUNK : (request.first + 1) * CHUNK]
        for at in range(0, len(piece), 1024):
            await trio.sleep(3)
            await stream.send(wire.encode(wire.Bytes(data=piece[at : at + 1024])))
        await stream.send(wire.encode(wire.End()))

    async with world(tmp_path) as w:
        await w.impostor(A, lying(A, FAKE, trickle))
        await w.holder(B)
        started = trio.current_time()
        await pulled_in_spite(w)
        assert trio.current_time() - started < 120, "twelve chunks of 64 parts of three seconds are 2304 s"


async def test_a_slow_holder_is_not_left_when_nobody_else_tells_the_truth(
    tmp_path: Path, patient_clock: MockClock
) -> None:
    async def trickle(stream: MessageStream, request: wire.Request) -> None:
        await trio.lowlevel.checkpoint()
        for at in range(0, len(right(request)), 8192):
            await trio.sleep(2)
            await stream.send(wire.encode(wire.Bytes(data=right(request)[at : at + 8192])))
        await stream.send(wire.encode(wire.End()))

    async with world(tmp_path) as w:
        await w.impostor(A, lying(A, DATA, trickle))
        await w.impostor(B, lying(B, FAKE, gives(FAKE)))
        await pulled_in_spite(w)
        assert set(w.blamed) == {B.peer_id}


# --- against a holder -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"\xff",
        b"\xa0",
        b"\xa1dkind" + b"dmore",
        canonical.encode({"kind": "have"}),
        canonical.encode({"kind": "have", "hash": "../../etc/passwd"}),
        canonical.encode({"kind": "get", "hash": SHA256, "first": -1, "count": 1, "rate": 0}),
        canonical.encode({"kind": "get", "hash": SHA256, "first": 0, "count": 1_000, "rate": 0}),
        canonical.encode({"kind": "get", "hash": SHA256, "first": 0, "count": True, "rate": 0}),
        canonical.encode({"kind": "part", "data": b"x"}),
        bytes(2_000),
    ],
    ids=range(11),
)
async def test_a_request_that_is_none_ends_its_stream_and_nothing_else(tmp_path: Path, request_bytes: bytes) -> None:
    async with world(tmp_path) as w:
        server, _ = await w.holder(A)
        stream = await w.net.open_stream(A.peer_id, wire.PROTOCOL)
        await stream.send(request_bytes)
        with pytest.raises(PeerUnreachable):
            await stream.receive()
        assert w.nets[A.peer_id].statistics().handler_failures == 1
        assert server.statistics.streams == 0
        await pulled_in_spite(w)


@pytest.mark.parametrize(
    "request_", [wire.Get(hash="sha256:" + "0" * 64, first=0, count=1), wire.Get(hash=SHA256, first=11, count=2)]
)
async def test_what_a_holder_has_not_is_refused_and_the_stream_lives(tmp_path: Path, request_: wire.Get) -> None:
    async with world(tmp_path) as w:
        await w.holder(A)
        stream = await w.net.open_stream(A.peer_id, wire.PROTOCOL)
        for message, kind in ((request_, "err"), (wire.Have(hash=SHA256), "held")):
            await stream.send(wire.encode(message))
            assert wire.reply((await stream.receive()) or b"").kind == kind


async def test_a_refusal_tells_no_path_of_the_holder(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        _, store = await w.holder(A, tiny_gguf())
        digest = (await store.list())[0].sha256
        store.file(digest).unlink()
        stream = await w.net.open_stream(A.peer_id, wire.PROTOCOL)
        await stream.send(wire.encode(wire.WantManifest(hash=digest)))
        answer = (await stream.receive()) or b""
        assert wire.reply(answer).kind == "err"
        assert str(store.root).encode() not in answer
