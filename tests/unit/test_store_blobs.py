"""The blob store: complete under its digest, or not there."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest
import trio

from gnusnode.contracts import ids
from gnusnode.errors import DataError, DiskFull, NotFound, TooLarge
from gnusnode.store.blobs import Blobs, open_blobs

DATA = bytes(range(256)) * 10_000


@pytest.fixture
async def blobs(tmp_path: Path) -> Blobs:
    return await open_blobs(tmp_path / "blobs")


async def test_a_blob_is_found_under_the_address_of_its_bytes(blobs: Blobs) -> None:
    async with blobs.writer() as writer:
        for at in range(0, len(DATA), 70_001):
            await writer.write(DATA[at : at + 70_001])
        address = await writer.commit()
    assert address == ids.cid(DATA, raw=True)
    assert await blobs.has(address)
    assert await blobs.get(address, limit=len(DATA)) == DATA
    assert blobs.path(address).name == hashlib.sha256(DATA).hexdigest()
    assert blobs.path(address) == blobs.path(ids.sha256(DATA))


async def test_the_empty_blob_is_a_blob(blobs: Blobs) -> None:
    address = await blobs.put(b"")
    assert await blobs.get(address, limit=0) == b""


async def test_the_same_bytes_are_kept_once(blobs: Blobs) -> None:
    assert await blobs.put(b"same") == await blobs.put(b"same")
    assert await blobs.inventory() == {ids.cid(b"same", raw=True): 4}


async def test_without_commit_nothing_remains(blobs: Blobs) -> None:
    with pytest.raises(LookupError):
        await _give_up(blobs)
    async with blobs.writer() as writer:
        await writer.write(DATA)
    with trio.CancelScope() as scope:
        async with blobs.writer() as writer:
            await writer.write(DATA)
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert await blobs.inventory() == {}
    assert _files(blobs.root) == []


async def test_bytes_that_are_not_the_expected_ones_are_not_kept(blobs: Blobs) -> None:
    with pytest.raises(DataError, match="not those of"):
        await _store(blobs, b"other", expected=ids.cid(b"expected", raw=True))
    assert _files(blobs.root) == []
    await _store(blobs, b"expected", expected=ids.sha256(b"expected"))
    assert await blobs.has(ids.sha256(b"expected"))


async def test_fewer_bytes_than_declared_are_refused_and_more_too(blobs: Blobs) -> None:
    with pytest.raises(DataError, match="3 of 4 bytes"):
        await _store(blobs, b"123", size=4)
    with pytest.raises(TooLarge):
        await _store(blobs, b"12345", size=4)
    with pytest.raises(TooLarge):
        await _store(blobs, b"123", b"45", limit=4)
    with pytest.raises(TooLarge):
        async with blobs.writer(size=5, limit=4):
            pytest.fail("began a blob that may not be written")
    assert _files(blobs.root) == []


async def test_a_blob_that_the_disk_cannot_hold_is_refused_before_it_begins(blobs: Blobs) -> None:
    with pytest.raises(DiskFull, match="do not fit") as refused:
        async with blobs.writer(size=1 << 60, limit=1 << 61):
            pytest.fail("began a blob that cannot fit")
    assert refused.value.hint
    assert _files(blobs.root) == []


async def test_changed_bytes_are_noticed_by_reading_and_by_verifying(blobs: Blobs) -> None:
    address = await blobs.put(DATA)
    assert await blobs.verify(address)
    path = blobs.path(address)
    path.chmod(0o600)
    changed = bytearray(DATA)
    changed[-1] ^= 1
    path.write_bytes(changed)
    assert not await blobs.verify(address)
    with pytest.raises(DataError, match="digest"):
        await blobs.get(address, limit=len(DATA))
    await blobs.put(DATA)
    assert await blobs.verify(address), "writing the blob again heals it"


async def test_what_an_interrupted_writer_left_is_gone_after_the_next_start(blobs: Blobs) -> None:
    kept = await blobs.put(b"kept")
    (blobs.root / "tmp" / "left-over").write_bytes(b"half a blob")
    again = await open_blobs(blobs.root)
    assert _files(again.root) == [blobs.path(kept)]


async def test_a_deleted_blob_is_gone_but_an_open_one_can_be_read_to_its_end(blobs: Blobs) -> None:
    address = await blobs.put(DATA)
    async with blobs.reader(address) as reader:
        first = await reader.read()
        assert await blobs.delete(address)
        rest = b"".join([chunk async for chunk in _chunks(reader)])
        assert first + rest == DATA
    assert not await blobs.delete(address)
    with pytest.raises(NotFound):
        await blobs.verify(address)


async def test_a_collector_leaves_alone_what_was_just_written_again(blobs: Blobs) -> None:
    address = await blobs.put(b"old")
    os.utime(blobs.path(address), (0, 0))
    await blobs.put(b"old")
    assert not await blobs.delete(address, idle_s=3600)
    os.utime(blobs.path(address), (0, 0))
    assert await blobs.delete(address, idle_s=3600)


@pytest.mark.parametrize(
    "address", ["", "cid://x", "sha256:", "sha256:" + "A" * 64, "sha256:../../../etc/passwd", "../x"]
)
async def test_what_is_no_address_is_not_found(blobs: Blobs, address: str) -> None:
    with pytest.raises(NotFound):
        await blobs.has(address)


async def test_a_blob_larger_than_the_readers_limit_is_refused(blobs: Blobs) -> None:
    address = await blobs.put(b"12345")
    with pytest.raises(TooLarge):
        await blobs.get(address, limit=4)


async def test_file_work_happens_outside_the_loops_thread(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    write = os.write

    def noting(descriptor: int, data: bytes) -> int:
        if bytes(data).startswith(b"noted"):
            threads.add(threading.get_ident())
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", noting)
    await blobs.put(b"noted")
    assert threads
    assert threading.get_ident() not in threads


async def _store(blobs: Blobs, *chunks: bytes, expected: str | None = None, **bounds: int) -> str:
    async with blobs.writer(**bounds) as writer:
        for chunk in chunks:
            await writer.write(chunk)
        return await writer.commit(expected=expected)


async def _give_up(blobs: Blobs) -> None:
    async with blobs.writer() as writer:
        await writer.write(DATA)
        raise LookupError


async def _chunks(reader):  # type: ignore[no-untyped-def]  # local helper
    while chunk := await reader.read():
        yield chunk


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]
