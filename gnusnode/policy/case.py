"""Everything that one decision about a call is made from. Its bytes say all of it, its digest names it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from gnusnode.contracts.base import Record
from gnusnode.contracts.fields import Count, Moment, Part, Word
from gnusnode.contracts.ids import Nonce, Sha256
from gnusnode.contracts.plan import ExecutionPlan, PrivacyMode
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.tools import (
    DryRunResult,
    RequiredCapability,
    ToolApproval,
    ToolName,
    ToolPolicy,
    ToolProposal,
)
from gnusnode.policy.sinks import ToolDescription
from gnusnode.policy.sources import Source

ToolNames = Annotated[tuple[ToolName, ...], Field(max_length=4096)]


class Mutations(StrEnum):
    """When a person is asked before something changes in the world (rule 1 of 18.1.3.8.11)."""

    ALWAYS_ASK = "always_ask"
    OWN_WORDS = "own_words"
    """Not where the user's own words, or what a first-party store vouches for, already say all of it."""


class Step(Part):
    """What the plan foresees: ``times`` calls of a tool. Reading may be repeated, a side effect is used up."""

    tool: ToolName
    times: Count = 1


class PlanScope(Part):
    """What the signed plan says about tools. Whoever makes it has verified the plan's signature and authority."""

    plan_hash: Sha256
    tool_policy: ToolPolicy
    privacy_mode: PrivacyMode
    steps: Annotated[tuple[Step, ...], Field(max_length=256)] | None = None
    """None: the plan names capabilities only, so no side effect is foreseen."""
    spent: ToolNames = ()
    """Tools of this plan that already ran, or may have."""

    @classmethod
    def of(
        cls, plan: ExecutionPlan, *, steps: tuple[Step, ...] | None = None, spent: tuple[str, ...] = ()
    ) -> PlanScope:
        """The scope of a verified plan."""
        return cls(
            plan_hash=plan.digest,
            tool_policy=plan.tool_policy,
            privacy_mode=plan.privacy_mode,
            steps=steps,
            spent=spent,
        )


class Case(Record):
    """One proposed call with all that its verdict depends on. Equal bytes, equal verdict."""

    record_name: ClassVar[str] = "tool-case"
    max_bytes: ClassVar[int] = 64 * 1024 * 1024

    proposal: ToolProposal
    tool: ToolDescription
    plan: PlanScope
    policy: PolicyEnvelope
    manifest: Annotated[tuple[RequiredCapability, ...], Field(max_length=64)]
    sources: Annotated[tuple[Source, ...], Field(max_length=4096)] = ()
    """All that was in the context of the model that proposed, and the user's words among it."""
    dry_run: DryRunResult | None = None
    mutations: Mutations = Mutations.ALWAYS_ASK
    open_web: bool = False
    """Hosts that are on no list may be reached where the user gave them; else every list must name the host."""
    severe_flags: Annotated[tuple[Word, ...], Field(max_length=64)]
    """Findings of a dry-run that a person has to see (rule 4)."""
    approval: ToolApproval | None = None
    """A person's answer. Whoever puts it here has verified its signature."""
    used_nonces: Annotated[tuple[Nonce, ...], Field(max_length=4096)] = ()
    """Of approvals for this call that were used before."""
    at_ms: Moment
