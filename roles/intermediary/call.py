"""One proposal with everything under which it is judged, and the digests by which records are tied to it. Pure."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

from gnusnode.contracts import canonical, ids
from gnusnode.contracts.base import Record
from gnusnode.contracts.plan import ExecutionPlan
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.tools import CapabilityManifest, ToolProposal, arguments_hash


class Call(Record):
    """What an expert proposes, under which plan and policy, and by leave of which manifest."""

    record_name: ClassVar[str] = "tool-call"
    max_bytes: ClassVar[int] = 1024 * 1024

    proposal: ToolProposal
    plan: ExecutionPlan
    policy: PolicyEnvelope
    manifest: CapabilityManifest

    @property
    def key(self) -> str:
        """Names the call for good: it is made at most once, however often it is attested."""
        return f"{self.plan.request_id}/{self.proposal.tool_call_id}"

    @cached_property
    def args_hash(self) -> str:
        return arguments_hash(self.proposal.arguments)

    @cached_property
    def capability_hash(self) -> str:
        """Of what the manifest asks for and of who signed it: another manifest is another capability."""
        return ids.sha256(canonical.encode({"manifest": self.manifest.digest, "tool": self.proposal.tool_name}))

    def bound(self) -> dict[str, str]:
        """The fields of an attestation that tie it to this call and to no other."""
        return {
            "request_id": self.plan.request_id,
            "tool_call_id": self.proposal.tool_call_id,
            "args_hash": self.args_hash,
            "plan_hash": self.plan.digest,
            "policy_hash": self.policy.digest,
            "capability_hash": self.capability_hash,
        }
