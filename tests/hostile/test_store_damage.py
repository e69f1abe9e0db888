"""Damaged and foreign stores: a typed error that says what, where and what next; never death by a signal.

The openings run in a child process, so that a SIGBUS is a failed test and not the end of the test run.
"""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

import gnusnode
from gnusnode.errors import DataError, GnusError
from gnusnode.store import open_store
from gnusnode.store.salvage import salvage
from gnusnode.store.tables import AUDIT, PLANS, u64

ROOT = Path(gnusnode.__file__).parents[1]
PAGE = 4096
ENTRIES = 600


async def _make(home: Path) -> None:
    async with open_store(home) as store:
        for part in range(6):
            await store.write(
                lambda txn, part=part: [txn.put(PLANS, u64(n), _value(n)) for n in range(part, ENTRIES, 6)]
            )
        await store.write(lambda txn: [txn.put(AUDIT, u64(n), b"event %d" % n) for n in range(50)])
        await store.write(lambda txn: [txn.delete(PLANS, u64(n)) for n in range(60)])


def _value(number: int) -> bytes:
    return b"%d " % number * (2000 if number % 50 == 0 else 60)


async def _use(home: Path) -> str:
    """Opens the store, reads everything, writes and deletes: ``fine`` or the text of the typed error."""
    try:
        async with open_store(home) as store:
            for table in (PLANS, AUDIT):
                store.scan(table, limit=10 * ENTRIES)
            await store.write(lambda txn: [txn.put(PLANS, b"new %d" % n, os.urandom(900)) for n in range(20)])
            await store.write(lambda txn: [txn.delete(PLANS, u64(n)) for n in range(60, ENTRIES, 3)])
    except GnusError as error:
        told = "told" if error.exit_code == 6 and error.hint and error.where else "not told what to do"
        return f"{type(error).__name__}, {told}: {error}"
    return "fine"


def _child() -> None:
    """Reads a directory a line and answers with what came of using it."""
    for line in sys.stdin:
        print(json.dumps(trio.run(_use, Path(json.loads(line)))), flush=True)


class _User:
    """The child process; ``use`` fails the test when it dies or does not answer."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def use(self, home: Path) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(str(home)), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, f"the process died with {self._process.wait(10)}"
        return json.loads(answer)


@pytest.fixture(scope="module")
def user() -> Iterator[_User]:
    command = [sys.executable, __file__]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        try:
            yield _User(child)
        finally:
            assert child.stdin is not None
            child.stdin.close()
            child.wait(30)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("pristine") / "store"
    trio.run(_make, home)
    return home


@pytest.fixture
def home(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "store")


def test_the_undamaged_store_is_fine(user: _User, home: Path) -> None:
    assert user.use(home) == "fine"


def test_truncated_at_any_page_or_inside_one_it_is_refused(user: _User, home: Path) -> None:
    data = (home / "data.mdb").read_bytes()
    sizes = {0, 1, 100, PAGE - 1, PAGE, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1, 3 * PAGE}
    sizes |= set(range(4 * PAGE, len(data) // 2, 17 * PAGE)) | {
        size + 1234 for size in range(4 * PAGE, len(data) // 2, 29 * PAGE)
    }
    for size in sorted(sizes):
        (home / "data.mdb").write_bytes(data[:size])
        answer = user.use(home)
        assert answer.startswith("DataError, told:"), (size, answer)
        assert "data.mdb" in answer


def test_a_tail_of_the_file_that_is_in_use_is_missed(user: _User, home: Path) -> None:
    data = (home / "data.mdb").read_bytes()
    for pages in range(1, 8):
        (home / "data.mdb").write_bytes(data[: -pages * PAGE])
        answer = user.use(home)
        # LMDB may leave free pages at the end: then nothing is missing.
        assert answer == "fine" or answer.startswith("DataError, told:"), answer


@pytest.mark.parametrize("page", [0, 1])
def test_any_changed_byte_of_a_root_page_gives_a_typed_error_or_a_sound_store(
    user: _User, home: Path, page: int
) -> None:
    data = (home / "data.mdb").read_bytes()
    answers: set[str] = set()
    for at in range(160):
        changed = bytearray(data)
        changed[page * PAGE + at] ^= 0xFF
        (home / "data.mdb").write_bytes(changed)
        answers.add(user.use(home).partition(":")[0])
    assert answers <= {"fine", "DataError, told"}
    assert "DataError, told" in answers


def test_random_damage_gives_a_typed_error_or_is_survived(user: _User, home: Path) -> None:
    data = (home / "data.mdb").read_bytes()
    dice = random.Random(20)
    answers: list[str] = []
    for _ in range(80):
        changed = bytearray(data)
        for _ in range(dice.choice([1, 1, 3, 30])):
            page, at = dice.randrange(len(data) // PAGE), dice.choice([dice.randrange(64), dice.randrange(PAGE)])
            changed[page * PAGE + at] = dice.randrange(256)
        (home / "data.mdb").write_bytes(changed)
        answers.append(user.use(home).partition(":")[0])
    assert set(answers) <= {"fine", "DataError, told"}
    assert "DataError, told" in answers


@pytest.mark.parametrize(
    "what", ["garbage", "zeros", "text", "sqlite", "directory", "pipe", "missing", "dangling link"]
)
def test_something_else_in_the_place_of_the_data_file_is_refused(user: _User, home: Path, what: str) -> None:
    path = home / "data.mdb"
    path.unlink()
    make: dict[str, Callable[[], object]] = {
        "garbage": lambda: path.write_bytes(random.Random(1).randbytes(100_000)),
        "zeros": lambda: path.write_bytes(bytes(100_000)),
        "text": lambda: path.write_text("not a store"),
        "sqlite": lambda: path.write_bytes(b"SQLite format 3\0" + bytes(50_000)),
        "directory": lambda: path.mkdir(),
        "pipe": lambda: os.mkfifo(path),
        "missing": lambda: None,
        "dangling link": lambda: path.symlink_to(home / "nowhere"),
    }
    make[what]()
    assert user.use(home).startswith("DataError, told:")


@pytest.mark.parametrize("lock", [b"", b"x", bytes(8192), b"\xff" * 8192, b"\xff" * 100_000])
def test_a_damaged_lock_file_does_not_matter(user: _User, home: Path, lock: bytes) -> None:
    (home / "lock.mdb").write_bytes(lock)
    assert user.use(home) == "fine"


def test_a_file_in_the_place_of_the_directory_is_refused(user: _User, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    assert user.use(tmp_path / "store").startswith("DataError, told:")
    assert user.use(tmp_path / "store" / "below").startswith("DataError, told:")


def test_what_a_crash_during_the_first_start_leaves_is_no_damage(user: _User, tmp_path: Path) -> None:
    for size in (0, 1, 5000):
        home = tmp_path / str(size)
        home.mkdir()
        (home / "data.mdb").write_bytes(bytes(size))
        assert user.use(home) == "fine"


def test_salvage_of_a_sound_store_gives_every_entry(home: Path, tmp_path: Path) -> None:
    found = salvage(home, tmp_path / "out.jsonl")
    assert found.damage == []
    assert found.entries == {"meta": 1, "plans": ENTRIES - 60, "audit": 50}


def test_salvage_of_any_damaged_store_ends_well_and_gives_only_what_was_written(home: Path, tmp_path: Path) -> None:
    data = (home / "data.mdb").read_bytes()
    dice = random.Random(21)
    for attempt in range(40):
        changed = bytearray(data)
        page = dice.randrange(len(data) // PAGE)
        changed[page * PAGE : page * PAGE + 32] = dice.randbytes(32)
        kept = changed[: dice.choice([len(data), len(data) * 3 // 4])]
        (home / "data.mdb").write_bytes(kept)
        out = tmp_path / f"{attempt}.jsonl"
        found = salvage(home, out)
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        assert sum(found.entries.values()) == len(lines)
        plans = [line for line in lines if line["table"] == "plans"]
        assert len(plans) > ENTRIES // 3 or found.damage
        # The file format has no checksum of values: damage inside one is for the record's own signature to show.
        assert sum(_decoded(line) != _value(int(line["key"], 16)) for line in plans) <= 1


def test_salvage_without_roots_finds_the_entries_of_unknown_tables(home: Path, tmp_path: Path) -> None:
    data = (home / "data.mdb").read_bytes()
    (home / "data.mdb").write_bytes(bytes(2 * PAGE) + data[2 * PAGE :])
    found = salvage(home, tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert found.damage
    assert {line["table"] for line in lines} == {None}
    values = {_decoded(line) for line in lines}
    assert {_value(n) for n in range(60, ENTRIES)} <= values


def test_salvage_never_overwrites_and_says_when_there_is_nothing(home: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(DataError):
        salvage(home, tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"
    with pytest.raises(DataError):
        salvage(tmp_path / "nowhere", tmp_path / "other")


def _decoded(line: dict[str, str]) -> bytes:
    return base64.b64decode(line["value_base64"])


if __name__ == "__main__":
    _child()
