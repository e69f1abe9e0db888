"""The image of this Python: the same files give the same id, and nothing in it helps a program against us."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

from gnusnode.errors import DataError
from sandbox.run import elf, image

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="an image can only be made on Linux")
FILES: dict[str, Path | bytes] = {"usr/bin/b": b"b", "usr/bin/a": b"a", "etc/c": b"c"}


def layer(made: image.Image) -> tarfile.TarFile:
    with tarfile.open(made.archive) as outer:
        name = next(member for member in outer.getnames() if member.endswith("layer.tar"))
        data = outer.extractfile(name)
        assert data is not None
        return tarfile.open(fileobj=io.BytesIO(data.read()))


def test_the_id_follows_from_the_files_alone(tmp_path: Path) -> None:
    one = image.pack(FILES, tmp_path / "one")
    two = image.pack(dict(reversed(FILES.items())), tmp_path / "two")
    assert one.image_id == two.image_id
    assert one.archive.read_bytes() == two.archive.read_bytes()
    assert image.pack({**FILES, "etc/c": b"d"}, tmp_path / "three").image_id != one.image_id
    assert image.pack({**FILES, "etc/e": b""}, tmp_path / "four").image_id != one.image_id


def test_time_and_owner_of_a_file_do_not_matter_and_its_content_does(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    one = image.pack({"a": source}, tmp_path / "one")
    source.touch()
    assert image.pack({"a": source}, tmp_path / "two").image_id == one.image_id
    source.write_bytes(b"y")
    assert image.pack({"a": source}, tmp_path / "three").image_id != one.image_id


def test_a_failed_build_leaves_the_old_archive(tmp_path: Path) -> None:
    made = image.pack(FILES, tmp_path / "image")
    before = made.archive.read_bytes()
    with pytest.raises(FileNotFoundError):
        image.pack({"a": tmp_path / "absent"}, made.archive)
    assert made.archive.read_bytes() == before


@linux
def test_the_image_of_this_python_is_the_same_when_it_is_made_again(tmp_path: Path) -> None:
    one, two = image.build(tmp_path / "one"), image.build(tmp_path / "two")
    assert one.image_id == two.image_id
    assert one.archive.read_bytes() == two.archive.read_bytes()


@linux
def test_the_image_has_python_and_no_shell_no_package_and_nothing_that_gives_rights(tmp_path: Path) -> None:
    made = image.build(tmp_path / "image")
    files = layer(made)
    programs = [
        member.name for member in files if member.isfile() and member.name.startswith(("usr/bin", "bin", "sbin"))
    ]
    assert programs == ["usr/bin/python3"]
    for member in files:
        assert member.mode & 0o7000 == (0o1000 if member.name == "tmp" else 0), member.name
        assert (member.uid, member.gid, member.mtime) == (0, 0, 0)
        assert not member.mode & 0o022 or member.name == "tmp", member.name
        assert member.isfile() or member.isdir(), member.name
        assert not {"site-packages", "ensurepip", "test"} & set(Path(member.name).parts), member.name
    names = set(files.getnames())
    assert any(name.endswith("libgcc_s.so.1") for name in names)
    assert any("__pycache__/json" not in name and name.endswith(".pyc") for name in names)


def test_the_configuration_says_nobody_and_the_beginning_of_time(tmp_path: Path) -> None:
    made = image.pack(FILES, tmp_path / "image")
    with tarfile.open(made.archive) as outer:
        data = outer.extractfile(made.image_id[7:] + ".json")
        assert data is not None
        config = json.loads(data.read())
    assert config["config"]["User"] == "65534:65534"
    assert config["created"] == "1970-01-01T00:00:00Z"


@linux
def test_a_static_program_has_no_libraries_to_pack(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    with pytest.raises(DataError):
        elf.libraries([script])
