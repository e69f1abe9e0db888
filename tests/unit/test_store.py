"""The store: durable tables, one writer, typed refusals."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio

import gnusnode
from gnusnode.errors import AlreadyRunning, DataError, NotRunning
from gnusnode.store import WriteTxn, open_store, tables
from gnusnode.store.check import check_data_file
from gnusnode.store.tables import META, OUTPUTS, PLANS

ROOT = Path(gnusnode.__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "store.md").read_text(encoding="utf-8")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "a home with späces" / "store"


async def test_what_was_written_is_there_after_reopening(home: Path) -> None:
    async with open_store(home) as store:
        await store.put(PLANS, b"one", b"1")
        await store.put(OUTPUTS, b"one", b"other table")
    async with open_store(home) as store:
        assert store.get(PLANS, b"one") == b"1"
        assert store.get(OUTPUTS, b"one") == b"other table"
        assert store.get(PLANS, b"two") is None


async def test_an_operation_writes_all_its_changes_or_none(home: Path) -> None:
    def fails_half_way(txn: WriteTxn) -> None:
        txn.put(PLANS, b"a", b"1")
        txn.put(OUTPUTS, b"a", b"1")
        raise LookupError("half way")

    async with open_store(home) as store:
        with pytest.raises(LookupError, match="half way"):
            await store.write(fails_half_way)
        assert store.count(PLANS) == store.count(OUTPUTS) == 0


async def test_a_failing_operation_spoils_none_of_the_hundred_that_are_committed_with_it(home: Path) -> None:
    failures: list[str] = []
    entered, released = threading.Event(), threading.Event()

    def hold_the_writer(_txn: WriteTxn) -> None:
        entered.set()
        released.wait(30)

    def bad(txn: WriteTxn) -> None:
        txn.put(PLANS, b"bad", b"1")
        raise LookupError("bad")

    async with open_store(home) as store:

        async def expect_failure() -> None:
            with pytest.raises(LookupError, match="bad"):
                await store.write(bad)
            failures.append("bad")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.write, hold_the_writer)
            await trio.to_thread.run_sync(entered.wait, 30)
            for number in range(50):
                nursery.start_soon(store.put, PLANS, b"before %d" % number, b"1")
            nursery.start_soon(expect_failure)
            for number in range(50):
                nursery.start_soon(store.put, PLANS, b"after %d" % number, b"1")
            await trio.testing.wait_all_tasks_blocked()
            released.set()
        assert failures == ["bad"]
        assert store.count(PLANS) == 100
        assert store.get(PLANS, b"bad") is None


async def test_waiting_tasks_share_one_transaction(home: Path) -> None:
    entered, released = threading.Event(), threading.Event()

    def hold_the_writer(_txn: WriteTxn) -> None:
        entered.set()
        released.wait(30)

    transactions: set[int] = set()

    def note(txn: WriteTxn) -> None:
        transactions.add(id(txn))

    async with open_store(home) as store, trio.open_nursery() as nursery:
        nursery.start_soon(store.write, hold_the_writer)
        await trio.to_thread.run_sync(entered.wait, 30)
        for _ in range(64):
            nursery.start_soon(store.write, note)
        await trio.testing.wait_all_tasks_blocked()
        released.set()
    assert len(transactions) == 1


async def test_every_operation_runs_in_the_same_thread_which_is_not_the_loops(home: Path) -> None:
    threads: set[int] = set()
    async with open_store(home) as store, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(store.write, lambda _txn: threads.add(threading.get_ident()))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_a_result_comes_back_and_sees_what_the_transaction_saw(home: Path) -> None:
    def add(txn: WriteTxn) -> int:
        number = int(txn.get(PLANS, b"n") or b"0") + 1
        txn.put(PLANS, b"n", b"%d" % number)
        return number

    async with open_store(home) as store:
        results: list[int] = []

        async def one() -> None:
            results.append(await store.write(add))

        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(one)
        assert sorted(results) == list(range(1, 31))


async def test_a_cancelled_operation_that_still_waits_is_not_run(home: Path) -> None:
    entered, released = threading.Event(), threading.Event()

    def hold_the_writer(_txn: WriteTxn) -> None:
        entered.set()
        released.wait(30)

    async with open_store(home) as store, trio.open_nursery() as nursery:
        nursery.start_soon(store.write, hold_the_writer)
        await trio.to_thread.run_sync(entered.wait, 30)
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_when_blocked, scope)
            await store.put(PLANS, b"late", b"1")
        assert scope.cancelled_caught
        released.set()
        await store.put(PLANS, b"next", b"1")
        assert store.get(PLANS, b"late") is None


async def _cancel_when_blocked(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


async def test_closing_writes_what_is_queued_and_refuses_what_comes_later(home: Path) -> None:
    async with trio.open_nursery() as nursery, open_store(home) as store:
        for number in range(20):
            nursery.start_soon(store.put, PLANS, b"%d" % number, b"1")
        await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(NotRunning):
        await store.put(PLANS, b"x", b"1")
    async with open_store(home) as store:
        assert store.count(PLANS) == 20


async def test_a_snapshot_does_not_see_what_is_written_meanwhile(home: Path) -> None:
    async with open_store(home) as store:
        await store.put(PLANS, b"k", b"old")
        with store.snapshot() as before:
            await store.put(PLANS, b"k", b"new")  # an await inside is what the docstring forbids; here it is the proof
            assert before.get(PLANS, b"k") == b"old"
        assert store.get(PLANS, b"k") == b"new"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [b"a", b"ab", b"ab\xff", b"ac", b"b"]),
        ({"reverse": True}, [b"b", b"ac", b"ab\xff", b"ab", b"a"]),
        ({"prefix": b"ab"}, [b"ab", b"ab\xff"]),
        ({"prefix": b"ab", "reverse": True}, [b"ab\xff", b"ab"]),
        ({"prefix": b"ab\xff", "reverse": True}, [b"ab\xff"]),
        ({"prefix": b"\xff", "reverse": True}, []),
        ({"start": b"aba"}, [b"ab\xff", b"ac", b"b"]),
        ({"start": b"aba", "reverse": True}, [b"ab", b"a"]),
        ({"start": b"z", "reverse": True, "limit": 1}, [b"b"]),
        ({"prefix": b"ab", "start": b"b", "reverse": True}, [b"ab\xff", b"ab"]),
        ({"prefix": b"b", "start": b"a", "reverse": True}, []),
        ({"limit": 2}, [b"a", b"ab"]),
        ({"limit": 0}, []),
    ],
)
async def test_a_scan_gives_the_keys_of_its_range_in_order(
    home: Path, arguments: dict[str, object], expected: list[bytes]
) -> None:
    async with open_store(home) as store:
        for key in (b"b", b"ac", b"ab\xff", b"ab", b"a"):
            await store.put(PLANS, key, b"v" + key)
        assert store.scan(PLANS, **arguments) == [(key, b"v" + key) for key in expected]  # type: ignore[arg-type]  # parametrised


async def test_pages_walk_a_whole_table(home: Path) -> None:
    async with open_store(home) as store:
        await store.write(lambda txn: [txn.put(PLANS, tables.u64(n), b"") for n in range(25)])
        seen: list[int] = []
        start = b""
        while entries := await store.page(PLANS, start=start, limit=10):
            seen += [tables.from_u64(key) for key, _ in entries]
            start = entries[-1][0] + b"\0"
        assert seen == list(range(25))


async def test_insert_keeps_what_is_there_and_delete_says_whether_it_was(home: Path) -> None:
    async with open_store(home) as store:
        assert await store.write(lambda txn: txn.insert(PLANS, b"k", b"first"))
        assert not await store.write(lambda txn: txn.insert(PLANS, b"k", b"second"))
        assert store.get(PLANS, b"k") == b"first"
        assert await store.delete(PLANS, b"k")
        assert not await store.delete(PLANS, b"k")


@pytest.mark.parametrize(
    ("key", "value"), [(b"", b""), (b"k" * (tables.MAX_KEY + 1), b""), (b"k", bytes(tables.MAX_VALUE + 1))]
)
async def test_keys_and_values_outside_the_limits_are_refused(home: Path, key: bytes, value: bytes) -> None:
    async with open_store(home) as store:
        with pytest.raises(ValueError, match="bytes"):
            await store.put(PLANS, key, value)
        await store.put(PLANS, b"k" * tables.MAX_KEY, bytes(tables.MAX_VALUE))
        assert store.count(PLANS) == 1


async def test_the_map_grows_from_one_mebibyte_while_readers_read(home: Path) -> None:
    async with open_store(home, map_size=1 << 20) as store:

        async def read_all() -> None:
            while store.get(PLANS, b"39") is None:
                entries = await store.page(PLANS)
                assert all(len(value) == 100_000 for _, value in entries)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all)
            for number in range(40):
                await store.put(PLANS, b"%d" % number, os.urandom(100_000))
        assert store.count(PLANS) == 40
        assert store.info().map_bytes >= 4_000_000
    async with open_store(home, map_size=1 << 20) as store:
        assert store.count(PLANS) == 40


async def test_a_second_opening_is_refused_and_leaves_the_first_alone(home: Path) -> None:
    async with open_store(home) as store:
        with pytest.raises(AlreadyRunning) as refused:
            async with open_store(home):
                pytest.fail("opened twice")
        assert refused.value.exit_code == 5
        await store.put(PLANS, b"k", b"1")
    async with open_store(home) as store:
        assert store.get(PLANS, b"k") == b"1"


async def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(home: Path) -> None:
    async with open_store(home) as store:
        await store.put(META, b"schema", b"%d" % (tables.SCHEMA_VERSION + 1))
    before = (home / "data.mdb").read_bytes()
    with pytest.raises(DataError, match="schema version") as refused:
        async with open_store(home):
            pytest.fail("opened a newer store")
    assert refused.value.exit_code == 6
    assert "newer" in str(refused.value)
    assert (home / "data.mdb").read_bytes() == before


async def test_a_body_error_comes_out_as_it_is(home: Path) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with open_store(home):
            raise LookupError("mine")
    async with open_store(home):
        pass


async def test_info_counts_entries_and_bytes(home: Path) -> None:
    async with open_store(home) as store:
        await store.put(PLANS, b"k", b"1")
        info = store.info()
    assert info.entries["plans"] == 1
    assert info.file_bytes == (home / "data.mdb").stat().st_size
    assert set(info.entries) == {table.name for table in tables.ALL}


def test_every_table_is_described_and_named_once() -> None:
    names = [table.name for table in tables.ALL]
    assert len(set(names)) == len(names)
    for table in tables.ALL:
        assert table.key
        assert table.value
        assert table.writer
        assert f"| `{table.name}` |" in DOCUMENT


async def test_a_sound_store_passes_the_whole_check(home: Path) -> None:
    async with open_store(home) as store:
        for round_ in range(4):
            await store.write(lambda txn, r=round_: [txn.put(PLANS, b"%04d" % n, bytes([r]) * n) for n in range(1000)])
        for number in range(0, 500, 25):
            await store.delete(PLANS, b"%04d" % number)
    report = check_data_file(home / "data.mdb", budget=None)
    assert report.complete
    assert report.pages_checked > 100


def test_little_address_space_means_a_smaller_map_that_still_grows(home: Path) -> None:
    """In a child, because a limit on address space cannot be taken back."""
    script = (
        "import resource, sys, trio\n"
        "from pathlib import Path\n"
        "from gnusnode.store import open_store\n"
        "from gnusnode.store.tables import PLANS\n"
        "async def main():\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "    async with open_store(Path(sys.argv[1])) as store:\n"
        "        await store.put(PLANS, b'k', bytes(1000000))\n"
        "        print(store.info().map_bytes)\n"
        "trio.run(main)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(home)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert 1 << 24 <= int(done.stdout) < 4 << 30
