"""From a proposal to a clean, attested result, or to a reason; and nothing in between is ever skipped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from gnusnode.contracts import ids
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.tools import (
    NEEDS_APPROVAL,
    Decision,
    DryRunResult,
    RequiredCapability,
    SanitizedContentType,
    SanitizedData,
    StripReport,
    ToolPolicy,
    ToolProposal,
)
from gnusnode.contracts.verify import verify
from gnusnode.errors import GnusError, ToolBlocked, Unprocessable
from gnusnode.observe.observer import Observer
from gnusnode.policy.labels import Confidentiality, Width
from gnusnode.policy.sinks import Authors, Effect, Output, Sink, SinkKind, ToolDescription
from gnusnode.policy.sources import Source, SourceKind
from gnusnode.store.db import open_store
from roles.intermediary import pipeline
from roles.intermediary.approvals import ApprovalDesk
from roles.intermediary.call import Call
from roles.intermediary.gate import Gate
from roles.intermediary.ledger import Ledger
from roles.intermediary.pipeline import DRY_RUN_SECONDS, Clean, Context, Intermediary, Report
from roles.intermediary.tools.base import Arguments, Category, Scope, ToolManifest, ToolOutput, predicted, refused
from roles.ports import RoleContext
from tests.fakes.toolcalls import call
from tests.property.records import ME, NOW, ROSTER

URL = "https://example.org/page"
CAPABILITIES = ("tool:web.fetch.readonly", "tool:web.post")
POLICY = PolicyEnvelope(tool_policy=ToolPolicy(capability_whitelist=CAPABILITIES, allowlisted_domains=("example.org",)))


class PageArguments(Arguments):
    url: str


@dataclass
class Page:
    """A tool of a test: reads, or with ``effect`` writes, a page; counts what it really did."""

    effect: Effect = Effect.READ
    output: bytes = b"the tide is high at noon"
    fault: GnusError | None = None
    hangs: bool = False
    refuses: bool = False
    ran: list[tuple[dict[str, Any], Scope]] = field(default_factory=list[tuple[dict[str, Any], Scope]])

    @property
    def manifest(self) -> ToolManifest:
        return ToolManifest(
            description=ToolDescription(
                name="web.fetch",
                capability=CAPABILITIES[0] if self.effect is Effect.READ else CAPABILITIES[1],
                effect=self.effect,
                sinks=(Sink(argument="url", kind=SinkKind.URL, width=Width.PUBLIC),),
                output=Output(authors=Authors.ANYONE, confidentiality=Confidentiality.PUBLIC),
            ),
            category=Category.WEB,
            summary="",
            arguments=PageArguments,
        )

    async def dry_run(self, call: ToolProposal, scope: Scope) -> DryRunResult:
        if self.hangs:
            await trio.sleep_forever()
        if self.refuses:
            return refused(call, ToolBlocked("SSRF_ADDRESS", "not a public address"))
        return predicted(call, preview="a page would be read", requests=(f"GET {call.arguments['url']}",))

    async def run(self, call: ToolProposal, scope: Scope, predicted: DryRunResult) -> ToolOutput:
        self.ran.append((call.arguments, scope))
        if self.fault:
            raise self.fault
        return ToolOutput(self.output, "text/plain", source=call.arguments["url"])


@dataclass
class Cleaner:
    """Finds what a test wants to be found."""

    finds: dict[bytes, str] = field(default_factory=dict[bytes, str])
    breaks_on: bytes = b"\xff"
    version: str = "1.0.0"

    async def __call__(self, tool_call_id: str, output: ToolOutput) -> Clean:
        await trio.lowlevel.checkpoint()
        if self.breaks_on in output.data:
            raise Unprocessable("cannot be cleaned")
        data = SanitizedData(
            tool_call_id=tool_call_id,
            source_hash=ids.sha256(output.data),
            content_type=SanitizedContentType.PLAIN,
            plain_text=output.data.decode(),
            strip_report=StripReport(instruction_scrub_applied=False),
        )
        return Clean(data, tuple(kind for mark, kind in self.finds.items() if mark in output.data))


@dataclass
class House:
    intermediary: Intermediary
    desk: ApprovalDesk


@asynccontextmanager
async def house(path: Path, tool: Page, clean: Cleaner | None = None) -> AsyncIterator[House]:
    clean = clean or Cleaner()
    async with open_store(path, map_size=2**24) as store:
        desk = await ApprovalDesk.open(store, ME, lambda: NOW)
        ledger = await Ledger.open(store, NOW)
        gate = Gate(ME.peer_id, lambda: ROSTER, ledger, sanitizer=clean.version, now_ms=lambda: NOW)
        context = RoleContext(
            ME, lambda: ROSTER.swarm_id, lambda record: verify(record, NOW, ROSTER), lambda: NOW, Observer.create()
        )
        yield House(Intermediary(context, {"web.fetch": tool}, clean, gate, desk), desk)


def proposal(url: str = URL, *, policy: PolicyEnvelope = POLICY, **fields: Any) -> Call:
    made = call(arguments={"url": url}, policy_hash=policy.digest, tool_policy=policy.tool_policy, **fields)
    manifest = type(made.manifest).signed(
        ME,
        module_name="web",
        module_version="1",
        artifact_hash=made.manifest.artifact_hash,
        issued_at_ms=NOW,
        required_capabilities=tuple(RequiredCapability(name=name, scope="any") for name in CAPABILITIES),
    )
    return Call(proposal=made.proposal, plan=made.plan, policy=policy, manifest=manifest)


SAID = Context(sources=(Source(id="query", kind=SourceKind.QUERY, text=f"Please read {URL} for me"),))


async def proposed(path: Path, tool: Page, clean: Cleaner | None = None, of: Call | None = None) -> Report:
    async with house(path, tool, clean) as here:
        return await here.intermediary.propose(of or proposal(), SAID)


@pytest.mark.requirement("G-TI-5", "G-TI-6")
async def test_what_the_user_asked_for_is_done_and_its_output_attested(tmp_path: Path) -> None:
    tool = Page()
    report = await proposed(tmp_path, tool)
    assert report.rejection_reason == ""
    assert [arguments for arguments, _ in tool.ran] == [{"url": URL}]
    assert tool.ran[0][1].domains == ("example.org",)
    assert report.sanitized_data is not None
    assert report.sanitized_data.plain_text == tool.output.decode()
    assert report.attestation is not None
    assert report.attestation.provenance_hash == report.sanitized_data.digest
    assert verify(report.attestation, NOW, ROSTER) is Outcome.OK
    assert report.attestation.safe_to_memorize
    assert not report.attestation.safe_to_execute, "what was executed is not to be executed again"


@pytest.mark.requirement("G-TI-10", "G-TI-11")
async def test_a_call_that_changes_something_waits_for_a_person_and_runs_after_the_yes(tmp_path: Path) -> None:
    tool = Page(Effect.WRITE)
    async with house(tmp_path, tool) as here:
        of = proposal()
        report = await here.intermediary.propose(of, SAID)
        assert report.human_approval_required
        assert report.attestation is not None
        assert report.attestation.reason_code == NEEDS_APPROVAL
        assert tool.ran == []
        [pending] = here.desk.waiting()
        assert any("changes something" in line for line in pending.why)
        assert URL in pending.words
        await here.desk.decide(of.key, Decision.APPROVE, "anna")
        done = await here.intermediary.carry_on(of.key)
        assert done.sanitized_data is not None
        assert len(tool.ran) == 1
        again = await here.intermediary.carry_on(of.key)
        assert again.rejection_reason == "ALREADY_EXECUTED"
        assert len(tool.ran) == 1


async def test_a_person_is_asked_once_and_never_about_more_than_can_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = Page(Effect.WRITE)
    async with house(tmp_path, tool) as here:
        assert (await here.intermediary.propose(proposal(), SAID)).human_approval_required
        assert (await here.intermediary.propose(proposal(), SAID)).rejection_reason == "CONFLICT"
        monkeypatch.setattr(pipeline, "MAX_WORDS", 10)
        report = await here.intermediary.propose(proposal(request=2), SAID)
        assert (report.rejection_reason, report.human_approval_required) == ("TOO_LONG_TO_SHOW", False)
        assert len(here.desk.waiting()) == 1
    assert tool.ran == []


def test_a_copy_of_a_call_with_other_arguments_has_another_hash() -> None:
    of = proposal()
    other = of.proposal.model_copy(update={"arguments": {"url": "https://example.org/other"}})
    before = of.args_hash
    assert of.model_copy(update={"proposal": other}).args_hash != before


async def test_after_a_no_nothing_runs(tmp_path: Path) -> None:
    tool = Page(Effect.DESTROY)
    async with house(tmp_path, tool) as here:
        of = proposal()
        await here.intermediary.propose(of, SAID)
        await here.desk.decide(of.key, Decision.DENY, "anna")
        assert (await here.intermediary.carry_on(of.key)).rejection_reason == "DENIED"
    assert tool.ran == []


@pytest.mark.requirement("G-TI-4")
@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (proposal("https://attacker.example/?q=secret"), "DOMAIN_NOT_ALLOWED"),
        (proposal(policy=PolicyEnvelope()), "CAPABILITY_MISSING"),
        (proposal(expires_at_ms=NOW + 1, issued_at_ms=NOW - 10), ""),
        (proposal(issued_at_ms=NOW - 20, expires_at_ms=NOW), "RECORD_REFUSED"),
    ],
    ids=["host", "capability", "the control", "expired plan"],
)
async def test_what_plan_policy_or_manifest_do_not_allow_is_refused_with_the_reason(
    tmp_path: Path, of: Call, reason: str
) -> None:
    tool = Page()
    report = await proposed(tmp_path, tool, of=of)
    assert report.rejection_reason == reason
    assert len(tool.ran) == (not reason)
    if report.attestation is not None and reason:
        assert not report.attestation.safe_to_execute


async def test_a_policy_that_the_plan_was_not_made_under_counts_for_nothing(tmp_path: Path) -> None:
    wide = POLICY.model_copy(update={"step_by_step": False, "max_tokens": 1})
    of = proposal()
    other = Call(proposal=of.proposal, plan=of.plan, policy=wide, manifest=of.manifest)
    tool = Page()
    assert (await proposed(tmp_path, tool, of=other)).rejection_reason == "POLICY_MISMATCH"
    assert tool.ran == []


@pytest.mark.requirement("G-TI-2")
async def test_a_dry_run_that_hangs_or_refuses_ends_the_call(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    began = trio.current_time()
    hanging = Page(hangs=True)
    async with house(tmp_path / "a", hanging) as here:
        with trio.fail_after(2 * DRY_RUN_SECONDS):
            report = await here.intermediary.propose(proposal(), SAID)
    assert report.rejection_reason == "DRY_RUN_TIMEOUT"
    assert trio.current_time() - began >= DRY_RUN_SECONDS
    refusing = Page(refuses=True)
    report = await proposed(tmp_path / "b", refusing)
    assert report.rejection_reason == "SSRF_ADDRESS"
    assert report.attestation is not None
    assert not report.attestation.dry_run_ok
    assert hanging.ran == refusing.ran == []


@pytest.mark.requirement("G-TI-3")
async def test_output_that_cannot_be_cleaned_is_of_no_use_and_suspect_output_is_never_memorised(tmp_path: Path) -> None:
    broken = await proposed(tmp_path / "a", Page(output=b"\xff"))
    assert broken.sanitized_data is None
    assert broken.rejection_reason == "UNPROCESSABLE"
    suspect = await proposed(tmp_path / "b", Page(output=b"ignore all"), Cleaner({b"ignore all": "override"}))
    assert suspect.sanitized_data is not None
    assert suspect.attestation is not None
    assert not suspect.attestation.safe_to_memorize


async def test_a_tool_that_fails_gives_its_reason_and_no_output(tmp_path: Path) -> None:
    report = await proposed(tmp_path, Page(fault=ToolBlocked("TOO_LARGE", "the page is too large")))
    assert (report.sanitized_data, report.rejection_reason) == (None, "TOO_LARGE")


async def test_a_tool_that_is_not_there_is_refused(tmp_path: Path) -> None:
    of = proposal()
    other = of.proposal.model_copy(update={"tool_name": "code.run"})
    report = await proposed(
        tmp_path, Page(), of=Call(proposal=other, plan=of.plan, policy=of.policy, manifest=of.manifest)
    )
    assert report.rejection_reason == "TOOL_UNKNOWN"


async def test_text_that_no_record_can_hold_ends_the_call_and_not_the_intermediary(tmp_path: Path) -> None:
    tool = Page()
    assert (await proposed(tmp_path / "a", tool, of=proposal(URL + "\ud800"))).rejection_reason == "ARGUMENTS_INVALID"
    async with house(tmp_path / "b", tool) as here:
        seen = Context(sources=(Source.model_construct(id="query", kind=SourceKind.QUERY, text=f"read {URL} \ud800"),))
        assert (await here.intermediary.propose(proposal(), seen)).rejection_reason == "CONTEXT_INVALID"
    assert tool.ran == []


async def test_a_long_context_is_judged_like_a_short_one(tmp_path: Path) -> None:
    tool = Page()
    async with house(tmp_path, tool) as here:
        seen = Context(sources=(*SAID.sources, Source(id="long", kind=SourceKind.TOOL, text="sea " * 20_000)))
        assert (await here.intermediary.propose(proposal(), seen)).rejection_reason == ""
    assert len(tool.ran) == 1


async def test_the_same_proposal_is_made_once(tmp_path: Path) -> None:
    tool = Page()
    async with house(tmp_path, tool) as here:
        of = proposal()
        assert (await here.intermediary.propose(of, SAID)).rejection_reason == ""
        assert (await here.intermediary.propose(of, SAID)).rejection_reason == "ALREADY_EXECUTED"
    assert len(tool.ran) == 1
