"""Which tools a plan allows: never more than the policy, none when none is needed, a person where it matters."""

from __future__ import annotations

from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.tools import ToolPolicy
from gnusnode.policy.envelopes import Risk


def tool_policy_for(policy: PolicyEnvelope, risk: Risk, *, needs_tools: bool) -> ToolPolicy:
    """The tool policy of a plan.

    A person is asked where the policy says so, step by step, at high risk, and before anything that does not only read.
    """
    allowed = policy.tool_policy
    asks = allowed.human_approval or policy.step_by_step or risk == "high"
    if not needs_tools:
        return ToolPolicy(human_approval=asks)
    return ToolPolicy(
        human_approval=asks or not all(is_readonly(capability) for capability in allowed.capability_whitelist),
        capability_whitelist=allowed.capability_whitelist,
        allowlisted_domains=allowed.allowlisted_domains,
        allowlisted_paths=allowed.allowlisted_paths,
    )


def is_readonly(capability: str) -> bool:
    """Whether a capability only reads: its last part says so, or it retrieves memory."""
    return capability == "memory.retrieve" or capability.rsplit(".", 1)[-1] == "readonly"
