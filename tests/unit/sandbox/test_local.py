"""Bubblewrap and gVisor for real: every ending, nothing left, and no sandbox where a piece of it is missing."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from gnusnode.errors import Unavailable
from sandbox import confine
from sandbox.run import cgroups, rootfs
from sandbox.run.bwrap import recipe as bwrap_recipe
from sandbox.run.bwrap.recipe import BwrapRecipe
from sandbox.run.gvisor.recipe import GvisorRecipe
from sandbox.run.local import box
from sandbox.run.local.backend import LocalBackend
from sandbox.run.local.recipe import Launch, Recipe
from sandbox.run.types import Grants, Job, Limits, ReadGrant, Status
from tests.fakes import sandbox_root

BRIEF = Limits(wall_seconds=10.0)
NODE = f"unit{os.getpid()}"


@pytest.fixture(params=[BwrapRecipe, GvisorRecipe], ids=["bwrap", "gvisor"])
def recipe(request: pytest.FixtureRequest) -> Recipe:
    """Each local sandbox in turn."""
    return request.param(sandbox_root.directory(request.param))


@pytest.fixture
def bwrap_root() -> Path:
    return sandbox_root.directory(BwrapRecipe)


@pytest.fixture
async def backend(recipe: Recipe) -> AsyncGenerator[LocalBackend]:
    made = LocalBackend(recipe, node=NODE)
    yield made
    await made.aclose()
    assert groups() == []


def groups() -> list[str]:
    """Control groups and directories that this test process left."""
    places = {*cgroups.detect().parents.values(), Path(tempfile.gettempdir())}
    return [str(path) for place in places for path in place.glob(f"gnusnode-*-{NODE}-*")]


@pytest.mark.parametrize(
    ("source", "limits", "status", "code"),
    [
        ("print('fine')", BRIEF, Status.OK, 0),
        ("import sys; sys.exit(3)", BRIEF, Status.ERROR, 3),
        ("1/0", BRIEF, Status.ERROR, 1),
        ("while True: pass", replace(BRIEF, wall_seconds=0.3), Status.TIMEOUT, 137),
        ("while True: print('A' * 4096)", BRIEF, Status.OUTPUT_LIMIT, 137),
        ("held = []\nwhile True: held.append(bytearray(b'x') * (8 << 20))", BRIEF, Status.OOM, 137),
        ("import os; os.abort()", BRIEF, Status.KILLED, 134),
    ],
    ids=["ok", "exit", "exception", "loop", "flood", "memory", "crash"],
)
async def test_every_ending_has_its_status(
    backend: LocalBackend, source: str, limits: Limits, status: Status, code: int
) -> None:
    result = await backend.run(Job(source=source), limits)
    assert result.status is status, (result.exit_code, result.reason, result.stderr.text)
    assert result.exit_code == code or status not in (Status.OK, Status.ERROR, Status.KILLED)
    assert bool(result.reason) is (status not in (Status.OK, Status.ERROR))


async def test_a_job_has_its_files_and_its_input(backend: LocalBackend) -> None:
    source = "import helper, sys\nprint(helper.x, open('d/t').read(), sys.stdin.read())"
    job = Job(source=source, files=(("helper.py", b"x = 1"), ("d/t", b"text")), stdin=b"in")
    assert (await backend.run(job, BRIEF)).stdout.data == b"1 text in\n"


async def test_a_grandchild_that_holds_the_output_does_not_hold_the_answer(backend: LocalBackend) -> None:
    source = (
        "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], "
        "start_new_session=True)\nprint('left')"
    )
    result = await backend.run(Job(source=source), BRIEF)
    assert (result.status, result.stdout.data) == (Status.OK, b"left\n")


async def test_a_warm_sandbox_is_used_once(recipe: Recipe) -> None:
    backend = LocalBackend(recipe, node=NODE, warm_limits=BRIEF)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.keep_warm)
        first = await backend.run(Job(source="print(1)"), BRIEF)
        while not backend.waiting:
            await trio.sleep(0.01)
        second = await backend.run(Job(source="print(2)"), BRIEF)
        nursery.cancel_scope.cancel()
    assert (first.warm, second.warm) == (False, True)
    assert second.stdout.data == b"2\n"
    assert groups() == []


async def test_a_cancelled_caller_leaves_nothing(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    running = trio.Event()
    send = box.Box._send

    async def sent(self: box.Box, message: bytes) -> None:
        await send(self, message)
        running.set()

    monkeypatch.setattr(box.Box, "_send", sent)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.run, Job(source="while True: pass"), Limits(wall_seconds=60.0))
        await running.wait()
        assert groups()
        nursery.cancel_scope.cancel()
    assert groups() == []


@pytest.mark.slow
async def test_the_self_test_proves_what_is_declared(backend: LocalBackend) -> None:
    report = await backend.self_test()
    assert report.faults == ()


@pytest.mark.slow
async def test_without_our_list_of_calls_the_self_test_refuses(
    bwrap_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_all = bytes.fromhex("060000000000ff7f")
    monkeypatch.setattr(bwrap_recipe, "program", lambda profile: allow_all)
    backend = LocalBackend(BwrapRecipe(bwrap_root), node=NODE)
    report = await backend.self_test()
    assert not report.passed
    assert any("vsock" in fault or "user namespace" in fault for fault in report.faults)


async def test_a_grant_of_files_is_not_given_quietly_less(backend: LocalBackend, tmp_path: Path) -> None:
    result = await backend.run(Job(source="print(1)"), BRIEF, Grants(read=(ReadGrant(str(tmp_path), "/data"),)))
    assert result.status is Status.INFRA


async def test_a_sandbox_that_does_not_start_says_why_and_leaves_nothing(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = type(backend._recipe).launch

    def broken(self: Recipe, *rest: Any) -> Launch:
        made = launch(self, *rest)
        return replace(made, command=(made.command[0], "--no-such-option"))

    monkeypatch.setattr(type(backend._recipe), "launch", broken)
    result = await backend.run(Job(source="print(1)"), BRIEF)
    assert result.status is Status.INFRA
    assert "did not start" in result.reason
    assert groups() == []


async def test_without_real_limits_nothing_runs(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_rest: object, **_more: object) -> None:
        raise Unavailable("no control group can be made")

    monkeypatch.setattr(box.Group, "make", refuse)
    result = await backend.run(Job(source="print(1)"), BRIEF)
    assert (result.status, result.stdout.data) == (Status.INFRA, b"")


async def test_a_missing_piece_is_a_reason(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind: Any = type(recipe)
    found = await LocalBackend(kind(tmp_path), node="unit").probe()
    assert (found.available, "no sandbox file system" in found.reason) == (False, True)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "gnusnode-image-id").write_text("sha256:00")
    assert "closed to the user" in (await LocalBackend(kind(closed), node="unit").probe()).reason
    monkeypatch.setattr(importlib.import_module(kind.__module__), "_program", lambda: None)
    assert "not installed" in (await LocalBackend(kind(tmp_path), node="unit").probe()).reason


async def test_what_a_killed_node_left_is_swept(recipe: Recipe) -> None:
    earlier, now = LocalBackend(recipe, node=NODE), LocalBackend(recipe, node=NODE)
    left = await earlier._open(BRIEF)
    assert await earlier.sweep() == 0
    assert left.alive()
    assert await now.sweep() == 1
    assert groups() == []
    await left.remove()


NODE_PROCESS = """
import sys, trio
from importlib import import_module
from pathlib import Path
from sandbox.run.local.backend import LocalBackend
from sandbox.run.local.box import Box
from sandbox.run.types import Job, Limits
module, kind, root, node = sys.argv[1:]
send = Box._send
async def sent(self, message):
    await send(self, message)
    print(*self._group._members(), flush=True)
Box._send = sent
backend = LocalBackend(getattr(import_module(module), kind)(Path(root)), node=node)
trio.run(backend.run, Job(source="while True: pass"), Limits(wall_seconds=60.0))
"""


async def test_a_node_that_is_killed_takes_its_sandboxes_along(recipe: Recipe) -> None:
    kind = type(recipe)
    command = [sys.executable, "-c", NODE_PROCESS, kind.__module__, kind.__name__, str(recipe._root), NODE]
    environment = {**os.environ, **confine.launch_environment()}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as node:
        assert node.stdout is not None
        members = [os.pidfd_open(int(pid)) for pid in node.stdout.readline().split()]
        assert members
        node.kill()
        with trio.fail_after(20):
            for member in members:
                await trio.lowlevel.wait_readable(member)
                os.close(member)
    await LocalBackend(recipe, node=NODE).sweep()
    assert groups() == []


def test_the_file_system_is_the_one_of_the_image(bwrap_root: Path) -> None:
    root = bwrap_root
    assert rootfs.image_id(root).startswith("sha256:")
    assert os.access(root / "usr/bin/python3", os.X_OK)
    assert {"usr", "tmp", "proc", "dev"} <= set(os.listdir(root))
    assert not (root / "bin/sh").exists()
