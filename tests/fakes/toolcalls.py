"""Calls of tools with everything that belongs to them, as small as they can be."""

from __future__ import annotations

import uuid
from typing import Any

from gnusnode.contracts.ids import sha256
from gnusnode.contracts.plan import (
    AttestationRequirements,
    Constraints,
    ExecutionGraph,
    ExecutionPlan,
    MemoryMode,
    Mode,
    Platform,
    PrivacyMode,
    SandboxProfile,
    SelectedCore,
    Stage,
    Topology,
)
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.tools import (
    CapabilityManifest,
    DryRunResult,
    MockOutput,
    SimulatedEffects,
    ToolAttestation,
    ToolPolicy,
    ToolProposal,
)
from gnusnode.identity import NodeIdentity
from roles.intermediary.call import Call
from tests.property.records import ME, NOW, ROSTER

SANITIZER = "1.0.0"
MINUTE = 60_000


def identifier(number: int) -> str:
    return str(uuid.UUID(int=(4 << 76) | (2 << 62) | number, version=4))


def call(number: int = 1, *, arguments: dict[str, Any] | None = None, request: int = 1, **plan: Any) -> Call:
    """A call of ``web.fetch``; numbers name it and its request."""
    made = {
        "request_id": identifier(request),
        "query_hash": sha256(b"query"),
        "selected_core": SelectedCore(core_id="core", version="1"),
        "execution_graph": ExecutionGraph(mode=Mode.AGENT, topology=Topology.SINGLE, stages=(Stage.TOOL,)),
        "constraints": Constraints(max_tokens=100, max_wall_ms=10_000, max_spend=1),
        "privacy_mode": PrivacyMode.RESTRICTED,
        "attestation_requirements": AttestationRequirements(),
        "tool_policy": ToolPolicy(),
        "memory_mode": MemoryMode.OFF,
        "sandbox_profile": SandboxProfile(platform=Platform.SERVER_CONTAINER),
        "swarm_id": ROSTER.swarm_id,
        "policy_hash": PolicyEnvelope().digest,
        "issued_at_ms": NOW,
        "expires_at_ms": NOW + 30 * MINUTE,
        "nonce": "0" * 32,
    }
    return Call(
        proposal=ToolProposal(
            tool_call_id=identifier(1000 + number),
            tool_name="web.fetch",
            arguments=arguments if arguments is not None else {"url": f"https://example.org/{number}"},
        ),
        plan=ExecutionPlan.signed(ME, **(made | plan)),
        policy=PolicyEnvelope(),
        manifest=CapabilityManifest.signed(
            ME, module_name="web", module_version="1", artifact_hash=sha256(b"web"), issued_at_ms=NOW
        ),
    )


def attestation(of: Call, by: NodeIdentity = ME, **fields: Any) -> ToolAttestation:
    """The intermediary's word on ``of``: safe, unless ``fields`` say otherwise."""
    made = {
        **of.bound(),
        "dry_run_ok": True,
        "safe_to_execute": True,
        "safe_to_memorize": False,
        "provenance_hash": dry_run(of).digest,
        "sanitizer_version": SANITIZER,
        "timestamp_ms": NOW,
        "reason_code": "OK",
        "expires_at_ms": NOW + 10 * MINUTE,
        "nonce": "1" * 32,
    }
    return ToolAttestation.signed(by, **(made | fields))


def dry_run(of: Call) -> DryRunResult:
    return DryRunResult(
        tool_call_id=of.proposal.tool_call_id,
        dry_run_ok=True,
        simulated_effects=SimulatedEffects(network_requests=("GET https://example.org/",)),
        mock_output=MockOutput(content_type="text/plain", preview="a page"),
        human_approval_required=True,
    )
