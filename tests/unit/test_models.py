"""The model store: names, files by hash, and what happens when something is wrong or stops half-way."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from gnusnode.errors import Conflict, DataError, DiskFull, ModelInvalid, ModelNotFound, RequestError
from gnusnode.inference.artifacts import filework
from gnusnode.inference.artifacts.filework import Mode
from gnusnode.inference.artifacts.modelrecord import model_name
from gnusnode.inference.artifacts.models import GenerationDefaults, ModelStore, Traits
from tests.fakes.ggufs import tiny_gguf


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@pytest.fixture
async def store(tmp_path: Path) -> ModelStore:
    made = ModelStore(tmp_path / "Modelle für ein Haus" / "models", reserve=0, clock=lambda: 1_000.0)
    await made.prepare()
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "Ein Modell ☃.gguf"
    path.write_bytes(tiny_gguf())
    return path


def unfinished(store: ModelStore) -> list[str]:
    return [path.name for path in (store.root / ".work").iterdir()]


def files(store: ModelStore) -> list[str]:
    return sorted(path.name for path in store.root.glob("*.gguf"))


@pytest.mark.parametrize("mode", ["copy", "link"])
async def test_an_added_file_is_listed_found_and_loadable(store: ModelStore, file: Path, mode: Mode) -> None:
    steps: list[tuple[int, int | None]] = []
    added = await store.add(file, "tiny", mode=mode, progress=lambda done, total: steps.append((done, total)))
    assert added.sha256 == digest(file.read_bytes())
    assert (added.architecture, added.license, added.context_train) == ("llama", "apache-2.0", 128)
    assert (added.added, added.verified_at) == (1_000, 1_000)
    assert steps[-1] == (added.size, added.size)
    assert await store.list() == (added,)
    loadable = await store.resolve("tiny")
    assert loadable.path.read_bytes() == file.read_bytes()
    assert loadable.template == loadable.header.template == "{{ messages }}"
    assert unfinished(store) == []


async def test_a_link_costs_no_space_and_a_copy_is_independent(store: ModelStore, file: Path) -> None:
    await store.add(file, "linked", mode="link")
    assert (await store.resolve("linked")).path.stat().st_ino == file.stat().st_ino
    other = file.with_name("other.gguf")
    other.write_bytes(tiny_gguf(b"\x01"))
    await store.add(other, "copied")
    other.write_bytes(b"changed")
    assert (await store.verify("copied")).sha256 == digest(tiny_gguf(b"\x01"))


async def test_a_model_is_found_by_name_digest_and_first_digits(store: ModelStore, file: Path) -> None:
    added = await store.add(file, "org/tiny")
    for key in ("org/tiny", added.sha256, added.sha256.removeprefix("sha256:"), added.sha256[7:15]):
        assert await store.get(key) == added


@pytest.mark.parametrize("key", ["other", "sha256:00000000", "0" * 64, "../tiny", "", "a" * 500])
async def test_what_is_not_there_is_not_found(store: ModelStore, file: Path, key: str) -> None:
    await store.add(file, "tiny")
    with pytest.raises(ModelNotFound):
        await store.get(key)


async def test_a_file_name_becomes_the_model_name(store: ModelStore, file: Path) -> None:
    assert (await store.add(file)).name == "Ein-Modell"
    assert model_name("deadbeef") == "model-deadbeef"
    assert model_name("☃") == "model"


@pytest.mark.parametrize("name", ["", "-x", "a b", "a\n", "x" * 129, "☃", "deadbeef", "../x", "sha256:" + "0" * 64])
async def test_a_name_that_requests_could_not_use_is_refused(store: ModelStore, file: Path, name: str) -> None:
    with pytest.raises(RequestError):
        await store.add(file, name)


async def test_a_name_with_slashes_stays_inside_the_store(store: ModelStore, file: Path) -> None:
    await store.add(file, "a/../../b")
    assert (await store.get("a/../../b")).name == "a/../../b"
    assert {path.parent for path in store.root.rglob("*.json")} == {store.root}


async def test_adding_the_same_again_keeps_what_was_said_of_it(store: ModelStore, file: Path) -> None:
    traits = Traits(template="{{ x }}", defaults=GenerationDefaults(temperature=0.5), determinism="A")
    first = await store.add(file, "tiny", source="here", traits=traits)
    again = await store.add(file, "tiny", source="there")
    assert (again.source, again.traits, again.added) == (first.source, traits, first.added)
    assert (await store.resolve("tiny")).template == "{{ x }}"


async def test_a_name_does_not_pass_to_another_file_unasked(store: ModelStore, file: Path) -> None:
    first = await store.add(file, "tiny")
    file.write_bytes(tiny_gguf(b"\x01"))
    with pytest.raises(Conflict, match=first.sha256[7:23]):
        await store.add(file, "tiny")
    assert await store.list() == (first,)
    assert unfinished(store) == []
    replaced = await store.add(file, "tiny", replace=True)
    assert await store.list() == (replaced,)
    assert files(store) == [f"{replaced.sha256[7:]}.gguf"]


async def test_a_file_goes_with_its_last_name(store: ModelStore, file: Path) -> None:
    await store.add(file, "one")
    await store.add(file, "two")
    assert (await store.remove("one")).name == "one"
    assert (await store.resolve("two")).manifest.name == "two"
    await store.remove("two")
    assert files(store) == []
    assert await store.list() == ()
    with pytest.raises(ModelNotFound):
        await store.remove("two")


async def test_a_digest_of_two_names_is_no_conflict_but_shared_digits_are(store: ModelStore, file: Path) -> None:
    first = await store.add(file, "one")
    await store.add(file, "two")
    assert (await store.get(first.sha256)).sha256 == first.sha256
    manifest = store.root / "three.json"
    other = first.model_copy(update={"name": "three", "sha256": first.sha256[:-1] + "x"})
    text = other.model_dump_json().replace(first.sha256[:-1] + "x", first.sha256[:20] + "0" * 51)
    manifest.write_text(text)
    with pytest.raises(Conflict, match="more digits"):
        await store.get(first.sha256[:20])


async def test_a_file_that_is_no_model_is_never_registered(store: ModelStore, file: Path) -> None:
    file.write_bytes(tiny_gguf()[:-1000])
    with pytest.raises(ModelInvalid, match="weights end"):
        await store.add(file, "tiny")
    assert await store.list() == ()
    assert files(store) == []


async def test_a_file_of_another_digest_than_promised_is_refused(store: ModelStore, file: Path) -> None:
    with pytest.raises(ModelInvalid, match="promised"):
        await store.add(file, "tiny", expect="sha256:" + "0" * 64)
    assert files(store) == []
    assert unfinished(store) == []


@pytest.mark.parametrize("missing", ["none.gguf", "."])
async def test_a_file_that_cannot_be_read_is_named(store: ModelStore, tmp_path: Path, missing: str) -> None:
    with pytest.raises((ModelNotFound, DataError)) as caught:
        await store.add(tmp_path / missing, "tiny")
    assert str(tmp_path) in str(caught.value)


# --- never loadable before its hash is right -------------------------------------------------------------------------


@pytest.mark.requirement("G-EX-4")
async def test_an_altered_file_is_not_handed_out(store: ModelStore, file: Path) -> None:
    await store.add(file, "tiny")
    path = (await store.resolve("tiny")).path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for attempt in (store.resolve, store.verify):
        with pytest.raises(ModelInvalid, match="promised"):
            await attempt("tiny")


@pytest.mark.requirement("G-EX-4")
async def test_an_altered_file_with_its_old_times_is_not_handed_out(store: ModelStore, file: Path) -> None:
    await store.add(file, "tiny")
    path = (await store.resolve("tiny")).path
    before = path.stat()
    with path.open("r+b") as handle:
        handle.seek(-1, os.SEEK_END)
        handle.write(b"\x01")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ModelInvalid):
        await store.resolve("tiny")


async def test_a_replaced_file_of_the_right_bytes_is_hashed_once_more_and_accepted(
    store: ModelStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.add(file, "tiny")
    path = (await store.resolve("tiny")).path
    path.unlink()
    path.write_bytes(file.read_bytes())
    hashed: list[Path] = []
    real = filework.hash_file

    async def counted(path: Path, progress: filework.Progress | None = None) -> filework.Hashed:
        hashed.append(path)
        return await real(path, progress)

    monkeypatch.setattr(filework, "hash_file", counted)
    await store.resolve("tiny")
    await store.resolve("tiny")
    assert hashed == [path]


async def test_a_missing_file_is_a_model_problem_and_adding_it_again_helps(store: ModelStore, file: Path) -> None:
    await store.add(file, "tiny")
    (await store.resolve("tiny")).path.unlink()
    with pytest.raises(ModelInvalid, match="gone"):
        await store.resolve("tiny")
    await store.add(file, "tiny")
    assert (await store.resolve("tiny")).manifest.name == "tiny"


async def test_verify_notes_when_it_was_done(tmp_path: Path, file: Path) -> None:
    now = [1_000.0]
    store = ModelStore(tmp_path / "models", reserve=0, clock=lambda: now[0])
    await store.prepare()
    await store.add(file, "tiny")
    now[0] = 2_000.0
    steps: list[int] = []
    assert (await store.verify("tiny", lambda done, _: steps.append(done))).verified_at == 2_000
    assert (await store.get("tiny")).verified_at == 2_000
    assert steps[-1] == file.stat().st_size


# --- damage, interruption, several at once ---------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"name": "tiny"}', b"\xff", b" " * 3_000_000])
async def test_a_damaged_manifest_costs_one_name_only(store: ModelStore, file: Path, damage: bytes) -> None:
    kept = await store.add(file, "kept")
    await store.add(file, "tiny")
    (store.root / "tiny.json").write_bytes(damage)
    listing = await store.scan()
    assert listing.models == (kept,)
    assert [problem.where for problem in listing.problems] == [str(store.root / "tiny.json")]
    with pytest.raises(DataError):
        await store.get("tiny")


async def test_a_file_stays_while_a_damaged_manifest_may_name_it(store: ModelStore, file: Path) -> None:
    await store.add(file, "one")
    await store.add(file, "two")
    (store.root / "two.json").write_bytes(b"{")
    await store.remove("one")
    assert len(files(store)) == 1


async def test_a_manifest_under_another_name_is_not_believed(store: ModelStore, file: Path) -> None:
    await store.add(file, "one")
    (store.root / "two.json").write_bytes((store.root / "one.json").read_bytes())
    with pytest.raises(DataError, match="manifest of one"):
        await store.get("two")


async def test_what_a_crash_left_is_removed_at_the_next_start(store: ModelStore) -> None:
    (store.root / ".work" / "half.gguf").write_bytes(b"x")
    (store.root / ".work" / "folder").mkdir()
    (store.root / ".work" / "folder" / "half.whl").write_bytes(b"x")
    (store.root / ".partial" / "resumable.part").write_bytes(b"x")
    await store.prepare()
    assert unfinished(store) == []
    assert (store.root / ".partial" / "resumable.part").exists()


async def test_a_download_that_nobody_took_up_for_long_is_forgotten(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models", clock=lambda: 100 * 86_400.0)
    await store.prepare()
    for name, day in (("old", 80), ("new", 90)):
        part = store.partial / f"{name}.part"
        part.write_bytes(b"x")
        os.utime(part, (day * 86_400, day * 86_400))
    await store.prepare()
    assert [part.name for part in store.partial.iterdir()] == ["new.part"]


async def test_a_start_leaves_the_unfinished_files_of_a_running_addition_alone(store: ModelStore) -> None:
    async with store.workspace() as work:
        (work / "growing.gguf").write_bytes(b"x")
        await store.prepare()
        assert unfinished(store) == ["growing.gguf"]


async def test_a_cancelled_addition_leaves_nothing(
    store: ModelStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filework, "_PIECE", 256)
    with trio.CancelScope() as scope:
        await store.add(file, "tiny", progress=lambda *_: scope.cancel())
    assert scope.cancelled_caught
    assert await store.list() == ()
    assert files(store) == unfinished(store) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_a_disk_that_fills_up_is_told_and_nothing_half_is_left(
    store: ModelStore, file: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(handle: int, data: bytes, at: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskFull):
        await store.add(file, "tiny")
    assert files(store) == unfinished(store) == []
    assert await store.list() == ()


async def test_a_copy_that_cannot_fit_is_refused_before_it_starts(tmp_path: Path, file: Path) -> None:
    store = ModelStore(tmp_path / "models", reserve=2**60)
    await store.prepare()
    steps: list[int] = []
    with pytest.raises(DiskFull, match="must stay free"):
        await store.add(file, "tiny", progress=lambda done, _: steps.append(done))
    assert steps == []


async def test_a_file_that_changes_while_it_is_copied_is_refused(
    store: ModelStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filework, "_PIECE", 256)

    def change(done: int, total: int | None) -> None:
        with file.open("ab") as handle:
            handle.write(b"more")

    with pytest.raises(DataError, match="changed"):
        await store.add(file, "tiny", progress=change)
    assert files(store) == unfinished(store) == []


@pytest.mark.parametrize("mode", ["copy", "link"])
async def test_the_same_file_added_by_many_at_once_is_one_file(store: ModelStore, file: Path, mode: Mode) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(lambda n=number: store.add(file, f"name-{n % 4}", mode=mode))
    assert [model.name for model in await store.list()] == [f"name-{number}" for number in range(4)]
    assert len(files(store)) == 1
    assert unfinished(store) == []
    for model in await store.list():
        await store.verify(model.name)


async def test_of_two_files_that_want_one_name_at_once_one_wins_whole(store: ModelStore, tmp_path: Path) -> None:
    paths = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for number, path in enumerate(paths):
        path.write_bytes(tiny_gguf(bytes([number])))
    refused: list[Conflict] = []

    async def attempt(path: Path) -> None:
        try:
            await store.add(path, "tiny")
        except Conflict as error:
            refused.append(error)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for path in paths:
            nursery.start_soon(attempt, path)
    assert len(refused) == 1
    assert len(files(store)) == 1
    await store.verify("tiny")


def unlinkable(*_: object, **__: object) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


@pytest.mark.parametrize("mode", ["copy", "link"])
async def test_another_filesystem_means_a_copy(
    store: ModelStore, file: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    real: Callable[..., None] = os.link
    monkeypatch.setattr(os, "link", unlinkable)
    await store.add(file, "tiny", mode=mode)
    monkeypatch.setattr(os, "link", real)
    assert (await store.resolve("tiny")).path.stat().st_ino != file.stat().st_ino
