"""Full and read-only disks. The disks are small tmpfs mounts, so these tests need the right to mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from gnusnode.errors import DataError, DiskFull
from gnusnode.identity import NodeIdentity
from gnusnode.store import open_store
from gnusnode.store.audit import open_audit
from gnusnode.store.blobs import open_blobs
from gnusnode.store.check import check_data_file
from gnusnode.store.tables import PLANS


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True, timeout=20)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one mebibyte."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        _mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place))
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"NOT TESTED: full and read-only disks; this user may not mount a tmpfs ({error})")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=20)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


async def test_a_full_disk_is_said_loses_nothing_and_is_forgotten_when_there_is_room(
    disk: Path, signer: NodeIdentity
) -> None:
    kept: list[bytes] = []
    async with open_store(disk / "store") as store:
        log = await open_audit(store, signer)
        tool = log.writer("tool")

        async def write_until_full() -> None:
            for number in range(1000):
                await store.put(PLANS, b"%d" % number, os.urandom(3000))
                kept.append(b"%d" % number)
                await tool.append("tool.result", call_count=number)

        with pytest.raises(DiskFull) as full:
            await write_until_full()
        assert full.value.exit_code == 6
        assert full.value.hint
        assert all(store.get(PLANS, key) is not None for key in kept), "reading goes on"

        def free_half(txn):  # type: ignore[no-untyped-def]  # a local operation
            for key in kept[::2]:
                txn.delete(PLANS, key)

        with pytest.raises(DiskFull):  # still no room: the failure was not the last word of the writer
            await store.put(PLANS, b"large", os.urandom(300_000))
        _remount(disk, "size=4m")
        await store.put(PLANS, b"large", os.urandom(300_000))
        await store.write(free_half)
        await tool.append("tool.result", ok=True)
        assert (await log.verify()).broken is None
    assert check_data_file(disk / "store" / "data.mdb", budget=None).complete
    async with open_store(disk / "store") as store:
        assert all(store.get(PLANS, key) is not None for key in kept[1::2])


async def test_many_tasks_on_a_full_disk_each_learn_their_own_fate(disk: Path) -> None:
    acknowledged: set[int] = set()
    refused: set[int] = set()
    async with open_store(disk / "store") as store:

        async def put(number: int) -> None:
            try:
                await store.put(PLANS, b"%d" % number, os.urandom(20_000))
                acknowledged.add(number)
            except DiskFull:
                refused.add(number)

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(put, number)
        assert acknowledged | refused == set(range(100))
        assert refused
        assert {int(key) for key, _ in store.scan(PLANS)} == acknowledged


async def test_a_disk_that_is_full_before_the_first_start_is_said_and_later_it_starts(disk: Path) -> None:
    """LMDB's lock file is written through a mapping: without reserved blocks this start ends by SIGBUS."""
    for left in (0, 4096, 24_576):
        _fill(disk / "filler")
        os.truncate(disk / "filler", (disk / "filler").stat().st_size - left)
        with pytest.raises(DiskFull):
            async with open_store(disk / "store") as store:
                await store.put(PLANS, b"k", bytes(200_000))
    (disk / "filler").unlink()
    async with open_store(disk / "store") as store:
        await store.put(PLANS, b"k", b"1")


async def test_an_existing_store_on_a_full_disk_opens_and_reads(disk: Path) -> None:
    async with open_store(disk / "store") as store:
        await store.put(PLANS, b"k", b"1")
    _fill(disk / "filler")
    async with open_store(disk / "store") as store:
        assert store.get(PLANS, b"k") == b"1"
        with pytest.raises(DiskFull):
            await store.put(PLANS, b"l", bytes(100_000))


async def test_a_read_only_disk_is_said(disk: Path) -> None:
    async with open_store(disk / "store") as store:
        await store.put(PLANS, b"k", b"1")
    _remount(disk, "ro")
    try:
        for place in (disk / "store", disk / "new"):
            with pytest.raises(DataError, match="read-only") as refused:
                async with open_store(place):
                    pytest.fail("opened for writing on a read-only disk")
            assert refused.value.exit_code == 6
        with pytest.raises(DataError, match="read-only"):
            await open_blobs(disk / "blobs")
    finally:
        _remount(disk, "rw")
    async with open_store(disk / "store") as store:
        assert store.get(PLANS, b"k") == b"1"


async def test_a_blob_that_fills_the_disk_leaves_nothing_behind(disk: Path) -> None:
    blobs = await open_blobs(disk / "blobs", reserve=0)
    with pytest.raises(DiskFull):
        async with blobs.writer(size=2_000_000):
            pytest.fail("began a blob that cannot fit")
    async with blobs.writer() as writer:
        with pytest.raises(DiskFull):
            await writer.write(os.urandom(2_000_000))
    assert [path for path in (disk / "blobs").rglob("*") if path.is_file()] == []
    address = await blobs.put(b"fits")
    assert await blobs.verify(address)


def _remount(disk: Path, option: str) -> None:
    _mount("-o", f"remount,{option}", str(disk))
