"""Docker itself: what is left behind, what is refused, and what a caller sees when the engine fails."""

from __future__ import annotations

import dataclasses
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from gnusnode.errors import Unavailable
from sandbox import confine
from sandbox.run.docker import images
from sandbox.run.docker.backend import LABEL, RUNC, DockerBackend
from sandbox.run.docker.container import Container
from sandbox.run.docker.engine import Engine
from sandbox.run.docker.spec import ContainerSpec
from sandbox.run.docker.wire import Exchange
from sandbox.run.image import Image
from sandbox.run.registry import Absent, Proved, Registry, Wanted
from sandbox.run.types import Control, Grants, Job, Limits, ReadGrant, Status

LOOP = Job(source="while True: pass")
WANTED = Wanted(profiles=("docker",))


@pytest.fixture
def backend(docker_socket: str, docker_image: Image, request: pytest.FixtureRequest) -> DockerBackend:
    return DockerBackend(image_id=docker_image.image_id, node=f"test-{request.node.name[:60]}", socket=docker_socket)


async def left(backend: DockerBackend, node: str) -> int:
    return len(await backend.engine.with_label(f"{LABEL}={node}"))


async def until_one_runs(backend: DockerBackend, node: str) -> None:
    """Waits for the engine, which has no call that waits for a container that does not exist yet."""
    with trio.fail_after(30):
        while not await left(backend, node):
            await trio.sleep(0.05)


async def test_a_caller_that_leaves_takes_its_container_along(
    backend: DockerBackend, request: pytest.FixtureRequest
) -> None:
    node = f"test-{request.node.name[:60]}"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.run, LOOP, Limits(wall_seconds=60))
        await until_one_runs(backend, node)
        nursery.cancel_scope.cancel()
    assert await left(backend, node) == 0


@pytest.mark.parametrize("moment", ["create", "inspect", "attach", "start", "wait"])
async def test_a_caller_that_leaves_at_any_moment_leaves_nothing(
    backend: DockerBackend, moment: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(Engine, moment)
    with trio.CancelScope() as scope:

        async def leaving(*arguments: object) -> object:
            scope.cancel()
            return await original(*arguments)

        monkeypatch.setattr(Engine, moment, leaving)
        await backend.run(LOOP, Limits(wall_seconds=60))
    assert scope.cancelled_caught
    assert await left(backend, f"test-{request.node.name[:60]}") == 0


async def test_a_caller_that_leaves_while_the_engine_makes_the_container_leaves_nothing(
    backend: DockerBackend, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    next_event = Exchange._next
    ask = Exchange.ask

    async def watched(exchange: Exchange, method: str, target: str, *arguments: object, **named: object) -> int:
        asked.append(target)
        return await ask(exchange, method, target, *arguments, **named)  # pyright: ignore[reportArgumentType] - as given

    with trio.CancelScope() as scope:

        async def leaving(exchange: Exchange) -> object:
            if "/containers/create" in asked[-1]:
                scope.cancel()  # the request is sent, the answer is not here
            return await next_event(exchange)

        monkeypatch.setattr(Exchange, "ask", watched)
        monkeypatch.setattr(Exchange, "_next", leaving)
        await backend.run(LOOP, Limits(wall_seconds=60))
    assert scope.cancelled_caught
    monkeypatch.undo()
    await trio.sleep(0.5)  # for an engine that was still at it
    assert await left(backend, f"test-{request.node.name[:60]}") == 0


VICTIM = """
import sys, trio
from sandbox.run.docker.backend import DockerBackend
from sandbox.run.types import Job, Limits
async def main():
    backend = DockerBackend(image_id=sys.argv[1], node=sys.argv[3], socket=sys.argv[2])
    async def number():
        return len(await backend.engine.with_label("gnusnode.sandbox=" + sys.argv[3]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.keep_warm)
        await backend.run(Job(source=""), Limits())  # something to keep warm for
        while not (backend.waiting and backend.is_full and await number() == 1):
            await trio.sleep(0.05)
        nursery.start_soon(backend.run, Job(source="while True: pass"), Limits(wall_seconds=60))
        while await number() < 2:
            await trio.sleep(0.05)
        print("running", flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


async def test_a_node_that_is_killed_leaves_nothing_after_its_restart(docker_socket: str, docker_image: Image) -> None:
    node = f"killed-{secrets.token_hex(4)}"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", VICTIM, docker_image.image_id, docker_socket, node],
        env=confine.launch_environment(),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    with process.stdout as words:
        try:
            assert (await trio.to_thread.run_sync(words.readline)) == b"running\n"
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    restarted = DockerBackend(image_id=docker_image.image_id, node=node, socket=docker_socket)
    assert await left(restarted, node) == 2
    assert await restarted.sweep() == 2
    assert await left(restarted, node) == 0


async def test_a_sweep_leaves_other_nodes_and_its_own_running_jobs_alone(
    backend: DockerBackend, docker_socket: str, docker_image: Image, request: pytest.FixtureRequest
) -> None:
    other = DockerBackend(image_id=docker_image.image_id, node="other", socket=docker_socket)
    node = f"test-{request.node.name[:60]}"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.run, LOOP, Limits(wall_seconds=60))
        await until_one_runs(backend, node)
        assert await other.sweep() == 0
        assert await backend.sweep() == 0
        assert await left(backend, node) == 1
        nursery.cancel_scope.cancel()


async def test_a_container_past_its_deadline_is_swept(
    backend: DockerBackend, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.run, LOOP, Limits(wall_seconds=60))
        await until_one_runs(backend, f"test-{request.node.name[:60]}")
        monkeypatch.setattr("time.time", lambda: 4e9)
        assert await backend.sweep() == 1


@pytest.mark.requirement("A-CODE-2")
async def test_the_engine_s_own_list_of_system_calls_is_refused(backend: DockerBackend) -> None:
    weak = DockerBackend(
        image_id=backend._image_id, node="weak", socket=backend.engine.socket,
        flavour=dataclasses.replace(RUNC, seccomp=None),
    )  # fmt: skip
    registry = Registry([weak])
    (report,) = await registry.examine()
    assert any(fault.startswith(("vsock", "32-bit calls")) for fault in report.faults)
    assert Control.SECCOMP not in report.proved
    assert isinstance(registry.choose(WANTED), Absent)


@pytest.mark.requirement("A-CODE-2")
async def test_without_an_engine_there_is_no_sandbox_and_the_reason_is_given(
    docker_image: Image, tmp_path: Path
) -> None:
    gone = DockerBackend(image_id=docker_image.image_id, node="gone", socket=str(tmp_path / "none"))
    registry = Registry([gone])
    await registry.examine()
    found = registry.choose(WANTED)
    assert isinstance(found, Absent)
    assert "does not answer" in str(found)
    assert (await gone.run(LOOP, Limits())).status is Status.INFRA


async def test_an_image_that_is_not_loaded_is_said_with_the_command_that_loads_it(docker_socket: str) -> None:
    missing = DockerBackend(image_id="sha256:" + "0" * 64, node="x", socket=docker_socket)
    assert "gnusnode sandbox image" in (await missing.probe()).reason
    result = await missing.run(LOOP, Limits())
    assert result.status is Status.INFRA
    assert "gnusnode sandbox image" in result.reason


async def test_a_registered_docker_is_chosen_with_its_proof(backend: DockerBackend, docker_image: Image) -> None:
    registry = Registry([backend])
    await registry.examine()
    found = registry.choose(WANTED)
    assert isinstance(found, Proved), str(found)
    assert found.strength.image_digest == docker_image.image_id
    assert found.strength.engine == "docker+runc"
    assert "runc" in found.strength.engine_version


async def test_a_warm_sandbox_does_one_job_and_is_gone(backend: DockerBackend, request: pytest.FixtureRequest) -> None:
    host = Job(source="import uuid, os\nprint(uuid.uuid4(), os.listdir('/tmp'))")
    node = f"test-{request.node.name[:60]}"
    seen: set[str] = set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.keep_warm)
        assert not (await backend.run(host, Limits())).warm
        for _ in range(3):
            with trio.fail_after(30):
                while not backend.waiting:
                    await trio.sleep(0.05)
            result = await backend.run(host, Limits(wall_seconds=5, output_bytes=1000))
            assert result.warm
            assert result.stdout.text.endswith("['job']\n")
            seen.add(result.stdout.text)
        assert len(seen) == 3
        assert not (await backend.run(host, Limits(memory_bytes=64 << 20))).warm
        nursery.cancel_scope.cancel()
    assert await left(backend, node) == 0


async def test_the_limits_of_a_warm_job_are_its_own(backend: DockerBackend) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.keep_warm)
        await backend.run(Job(source=""), Limits())
        for job, limits, status in (
            (LOOP, Limits(wall_seconds=0.5), Status.TIMEOUT),
            (Job(source="print('A' * 2000)"), Limits(output_bytes=1000), Status.OUTPUT_LIMIT),
        ):
            with trio.fail_after(30):
                while not backend.waiting:
                    await trio.sleep(0.05)
            result = await backend.run(job, limits)
            assert (result.status, result.warm) == (status, True)
        nursery.cancel_scope.cancel()


async def test_a_granted_directory_can_be_read_and_not_written(backend: DockerBackend, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("granted")
    os.chmod(tmp_path, 0o777)
    source = "print(open('/data/data.txt').read())\nopen('/data/new', 'w')"
    result = await backend.run(Job(source=source), Limits(), Grants(read=(ReadGrant(str(tmp_path), "/data"),)))
    assert result.stdout.text == "granted\n"
    assert "Read-only file system" in result.stderr.text
    assert [path.name for path in tmp_path.iterdir()] == ["data.txt"]


async def test_a_granted_directory_that_is_not_there_is_the_sandbox_s_failure(backend: DockerBackend) -> None:
    result = await backend.run(LOOP, Limits(), Grants(read=(ReadGrant("/absent-for-sure", "/data"),)))
    assert result.status is Status.INFRA
    assert "absent-for-sure" in result.reason


async def test_a_container_that_is_not_as_asked_is_never_started(
    backend: DockerBackend, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    asked = ContainerSpec.body
    started: list[str] = []
    original = Engine.start

    def weaker(spec: ContainerSpec) -> dict[str, object]:
        body = asked(spec)
        return {**body, "HostConfig": {**body["HostConfig"], "PidsLimit": 0}}

    async def start(engine: Engine, container: str) -> None:
        started.append(container)
        await original(engine, container)

    monkeypatch.setattr(ContainerSpec, "body", weaker)
    monkeypatch.setattr(Engine, "start", start)
    result = await backend.run(LOOP, Limits())
    assert result.status is Status.INFRA
    assert "PidsLimit" in result.reason
    assert started == []
    assert await left(backend, f"test-{request.node.name[:60]}") == 0


async def test_a_python_that_does_not_start_is_the_sandbox_s_failure(
    backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.run.boot.program", lambda: "raise SystemExit('no boot')")
    result = await backend.run(Job(source=""), Limits())
    assert result.status is Status.INFRA
    assert "no boot" in result.reason


async def test_an_engine_that_refuses_to_kill_is_the_sandbox_s_failure(
    backend: DockerBackend, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    async def refuse(engine: Engine, container: str) -> None:
        raise Unavailable("cannot kill")

    monkeypatch.setattr(Engine, "kill", refuse)
    result = await backend.run(LOOP, Limits(wall_seconds=0.5))
    assert result.status is Status.INFRA
    assert "cannot kill" in result.reason
    assert await left(backend, f"test-{request.node.name[:60]}") == 0


async def test_a_job_may_be_large_and_need_not_be_read(backend: DockerBackend) -> None:
    data = b"x" * (8 << 20)
    unread = await backend.run(Job(source="print('done')", stdin=data), Limits())
    assert unread.stdout.text == "done\n"
    read = await backend.run(Job(source="import sys\nprint(len(sys.stdin.read()))", stdin=data), Limits())
    assert read.stdout.text == f"{len(data)}\n"


async def test_a_closed_backend_answers_infra(backend: DockerBackend) -> None:
    await backend.aclose()
    assert (await backend.run(LOOP, Limits())).status is Status.INFRA


async def test_only_so_many_jobs_run_at_once(docker_socket: str, docker_image: Image) -> None:
    narrow = DockerBackend(image_id=docker_image.image_id, node="narrow", socket=docker_socket, at_once=1)
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, await left(narrow, "narrow"))
            await trio.sleep(0.02)

    async with trio.open_nursery() as outer:
        outer.start_soon(watch)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(narrow.run, Job(source="import time\ntime.sleep(0.2)"), Limits())
        outer.cancel_scope.cancel()
    assert most == 1


async def test_an_image_is_loaded_once(
    docker_socket: str, docker_image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load(*_: object) -> None:
        raise AssertionError("it is there already")

    monkeypatch.setattr(Engine, "load", load)
    again = await images.provide(Engine(docker_socket), tmp_path / "image.tar")
    assert again.image_id == docker_image.image_id


async def test_an_archive_that_is_none_is_refused_in_the_engine_s_words(docker_socket: str) -> None:
    with pytest.raises(Unavailable):
        await Engine(docker_socket).load([b"this is no archive"])


async def test_a_container_waits_alive_and_is_dead_once_it_ended(backend: DockerBackend) -> None:
    spec = await backend._spec(Limits(), Grants(), 60)
    container = await Container.start(backend.engine, spec)
    async with container:
        assert container.alive()
        await backend.engine.kill(container._name)
        await backend.engine.wait(container._name)
        assert not container.alive()
