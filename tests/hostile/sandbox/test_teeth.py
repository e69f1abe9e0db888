"""The battery has teeth: where a control is taken away on purpose, the programs that are about it get out.

Two ways: a plain process in a throw-away namespace, with the programs that do no harm there; and containers that lack
one setting each, where all the others still hold.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio

from sandbox.run import boot, selftest
from sandbox.run.docker.backend import DockerBackend
from sandbox.run.docker.spec import ContainerSpec
from sandbox.run.image import Image
from sandbox.run.output import STDERR, STDOUT, Meter
from sandbox.run.types import (
    NO_GRANTS,
    Availability,
    Boundary,
    Control,
    Feature,
    Grants,
    Job,
    Limits,
    Result,
    SelfTestReport,
    Status,
    Strength,
)
from tests.hostile.sandbox.attempts import ATTEMPTS
from tests.hostile.sandbox.battery import fault, world
from tests.hostile.sandbox.behaviour import BEHAVIOUR

CASES = {case.name: case for case in [*ATTEMPTS, *BEHAVIOUR]}
EVERYTHING = Strength(
    boundary=Boundary.SHARED_KERNEL,
    engine="nothing",
    engine_version="0",
    image_digest="",
    seccomp_digest=None,
    controls=frozenset(Control),
    features=frozenset(Feature),
)


class Plain:
    """No sandbox: a process with the rights of whoever runs the tests, which claims to be everything.

    It works in a directory that is gone with it, and a descriptor is left open to it.
    """

    name = "plain"

    async def probe(self) -> Availability:
        return Availability(available=True, strength=EVERYTHING)

    async def self_test(self) -> SelfTestReport:
        return await selftest.prove(self)

    async def run(self, job: Job, limits: Limits, grants: Grants = NO_GRANTS) -> Result:
        script = (
            'for d in /dev/shm-none /run /var/tmp /tmp/job-none; do :; done; mount -t tmpfs none /var/tmp; exec "$@"'
        )
        program = boot.program().replace('WORK = "/tmp/job"', f'WORK = "/var/tmp/{time.monotonic_ns()}"')
        command = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
            shutil.which("python3") or "",
            "-I",
            "-B",
            "-c",
            program,
        ]
        began = time.monotonic()
        with trio.move_on_after(limits.wall_seconds):
            leaked = os.open("/", os.O_RDONLY)
            try:
                done = await trio.run_process(
                    command,
                    stdin=boot.message(job),
                    capture_stdout=True,
                    capture_stderr=True,
                    check=False,
                    pass_fds=(leaked,),
                )
            finally:
                os.close(leaked)
            meter = Meter(limits.output_bytes)
            meter.feed(STDOUT, done.stdout.removeprefix(boot.READY))
            meter.feed(STDERR, done.stderr)
            return Result(
                status=Status.OK if done.returncode == 0 else Status.ERROR,
                stdout=meter.output(STDOUT),
                stderr=meter.output(STDERR),
                wall_seconds=time.monotonic() - began,
            )
        return Result(status=Status.TIMEOUT)

    async def sweep(self) -> int:
        return 0

    async def aclose(self) -> None:
        pass


HARMLESS = (  # noqa: SIM905 - a list that is read as one line
    "n01 n02 n03 n04 n07 n08 n09 f01 f02 f03 f04 f06 f08 f12 f13 f14 "
    "p01 p02 p03 p04 p05 p07 p08 p09 p10 p11 p15 p16 p21 r06 r08 r09 r10 r11 r12 r13 r17"
).split()

pytestmark = pytest.mark.slow
needs_root = pytest.mark.skipif(
    os.name != "posix" or not hasattr(os, "geteuid") or os.geteuid() != 0 or not shutil.which("unshare"),
    reason="a namespace of its own needs root and unshare",
)


@needs_root
@pytest.mark.parametrize("name", HARMLESS)
async def test_a_plain_process_does_not_contain_it(name: str) -> None:
    async with world() as targets:
        assert await fault(CASES[name], Plain(), targets) != ""


@needs_root
async def test_a_plain_process_does_not_pass_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    # Only the probing program: the bombs that follow it would go off.
    async def nothing(*_: object):
        return
        yield

    monkeypatch.setattr(selftest, "_limits", nothing)
    report = await Plain().self_test()
    refused = {check.name for check in report.checks if not check.passed}
    assert {"tcp listener", "file", "environment", "seeing the marker", "root", "forks", "filter"} <= refused, report
    assert not report.passed


# --- one setting taken away -------------------------------------------------------------------------------------------

Change = Callable[[dict[str, Any]], None]


def without(**fields: object) -> Change:
    def change(body: dict[str, Any]) -> None:
        body["HostConfig"].update(fields)

    return change


def as_root(body: dict[str, Any]) -> None:
    body["User"] = "0:0"
    body["HostConfig"] |= {"CapDrop": None, "ReadonlyRootfs": False, "SecurityOpt": ["seccomp=unconfined"]}


def uncapped(body: dict[str, Any]) -> None:
    as_root(body)
    body["HostConfig"] |= {"CapAdd": ["ALL"], "MaskedPaths": [], "ReadonlyPaths": [], "Privileged": False}


def unlimited_tmp(body: dict[str, Any]) -> None:
    body["HostConfig"]["Tmpfs"] = {"/tmp": "rw,exec,mode=1777"}
    body["HostConfig"]["Ulimits"] = []


def own_list_only(keep: str) -> Change:
    def change(body: dict[str, Any]) -> None:
        body["HostConfig"]["SecurityOpt"] = [o for o in body["HostConfig"]["SecurityOpt"] if o.startswith(keep)]

    return change


WEAKENED: dict[str, tuple[Change, str]] = {
    "the host's network": (without(NetworkMode="host"), "n01 n02 n04 n05"),
    "the host's processes": (without(PidMode="host"), "p04"),
    "shared memory": (without(IpcMode="private"), "f06"),
    "the host's shared memory": (without(IpcMode="host"), "p09"),
    "no list of system calls": (
        lambda body: body["HostConfig"].update(SecurityOpt=["no-new-privileges:true", "seccomp=unconfined"]),
        "f15 f17 n07 n08 p07 p11 p14 p15 p16 p18 p19 p20 p21 p23 p25",
    ),
    "the engine's list of system calls": (own_list_only("no-new"), "n07 n08 p11 p15 p25"),
    "root": (as_root, "p01 p02 p08 f05 f16"),
    "every capability": (uncapped, "p13 f09 f10 f11 p17 p22 p24"),
    "no limit of processes": (without(PidsLimit=0), "r08 r09"),
    "no limit of memory": (without(Memory=1 << 30, MemorySwap=1 << 30), "r06 r07"),
    "no limit of processors": (without(NanoCpus=0), "r14"),
    "a plain /tmp": (unlimited_tmp, "f12 r10 r11 r12 r13"),
    "a directory of the host": (without(Binds=["/tmp:/tmp"], Tmpfs=None), "f01 f02 n03"),
    "the engine's socket": (without(Binds=["/tmp:/var/run/docker.sock:ro"]), "f07"),
}


class Weakened(DockerBackend):
    """Docker with one setting changed, and taken for what was asked."""

    change: Change

    async def _spec(self, limits: Limits, grants: Grants, lifetime: float) -> ContainerSpec:
        found = await super()._spec(limits, grants, lifetime)
        change = self.change

        @dataclasses.dataclass(frozen=True, slots=True)
        class Spec(ContainerSpec):
            def body(self) -> dict[str, Any]:
                body = ContainerSpec.body(self)
                change(body)
                return body

            def differences(self, found: object) -> list[str]:
                return []

        return Spec(**{field.name: getattr(found, field.name) for field in dataclasses.fields(found)})


@pytest.mark.timeout(240)
@pytest.mark.parametrize("taken", list(WEAKENED))
async def test_a_container_that_lacks_one_setting_does_not_contain_it(
    taken: str, docker_socket: str, docker_image: Image
) -> None:
    change, names = WEAKENED[taken]
    backend = Weakened(image_id=docker_image.image_id, node="teeth", socket=docker_socket)
    backend.change = change
    contained: list[str] = []
    async with world() as targets:
        for name in names.split():
            if not await fault(CASES[name], backend, targets):
                contained.append(name)
    assert contained == [], f"without {taken} {contained} are still contained: have they teeth?"


UNSHOWN = {
    "n06": "needs a name server that answers",
    "n10": "needs a machine in a cloud",
    "n11": "needs a kernel with these families",
    "p06": "would end the tests",
    "p12": "needs a kernel with the x32 convention",
}
"""Attempts that nothing here can be made to fail safely, and why."""


def test_every_attempt_is_shown_to_bite_or_has_a_reason() -> None:
    shown = set(HARMLESS).union(*(names.split() for _, names in WEAKENED.values()))
    assert {case.name for case in ATTEMPTS} - shown == set(UNSHOWN)
