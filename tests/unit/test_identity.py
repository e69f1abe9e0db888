"""The node's key: one file that is whole, private and undamaged, or refused."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gnusnode import identity
from gnusnode.contracts import dsse, ids
from gnusnode.contracts.swarm import KeyRotation
from gnusnode.errors import DataError, DiskFull
from gnusnode.identity import NodeIdentity, rotate, rotations


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return tmp_path / "home" / "key"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(key: Path) -> set[str]:
    return {entry.name for entry in key.parent.iterdir()}


class TestKeyFile:
    def test_a_first_start_makes_a_private_key_and_a_second_one_finds_it(self, key: Path) -> None:
        first = NodeIdentity.load_or_create(key)
        assert NodeIdentity.load_or_create(key).peer_id == first.peer_id
        assert NodeIdentity.load(key).seed == first.seed
        assert mode(key) == 0o600
        assert mode(key.parent) == 0o700
        assert names(key) == {"key"}

    def test_two_nodes_have_different_keys(self, tmp_path: Path) -> None:
        a = NodeIdentity.load_or_create(tmp_path / "a" / "key")
        b = NodeIdentity.load_or_create(tmp_path / "b" / "key")
        assert a.peer_id != b.peer_id

    def test_its_signatures_verify_under_its_peer_id(self) -> None:
        node = NodeIdentity.generate()
        signature = dsse.sign(node, "some/type", b"payload")
        assert dsse.verify(node.peer_id, "some/type", b"payload", signature)
        assert not dsse.verify(NodeIdentity.generate().peer_id, "some/type", b"payload", signature)

    def test_the_peer_id_holds_the_public_key_of_the_seed(self) -> None:
        # RFC 8032, section 7.1, test 1.
        node = NodeIdentity(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
        expected = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
        assert ids.public_key(node.peer_id).hex() == expected

    def test_its_repr_shows_no_secret(self) -> None:
        node = NodeIdentity(bytes(range(32)))
        assert repr(node) == f"NodeIdentity({node.peer_id})"

    def test_starts_at_the_same_moment_agree_on_one_key(self, key: Path) -> None:
        ready = threading.Barrier(8)
        found: list[str] = []

        def start() -> None:
            ready.wait()
            found.append(NodeIdentity.load_or_create(key).peer_id)

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [NodeIdentity.load(key).peer_id] * 8
        assert names(key) == {"key"}

    def test_a_missing_key_says_how_to_get_one(self, key: Path) -> None:
        with pytest.raises(DataError, match=r"no key yet.*gnusnode init"):
            NodeIdentity.load(key)


class TestRefusal:
    def test_a_change_of_any_byte_is_noticed(self, key: Path) -> None:
        NodeIdentity.load_or_create(key)
        good = key.read_bytes()
        for place in range(len(good)):
            for change in (0x01, 0x20, 0x80):
                damaged = bytearray(good)
                damaged[place] ^= change
                key.write_bytes(damaged)
                with pytest.raises(DataError, match="restore the file from a backup"):
                    NodeIdentity.load(key)

    def test_a_file_that_ends_early_or_late_is_noticed(self, key: Path) -> None:
        NodeIdentity.load_or_create(key)
        good = key.read_bytes()
        for data in [good[:end] for end in range(len(good))] + [good + b"\n", good * 2, good + b"x" * 1000]:
            key.write_bytes(data)
            with pytest.raises(DataError):
                NodeIdentity.load(key)

    @pytest.mark.parametrize("bits", [0o640, 0o604, 0o660, 0o622, 0o601, 0o777])
    def test_a_key_that_others_can_reach_is_refused_with_the_cure(self, key: Path, bits: int) -> None:
        NodeIdentity.load_or_create(key)
        key.chmod(bits)
        with pytest.raises(DataError, match=f"mode 0{bits:o}.*chmod 600"):
            NodeIdentity.load(key)
        key.chmod(0o600)
        NodeIdentity.load(key)

    def test_a_link_in_the_place_of_the_key_is_refused_also_when_it_leads_nowhere(self, key: Path) -> None:
        real = key.parent.parent / "elsewhere" / "key"
        NodeIdentity.load_or_create(real)
        key.parent.mkdir()
        key.symlink_to(real)
        with pytest.raises(DataError, match="symbolic link"):
            NodeIdentity.load(key)
        key.unlink()
        key.symlink_to(key.parent / "nothing")
        with pytest.raises(DataError, match="symbolic link"):
            NodeIdentity.load_or_create(key)

    def test_a_named_pipe_or_a_directory_in_the_place_of_the_key_is_refused_at_once(self, key: Path) -> None:
        key.parent.mkdir()
        os.mkfifo(key)
        with pytest.raises(DataError, match="not a regular file"):
            NodeIdentity.load_or_create(key)
        key.unlink()
        key.mkdir()
        with pytest.raises(DataError, match="not a regular file"):
            NodeIdentity.load_or_create(key)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
    def test_a_key_that_belongs_to_another_user_is_refused(self, key: Path) -> None:
        NodeIdentity.load_or_create(key)
        os.chown(key, 65534, -1)
        with pytest.raises(DataError, match="another user"):
            NodeIdentity.load(key)


class TestWriting:
    @pytest.mark.parametrize("step", ["fsync", "link"])
    def test_a_full_disk_leaves_no_half_key(self, key: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
        def full(*_args: object, **_kwargs: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(identity.os, step, full)
            with pytest.raises(DiskFull):
                NodeIdentity.load_or_create(key)
        assert not key.exists()
        NodeIdentity.load_or_create(key)

    def test_an_existing_file_is_never_replaced(self, key: Path) -> None:
        first = NodeIdentity.load_or_create(key)
        with pytest.raises(FileExistsError):
            identity.write_new(key, NodeIdentity.generate())
        assert NodeIdentity.load(key).peer_id == first.peer_id


class TestRotation:
    def test_the_old_key_hands_over_to_a_new_one_and_is_kept(self, key: Path) -> None:
        old = NodeIdentity.load_or_create(key)
        statement = rotate(key, now_ms=1_800_000_000_000)
        new = NodeIdentity.load(key)
        assert (statement.old_peer_id, statement.new_peer_id) == (old.peer_id, new.peer_id)
        assert statement.issued_at_ms == 1_800_000_000_000
        assert statement.signature_is_valid()
        assert statement.proof_is_valid()
        assert NodeIdentity.load(key.with_name("key.1.old")).peer_id == old.peer_id
        assert KeyRotation.from_bytes(key.with_name("key.1.rotation").read_bytes()) == statement
        assert names(key) == {"key", "key.1.old", "key.1.rotation"}
        assert {mode(path) for path in key.parent.iterdir()} == {0o600}

    def test_each_rotation_keeps_the_ones_before(self, key: Path) -> None:
        first = NodeIdentity.load_or_create(key)
        one = rotate(key, now_ms=1)
        two = rotate(key, now_ms=2)
        assert rotations(key) == [one, two]
        assert (one.new_peer_id, one.old_peer_id) == (two.old_peer_id, first.peer_id)
        assert NodeIdentity.load(key.with_name("key.1.old")).peer_id == first.peer_id
        assert NodeIdentity.load(key.with_name("key.2.old")).peer_id == one.new_peer_id

    @pytest.mark.parametrize("cut", range(1, 18))
    def test_a_rotation_cut_short_anywhere_leaves_a_whole_key_and_is_finished_as_it_began(
        self, key: Path, monkeypatch: pytest.MonkeyPatch, cut: int
    ) -> None:
        old = NodeIdentity.load_or_create(key)
        rotate_until_cut(key, monkeypatch, cut)
        if NodeIdentity.load(key).peer_id == old.peer_id:
            assert rotations(key) == []
            begun = key.with_name("key.1.rotation")
            before = begun.read_bytes() if begun.exists() else None
            assert before in (None, rotate(key, now_ms=2).to_bytes())
        assert {name for name in names(key) if not name.startswith(".")} == {"key", "key.1.old", "key.1.rotation"}
        [statement] = rotations(key)
        assert NodeIdentity.load(key.with_name("key.1.old")).peer_id == old.peer_id == statement.old_peer_id
        assert NodeIdentity.load(key).peer_id == statement.new_peer_id

    def test_a_damaged_statement_is_refused_by_name(self, key: Path) -> None:
        NodeIdentity.load_or_create(key)
        key.with_name("key.1.rotation").write_bytes(b"\xff")
        with pytest.raises(DataError, match=r"key\.1\.rotation: the rotation statement is damaged"):
            rotate(key, now_ms=1)

    def test_without_a_key_there_is_nothing_to_rotate(self, key: Path) -> None:
        with pytest.raises(DataError, match="no key yet"):
            rotate(key, now_ms=1)


class Cut(BaseException):
    """The process ends here."""


def rotate_until_cut(key: Path, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    """Rotates, but ends before the ``cut``-th access to the file system."""
    calls = 0

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal calls
            calls += 1
            if calls == cut:
                raise Cut
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch, contextlib.suppress(Cut):
        for name in ("open", "fsync", "link", "replace"):
            patch.setattr(identity.os, name, counted(getattr(os, name)))
        rotate(key, now_ms=1)
