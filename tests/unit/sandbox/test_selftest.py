"""The self-test believes nothing: one wrong answer, one visitor or one missing answer refuses a backend."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from gnusnode.errors import Unavailable
from sandbox import linux
from sandbox.run import canaries, selftest
from sandbox.run.types import (
    NO_GRANTS,
    Availability,
    Boundary,
    Control,
    Feature,
    Grants,
    Job,
    Limits,
    Output,
    Result,
    SelfTestReport,
    Status,
    Strength,
)

pytestmark = pytest.mark.skipif(not linux.IS_LINUX, reason="the canaries are Linux's own")

STRENGTH = Strength(
    boundary=Boundary.SHARED_KERNEL,
    engine="scripted",
    engine_version="1",
    image_digest="",
    seccomp_digest=None,
    controls=frozenset(Control),
    features=frozenset(Feature),
)
GOOD: dict[str, Any] = {
    "denied": {name: (True, "refused") for name in selftest._CONTROLS},
    "facts": {"forks": 40, "cpu_share": 0.5, "tmp_bytes": 1000},
    "works": {feature.value: True for feature in Feature},
}


def said(text: str, status: Status = Status.OK) -> Result:
    return Result(status=status, stdout=Output(text.encode(), len(text), "sha256:" + "0" * 64))


class Scripted:
    """A backend that answers the self-test by a table, with what a sound sandbox answers as the default."""

    def __init__(self, strength: Strength = STRENGTH, **answers: Result | Callable[[Job], Result]) -> None:
        self.strength = strength
        self.answers = answers
        self.ran: list[str] = []

    name = "scripted"

    async def probe(self) -> Availability:
        return Availability(available=True, strength=self.strength)

    async def self_test(self) -> SelfTestReport:
        return await selftest.prove(self)

    async def run(self, job: Job, limits: Limits, grants: Grants = NO_GRANTS) -> Result:
        sound = {
            "loop": Result(status=Status.TIMEOUT, wall_seconds=limits.wall_seconds),
            "bomb": Result(status=Status.OOM),
            "flood": Result(status=Status.OUTPUT_LIMIT),
            "leave": said("left\n"),
            "find": said("False\n"),
            "probe": said(json.dumps(GOOD)),
        }
        texts = {
            selftest._LOOP: "loop",
            selftest._MEMORY_BOMB: "bomb",
            selftest._OUTPUT_FLOOD: "flood",
            selftest._LEAVE_TRACE: "leave",
            selftest._FIND_TRACE: "find",
        }
        kind = texts.get(job.source, "probe")
        self.ran.append(kind)
        answer = self.answers.get(kind, sound[kind])
        return answer if isinstance(answer, Result) else answer(job)

    async def sweep(self) -> int:
        return 0

    async def aclose(self) -> None:
        pass


def probe_answer(part: str, name: str, value: object) -> Result:
    return said(json.dumps({**GOOD, part: {**GOOD[part], name: value}}))


async def test_a_sound_backend_passes_and_everything_is_asked() -> None:
    backend = Scripted()
    report = await backend.self_test()
    assert report.faults == ()
    assert report.proved == frozenset(Control)
    assert backend.ran == ["probe", "loop", "bomb", "flood", "leave", "find"]


@pytest.mark.parametrize("name", sorted(selftest._CONTROLS))
async def test_each_thing_that_was_reached_refuses_the_backend(name: str) -> None:
    report = await Scripted(probe=probe_answer("denied", name, (False, "reached: it"))).self_test()
    assert f"{name}: reached: it" in report.faults
    assert selftest._CONTROLS[name] not in report.proved


@pytest.mark.parametrize(
    ("answers", "control"),
    [
        ({"probe": probe_answer("facts", "forks", 400)}, Control.PIDS),
        ({"probe": probe_answer("facts", "cpu_share", 1.0)}, Control.CPU),
        ({"probe": probe_answer("facts", "tmp_bytes", 1 << 30)}, Control.FS),
        ({"loop": Result(status=Status.OK)}, Control.WALL),
        ({"loop": Result(status=Status.TIMEOUT, wall_seconds=60)}, Control.WALL),
        ({"bomb": Result(status=Status.OK)}, Control.MEM),
        ({"bomb": Result(status=Status.TIMEOUT)}, Control.MEM),
        ({"flood": Result(status=Status.TIMEOUT)}, Control.OUTPUT),
        ({"flood": said("A" * (1 << 20), Status.OUTPUT_LIMIT)}, Control.OUTPUT),
        ({"find": said("True\n")}, Control.FS),
        ({"leave": Result(status=Status.ERROR)}, Control.FS),
    ],
)
async def test_each_limit_that_does_not_hold_refuses_the_backend(answers: dict[str, Result], control: Control) -> None:
    report = await Scripted(**answers).self_test()
    assert not report.passed
    assert control not in report.proved


async def test_an_answer_that_is_missing_is_a_wrong_answer() -> None:
    some = {name: answer for name, answer in GOOD["denied"].items() if name != "vsock"}
    report = await Scripted(probe=said(json.dumps({**GOOD, "denied": some}))).self_test()
    assert "vsock: the probing program does not say" in report.faults


@pytest.mark.parametrize(
    "answer",
    [
        Result(status=Status.INFRA, reason="the engine is away"),
        Result(status=Status.TIMEOUT, reason="it ran longer than 30 s"),
        said("not json"),
        said("[]"),
        said(""),
    ],
)
async def test_a_probing_program_without_an_answer_refuses_the_backend_and_nothing_else_is_tried(
    answer: Result,
) -> None:
    backend = Scripted(probe=answer)
    report = await backend.self_test()
    assert not report.passed
    assert "did not finish" in report.error
    assert backend.ran == ["probe"]


async def test_a_visit_to_a_canary_refuses_whatever_the_program_says() -> None:
    class Visiting(Scripted):
        async def run(self, job: Job, limits: Limits, grants: Grants = NO_GRANTS) -> Result:
            if job.stdin:
                async with await trio.open_tcp_stream("127.0.0.1", json.loads(job.stdin)["tcp"]) as stream:
                    await stream.receive_some(10)
            return await super().run(job, limits, grants)

    report = await Visiting().self_test()
    assert "visits to the canaries: tcp listener" in report.faults


async def test_a_kernel_of_its_own_may_answer_for_itself() -> None:
    answer = probe_answer("denied", "vsock", (False, "reached: a socket of family 40"))
    own = dataclasses.replace(STRENGTH, boundary=Boundary.USER_KERNEL)
    assert (await Scripted(own, probe=answer).self_test()).passed
    assert not (await Scripted(probe=answer).self_test()).passed


async def test_what_is_not_declared_is_not_demanded() -> None:
    answer = probe_answer("facts", "cpu_share", 1.0)
    report = await Scripted(
        dataclasses.replace(STRENGTH, controls=STRENGTH.controls - {Control.CPU}), probe=answer
    ).self_test()
    assert report.passed
    assert Control.CPU not in report.proved


async def test_a_feature_that_is_declared_must_work() -> None:
    report = await Scripted(probe=probe_answer("works", "threads", False)).self_test()
    assert "threads works: it does not" in report.faults


async def test_the_canaries_are_gone_afterwards() -> None:
    async with canaries.alive() as targets:
        assert targets.secret in os.environ.values()
        assert targets.hits == []
    assert targets.secret not in os.environ.values()
    assert not Path(targets.file).parent.exists()
    assert not Path(targets.shared).exists()
    assert not Path(f"/proc/{targets.marker}").exists()
    with pytest.raises(OSError, match="No such file"):
        linux.call("shmget", targets.segment, 0, 0)
    with pytest.raises(OSError, match="refused"):
        await trio.open_unix_socket("\0" + targets.abstract)


async def test_without_reachable_canaries_there_is_no_test(monkeypatch: pytest.MonkeyPatch) -> None:
    async def deaf(*_: object) -> bool:
        return False

    monkeypatch.setattr(canaries, "_greets", deaf)
    backend = Scripted()
    report = await backend.self_test()
    assert "cannot reach its own canaries" in report.error
    assert not report.passed
    assert backend.ran == []


async def test_a_backend_that_fails_with_an_error_is_refused_with_it() -> None:
    def fail(job: Job) -> Result:
        raise Unavailable("it broke")

    assert "it broke" in (await Scripted(bomb=fail).self_test()).error
