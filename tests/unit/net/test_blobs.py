"""Model files from peers: several holders, resume, refusals, limits. Over the in-memory network."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gnusnode.contracts import ids
from gnusnode.errors import (
    Conflict,
    DiskFull,
    NotFound,
    RecordRefused,
    RequestError,
    TooLarge,
    Unavailable,
)
from gnusnode.identity import NodeIdentity
from gnusnode.inference.artifacts import elm as elms
from gnusnode.inference.artifacts.catalogue import Catalogue
from gnusnode.inference.artifacts.chunked import ChunkedPart
from gnusnode.inference.artifacts.elmrecord import ElmSpec
from gnusnode.inference.artifacts.models import ModelStore
from gnusnode.net.blobs import ElmTrust, FetchLimits, Puller, parse_address
from tests.fakes.blobworld import CHUNK, CHUNKS, DATA, HOLDERS, ME, QUICK, SHA256, world
from tests.fakes.ggufs import tiny_gguf

A, B = HOLDERS[:2]
CID = ids.cid_from_sha256(SHA256)


@pytest.fixture
def patient_clock(autojump_clock: MockClock) -> MockClock:
    """Virtual time that lets threads finish before it jumps."""
    autojump_clock.autojump_threshold = 0.2
    return autojump_clock


def limits(**changes: object) -> FetchLimits:
    return FetchLimits(**{**vars(QUICK), **changes})


# --- fetching ---------------------------------------------------------------------------------------------------------


async def test_a_file_comes_from_two_holders_at_once_and_is_listed_like_any_other(tmp_path: Path) -> None:
    steps: list[tuple[int, int | None]] = []
    async with world(tmp_path) as w:
        await w.holder(A)
        await w.holder(B)
        pulled = await w.puller.pull(CID, progress=lambda done, total: steps.append((done, total)))
        assert pulled.model == (await w.store.list())[0]
        assert (pulled.model.name, pulled.model.sha256, pulled.model.source) == ("theirs", SHA256, CID)
        assert w.store.file(SHA256).read_bytes() == DATA
        assert set(pulled.received) == {A.peer_id, B.peer_id}
        assert sum(pulled.received.values()) == len(DATA)
        assert w.leftovers() == []
        await trio.testing.wait_all_tasks_blocked()
        assert [net.statistics().handler_failures for net in w.nets.values()] == [0, 0], "streams end in order"
    assert steps[-1] == (len(DATA), len(DATA))
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


@pytest.mark.parametrize("address", [CID, ids.cid_from_sha256(SHA256, raw=False), SHA256, SHA256.upper()])
def test_every_spelling_of_an_address_names_the_same_file(address: str) -> None:
    assert parse_address(address) == SHA256


@pytest.mark.parametrize("address", ["cid://bafy", "cid://", "sha256:12", "smollm2", CID + "a", ""])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(RequestError):
        parse_address(address)


async def test_what_is_here_already_is_not_fetched_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.holder(A)
        await w.puller.pull(SHA256)
        again = await w.puller.pull(SHA256, name="second")
        assert again.received == {}
        assert [model.name for model in await w.store.list()] == ["second", "theirs"]


async def test_a_taken_name_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server, _ = await w.holder(A)
        (tmp_path / "other.gguf").write_bytes(tiny_gguf())
        await w.store.add(tmp_path / "other.gguf", "mine")
        with pytest.raises(Conflict):
            await w.puller.pull(SHA256, name="mine")
        assert server.statistics.bytes_sent == 0
        pulled = await w.puller.pull(SHA256, name="mine", replace=True)
        assert pulled.model.sha256 == SHA256


async def test_the_holders_name_gives_way_to_one_that_is_here(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.holder(A)
        (tmp_path / "other.gguf").write_bytes(tiny_gguf())
        await w.store.add(tmp_path / "other.gguf", "theirs")
        assert (await w.puller.pull(SHA256)).model.name == f"theirs-{SHA256[7:15]}"


async def test_a_model_that_was_damaged_here_is_made_whole_under_its_name(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.holder(A)
        await w.puller.pull(SHA256, name="mine")
        w.store.file(SHA256).write_bytes(b"damage")
        pulled = await w.puller.pull(SHA256)
        assert (pulled.model.name, sum(pulled.received.values())) == ("mine", len(DATA))
        assert (await w.store.verify("mine")).sha256 == SHA256


async def test_the_catalogue_names_the_model_and_says_how_to_use_it(tmp_path: Path) -> None:
    traits = {"determinism": "A", "defaults": {"temperature": 0.5}}
    entry = {"description": "", "source": "https://example.com/x.gguf", "license": "", "sha256": SHA256, **traits}
    catalogue = Catalogue.model_validate({"default": "known", "embedding": "known", "models": {"known": entry}})
    async with world(tmp_path, catalogue=catalogue) as w:
        await w.holder(A)
        model = (await w.puller.pull(SHA256)).model
        assert (model.name, model.traits.determinism, model.traits.defaults.temperature) == ("known", "A", 0.5)


async def test_a_peer_that_serves_no_files_says_so(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        net = await w.stack.enter_async_context(w.network.join(A.peer_id))
        await w.net.connect(A.peer_id, net.addresses())
        with pytest.raises(Unavailable, match="gives no files"):
            await w.puller.pull(SHA256, peers=[A.peer_id])


async def test_when_the_first_holders_fail_the_next_ones_are_asked(tmp_path: Path) -> None:
    async with world(tmp_path, limits=limits(survey=1)) as w:
        await w.holder(A, tiny_gguf())
        await w.holder(B)
        assert set((await w.puller.pull(SHA256)).received) == {B.peer_id}


async def test_only_the_named_peers_are_asked(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        first, _ = await w.holder(A)
        await w.holder(B)
        pulled = await w.puller.pull(SHA256, peers=[B.peer_id])
        assert set(pulled.received) == {B.peer_id}
        assert first.statistics.bytes_sent == 0


async def test_where_no_holder_is_known_one_is_looked_for(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.holder(A)
        found = w.holders.copy()
        w.holders.clear()

        async def seek(sha256: str) -> None:
            assert sha256 == SHA256
            await trio.lowlevel.checkpoint()
            w.holders.extend(found)

        with pytest.raises(NotFound, match="no peer is known"):
            await w.puller.pull(SHA256)
        seeker = Puller(w.store, w.fetching, holders=lambda sha256: w.holders, seek=seek)
        assert (await seeker.pull(SHA256)).model.sha256 == SHA256


async def test_a_peer_without_the_file_is_no_reason_to_fail(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.holder(A, tiny_gguf())
        await w.holder(B)
        assert set((await w.puller.pull(SHA256)).received) == {B.peer_id}
        assert w.blamed == {}


async def test_nobody_has_it_is_said_with_each_peers_reason(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.holder(A, tiny_gguf())
        with pytest.raises(Unavailable, match=f"{A.peer_id} this node does not hold it") as caught:
            await w.puller.pull(SHA256)
        assert caught.value.where == SHA256
        assert caught.value.hint


# --- losses and resuming ----------------------------------------------------------------------------------------------


async def test_a_source_that_dies_half_way_costs_little(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.holder(A)
        await w.holder(B)

        def cut(done: int, total: int | None) -> None:
            if done > len(DATA) // 2 and B.peer_id in w.net.connected():
                w.network.cut(ME.peer_id, B.peer_id)

        pulled = await w.puller.pull(SHA256, progress=cut)
        assert B.peer_id not in w.net.connected()
        assert w.store.file(SHA256).read_bytes() == DATA
        assert sum(pulled.received.values()) <= 1.3 * len(DATA)
        assert w.blamed == {}


async def test_a_source_that_falls_silent_is_left(tmp_path: Path, patient_clock: MockClock) -> None:
    async with world(tmp_path) as w:
        await w.holder(A)
        await w.holder(B)

        def cut(done: int, total: int | None) -> None:
            if done > len(DATA) // 3:
                w.network.cut(ME.peer_id, B.peer_id, silent=True)

        pulled = await w.puller.pull(SHA256, progress=cut)
        assert w.store.file(SHA256).read_bytes() == DATA
        assert sum(pulled.received.values()) <= 1.3 * len(DATA)


async def test_a_source_that_comes_back_is_used_again(tmp_path: Path) -> None:
    async with world(tmp_path, limits=limits(attempts=8)) as w:
        await w.holder(A)
        cuts = 0

        async def reconnect() -> None:
            async with w.net.events() as events:
                async for event in events:
                    if A.peer_id not in w.net.connected():
                        w.network.heal(ME.peer_id, A.peer_id)
                        await w.net.connect(A.peer_id, w.nets[A.peer_id].addresses())
                    assert event

        def cut(done: int, total: int | None) -> None:
            nonlocal cuts
            if done > len(DATA) // 2 and not cuts:
                cuts += 1
                w.network.cut(ME.peer_id, A.peer_id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reconnect)
            await trio.testing.wait_all_tasks_blocked()
            await w.puller.pull(SHA256, progress=cut)
            nursery.cancel_scope.cancel()
        assert cuts == 1
        assert w.store.file(SHA256).read_bytes() == DATA


async def test_a_cancelled_pull_goes_on_where_it_stopped(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.holder(A)
        with trio.CancelScope() as scope:
            await w.puller.pull(SHA256, progress=lambda done, total: scope.cancel() if done > len(DATA) // 2 else None)
        assert scope.cancelled_caught
        assert w.leftovers() == [".map", ".part"]
        pulled = await w.puller.pull(SHA256)
        assert sum(pulled.received.values()) <= len(DATA) // 2 + CHUNK
        assert w.store.file(SHA256).read_bytes() == DATA
        assert w.leftovers() == []


async def test_a_chunk_that_was_damaged_meanwhile_is_fetched_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.holder(A)
        with trio.CancelScope() as scope:
            await w.puller.pull(SHA256, progress=lambda done, _: scope.cancel() if done > 6 * CHUNK else None)
        part = next(w.store.partial.glob("*.part"))
        with part.open("r+b") as file:
            file.write(b"damage")
        pulled = await w.puller.pull(SHA256)
        assert w.store.file(SHA256).read_bytes() == DATA
        assert CHUNK < sum(pulled.received.values()) < len(DATA)


async def test_the_last_source_lost_keeps_what_came_and_says_so(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.holder(A)

        def cut(done: int, total: int | None) -> None:
            if done > len(DATA) // 2:
                w.network.cut(ME.peer_id, A.peer_id)

        with pytest.raises(Unavailable, match="no holder of the file is left") as caught:
            await w.puller.pull(SHA256, progress=cut)
        assert "goes on where it stopped" in (caught.value.hint or "")
        assert w.leftovers() == [".map", ".part"]


async def test_a_file_is_fetched_by_one_pull_at_a_time(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.holder(A)
        busy = ChunkedPart(w.store.partial, SHA256)
        try:
            with pytest.raises(Conflict, match="being downloaded already"):
                await w.puller.pull(SHA256)
        finally:
            busy.close()
        assert (await w.puller.pull(SHA256)).model.sha256 == SHA256


# --- what does not fit ------------------------------------------------------------------------------------------------


async def test_a_file_that_the_disk_cannot_take_is_refused_before_the_first_byte(tmp_path: Path) -> None:
    async with world(tmp_path, limits=limits(reserve=2**60)) as w:
        server, _ = await w.holder(A)
        with pytest.raises(DiskFull):
            await w.puller.pull(SHA256)
        assert server.statistics.chunks_sent == 0
        assert w.leftovers() == []


async def test_a_disk_that_fills_up_on_the_way_ends_the_pull_and_keeps_the_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0
    real = ChunkedPart.write

    def write(self: ChunkedPart, layout: object, chunk: int, data: memoryview) -> None:
        nonlocal written
        written += 1
        if written == 4:
            raise DiskFull("cannot write the download: no space left", where=str(self.path))
        real(self, layout, chunk, data)  # type: ignore[arg-type] # passed through

    async with world(tmp_path) as w:
        await w.holder(A)
        monkeypatch.setattr(ChunkedPart, "write", write)
        with pytest.raises(DiskFull):
            await w.puller.pull(SHA256)
        assert w.leftovers() == [".map", ".part"]
        pulled = await w.puller.pull(SHA256)
        assert sum(pulled.received.values()) <= len(DATA) - 3 * CHUNK


async def test_a_file_over_the_limit_is_refused_before_the_first_byte(tmp_path: Path) -> None:
    async with world(tmp_path, limits=limits(max_bytes=CHUNK)) as w:
        server, _ = await w.holder(A)
        with pytest.raises(TooLarge):
            await w.puller.pull(SHA256)
        assert server.statistics.chunks_sent == 0
        assert w.leftovers() == []


# --- expert artifacts -------------------------------------------------------------------------------------------------


async def packed(store: ModelStore, folder: Path, signer: NodeIdentity) -> str:
    """Packs and installs an expert over the store's model; its artifact hash."""
    spec = ElmSpec(expert_id="tutor", version="1.0", domains=("math",), template="{{ messages }}!")
    model = await store.resolve(SHA256)
    file = await elms.pack(spec, model, folder, signer, embed=False, now_ms=1)
    elm = await elms.install(file, store, trusted_signers=[signer.peer_id], now_ms=1)
    return elm.manifest.artifact_hash


@pytest.mark.requirement("G-EX-4")
async def test_an_expert_travels_with_its_template_and_signature(tmp_path: Path) -> None:
    async with world(tmp_path, trust=ElmTrust([A.peer_id])) as w:
        _, store = await w.holder(A)
        artifact = await packed(store, tmp_path, A)
        pulled = await w.puller.pull(ids.cid_from_sha256(artifact))
        assert (pulled.expert, pulled.model.name) == ("tutor-1.0", "elm/tutor-1.0")
        found = await elms.installed(w.store, trusted_signers=[A.peer_id], require_signature=True)
        assert [one.manifest.artifact_hash for one in found.elms] == [artifact]
        assert (await w.store.resolve("elm/tutor-1.0")).template == "{{ messages }}!"


async def test_an_expert_whose_model_is_here_costs_no_bytes(tmp_path: Path) -> None:
    async with world(tmp_path, trust=ElmTrust([A.peer_id])) as w:
        _, store = await w.holder(A)
        await w.puller.pull(SHA256)
        pulled = await w.puller.pull(await packed(store, tmp_path, A))
        assert (pulled.expert, pulled.received) == ("tutor-1.0", {})


@pytest.mark.requirement("G-EX-4")
async def test_an_expert_of_an_unknown_packer_is_refused_before_its_model_is_fetched(tmp_path: Path) -> None:
    async with world(tmp_path, trust=ElmTrust([B.peer_id])) as w:
        server, store = await w.holder(A)
        artifact = await packed(store, tmp_path, A)
        with pytest.raises(RecordRefused):
            await w.puller.pull(artifact)
        assert server.statistics.chunks_sent == 0


def test_the_file_of_these_tests_has_the_chunks_that_they_count_on() -> None:
    assert -(-len(DATA) // CHUNK) == CHUNKS
    assert hashlib.sha256(DATA).hexdigest() == SHA256[7:]
