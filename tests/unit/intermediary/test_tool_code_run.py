"""A program is read before it runs, runs only where it was said to run, and its end is the engine's word."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from gnusnode.contracts.tools import ToolProposal
from gnusnode.errors import ToolBlocked, Unavailable
from roles.intermediary.tools.base import Scope, reason_of
from roles.intermediary.tools.code_run import CodeRun
from sandbox.run.registry import Registry, Wanted
from sandbox.run.types import (
    NO_GRANTS,
    Availability,
    Boundary,
    Check,
    Control,
    Grants,
    Job,
    Limits,
    Output,
    Result,
    SelfTestReport,
    Status,
    Strength,
)
from tests.fakes.toolcalls import identifier


def output(text: str, total: int | None = None) -> Output:
    return Output(text.encode(), len(text) if total is None else total, "sha256:" + "0" * 64)


@dataclass
class Backend:
    """A sandbox of a test: proves what it is told to, and gives the result it is told to."""

    name: str = "docker"
    version: str = "1"
    passes: bool = True
    result: Result = field(default_factory=lambda: Result(status=Status.OK, exit_code=0, stdout=output("4\n")))
    jobs: list[Job] = field(default_factory=list[Job])

    @property
    def strength(self) -> Strength:
        return Strength(
            boundary=Boundary.SHARED_KERNEL,
            engine="docker+runc",
            engine_version=self.version,
            image_digest="",
            seccomp_digest=None,
            controls=frozenset(Control),
            features=frozenset(),
        )

    async def probe(self) -> Availability:
        return Availability(available=True, strength=self.strength)

    async def self_test(self) -> SelfTestReport:
        checks = tuple(Check(str(control), control, self.passes, "tried") for control in Control)
        return SelfTestReport(backend=self.name, declared=self.strength, checks=checks, at_ms=1)

    async def run(self, job: Job, limits: Limits, grants: Grants = NO_GRANTS) -> Result:
        assert grants == NO_GRANTS
        self.jobs.append(job)
        return self.result

    async def sweep(self) -> int:
        return 0

    async def aclose(self) -> None:
        return


def proposal(code: str, **more: Any) -> ToolProposal:
    return ToolProposal(tool_call_id=identifier(1), tool_name="code.run", arguments={"code": code} | more)


async def tool_of(backend: Backend, *profiles: str) -> tuple[CodeRun, Registry]:
    registry = Registry([backend])
    await registry.examine()
    return CodeRun(registry, Wanted(profiles=profiles or ("docker",))), registry


async def ran(tool: CodeRun, call: ToolProposal) -> dict[str, Any]:
    said = await tool.dry_run(call, Scope())
    assert said.dry_run_ok
    return json.loads((await tool.run(call, Scope(), said)).data)


@pytest.mark.requirement("A-CODE-1")
async def test_a_program_runs_once_in_the_sandbox_that_the_dry_run_named() -> None:
    backend = Backend()
    tool, _ = await tool_of(backend)
    call = proposal("import math, json\nprint(math.sqrt(16))", stdin="5")
    said = await tool.dry_run(call, Scope())
    assert backend.jobs == [], "a dry-run runs nothing"
    assert "docker" in said.mock_output.preview
    assert "imports json, math" in said.mock_output.preview
    assert (await tool.dry_run(call, Scope())).to_bytes() == said.to_bytes()
    assert await ran(tool, call) == {"status": "ok", "exit_code": 0, "stdout": "4\n", "stderr": ""}
    assert [(job.source, job.stdin) for job in backend.jobs] == [(call.arguments["code"], b"5")]


@pytest.mark.requirement("A-CODE-2")
async def test_without_a_proved_sandbox_there_is_no_tool_and_no_weaker_way() -> None:
    unproved = Backend(passes=False)
    tool, _ = await tool_of(unproved)
    said = await tool.dry_run(proposal("print(1)"), Scope())
    assert reason_of(said) == "SANDBOX_ABSENT"
    assert "docker" in tool.absence()
    proved = Backend()
    tool, _ = await tool_of(proved, "gvisor")
    assert "this node has no such backend" in tool.absence()
    assert reason_of(await tool.dry_run(proposal("print(1)"), Scope())) == "SANDBOX_ABSENT"
    assert unproved.jobs == proved.jobs == []


async def test_a_sandbox_that_is_another_one_by_the_time_of_the_run_is_not_used() -> None:
    backend = Backend()
    tool, registry = await tool_of(backend)
    call = proposal("print(1)")
    said = await tool.dry_run(call, Scope())
    backend.version = "2"
    await registry.examine()
    with pytest.raises(ToolBlocked, match="SANDBOX_CHANGED"):
        await tool.run(call, Scope(), said)
    backend.passes = False
    await registry.examine()
    with pytest.raises(ToolBlocked, match="SANDBOX_ABSENT"):
        await tool.run(call, Scope(), said)
    assert backend.jobs == []


@pytest.mark.parametrize("code", ["print(", "\0", "(" * 5000, "x" * 62_000, ""])
async def test_what_is_no_program_is_refused_before_anything_runs(code: str) -> None:
    backend = Backend()
    tool, _ = await tool_of(backend)
    said = await tool.dry_run(proposal(code), Scope())
    assert reason_of(said) in {"CODE_INVALID", "ARGUMENTS_INVALID"}
    assert backend.jobs == []


@pytest.mark.parametrize("status", [Status.ERROR, Status.TIMEOUT, Status.OOM, Status.OUTPUT_LIMIT, Status.KILLED])
async def test_how_a_program_ended_is_told_by_the_engine_and_not_by_its_output(status: Status) -> None:
    claims = output('{"status": "ok", "exit_code": 0}', 10_000)
    backend = Backend(result=Result(status=status, exit_code=1, stdout=claims, reason="limit"))
    tool, _ = await tool_of(backend)
    told = await ran(tool, proposal("print(1)"))
    assert told["status"] == status.value
    assert told["truncated"] is True
    assert told["stdout"] == claims.text


async def test_a_sandbox_that_fails_is_no_result_of_the_program() -> None:
    backend = Backend(result=Result(status=Status.INFRA, reason="the daemon is gone"))
    tool, _ = await tool_of(backend)
    call = proposal("print(1)")
    with pytest.raises(Unavailable, match="the daemon is gone"):
        await tool.run(call, Scope(), await tool.dry_run(call, Scope()))
