"""The policy under which a request runs: what the user asks for, within what the workspace allows."""

from __future__ import annotations

from typing import Final, Literal

from gnusnode.contracts.plan import AttestationRequirements, MemoryMode, PrivacyMode
from gnusnode.contracts.policy import PolicyEnvelope, narrow, stricter_memory, stricter_privacy
from gnusnode.contracts.tools import ToolPolicy

Risk = Literal["low", "medium", "high"]
RISKS: Final[tuple[Risk, ...]] = ("low", "medium", "high")

READONLY_CAPABILITIES: Final = ("memory.retrieve", "tool:web.fetch.readonly", "tool:web.search.readonly")
"""What a workspace allows at most unless its operator says more: looking things up."""

MAX_TOKENS: Final = 32_768
MAX_WALL_MS: Final = 600_000
MAX_SPEND: Final = 1.0


def workspace_policy(profile: str, tenant: str) -> PolicyEnvelope:
    """The widest that a tenant of a node with this profile may ask for.

    ``high-trust`` nodes keep prompts inside the operator's own boundary and ask a person before each tool.
    """
    strict = profile == "high-trust"
    return PolicyEnvelope(
        tenant=tenant,
        privacy_mode=PrivacyMode.PRIVATE_BOUNDARY if strict else PrivacyMode.PLAINTEXT,
        max_tokens=MAX_TOKENS,
        max_wall_ms=MAX_WALL_MS,
        max_spend=MAX_SPEND,
        tool_policy=ToolPolicy(human_approval=strict, capability_whitelist=READONLY_CAPABILITIES),
        memory_mode=MemoryMode.TRUSTED_ONLY if strict else MemoryMode.POLICY_SCOPED,
        attestation_requirements=AttestationRequirements(),
        step_by_step=strict,
    )


def effective_policy(user: PolicyEnvelope, workspace: PolicyEnvelope) -> PolicyEnvelope:
    """What both allow.

    Raises:
        Forbidden: the user's policy names another tenant.
    """
    return narrow(user, workspace)


def privacy_for(policy: PolicyEnvelope, risk: Risk) -> PrivacyMode:
    """At least what the policy says; a prompt of high risk never leaves the circle of members."""
    return stricter_privacy(policy.privacy_mode, PrivacyMode.RESTRICTED) if risk == "high" else policy.privacy_mode


def memory_for(policy: PolicyEnvelope, risk: Risk) -> MemoryMode:
    """At least as strict as the policy; where much is at stake only memory of higher trust may enter a prompt."""
    return stricter_memory(policy.memory_mode, MemoryMode.TRUSTED_ONLY) if risk == "high" else policy.memory_mode


def attestations_for(policy: PolicyEnvelope, risk: Risk) -> AttestationRequirements:
    """What the policy requires; both attestations where much is at stake."""
    if risk != "high":
        return policy.attestation_requirements
    return policy.attestation_requirements.model_copy(
        update={"require_task_attestation": True, "require_tool_attestation": True}
    )
