"""A sandbox is used only while it is available, proved, and what the policy wants; else there is none, with reasons."""

from __future__ import annotations

import dataclasses

import pytest
import trio
from trio.testing import MockClock

from gnusnode.errors import GnusError, Unavailable
from sandbox.run.registry import Absent, Proved, Registry, Wanted
from sandbox.run.types import (
    NO_GRANTS,
    Availability,
    Boundary,
    Check,
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

STRENGTH = Strength(
    boundary=Boundary.SHARED_KERNEL,
    engine="fake",
    engine_version="1",
    image_digest="",
    seccomp_digest=None,
    controls=frozenset(Control),
    features=frozenset({Feature.TMP}),
)


class Backend:
    """A backend whose every answer is set by the test."""

    def __init__(self, name: str, strength: Strength = STRENGTH) -> None:
        self._name = name
        self.strength = strength
        self.available = True
        self.broken: Control | None = None
        self.tests = 0
        self.sweeps = 0
        self.sweep_fails = False
        self.closed = False

    @property
    def name(self) -> str:
        return self._name

    async def probe(self) -> Availability:
        if not self.available:
            return Availability(available=False, reason="it is not installed")
        return Availability(available=True, strength=self.strength, warnings=("it is old",))

    async def self_test(self) -> SelfTestReport:
        self.tests += 1
        checks = tuple(Check(name, name, name != self.broken, "seen") for name in sorted(self.strength.controls))
        declared = self.strength if self.available else None
        return SelfTestReport(backend=self._name, declared=declared, checks=checks, at_ms=self.tests)

    async def run(self, job: Job, limits: Limits, grants: Grants = NO_GRANTS) -> Result:
        return Result(status=Status.OK)

    async def sweep(self) -> int:
        self.sweeps += 1
        if self.sweep_fails:
            raise Unavailable("the engine is away")
        return 0

    async def aclose(self) -> None:
        self.closed = True


WANTED = Wanted(profiles=("strong", "docker"))


def reasons(found: Proved | Absent) -> dict[str, str]:
    assert isinstance(found, Absent)
    return found.reasons


def chosen(found: Proved | Absent) -> str:
    assert isinstance(found, Proved), str(found)
    return found.backend.name


async def test_nothing_is_registered_before_it_was_tested() -> None:
    assert reasons(Registry([Backend("docker")]).choose(WANTED)) == {
        "strong": "this node has no such backend",
        "docker": "it has not been tested yet",
    }


async def test_the_policy_s_order_decides() -> None:
    registry = Registry([Backend("docker"), Backend("strong")])
    await registry.examine()
    assert chosen(registry.choose(WANTED)) == "strong"
    assert chosen(registry.choose(Wanted(profiles=("docker", "strong")))) == "docker"


@pytest.mark.requirement("A-CODE-2")
async def test_without_docker_there_is_no_sandbox_and_nothing_weaker_is_used() -> None:
    docker, weaker = Backend("docker"), Backend("bwrap")
    docker.available = False
    registry = Registry([docker, weaker])
    await registry.examine()
    found = registry.choose(Wanted(profiles=("docker",)))
    assert isinstance(found, Absent)
    assert "docker" in str(found)
    assert registry.standings()[0].reason == "it is not available"


@pytest.mark.parametrize(
    ("change", "wanted", "reason"),
    [
        ({"boundary": Boundary.VM_TCG}, {}, "boundary vm_tcg"),
        ({"controls": frozenset(Control) - {Control.CPU}}, {}, "does not prove cpu"),
        ({}, {"features": frozenset({Feature.THREADS})}, "no threads"),
        ({}, {"deterministic": True}, "not deterministic"),
    ],
)
async def test_a_proved_backend_that_is_not_what_is_wanted_is_passed_over(
    change: dict[str, object], wanted: dict[str, object], reason: str
) -> None:
    registry = Registry([Backend("docker", dataclasses.replace(STRENGTH, **change))])  # pyright: ignore[reportArgumentType] - by the table
    await registry.examine()
    found = registry.choose(dataclasses.replace(Wanted(profiles=("docker",)), **wanted))  # pyright: ignore[reportArgumentType] - by the table
    assert reason in reasons(found)["docker"]


async def test_a_failing_test_unregisters_and_says_why_and_a_good_one_registers_again() -> None:
    docker = Backend("docker")
    seen: list[SelfTestReport] = []
    registry = Registry([docker], tested=seen.append)
    await registry.examine()
    docker.broken = Control.NET
    await registry.examine("docker")
    assert "net: seen" in reasons(registry.choose(WANTED))["docker"]
    assert registry.standings()[0].warnings == ("it is old",)
    docker.broken = None
    await registry.examine("docker")
    assert chosen(registry.choose(WANTED)) == "docker"
    assert [report.passed for report in seen] == [True, False, True]


async def test_one_that_changes_under_the_test_is_not_registered() -> None:
    docker = Backend("docker")
    tested = docker.self_test

    async def changing() -> SelfTestReport:
        docker.strength = dataclasses.replace(STRENGTH, engine_version="2")
        return await tested()

    docker.self_test = changing
    registry = Registry([docker])
    await registry.examine()
    assert "changed" in reasons(registry.choose(WANTED))["docker"]


async def test_a_backend_that_goes_away_is_unregistered_and_comes_back_only_by_a_test(
    autojump_clock: MockClock,
) -> None:
    docker = Backend("docker")
    registry = Registry([docker])
    await registry.examine()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(registry.tend)
        docker.available = False
        await trio.sleep(301)
        assert reasons(registry.choose(WANTED))["docker"] == "it is not installed"
        docker.available = True
        await trio.sleep(300)
        assert chosen(registry.choose(WANTED)) == "docker"
        assert docker.tests == 2
        nursery.cancel_scope.cancel()


async def test_a_changed_engine_is_tested_again_and_all_once_a_day(autojump_clock: MockClock) -> None:
    docker = Backend("docker")
    registry = Registry([docker])
    await registry.examine()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(registry.tend)
        await trio.sleep(3600)
        assert docker.tests == 1
        docker.strength = dataclasses.replace(STRENGTH, engine_version="2")
        docker.broken = Control.FS
        await trio.sleep(301)
        assert docker.tests == 2
        assert isinstance(registry.choose(WANTED), Absent)
        docker.broken = None
        await trio.sleep(86_400 + 301)
        assert docker.tests == 3
        assert chosen(registry.choose(WANTED)) == "docker"
        nursery.cancel_scope.cancel()


async def test_what_was_left_behind_is_swept_every_minute_and_a_failure_is_told(autojump_clock: MockClock) -> None:
    docker = Backend("docker")
    docker.sweep_fails = True
    told: list[tuple[str, GnusError]] = []
    registry = Registry([docker], trouble=lambda name, error: told.append((name, error)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(registry.tend)
        await trio.sleep(150)
        assert docker.sweeps == 3
        nursery.cancel_scope.cancel()
    assert [name for name, _ in told] == ["docker"] * 3


async def test_a_closed_registry_has_nothing() -> None:
    docker = Backend("docker")
    registry = Registry([docker])
    await registry.examine()
    await registry.aclose()
    assert docker.closed
    assert isinstance(registry.choose(WANTED), Absent)
