"""The verdict on a proposed call: one pure function of a case. Equal cases have equal verdicts, byte for byte."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from gnusnode.contracts import canonical, ids
from gnusnode.contracts.base import Record
from gnusnode.contracts.ids import Sha256
from gnusnode.contracts.tools import arguments_hash
from gnusnode.policy import approvals, flow, grounds
from gnusnode.policy.case import Case
from gnusnode.policy.flow import Decision, Finding, ReasonCode, deny
from gnusnode.policy.provenance import TooManyValues, Trace, Tracer
from gnusnode.policy.shown import in_words, visible

OK: Final = "OK"
APPROVED: Final = "APPROVED"


class Verdict(Record):
    """What may happen to a call, why, and what a person sees of it."""

    record_name: ClassVar[str] = "tool-verdict"
    max_bytes: ClassVar[int] = 64 * 1024 * 1024

    decision: Decision
    reason_code: ReasonCode
    """``OK``, ``APPROVED``, or the code of the finding that decided."""
    findings: Annotated[tuple[Finding, ...], Field(max_length=4096)] = ()
    traces: Annotated[tuple[Trace, ...], Field(max_length=256)] = ()
    words: str
    """For a person: the call, each value with who chose it, each finding."""
    case_hash: Sha256
    args_hash: Sha256
    shown_hash: Sha256
    """Of the words, the exact arguments, the tool and the plan: what an approval binds."""


def judge(case: Case) -> Verdict:
    """The verdict on ``case``.

    ``allow`` means that nothing in this package stands against the call. The caller has checked signatures before and
    attests the very same bytes after.
    """
    tracer = Tracer(case.sources)
    try:
        traces = tracer.trace(case.tool, case.proposal.arguments)
    except TooManyValues as error:
        return _verdict(case, (deny("TOO_MANY_VALUES", str(error)),), ())
    findings = (
        *flow.authority(case),
        *flow.places(case, traces),
        *flow.confidentiality(case, traces),
        *grounds.provenance(case, tracer, traces),
        *approvals.rules(case),
    )
    return _verdict(case, findings, traces)


def _verdict(case: Case, findings: tuple[Finding, ...], traces: tuple[Trace, ...]) -> Verdict:
    words = _in_words(case, findings, traces)
    args_hash = arguments_hash(case.proposal.arguments)
    shown = [words, args_hash, case.tool.to_plain(), case.plan.plan_hash]
    shown_hash = ids.sha256(canonical.encode(shown))
    decisive = _decisive(findings)
    if case.approval is not None and (decisive is None or decisive.decision is Decision.ASK):
        refusal = approvals.refusal_of(case.approval, case, shown_hash)
        decisive = refusal or Finding(decision=Decision.ALLOW, code=APPROVED, words="a person said yes")
        findings = (*findings, decisive)
    return Verdict(
        decision=decisive.decision if decisive else Decision.ALLOW,
        reason_code=decisive.code if decisive else OK,
        findings=findings,
        traces=traces,
        words=words,
        case_hash=case.digest,
        args_hash=args_hash,
        shown_hash=shown_hash,
    )


def _decisive(findings: tuple[Finding, ...]) -> Finding | None:
    """The first refusal, or else the first question."""
    refusals = [finding for finding in findings if finding.decision is Decision.DENY]
    return next(iter(refusals or findings), None)


def _in_words(case: Case, findings: tuple[Finding, ...], traces: tuple[Trace, ...]) -> str:
    lines = [f"{visible(case.tool.name)}: {visible(case.proposal.reason) or 'no reason given'}"]
    lines += [f"  {in_words(trace)}" for trace in traces]
    lines += [f"{finding.decision.value}: {visible(finding.words)} [{finding.code}]" for finding in findings]
    return "\n".join(lines)
