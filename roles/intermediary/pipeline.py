"""What happens to a proposal: schema, authority, dry-run, sanitiser, verdict, attestation, a person, the run, again.

    proposal ─ manifest, plan ─ dry-run ─ sanitise ─ judge ─┬─ denied
                                                          ├─ asked: waits at the desk, then
                                                          └─ allowed: gate ─ run ─ sanitise ─ second attestation

Every step that fails, hangs or is missing ends the call; nothing is ever skipped.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

import trio

from gnusnode.contracts import ids
from gnusnode.contracts.base import Record
from gnusnode.contracts.canonical import NotCanonical
from gnusnode.contracts.tools import (
    NEEDS_APPROVAL,
    DryRunResult,
    SanitizedData,
    ToolAttestation,
)
from gnusnode.errors import Conflict, GnusError, ToolBlocked
from gnusnode.policy.case import Case, PlanScope, Step
from gnusnode.policy.flow import Decision, Finding
from gnusnode.policy.judge import Verdict, judge
from gnusnode.policy.sources import Source
from gnusnode.sanitize.findings import ACTIVE, INSTRUCTIONS, Kind
from roles.intermediary.approvals import MAX_WORDS, ApprovalDesk, Pending, Standing
from roles.intermediary.call import Call
from roles.intermediary.gate import Gate
from roles.intermediary.tools.base import Scope, Tool, ToolOutput, reason_of
from roles.ports import RoleContext

DRY_RUN_SECONDS: Final = 20.0
ATTESTATION_MS: Final = 600_000
"""How long a call may wait between its dry-run and its run."""
APPROVAL_MS: Final = 540_000
"""How long a person has; less than an attestation lasts."""
_JUDGED_INLINE: Final = 32_768
"""Characters of context up to which a verdict takes a few milliseconds."""
SEVERE: Final = tuple(sorted(kind.value for kind in ACTIVE | INSTRUCTIONS | {Kind.SECRET}))


@dataclass(frozen=True)
class Clean:
    """What the sanitiser made of an output, and the kinds of what it found that count as suspect."""

    data: SanitizedData
    flags: tuple[str, ...]


class Cleaner(Protocol):
    """The sanitiser as the intermediary sees it; native parsers run in a child of their own."""

    version: str

    async def __call__(self, tool_call_id: str, output: ToolOutput) -> Clean:
        """Raises ``GnusError`` for what cannot be cleaned: it is then of no use to anybody."""
        ...


class Report(Record):
    """All that is told of a proposal (18.1.3.8.4)."""

    record_name: ClassVar[str] = "tool-report"
    max_bytes: ClassVar[int] = 16 * 1024 * 1024

    dry_run_result: DryRunResult | None = None
    attestation: ToolAttestation | None = None
    """The first one, which judged the call; with ``sanitized_data`` the second, over the real output."""
    sanitized_data: SanitizedData | None = None
    human_approval_required: bool = False
    rejection_reason: str = ""


@dataclass(frozen=True)
class Context:
    """What was in front of the model when it proposed, and what its plan foresees; both come from the runner."""

    sources: tuple[Source, ...] = ()
    steps: tuple[Step, ...] | None = None
    spent: tuple[str, ...] = ()


class Intermediary:
    """The mandatory way of every proposal.

    Args:
        tools: by name; a tool that is not proved safe to run is not in it.
    """

    def __init__(
        self, context: RoleContext, tools: Mapping[str, Tool], clean: Cleaner, gate: Gate, desk: ApprovalDesk
    ) -> None:
        self._context = context
        self._tools = tools
        self._clean = clean
        self._gate = gate
        self._desk = desk

    async def propose(self, call: Call, seen: Context) -> Report:
        """Judges a proposal and, where nothing and nobody stands against it, makes the call.

        A refusal is a report, with its reason; so is a call that waits for a person: see ``carry_on``.

        Raises:
            DataError: the store cannot be written; nothing was run.
        """
        try:
            tool = self._authorised(call)
            dry_run, failed = await self._dry_run(tool, call)
        except GnusError as error:
            return Report(rejection_reason=_reason_of(error))
        try:
            verdict = await _judged(self._case(call, tool, dry_run, seen))
        except NotCanonical:  # text that no record can hold, such as half of a surrogate pair
            return Report(dry_run_result=dry_run, rejection_reason="CONTEXT_INVALID")
        attestation = self._attest(call, dry_run, verdict, failed)
        report = Report(dry_run_result=dry_run, attestation=attestation)
        match verdict.decision:
            case Decision.DENY:
                return report.model_copy(update={"rejection_reason": attestation.reason_code})
            case Decision.ASK:
                return await self._ask(call, verdict, report)
            case Decision.ALLOW:
                return await self._make(call, tool, report, None)

    async def carry_on(self, key: str) -> Report:
        """Waits for the decision on a call that was put before a person, and makes it if that was a yes.

        Raises:
            NotFound: nobody was asked about it.
        """
        pending = await self._desk.decided(key)
        report = Report(dry_run_result=pending.dry_run, attestation=pending.attestation, human_approval_required=True)
        if pending.standing is not Standing.APPROVED or pending.approval is None:
            return report.model_copy(update={"rejection_reason": pending.standing.value.upper()})
        try:
            tool = self._authorised(pending.call)
        except GnusError as error:
            return report.model_copy(update={"rejection_reason": _reason_of(error)})
        return await self._make(pending.call, tool, report, pending.approval.to_bytes())

    # --- steps --------------------------------------------------------------------------------------------------------

    def _authorised(self, call: Call) -> Tool:
        """The tool, once plan and manifest are to be believed and the policy is the plan's."""
        tool = self._tools.get(call.proposal.tool_name)
        if tool is None:
            raise ToolBlocked(
                "TOOL_UNKNOWN", "no such tool here, or nothing to run it in", where=call.proposal.tool_name
            )
        try:
            call.args_hash  # noqa: B018 - whether the arguments have one
        except NotCanonical as error:
            raise ToolBlocked("ARGUMENTS_INVALID", str(error), where=call.proposal.tool_name) from error
        self._context.require(call.plan)
        self._context.require(call.manifest)
        if call.plan.policy_hash != call.policy.digest:
            raise ToolBlocked("POLICY_MISMATCH", "the plan was made under another policy", where=call.key)
        return tool

    async def _dry_run(self, tool: Tool, call: Call) -> tuple[DryRunResult, str]:
        """The prediction, with what the sanitiser finds in it among its flags; and why it failed, if it did."""
        result: DryRunResult | None = None
        with trio.move_on_after(DRY_RUN_SECONDS):
            result = await tool.dry_run(call.proposal, self._scope(call))
        if result is None:
            raise ToolBlocked("DRY_RUN_TIMEOUT", f"the dry-run took more than {DRY_RUN_SECONDS:g} s", where=call.key)
        mock = result.mock_output
        shown = ToolOutput(mock.preview.encode(), mock.content_type, source=call.proposal.tool_name)
        clean = await self._clean(call.proposal.tool_call_id, shown)
        flags = tuple(sorted({*result.risk_flags, *clean.flags}))
        return result.model_copy(update={"risk_flags": flags}), "" if result.dry_run_ok else reason_of(result)

    def _case(self, call: Call, tool: Tool, dry_run: DryRunResult, seen: Context) -> Case:
        return Case(
            proposal=call.proposal,
            tool=tool.manifest.description,
            plan=PlanScope.of(call.plan, steps=seen.steps, spent=seen.spent),
            policy=call.policy,
            manifest=call.manifest.required_capabilities,
            sources=seen.sources,
            dry_run=dry_run,
            severe_flags=SEVERE,
            at_ms=self._context.now_ms(),
        )

    def _attest(self, call: Call, dry_run: DryRunResult, verdict: Verdict, failed: str) -> ToolAttestation:
        denied = verdict.decision is Decision.DENY
        return self._signed(
            call,
            dry_run_ok=dry_run.dry_run_ok,
            safe_to_execute=dry_run.dry_run_ok and not denied,
            safe_to_memorize=False,
            provenance_hash=dry_run.digest,
            reason_code=failed or (NEEDS_APPROVAL if verdict.decision is Decision.ASK else verdict.reason_code),
        )

    def _signed(self, call: Call, **fields: object) -> ToolAttestation:
        now = self._context.now_ms()
        return ToolAttestation.signed(
            self._context.signer,
            **call.bound(),
            **fields,
            sanitizer_version=self._clean.version,
            timestamp_ms=now,
            expires_at_ms=now + ATTESTATION_MS,
            nonce=secrets.token_hex(16),
        )

    async def _ask(self, call: Call, verdict: Verdict, report: Report) -> Report:
        assert report.attestation is not None
        assert report.dry_run_result is not None
        if len(verdict.words) > MAX_WORDS:  # what is shown is what is bound: nobody decides on a part of it
            return report.model_copy(update={"rejection_reason": "TOO_LONG_TO_SHOW"})
        now = self._context.now_ms()
        questions = [finding for finding in verdict.findings if finding.decision is Decision.ASK]
        pending = Pending(
            call=call,
            attestation=report.attestation,
            dry_run=report.dry_run_result,
            why=tuple(_line(finding) for finding in questions[:64]),
            words=verdict.words,
            shown_hash=verdict.shown_hash,
            asked_at_ms=now,
            expires_at_ms=now + APPROVAL_MS,
        )
        try:
            await self._desk.ask(pending)
        except (ToolBlocked, Conflict) as error:
            return report.model_copy(update={"rejection_reason": _reason_of(error)})
        return report.model_copy(update={"human_approval_required": True})

    async def _make(self, call: Call, tool: Tool, report: Report, approval: bytes | None) -> Report:
        """Runs the call through the gate; its output is worth something only once it is clean and attested."""
        assert report.attestation is not None
        assert report.dry_run_result is not None
        dry_run = report.dry_run_result

        async def run() -> tuple[ToolOutput, str]:
            output = await tool.run(call.proposal, self._scope(call), dry_run)
            return output, ids.sha256(output.data)

        try:
            output = await self._gate.execute(call, dry_run, report.attestation.to_bytes(), approval, run)
            clean = await self._clean(call.proposal.tool_call_id, output)
        except GnusError as error:
            return report.model_copy(update={"rejection_reason": _reason_of(error)})
        second = self._signed(
            call,
            dry_run_ok=True,
            safe_to_execute=False,  # it was executed: nothing more may be
            safe_to_memorize=not clean.flags,
            provenance_hash=clean.data.digest,
            reason_code="EXECUTED",
        )
        return report.model_copy(update={"attestation": second, "sanitized_data": clean.data})

    @staticmethod
    def _scope(call: Call) -> Scope:
        """Hosts and paths that plan and policy both name."""
        plan, policy = call.plan.tool_policy, call.policy.tool_policy
        return Scope(
            domains=tuple(sorted(set(plan.allowlisted_domains) & set(policy.allowlisted_domains))),
            paths=tuple(sorted(set(plan.allowlisted_paths) & set(policy.allowlisted_paths))),
        )


async def _judged(case: Case) -> Verdict:
    """The verdict, made beside the loop where there is much to trace through."""
    if sum(len(source.text) for source in case.sources) < _JUDGED_INLINE:
        return judge(case)
    return await trio.to_thread.run_sync(judge, case)


def _line(finding: Finding) -> str:
    return f"{finding.words} [{finding.code}]"[:1024]


def _reason_of(error: GnusError) -> str:
    return error.reason if isinstance(error, ToolBlocked) else error.code.upper()
