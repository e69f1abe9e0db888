"""Homes as they are in the wild: read-only, full, shared, oddly named, half deleted, taken."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gnusnode.config import runfile
from gnusnode.config.lock import HomeLock
from gnusnode.config.paths import SOCKET_PATH_LIMIT, Home
from gnusnode.config.runfile import RunInfo
from gnusnode.errors import AlreadyRunning, ConfigError, DataError, DiskFull
from gnusnode.identity import NodeIdentity

REPOSITORY = Path(__file__).parents[2]

START = """
import os, sys
from gnusnode.config import runfile
from gnusnode.config.lock import HomeLock
from gnusnode.config.paths import Home
from gnusnode.config.runfile import RunInfo
from gnusnode.errors import GnusError
from gnusnode.identity import NodeIdentity
try:
    home = Home.locate(sys.argv[1] if len(sys.argv) > 1 else None)
    home.ensure()
    with HomeLock.acquire(home):
        me = NodeIdentity.load_or_create(home.key)
        info = RunInfo(os.getpid(), "now", "0", me.peer_id, str(home.socket_path()), "http://x")
        runfile.write(home, info)
        print(me.peer_id)
        if "wait" in sys.argv:
            sys.stdout.flush()
            sys.stdin.read()
except GnusError as error:
    print(type(error).__name__, str(error).encode("ascii", "backslashreplace").decode())
    sys.exit(error.exit_code)
"""
"""What a start does with a home, up to the first service."""


@contextmanager
def unprivileged() -> Generator[None]:
    """File permissions count in the body, also when the tests run as root."""
    user = os.geteuid()
    os.seteuid(user or 65534)
    try:
        yield
    finally:
        os.seteuid(user)


def run(*arguments: str | bytes, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START, *arguments],
        env={"PATH": os.defpath, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def open_tmp() -> Iterator[Path]:
    """A directory with a short name that another user can reach: pytest's are neither."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class TestNames:
    @pytest.mark.parametrize("name", ["with space", "ünïcode-гнус-節点", "quote'\"$(x)", "new\nline"])
    @pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
    def test_any_name_works_under_any_locale(self, tmp_path: Path, name: str, locale: str) -> None:
        done = run(os.fsencode(tmp_path / name), LC_ALL=locale)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        assert NodeIdentity.load(tmp_path / name / "key").peer_id == done.stdout.strip()

    @pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
    def test_a_name_that_is_no_utf8_works(self, tmp_path: Path, locale: str) -> None:
        name = os.fsencode(tmp_path) + b"/caf\xe9"
        done = run(name, LC_ALL=locale)
        assert done.returncode == 0, done.stdout + done.stderr
        assert os.path.exists(name + b"/run.json")

    def test_the_variable_moves_everything_and_the_flag_wins(self, tmp_path: Path) -> None:
        assert run(GNUSNODE_HOME=str(tmp_path / "by-env")).returncode == 0
        assert {"key", "run.json", "lock", "data", "blobs", "models", "logs"} == set(os.listdir(tmp_path / "by-env"))
        assert run(str(tmp_path / "by-flag"), GNUSNODE_HOME=str(tmp_path / "other")).returncode == 0
        assert sorted(os.listdir(tmp_path)) == ["by-env", "by-flag"]

    def test_without_both_it_lies_in_the_users_data_directory(self, tmp_path: Path) -> None:
        assert Home.locate(env={}).root.name == "gnusnode"
        assert run(HOME=str(tmp_path), XDG_DATA_HOME=str(tmp_path / "data")).returncode == 0
        assert (tmp_path / "data" / "gnusnode" / "key").exists()

    def test_the_home_of_nobody_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="no such user"):
            Home.locate("~no-such-user-here/node")

    def test_a_relative_home_does_not_move_with_the_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        home = Home.locate("node")
        monkeypatch.chdir("/")
        assert home.root == tmp_path / "node"


class TestAccess:
    def test_everything_in_a_new_home_is_private_whatever_the_umask(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            home = Home(tmp_path / "a" / "home")
            home.ensure()
            with HomeLock.acquire(home):
                NodeIdentity.load_or_create(home.key)
                runfile.write(home, RunInfo(1, "now", "0", "p", "s", "http://x"))
        finally:
            os.umask(before)
        for path in [home.root, home.data, home.blobs, home.models, home.logs]:
            assert mode(path) == 0o700
        for path in [home.key, home.lock, home.run_json]:
            assert mode(path) == 0o600

    def test_an_empty_directory_of_ours_is_tightened(self, tmp_path: Path) -> None:
        root = tmp_path / "home"
        root.mkdir(mode=0o777)
        root.chmod(0o775)
        Home(root).ensure()
        assert mode(root) == 0o700

    def test_a_home_may_be_a_link_to_a_directory(self, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir(mode=0o755)
        (tmp_path / "home").symlink_to("disk")
        Home(tmp_path / "home").ensure()
        assert mode(tmp_path / "disk") == 0o700

    def test_a_home_in_which_others_can_write_is_refused(self, tmp_path: Path) -> None:
        home = Home(tmp_path / "home")
        home.ensure()
        home.root.chmod(0o770)
        with pytest.raises(DataError, match=r"others can write.*chmod 700"):
            home.ensure()
        assert mode(home.root) == 0o770

    def test_a_shared_temporary_directory_is_never_taken_over(self, tmp_path: Path) -> None:
        shared = tmp_path / "tmp"
        shared.mkdir()
        shared.chmod(0o1777)
        with pytest.raises(DataError, match="others can write"):
            Home(shared).ensure()
        assert mode(shared) == 0o1777

    def test_a_read_only_home_is_refused_and_recovers(self, open_tmp: Path) -> None:
        home = Home(open_tmp / "home")
        open_tmp.chmod(0o555)
        with unprivileged(), pytest.raises(DataError, match=r"Permission denied.*another --home") as caught:
            home.ensure()
        assert caught.value.exit_code == 6
        open_tmp.chmod(0o777)
        with unprivileged():
            home.ensure()
            home.root.chmod(0o500)
            for step in (lambda: HomeLock.acquire(home), lambda: NodeIdentity.load_or_create(home.key)):
                with pytest.raises(DataError, match="Permission denied"):
                    step()
            home.root.chmod(0o700)
            HomeLock.acquire(home).close()
            NodeIdentity.load_or_create(home.key)

    @pytest.mark.parametrize("part", ["", "data", "blobs", "models", "logs"])
    def test_a_file_in_the_way_is_named(self, tmp_path: Path, part: str) -> None:
        root = tmp_path / "home"
        blocked = root / part
        blocked.parent.mkdir(exist_ok=True)
        blocked.write_text("a file")
        with pytest.raises(DataError, match="move it away") as caught:
            Home(root).ensure()
        assert caught.value.where == str(blocked)

    def test_a_component_of_the_path_that_is_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(DataError, match="a file stands where a directory is needed"):
            Home(tmp_path / "file" / "home").ensure()

    def test_a_name_that_is_too_long_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="shorter --home"):
            Home(tmp_path / ("x" * 300)).ensure()


class TestFullDisk:
    @pytest.mark.skipif(
        subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0,
        reason="this system lets nobody mount a small file system to fill",
    )
    def test_a_full_disk_is_said_and_a_start_works_again_when_there_is_room(self, tmp_path: Path) -> None:
        script = f"""
            mount -t tmpfs -o size=32k,nr_inodes=40 none {tmp_path}
            dd if=/dev/zero of={tmp_path}/filler bs=4k count=100 2>/dev/null
            {sys.executable} -c "$START" {tmp_path}/home; echo "exit $?"
            rm {tmp_path}/filler
            {sys.executable} -c "$START" {tmp_path}/home; echo "exit $?"
        """
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", script],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), "START": START},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        first, full, second, good = done.stdout.splitlines()
        assert (full, good) == (f"exit {DiskFull.exit_code}", "exit 0")
        assert first.startswith("DiskFull")
        assert "free some space" in first
        assert second.startswith("12D3KooW")


class TestLock:
    def test_a_second_start_names_the_first(self, tmp_path: Path) -> None:
        home = Home(tmp_path)
        with HomeLock.acquire(home):
            done = run(str(tmp_path))
        assert done.returncode == AlreadyRunning.exit_code
        assert f"pid {os.getpid()}, since 20" in done.stdout
        assert run(str(tmp_path)).returncode == 0

    def test_the_lock_dies_with_its_holder(self, tmp_path: Path) -> None:
        command = [sys.executable, "-c", START, str(tmp_path), "wait"]
        env = {"PATH": os.defpath, "PYTHONPATH": str(REPOSITORY)}
        with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline().startswith("12D3KooW")
            with pytest.raises(AlreadyRunning, match=f"pid {holder.pid}"):
                HomeLock.acquire(Home(tmp_path))
            holder.send_signal(signal.SIGKILL)
            holder.wait(10)
        assert (tmp_path / "lock").read_text() != ""
        HomeLock.acquire(Home(tmp_path)).close()

    @pytest.mark.parametrize("left", [b"", b"{", b"[1]", b'{"pid": "x", "started": 1}', b"\xff" * 5000])
    def test_what_stands_in_the_file_never_matters(self, tmp_path: Path, left: bytes) -> None:
        home = Home(tmp_path)
        home.lock.write_bytes(left)
        with HomeLock.acquire(home):
            home.lock.write_bytes(left)
            with pytest.raises(AlreadyRunning, match="a node already runs on this home"):
                HomeLock.acquire(home)

    def test_a_lock_released_twice_does_not_release_another_one(self, tmp_path: Path) -> None:
        lock = HomeLock.acquire(Home(tmp_path))
        lock.close()
        with HomeLock.acquire(Home(tmp_path)):
            lock.close()
            with pytest.raises(AlreadyRunning):
                HomeLock.acquire(Home(tmp_path))

    def test_a_link_in_the_place_of_the_lock_is_not_followed(self, tmp_path: Path) -> None:
        target = tmp_path / "precious"
        target.write_text("data")
        home = Home(tmp_path / "home")
        home.ensure()
        home.lock.symlink_to(target)
        with pytest.raises(DataError, match="cannot open the lock"):
            HomeLock.acquire(home)
        assert target.read_text() == "data"


class TestSocketPath:
    def long_home(self, tmp_path: Path) -> Home:
        return Home(tmp_path / ("d" * SOCKET_PATH_LIMIT))

    def test_it_lies_in_the_home_as_long_as_the_system_can_bind_it(self) -> None:
        fits = Home(Path("/" + "h" * (SOCKET_PATH_LIMIT - len("/api.sock") - 1)))
        assert fits.socket_path({}) == fits.socket
        too_long = Home(Path(str(fits.root) + "h"))
        assert too_long.socket_path({}) != too_long.socket
        assert len(os.fsencode(too_long.socket_path({}))) <= SOCKET_PATH_LIMIT

    def test_a_name_counts_in_bytes(self) -> None:
        assert Home(Path("/" + "é" * 60)).socket_path({}).name != "api.sock"

    def test_a_long_home_gets_a_private_runtime_directory(self, tmp_path: Path, open_tmp: Path) -> None:
        runtime = open_tmp
        env = {"XDG_RUNTIME_DIR": str(runtime)}
        home, other = self.long_home(tmp_path), Home(tmp_path / ("e" * SOCKET_PATH_LIMIT))
        home.ensure(env)
        assert home.socket_path(env).parent == runtime / "gnusnode"
        assert mode(runtime / "gnusnode") == 0o700
        assert home.socket_path(env) == home.socket_path(env) != other.socket_path(env)

    @pytest.mark.parametrize("planted", ["link", "open", "file"])
    def test_a_runtime_directory_that_is_not_ours_alone_is_refused(
        self, tmp_path: Path, open_tmp: Path, planted: str
    ) -> None:
        place = open_tmp / "gnusnode"
        if planted == "link":
            place.symlink_to(tmp_path)
        elif planted == "open":
            place.mkdir()
            (place / "x").touch()
            place.chmod(0o755)
        else:
            place.touch()
        with pytest.raises(DataError):
            self.long_home(tmp_path / "t").ensure({"XDG_RUNTIME_DIR": str(open_tmp)})


class TestRunFile:
    INFO = RunInfo(12, "2030-01-01T00:00:00+00:00", "0.1", "12D3KooW", "/a/api.sock", "http://127.0.0.1:1")

    def test_it_is_replaced_whole_and_removed_at_the_end(self, tmp_path: Path) -> None:
        home = Home(tmp_path)
        home.run_json.write_text("left by a crash")
        runfile.write(home, self.INFO)
        assert '"api": "http://127.0.0.1:1"' in home.run_json.read_text()
        assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
        runfile.remove(home)
        runfile.remove(home)
        assert not home.run_json.exists()

    def test_a_home_that_is_gone_is_a_typed_error(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"cannot write run\.json"):
            runfile.write(Home(tmp_path / "gone"), self.INFO)
