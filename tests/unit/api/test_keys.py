"""API keys: shown once, kept as hashes."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gnusnode.api.keys import FileKeyStore, KeyStore, MemoryKeyStore, NewKey, Scope
from gnusnode.errors import DataError, NotFound

ALICE = NewKey(name="alice", scopes=frozenset({Scope.CHAT}), requests_per_minute=3)


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> KeyStore:
    return FileKeyStore(tmp_path / "api-keys.json") if request.param == "file" else MemoryKeyStore()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "api-keys.json"


def test_a_key_is_found_by_its_token_and_by_nothing_else(store: KeyStore) -> None:
    key, token = store.create(ALICE)
    other, _ = store.create(NewKey(name="bob"))
    assert store.find(token) == key
    for wrong in (token[:-1], token + "A", token.replace(key.id, other.id), key.id, key.sha256, "", "gnus-", "sk-1"):
        assert store.find(wrong) is None


def test_a_revoked_key_is_found_no_more(store: KeyStore) -> None:
    key, token = store.create(ALICE)
    assert store.revoke(key.id) == key
    assert store.find(token) is None
    assert store.list() == []
    with pytest.raises(NotFound):
        store.revoke(key.id)


def test_tokens_carry_256_random_bits(store: KeyStore) -> None:
    tokens = {store.create(ALICE)[1] for _ in range(20)}
    assert len(tokens) == 20
    assert all(token.startswith("gnus-") and len(token.rpartition("gnus-")[2]) == 12 + 1 + 43 for token in tokens)


def test_an_expiry_is_counted_from_the_making(store: KeyStore) -> None:
    key, _ = store.create(NewKey(name="brief", expires_in_seconds=60))
    assert key.expires == key.created + 60


def test_admin_includes_every_scope_and_others_only_themselves(store: KeyStore) -> None:
    admin, _ = store.create(NewKey(name="root", scopes=frozenset({Scope.ADMIN})))
    chat, _ = store.create(ALICE)
    assert all(admin.allows(scope) for scope in Scope)
    assert [scope for scope in Scope if chat.allows(scope)] == [Scope.CHAT]


def test_the_file_is_private_and_holds_no_token(path: Path) -> None:
    _, token = FileKeyStore(path).create(ALICE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text("utf-8")
    assert token not in text
    assert token.rpartition("-")[2] not in text


def test_keys_survive_a_restart(path: Path) -> None:
    key, token = FileKeyStore(path).create(ALICE)
    assert FileKeyStore(path).find(token) == key


def test_a_change_by_another_process_is_seen(path: Path) -> None:
    store = FileKeyStore(path)
    key, token = FileKeyStore(path).create(ALICE)
    assert store.find(token) == key
    FileKeyStore(path).revoke(key.id)
    assert store.find(token) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_can_read_is_refused(path: Path, mode: int) -> None:
    FileKeyStore(path).create(ALICE)
    path.chmod(mode)
    with pytest.raises(DataError, match="other users can read"):
        FileKeyStore(path)


def _link_to_keys(path: Path) -> None:
    elsewhere = path.with_name("elsewhere.json")
    FileKeyStore(elsewhere).create(ALICE)
    path.symlink_to(elsewhere)


UNUSABLE: dict[str, Callable[[Path], object]] = {
    "a link to nowhere": lambda path: path.symlink_to(path.with_name("nowhere")),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to keys": _link_to_keys,
    "a pipe without a writer": os.mkfifo,
    "a directory": Path.mkdir,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_what_is_no_key_file_never_counts_as_no_keys(path: Path, kind: str) -> None:
    UNUSABLE[kind](path)
    with pytest.raises(DataError) as refused:
        FileKeyStore(path)
    assert refused.value.where == str(path)
    assert refused.value.hint


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_store_whose_file_became_unusable_refuses_until_it_is_put_right(path: Path, kind: str) -> None:
    store = FileKeyStore(path)
    key, token = store.create(ALICE)
    kept = path.rename(path.with_name("kept.json"))
    UNUSABLE[kind](path)
    for call in (store.list, lambda: store.find(token), lambda: store.create(ALICE), lambda: store.revoke(key.id)):
        with pytest.raises(DataError):
            call()
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    kept.rename(path)
    assert store.find(token) == key


def test_keys_that_become_readable_by_others_are_refused_while_the_store_is_open(path: Path) -> None:
    store = FileKeyStore(path)
    store.create(ALICE)
    path.chmod(0o644)
    with pytest.raises(DataError, match="other users can read"):
        store.list()


def test_a_key_file_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FileKeyStore(path).create(ALICE)
    if os.getuid() == 0:
        os.chown(path, 4242, 4242)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(DataError, match="another user"):
        FileKeyStore(path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'[{"id":"x"}]', b"\xff"])
def test_a_damaged_file_is_refused_and_kept(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        FileKeyStore(path)
    assert path.read_bytes() == content


def test_a_write_that_fails_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileKeyStore(path)
    key, token = store.create(ALICE)
    before = path.read_bytes()

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="No space left"):
        store.create(ALICE)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    assert FileKeyStore(path).find(token) == key


def test_the_file_is_plain_json_that_a_person_can_read(path: Path) -> None:
    FileKeyStore(path).create(ALICE)
    (entry,) = json.loads(path.read_text("utf-8"))
    assert entry["name"] == "alice"
    assert entry["limits"]["requests_per_minute"] == 3


def test_a_store_that_had_a_key_stays_in_use_also_for_the_next_process(path: Path) -> None:
    store = FileKeyStore(path)
    assert not store.in_use()
    key, _ = store.create(ALICE)
    store.revoke(key.id)
    assert store.in_use()
    assert FileKeyStore(path).in_use()
