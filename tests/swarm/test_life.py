"""Starting, stopping and being told to stop: what a user meets first and last."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.swarm.harness import alive, environment, gnusnode, running

DRAIN = 5.0
"""Seconds within which a node must have ended after a signal: a promise of the product."""


def test_a_node_without_a_model_starts_says_where_it_listens_and_stops(tmp_path: Path) -> None:
    with running(tmp_path / "home", "--no-model") as node:
        info = node.run_info()
        assert info["pid"] == node.process.pid
        assert json.loads(gnusnode("status", "--home", str(node.home), "--json").stdout)["peer_id"] == info["peer_id"]
        assert gnusnode("stop", "--home", str(node.home)).returncode == 0
        assert node.process.wait(DRAIN) == 0
        assert not (node.home / "run.json").exists()


def test_everything_of_a_node_lies_in_its_home_and_the_key_is_private(tmp_path: Path) -> None:
    home = tmp_path / "a home with spaces – und Ümläuten"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    apart = {"HOME": str(elsewhere), "XDG_DATA_HOME": str(elsewhere), "XDG_CONFIG_HOME": str(elsewhere)}
    with running(home, "--no-model", env={"LANG": "C", "LC_ALL": "C", **apart}) as node:
        assert stat.S_IMODE((home / "key").stat().st_mode) == 0o600
        shown = gnusnode("id", "--home", str(home), env={"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"})
        assert shown.stdout.strip() == node.run_info()["peer_id"], shown.stderr
    assert list(elsewhere.iterdir()) == []


def test_the_identity_survives_a_restart_and_a_kill(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running(home, "--no-model") as node:
        first = node.run_info()["peer_id"]
        node.process.kill()
        node.process.wait()
    with running(home, "--no-model") as node:
        assert node.run_info()["peer_id"] == first
    verified = gnusnode("audit", "verify", "--home", str(home))
    assert verified.returncode == 0, verified.stderr


def test_a_second_node_on_the_same_home_is_refused_and_names_the_first(tmp_path: Path) -> None:
    with running(tmp_path / "home", "--no-model") as node:
        second = gnusnode("start", "--home", str(node.home), "--no-model", "--api", "127.0.0.1:0")
        assert second.returncode == 5
        assert str(node.process.pid) in second.stderr
        assert node.get("/healthz")[0] == 200


def test_a_busy_port_is_named_and_the_node_starts_once_it_is_free(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = gnusnode("start", "--home", str(home), "--no-model", "--api", address)
        assert refused.returncode == 3
        assert address in refused.stderr
        assert "next:" in refused.stderr
    with running(home, "--no-model"):
        pass


def test_a_key_that_others_can_read_is_refused_until_it_is_private(tmp_path: Path) -> None:
    home = tmp_path / "home"
    gnusnode("init", "--home", str(home))
    (home / "key").chmod(0o644)
    refused = gnusnode("start", "--home", str(home), "--no-model", "--api", "127.0.0.1:0")
    assert refused.returncode == 6
    assert "key" in refused.stderr
    (home / "key").chmod(0o600)
    with running(home, "--no-model"):
        pass


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_key_is_refused_and_never_replaced(tmp_path: Path, damage: str) -> None:
    home = tmp_path / "home"
    gnusnode("init", "--home", str(home))
    good = (home / "key").read_bytes()
    bad = {"flip": good[:-5] + bytes([good[-5] ^ 1]) + good[-4:], "cut": good[:40], "empty": b""}[damage]
    (home / "key").write_bytes(bad)
    refused = gnusnode("start", "--home", str(home), "--no-model", "--api", "127.0.0.1:0")
    assert refused.returncode == 6, refused.stderr
    assert (home / "key").read_bytes() == bad
    (home / "key").write_bytes(good)
    with running(home, "--no-model"):
        pass


@pytest.mark.parametrize("damage", ["garbage", "half", "empty"])
def test_a_damaged_store_is_refused_and_left_as_it_is(tmp_path: Path, damage: str) -> None:
    home = tmp_path / "home"
    with running(home, "--no-model"):
        pass
    file = home / "data" / "data.mdb"
    good = file.read_bytes()
    bad = {"garbage": os.urandom(len(good)), "half": good[: len(good) // 2], "empty": b""}[damage]
    file.write_bytes(bad)
    refused = gnusnode("start", "--home", str(home), "--no-model", "--api", "127.0.0.1:0")
    assert refused.returncode == 6, (refused.returncode, refused.stderr)
    assert "data" in refused.stderr
    assert "next:" in refused.stderr
    assert file.read_bytes() == bad
    file.write_bytes(good)
    with running(home, "--no-model"):
        pass
    assert gnusnode("audit", "verify", "--home", str(home)).returncode == 0


@contextmanager
def mounted(where: Path, options: str) -> Iterator[Path]:
    """A file system of its own; loud when this machine does not allow it."""
    where.mkdir(exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"mounting a tmpfs needs root: {made.stderr.decode()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def test_a_read_only_home_is_refused_and_works_again_when_writable(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=64m") as disk:
        gnusnode("init", "--home", str(disk / "home"))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        refused = gnusnode("start", "--home", str(disk / "home"), "--no-model", "--api", "127.0.0.1:0")
        assert refused.returncode == 6, (refused.returncode, refused.stderr)
        assert str(disk / "home") in refused.stderr
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        with running(disk / "home", "--no-model"):
            pass


def test_a_full_disk_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=4m") as disk:
        home = disk / "home"
        with running(home, "--no-model") as node:
            first = node.run_info()["peer_id"]
        filler = disk / "filler"
        with filler.open("wb") as file:
            try:
                while True:
                    file.write(bytes(65536))
                    file.flush()
            except OSError:
                pass
        refused = gnusnode("start", "--home", str(home), "--no-model", "--api", "127.0.0.1:0")
        assert refused.returncode == 6, (refused.returncode, refused.stderr)
        filler.unlink()
        with running(home, "--no-model") as node:
            assert node.run_info()["peer_id"] == first
        assert gnusnode("audit", "verify", "--home", str(home)).returncode == 0


def test_a_wrong_setting_is_named_with_file_line_and_nearest_match(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "gnusnode.toml").write_text('[api]\nlistne = "127.0.0.1:1"\n')
    refused = gnusnode("start", "--home", str(home), "--no-model")
    assert refused.returncode == 4
    assert "gnusnode.toml" in refused.stderr
    assert "2" in refused.stderr
    assert "listen" in refused.stderr
    (home / "gnusnode.toml").unlink()
    typo = gnusnode("config", "validate", "--home", str(home), env={"GNUSNODE_API__LISTNE": "127.0.0.1:1"})
    assert typo.returncode == 4
    assert "GNUSNODE_API__LISTEN" in typo.stderr


@pytest.mark.requirement("G-LAY-1")
@pytest.mark.model
@pytest.mark.parametrize("reads", [True, False], ids=["reading client", "stuck client"])
def test_a_signal_ends_open_streams_with_an_error_event_and_leaves_no_orphan(tmp_path: Path, reads: bool) -> None:
    with running(tmp_path / "home") as node, socket.create_connection(node.address, timeout=30) as client:
        received = node.start_stream(client)
        assert b" 200 " in received
        children = node.children()
        assert children
        node.signal(signal.SIGINT)
        while reads and (more := client.recv(65536)):
            received += more
        assert node.process.wait(DRAIN + 1) == 0
        if reads:
            assert b'"error"' in received
            assert b"[DONE]" not in received
        assert not any(alive(pid) for pid in children)


@pytest.mark.model
def test_a_signal_while_a_model_loads_ends_the_node(tmp_path: Path) -> None:
    with running(tmp_path / "home", ready=False) as node:
        node.run_info()
        node.signal(signal.SIGINT)
        assert node.process.wait(DRAIN + 1) == 0


@pytest.mark.model
def test_a_second_signal_ends_the_node_at_once_and_its_engines_with_it(tmp_path: Path) -> None:
    with running(tmp_path / "home") as node, socket.create_connection(node.address, timeout=30) as client:
        assert b" 200 " in node.start_stream(client)
        children = node.children()
        node.signal(signal.SIGINT)
        time.sleep(0.2)
        node.signal(signal.SIGINT)
        assert node.process.wait(2) in (0, 130)
        deadline = time.monotonic() + 5
        while any(alive(pid) for pid in children) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(alive(pid) for pid in children)


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom gnusnode.cli.app import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('libp2p', 'llama_cpp', 'fastapi', 'trio', 'numpy', 'lmdb') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.rstrip().endswith("[]")


def test_commands_say_so_when_no_node_runs(tmp_path: Path) -> None:
    for command in (["status"], ["run", "hi"], ["stop"], ["keys", "list"]):
        done = gnusnode(*command, "--home", str(tmp_path))
        assert done.returncode == 7, command
        assert "gnusnode start" in done.stderr
