"""A home that somebody has prepared: a start ends soon, with a documented code, whatever lies in it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.swarm.attacks import chat, post
from tests.swarm.harness import gnusnode, running

START = ("start", "--no-model", "--api", "127.0.0.1:0")
REFUSALS = (3, 4, 5, 6)
SOON = 8.0
"""Seconds in which a refused start has ended, on any machine; hanging on a pipe would take for ever."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("homes") / "made"
    assert gnusnode("init", "--home", str(place)).returncode == 0
    return place


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "home")


def replace(path: Path, make: Callable[[Path], object]) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    make(path)


def own_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "directory": Path.mkdir,
    "link to nowhere": lambda path: path.symlink_to("/nonexistent/somewhere"),
    "link to the system's": lambda path: path.symlink_to("/etc/hostname"),
    "link to itself": lambda path: path.symlink_to(path),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "socket": own_socket,
}


READERS = {
    "key": ("id",),
    "gnusnode.toml": ("config", "validate"),
    "lock": ("audit", "verify"),
    "data": ("audit", "verify"),
}
"""Commands that go through the same door to a file as a start does, and are quicker."""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind) for name in READERS for kind in KINDS if (name, kind) != ("data", "directory")
    ],  # which belongs there
)
def test_what_lies_in_a_files_place_is_refused_and_not_followed(home: Path, name: str, kind: str) -> None:
    _refuses(home, name, kind, *READERS[name])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("key", "link to the system's"),
        ("gnusnode.toml", "endless device"),
        ("lock", "pipe"),
        ("data", "socket"),
        ("keys.json", "pipe"),
        ("keys.json", "link to nowhere"),
        ("keys.json", "link to itself"),
    ],
)
def test_a_start_never_hangs_or_follows(home: Path, name: str, kind: str) -> None:
    _refuses(home, name, kind, *START)


def _refuses(home: Path, name: str, kind: str, *command: str) -> None:
    hostname = Path("/etc/hostname").read_bytes()
    replace(home / name, KINDS[kind])
    done = gnusnode(*command, "--home", str(home), timeout=SOON)
    assert done.returncode in REFUSALS, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    assert "next:" in done.stderr
    assert Path("/etc/hostname").read_bytes() == hostname
    assert not Path("/nonexistent").exists()


def test_a_key_file_that_is_lost_while_the_node_runs_closes_it_and_ends_nothing(home: Path) -> None:
    with running(home, "--no-model") as node:
        assert node.get("/v1/models")[0] == 200
        for kind in ("link to nowhere", "link to itself", "pipe", "directory"):
            replace(home / "keys.json", KINDS[kind])
            for path in ("/v1/models", "/gnus/v1/status"):
                status, body = node.get(path)
                assert (status, json.loads(body)["error"]["code"]) == (500, "data_error"), (kind, path)
            status, answer = post(node, chat(), Authorization="Bearer gnus-0123456789ab-x")
            assert (status, answer["error"]["code"]) == (500, "data_error"), kind
            assert node.get("/healthz")[0] == 200
        assert gnusnode("status", "--home", str(home)).returncode == 0  # the owner, who is no caller of the network
        replace(home / "keys.json", lambda path: None)
        assert node.get("/v1/models")[0] == 200
        assert "Traceback" not in node.log.read_text("utf-8", "replace")


def test_a_key_with_a_second_name_is_refused_or_private(home: Path, tmp_path: Path) -> None:
    os.link(home / "key", tmp_path / "copy")
    done = gnusnode("id", "--home", str(home), timeout=SOON)
    assert done.returncode == 6 or stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600


def test_a_home_of_two_hundred_characters_works(tmp_path: Path) -> None:
    home = tmp_path / ("h" * 100) / ("ö" * 50)
    home.parent.mkdir()
    with running(home, "--no-model"):
        assert gnusnode("status", "--home", str(home)).returncode == 0


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_home_in_which_others_may_write_is_refused(home: Path, mode: int) -> None:
    home.chmod(mode)
    done = gnusnode(*START, "--home", str(home), timeout=SOON)
    assert done.returncode in REFUSALS, done.stderr
    assert "next:" in done.stderr


def test_the_home_of_another_user_is_refused(home: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("giving a directory away needs root")
    os.chown(home, 65534, 65534)
    done = gnusnode(*START, "--home", str(home), timeout=SOON)
    assert done.returncode in REFUSALS, done.stderr
    assert "next:" in done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GNUSNODE_API__LISTEN", "127.0.0.1:99999"),
        ("GNUSNODE_API__LISTEN", "[::1"),
        ("GNUSNODE_API__MAX_BODY_BYTES", "1e400"),
        ("GNUSNODE_API__MAX_BODY_BYTES", "9" * 5000),
        ("GNUSNODE_API__HEADER_SECONDS", "nan"),
        ("GNUSNODE_API__HEADER_SECONDS", "-inf"),
        ("GNUSNODE_MODELS__HUB", "file:///etc/passwd"),
        ("GNUSNODE_NODE__ROLES", "[" * 100_000),
        ("GNUSNODE_NODE__ROLES", "ingress,,root"),
        ("GNUSNODE_NODE__NAME", "\x1b[31m\udcff"),
        ("GNUSNODE_STORE__MAP_BYTES", "0x7fffffffffffffff"),
        ("GNUSNODE_PROFILE", "../../../etc/passwd"),
        ("GNUSNODE_", "x"),
        ("GNUSNODE_API", "{}"),
        ("GNUSNODE_API__LISTEN__MORE", "x"),
    ],
)
def test_a_hostile_variable_is_a_setting_that_is_refused_by_name(home: Path, name: str, value: str) -> None:
    done = gnusnode("config", "validate", "--home", str(home), env={name: value}, timeout=SOON)
    assert done.returncode == 4, (done.returncode, done.stderr)
    assert name in done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b[31m" not in done.stderr


@pytest.mark.parametrize(
    ("name", "value"), [("GNUSNODE_API__LISTEN", "0.0.0.0:0"), ("GNUSNODE_PROFILE", "../../../etc/passwd")]
)
def test_a_start_refuses_a_hostile_variable_by_name(home: Path, name: str, value: str) -> None:
    done = gnusnode("start", "--no-model", "--home", str(home), env={name: value}, timeout=SOON)
    assert done.returncode == 4, (done.returncode, done.stderr)
    assert name in done.stderr
    assert "Traceback" not in done.stderr
