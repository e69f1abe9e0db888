"""What a user and a workspace allow. Policies only ever narrow each other."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from gnusnode.contracts.base import Record
from gnusnode.contracts.ids import Name
from gnusnode.contracts.plan import MAX_WALL_MS, AttestationRequirements, MemoryMode, PrivacyMode
from gnusnode.contracts.tools import ToolPolicy
from gnusnode.errors import Forbidden


class PolicyEnvelope(Record):
    """The limits of a request. The default answers from models and memory, uses no tool and stays among members."""

    record_name: ClassVar[str] = "policy-envelope"

    tenant: Name = "local"
    privacy_mode: PrivacyMode = PrivacyMode.RESTRICTED
    """At least this: a router may choose a stricter one."""
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 4096
    max_wall_ms: Annotated[int, Field(ge=1, le=MAX_WALL_MS)] = 120_000
    max_spend: Annotated[float, Field(ge=0, le=1_000_000)] = 0.05
    """Credits."""
    tool_policy: ToolPolicy = ToolPolicy()
    memory_mode: MemoryMode = MemoryMode.POLICY_SCOPED
    attestation_requirements: AttestationRequirements = AttestationRequirements()
    step_by_step: bool = False
    """Ask a person before every tool call."""
    allowed_models: Annotated[tuple[Name, ...], Field(max_length=256)] | None = None
    """None: any."""
    allow_resume: bool = True
    """Another node may continue an answer whose beginning was already shown."""


_PRIVACY_STRICTNESS: Final = tuple(PrivacyMode)
_MEMORY_STRICTNESS: Final = tuple(MemoryMode)


def narrow(a: PolicyEnvelope, b: PolicyEnvelope) -> PolicyEnvelope:
    """What both ``a`` and ``b`` allow. Lists keep what stands literally in both.

    Raises:
        Forbidden: they belong to different tenants.
    """
    if a.tenant != b.tenant:
        raise Forbidden(
            f"a policy of tenant {b.tenant!r} cannot be applied to tenant {a.tenant!r}",
            where="policy.tenant",
            hint="leave out the tenant, or use a key of that tenant",
        )
    return PolicyEnvelope(
        tenant=a.tenant,
        privacy_mode=stricter_privacy(a.privacy_mode, b.privacy_mode),
        max_tokens=min(a.max_tokens, b.max_tokens),
        max_wall_ms=min(a.max_wall_ms, b.max_wall_ms),
        max_spend=min(a.max_spend, b.max_spend),
        tool_policy=narrow_tools(a.tool_policy, b.tool_policy),
        memory_mode=stricter_memory(a.memory_mode, b.memory_mode),
        attestation_requirements=_both_attestations(a.attestation_requirements, b.attestation_requirements),
        step_by_step=a.step_by_step or b.step_by_step,
        allowed_models=_both_models(a.allowed_models, b.allowed_models),
        allow_resume=a.allow_resume and b.allow_resume,
    )


def narrow_tools(a: ToolPolicy, b: ToolPolicy) -> ToolPolicy:
    """The tools that both allow."""
    return ToolPolicy(
        human_approval=a.human_approval or b.human_approval,
        capability_whitelist=_in_both(a.capability_whitelist, b.capability_whitelist),
        allowlisted_domains=_in_both(a.allowlisted_domains, b.allowlisted_domains),
        allowlisted_paths=_in_both(a.allowlisted_paths, b.allowlisted_paths),
    )


def stricter_privacy(a: PrivacyMode, b: PrivacyMode) -> PrivacyMode:
    return max(a, b, key=_PRIVACY_STRICTNESS.index)


def stricter_memory(a: MemoryMode, b: MemoryMode) -> MemoryMode:
    return max(a, b, key=_MEMORY_STRICTNESS.index)


def _both_attestations(a: AttestationRequirements, b: AttestationRequirements) -> AttestationRequirements:
    return AttestationRequirements(
        require_task_attestation=a.require_task_attestation or b.require_task_attestation,
        require_tool_attestation=a.require_tool_attestation or b.require_tool_attestation,
        min_reputation=max(a.min_reputation, b.min_reputation),
    )


def _both_models(a: tuple[str, ...] | None, b: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if a is None or b is None:
        return a if b is None else b
    return _in_both(a, b)


def _in_both(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(a) & set(b)))
