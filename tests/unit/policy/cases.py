"""Cases for the tests of the policy: one call under a plan, a policy and a manifest that all allow its tool."""

from __future__ import annotations

from typing import Any, Final

from gnusnode.contracts import ids
from gnusnode.contracts.plan import PrivacyMode
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.tools import (
    Decision,
    DryRunResult,
    MockOutput,
    RequiredCapability,
    SimulatedEffects,
    ToolApproval,
    ToolPolicy,
    ToolProposal,
)
from gnusnode.identity import NodeIdentity
from gnusnode.policy.case import Case, Mutations, PlanScope, Step
from gnusnode.policy.judge import Verdict, judge
from gnusnode.policy.labels import Confidentiality, Width
from gnusnode.policy.sinks import Authors, Effect, Output, Sink, SinkKind, ToolDescription
from gnusnode.policy.sources import Source, SourceKind

NOW: Final = 1_775_410_000_000
CALL: Final = "6f1b2c3d-0000-4000-8000-000000000001"
REQUEST: Final = "6f1b2c3d-0000-4000-8000-000000000002"
DESK: Final = NodeIdentity(bytes([9]) * 32)
NONCE: Final = "ab" * 16

SEND: Final = ToolDescription(
    name="mail.send",
    capability="tool:mail.send",
    effect=Effect.DESTROY,
    sinks=(
        Sink(argument="to", kind=SinkKind.RECIPIENT, width=Width.THIRD_PARTY),
        Sink(argument="body", kind=SinkKind.BODY, width=Width.THIRD_PARTY),
    ),
)
FETCH: Final = ToolDescription(
    name="web.fetch",
    capability="tool:web.fetch.readonly",
    effect=Effect.READ,
    sinks=(Sink(argument="url", kind=SinkKind.URL),),
)
SEARCH: Final = ToolDescription(
    name="web.search",
    capability="tool:web.search.readonly",
    effect=Effect.READ,
    sinks=(Sink(argument="query", kind=SinkKind.BODY),),
)
WRITE_FILE: Final = ToolDescription(
    name="fs.write",
    capability="tool:fs.write",
    effect=Effect.WRITE,
    sinks=(
        Sink(argument="path", kind=SinkKind.PATH, width=Width.OWN),
        Sink(argument="content", kind=SinkKind.BODY, width=Width.OWN),
    ),
)
PAY: Final = ToolDescription(
    name="bank.pay",
    capability="tool:bank.pay",
    effect=Effect.WRITE,
    sinks=(
        Sink(argument="to", kind=SinkKind.RECIPIENT, width=Width.THIRD_PARTY),
        Sink(argument="amount", kind=SinkKind.AMOUNT, width=Width.THIRD_PARTY),
    ),
)
POST: Final = ToolDescription(
    name="chat.post",
    capability="tool:chat.post",
    effect=Effect.WRITE,
    sinks=(
        Sink(argument="room", kind=SinkKind.ID, width=Width.MEMBERS),
        Sink(argument="text", kind=SinkKind.BODY, width=Width.MEMBERS),
    ),
)
CALENDAR: Final = Output(
    authors=Authors.STORE,
    stamped=("id", "title", "people"),
    names=("title",),
    confidentiality=Confidentiality.PRIVATE,
)
MOVE: Final = ToolDescription(
    name="calendar.move",
    capability="tool:calendar.move",
    effect=Effect.WRITE,
    sinks=(Sink(argument="event", kind=SinkKind.ID, width=Width.OWN),),
    harmless=("start",),
    output=CALENDAR,
)
WEB: Final = Output(authors=Authors.ANYONE, confidentiality=Confidentiality.PUBLIC)


def said(text: str) -> Source:
    return Source(id="query", kind=SourceKind.QUERY, text=text)


def page(text: str, name: str = "page", **output: Any) -> Source:
    """What a tool returned that anyone may have written."""
    return Source(id=name, kind=SourceKind.TOOL, text=text, output=WEB.model_copy(update=output))


def dry_run(**fields: Any) -> DryRunResult:
    plain = {
        "tool_call_id": CALL,
        "dry_run_ok": True,
        "simulated_effects": SimulatedEffects(),
        "mock_output": MockOutput(content_type="text/plain", preview=""),
        "human_approval_required": False,
    }
    return DryRunResult.model_validate({**plain, **fields})


def case(tool: ToolDescription, arguments: dict[str, Any], query: str = "", *sources: Source, **fields: Any) -> Case:
    """A case that asks nothing but what its values are asked for. ``domains`` and ``paths`` go on every list."""
    policy = ToolPolicy(
        capability_whitelist=(tool.capability,),
        allowlisted_domains=fields.pop("domains", ()),
        allowlisted_paths=fields.pop("paths", ()),
    )
    privacy = fields.pop("privacy_mode", PrivacyMode.RESTRICTED)
    steps = fields.pop("steps", (Step(tool=tool.name),))
    plain = {
        "proposal": ToolProposal(tool_call_id=CALL, tool_name=tool.name, arguments=arguments),
        "tool": tool,
        "plan": PlanScope(
            plan_hash=ids.sha256(b"plan"),
            tool_policy=policy,
            privacy_mode=privacy,
            steps=steps,
            spent=fields.pop("spent", ()),
        ),
        "policy": PolicyEnvelope(tool_policy=policy),
        "manifest": (RequiredCapability(name=tool.capability, scope="proposal_only"),),
        "sources": (said(query), *sources),
        "dry_run": dry_run(),
        "mutations": Mutations.OWN_WORDS,
        "open_web": True,
        "severe_flags": ("active_content",),
        "at_ms": NOW,
    }
    return Case.model_validate({**plain, **fields})


def codes(verdict: Verdict) -> set[str]:
    return {finding.code for finding in verdict.findings}


def approval(of: Case, **fields: Any) -> ToolApproval:
    """A person's yes to exactly what the verdict on ``of`` shows."""
    verdict = judge(of)
    plain: dict[str, Any] = {
        "request_id": REQUEST,
        "tool_call_id": of.proposal.tool_call_id,
        "attestation_hash": ids.sha256(b"attestation"),
        "args_hash": verdict.args_hash,
        "shown_hash": verdict.shown_hash,
        "decision": Decision.APPROVE,
        "decided_by": "alice",
        "decided_at_ms": NOW - 1000,
        "expires_at_ms": NOW + 60_000,
        "nonce": NONCE,
    }
    return ToolApproval.signed(DESK, **{**plain, **fields})
