"""Control groups: what is written where, in either version, and that nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gnusnode.errors import Unavailable
from sandbox import linux
from sandbox.run import cgroups
from sandbox.run.cgroups import Group, Hierarchy, detect
from sandbox.run.types import MIB, Limits

LIMITS = Limits(memory_bytes=64 * MIB, pids=5, cpus=0.5)


@pytest.fixture
def version2(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids io")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids")
    return tmp_path


@pytest.fixture
def version1(tmp_path: Path) -> Path:
    for name in ("memory", "pids", "cpu"):
        (tmp_path / name).mkdir()
    return tmp_path


def written(group: Group) -> dict[str, str]:
    return {path.name: path.read_text() for place in group._places.values() for path in place.iterdir()}


def test_version_2_gets_all_its_limits_in_one_place(version2: Path) -> None:
    hierarchy = detect(version2)
    assert (hierarchy.version, hierarchy.missing()) == (2, "")
    group = Group.make(hierarchy, "node", LIMITS, extra_bytes=MIB)
    assert written(group) == {
        "memory.max": str(65 * MIB),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "5",
        "cpu.max": "50000 100000",
    }
    assert len(group.entrances) == 1


def test_version_1_gets_each_limit_in_its_own_tree(version1: Path) -> None:
    hierarchy = detect(version1)
    assert hierarchy.version == 1
    group = Group.make(hierarchy, "node", LIMITS)
    assert written(group) == {
        "memory.limit_in_bytes": str(64 * MIB),
        "pids.max": "5",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "50000",
    }
    assert len(group.entrances) == 3


def test_without_controllers_there_is_a_reason_and_no_group(version2: Path) -> None:
    (version2 / "cgroup.subtree_control").write_text("cpu")
    assert "memory, pids" in detect(version2).missing()
    assert "no cgroup controller" in Hierarchy(1, {"memory": version2 / "none"}).missing()


def test_without_a_limit_on_swap_there_is_no_group(version1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_has_swap", lambda: True)
    assert "swap" in detect(version1).missing()
    (version1 / "memory" / "memory.memsw.limit_in_bytes").write_text("")
    assert detect(version1).missing() == ""


def test_a_limit_that_is_not_taken_leaves_no_group(version1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def refuse(self: Path, text: str) -> int:
        if self.name == "cpu.cfs_quota_us":
            raise OSError(22, "Invalid argument")
        if self.parent.name.startswith("gnusnode"):
            return len(text)  # a real group has these files already, and rmdir takes them along
        return write(self, text)

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(Unavailable, match="Invalid argument"):
        Group.make(detect(version1), "node", LIMITS)
    assert not list(version1.glob("*/gnusnode*"))


@pytest.mark.parametrize(
    ("version", "file", "text", "found"),
    [
        (2, "memory.events", "low 0\nhigh 3\nmax 9\noom 1\noom_kill 0\n", False),
        (2, "memory.events", "oom 1\noom_kill 2\noom_group_kill 1\n", True),
        (1, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", True),
        (1, "memory.oom_control", "oom_kill_disable 1\nunder_oom 1\noom_kill 0\n", False),
        (1, "other", "", False),
    ],
)
def test_out_of_memory_is_the_kernels_word(tmp_path: Path, version: int, file: str, text: str, found: bool) -> None:
    group = Group(Hierarchy(version, {"memory": tmp_path, "pids": tmp_path, "cpu": tmp_path}), "g")
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / file).write_text(text)
    assert group.ran_out_of_memory() is found


@pytest.fixture
def here() -> Hierarchy:
    """This machine's own control groups."""
    if not linux.IS_LINUX:
        pytest.skip("control groups are Linux's own")
    hierarchy = detect()
    if reason := hierarchy.missing():
        pytest.skip(reason)
    return hierarchy


def enter(group: Group) -> subprocess.Popen[bytes]:
    code = "import sys, time\nfor path in sys.argv[1:]: open(path, 'w').write('0')\nprint(flush=True)\ntime.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, *group.entrances], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


async def test_a_real_group_holds_its_processes_ends_them_and_is_gone(here: Hierarchy) -> None:
    group = Group.make(here, "unit", LIMITS)
    process = enter(group)
    assert group._members() == {process.pid}
    await group.remove()
    assert process.wait(10) == -9
    assert not any(place.exists() for place in group._places.values())
    await group.remove()


async def test_what_an_earlier_process_left_is_swept_and_nothing_else(here: Hierarchy) -> None:
    owner = f"sweep{os.getpid()}"
    earlier, now = "0" * 16, "1" * 16
    left = Group.make(here, f"{owner}-{earlier}", LIMITS)
    others = [Group.make(here, name, LIMITS) for name in (f"{owner}-{now}", f"{owner}-2-{earlier}", "someone")]
    process = enter(left)
    try:
        assert await cgroups.sweep(here, owner, but=now) == 1
        assert process.wait(10) == -9
        assert await cgroups.sweep(here, owner, but=now) == 0
        assert all(place.exists() for other in others for place in other._places.values())
    finally:
        for other in others:
            await other.remove()
