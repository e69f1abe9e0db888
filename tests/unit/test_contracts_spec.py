"""The records have the fields, the values and the meaning that the architecture document gives them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import jsonschema
import pytest
from jsonschema.validators import Draft202012Validator
from pydantic import ValidationError

from gnusnode.contracts import canonical, services
from gnusnode.contracts.base import MalformedRecord
from gnusnode.contracts.events import LearningEvent, names_content
from gnusnode.contracts.expert import Evidence, ExpertOutput
from gnusnode.contracts.memory import (
    ConsensusState,
    MemoryClass,
    MemoryEvent,
    MemoryProvenanceMetadata,
    SourceType,
    TrustClass,
)
from gnusnode.contracts.methods import StreamMethod, UnaryMethod
from gnusnode.contracts.plan import (
    ElmRole,
    ExecutionGraph,
    ExecutionPlan,
    ExpertRole,
    Mode,
    PrivacyMode,
    SandboxProfile,
    Stage,
    Topology,
)
from gnusnode.contracts.registry import RECORDS
from gnusnode.contracts.schema import schemas
from gnusnode.contracts.services import ToolSpec
from gnusnode.contracts.settlement import ProcessingPass, TaskRecord
from gnusnode.contracts.swarm import Role, Tier, allows
from gnusnode.contracts.tools import (
    CapabilityManifest,
    DryRunResult,
    SanitizedContentType,
    SanitizedData,
    ToolAttestation,
    ToolPolicy,
    ToolProposal,
)
from tests.property.records import example

FIELDS = {
    ExecutionPlan: "request_id query_hash selected_core selected_elms execution_graph constraints privacy_mode"
    " attestation_requirements tool_policy memory_mode sandbox_profile plan_signature",
    ExpertOutput: "request_id expert_id expert_version expert_role answer confidence evidence tool_calls"
    " expert_signature",
    CapabilityManifest: "module_name module_version artifact_hash signature required_capabilities sandbox_requirements",
    MemoryEvent: "memory_event_id request_id memory_class trust_class content_hash source_type source_reputation"
    " attestation_refs provenance_score safe_to_memorize instruction_scrubbed consensus_state payload_ref",
    TaskRecord: "task_id request_id plan_hash expert_result_hashes tool_attestation_hashes memory_event_hashes"
    " final_response_hash settlement_signature",
    DryRunResult: "tool_call_id dry_run_ok simulated_effects mock_output risk_flags human_approval_required",
    ToolAttestation: "request_id tool_call_id dry_run_ok safe_to_execute safe_to_memorize provenance_hash"
    " capability_hash policy_hash sanitizer_version intermediary_node_id timestamp_ms reason_code"
    " intermediary_signature",
    SanitizedData: "tool_call_id source_hash content_type plain_text structured_fields strip_report",
    ToolProposal: "tool_call_id tool_name arguments reason expected_side_effects",
    ToolPolicy: "require_dry_run human_approval capability_whitelist allowlisted_domains allowlisted_paths",
}
PARTS = {
    (ExecutionPlan, "SelectedCore"): "core_id version",
    (ExecutionPlan, "SelectedElm"): "elm_id version role capabilities",
    (ExecutionPlan, "ExecutionGraph"): "mode topology stages",
    (ExecutionPlan, "Constraints"): "max_tokens max_wall_ms max_spend",
    (ExecutionPlan, "AttestationRequirements"): "require_task_attestation require_tool_attestation min_reputation",
    (ExecutionPlan, "SandboxProfile"): "default_deny platform",
    (ExpertOutput, "Evidence"): "type ref",
    (CapabilityManifest, "RequiredCapability"): "name scope constraints",
    (CapabilityManifest, "SandboxRequirements"): "network filesystem clock randomness",
    (DryRunResult, "SimulatedEffects"): "network_requests filesystem_access secrets_required",
    (DryRunResult, "MockOutput"): "content_type preview",
    (SanitizedData, "StripReport"): "removed_zero_width_chars removed_active_content instruction_scrub_applied",
}
VALUES: dict[type[StrEnum], str] = {
    ElmRole: "planner primary_draft verifier arbiter refiner formatter grounding tool_support domain_expert",
    ExpertRole: "semantic_core planner primary_draft verifier arbiter refiner formatter grounding tool_support"
    " domain_expert",
    Mode: "single_node elm_assisted swarm agent",
    Topology: "single sequential parallel parallel_with_arbiter",
    Stage: "memory draft verify ground tool synthesize",
    PrivacyMode: "plaintext restricted private_boundary",
    MemoryClass: "bridge_block fact policy event tenant_operational",
    TrustClass: "higher_trust lower_trust",
    SourceType: "user tool web expert synthesis",
    ConsensusState: "pending approved rejected",
    SanitizedContentType: "text/plain application/json text/markdown",
    ProcessingPass: "inference compute data_transform verification retrieval retrain",
}


@pytest.mark.requirement("G-RT-6", "G-EX-3", "G-EX-6", "G-ME-7", "G-ST-3", "G-TI-7", "G-IF-3")
@pytest.mark.parametrize("cls", FIELDS, ids=lambda cls: cls.__name__)
def test_a_record_has_every_field_of_the_spec(cls: type) -> None:
    assert set(FIELDS[cls].split()) <= set(schemas()[cls.__name__]["properties"])


@pytest.mark.requirement("G-RT-6", "G-EX-6", "G-TI-7")
@pytest.mark.parametrize(("cls", "part"), PARTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_part_has_exactly_the_fields_of_the_spec(cls: type, part: str) -> None:
    assert list(schemas()[cls.__name__]["$defs"][part]["properties"]) == PARTS[cls, part].split()


@pytest.mark.requirement("G-RT-6", "G-ME-1", "G-IF-2", "G-IF-3")
@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_an_enumeration_has_exactly_the_values_of_the_spec(kind: type[StrEnum]) -> None:
    assert [member.value for member in kind] == VALUES[kind].split()


@pytest.mark.requirement("G-IF-3")
@pytest.mark.parametrize("name", [*RECORDS, "TrustClass"])
def test_every_record_has_a_valid_schema_with_its_name(name: str) -> None:
    schema = schemas()[name]
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"gnus://schema/{name}"


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_fits_its_schema_and_a_field_too_many_does_not(name: str) -> None:
    validator, plain = Draft202012Validator(schemas()[name]), example(RECORDS[name]).to_plain()
    validator.validate(plain)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**plain, "unheard_of": 1})


METHODS = [each for each in vars(services).values() if isinstance(each, UnaryMethod | StreamMethod)]


@pytest.mark.requirement("G-IF-1")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.service}.{method.name}")
def test_every_method_has_closed_schemas_of_request_and_response(method: Any) -> None:
    request = method.request.model_json_schema()
    response = method.items.json_schema() if isinstance(method, StreamMethod) else method.response.model_json_schema()
    for schema in (request, response):
        Draft202012Validator.check_schema(schema)
    records = [request, *(each for each in response.get("$defs", {"": response}).values() if "properties" in each)]
    assert all(record["additionalProperties"] is False for record in records)


SPEC_SCHEMAS: dict[str, dict[str, Any]] = {
    "ToolProposal": {
        "properties": {
            "tool_call_id": "string",
            "tool_name": "string",
            "arguments": "object",
            "reason": "string",
            "expected_side_effects": "string",
        },
        "required": ["tool_call_id", "tool_name", "arguments"],
    },
    "ToolAttestation": {
        "properties": {
            "tool_call_id": "string",
            "dry_run_ok": "boolean",
            "safe_to_execute": "boolean",
            "safe_to_memorize": "boolean",
            "provenance_hash": "string",
            "capability_hash": "string",
            "policy_hash": "string",
            "intermediary_signature": "string",
        },
        "required": ["tool_call_id", "dry_run_ok", "safe_to_execute", "provenance_hash"],
    },
}


@pytest.mark.requirement("G-IF-3")
@pytest.mark.parametrize("name", SPEC_SCHEMAS)
def test_what_our_schema_accepts_the_specs_schema_accepts(name: str) -> None:
    ours, theirs = schemas()[name], SPEC_SCHEMAS[name]
    assert {key: ours["properties"][key]["type"] for key in theirs["properties"]} == theirs["properties"]
    assert set(theirs["required"]) <= set(ours["required"])


def test_a_proposal_needs_no_more_than_the_spec_asks() -> None:
    assert schemas()["ToolProposal"]["required"] == SPEC_SCHEMAS["ToolProposal"]["required"]


# --- what the fields say about each other -----------------------------------------------------------------------------


def test_dry_run_and_default_deny_cannot_be_switched_off() -> None:
    with pytest.raises(ValidationError):
        ToolPolicy.model_validate({"require_dry_run": False})
    with pytest.raises(ValidationError):
        SandboxProfile.model_validate({"default_deny": False, "platform": "server_gvisor"})


def test_no_attestation_is_safe_to_execute_without_a_dry_run() -> None:
    with pytest.raises(ValidationError, match="dry-run"):
        example(ToolAttestation, dry_run_ok=False, safe_to_execute=True)


@pytest.mark.requirement("G-ME-2")
@pytest.mark.parametrize("source", ["tool", "web"])
@pytest.mark.parametrize("missing", ["safe_to_memorize", "instruction_scrubbed"])
def test_external_content_is_no_higher_trust_unless_safe_and_scrubbed(source: str, missing: str) -> None:
    fields = {"trust_class": "higher_trust", "safe_to_memorize": True, "instruction_scrubbed": True, missing: False}
    with pytest.raises(ValidationError, match="higher trust"):
        example(MemoryEvent, source_type=source, **fields)
    assert example(MemoryEvent, source_type=source, **{**fields, "trust_class": "lower_trust"})


@pytest.mark.requirement("G-FL-5")
def test_memory_of_lower_trust_makes_no_learning_event() -> None:
    with pytest.raises(ValidationError, match="lower trust"):
        example(LearningEvent, trust_class="lower_trust")


def test_provenance_always_says_its_trust_and_its_source() -> None:
    required = set(schemas()[MemoryProvenanceMetadata.__name__]["required"])
    assert {"trust_class", "source_type", "source_hash", "instruction_scrubbed", "safe_to_memorize"} <= required


@pytest.mark.parametrize(
    ("kind", "ref"),
    [("memory_pointer", "https://example.com"), ("memory_pointer", "cid://b"), ("citation", "file:///etc")],
)
def test_evidence_points_where_its_type_says(kind: str, ref: str) -> None:
    with pytest.raises(ValidationError):
        Evidence.model_validate({"type": kind, "ref": ref})


@pytest.mark.parametrize("lifetime", [0, -1, 10**12])
@pytest.mark.parametrize("name", ["ExecutionPlan", "Vote", "NodeAnnouncement"])
def test_nothing_lives_for_no_time_or_for_ever(name: str, lifetime: int) -> None:
    issued = example(RECORDS[name]).issued_ms
    with pytest.raises(ValidationError, match=r"issued|lives longer"):
        example(RECORDS[name], issued_at_ms=issued, expires_at_ms=issued + lifetime)


def test_a_graph_has_at_least_one_stage() -> None:
    with pytest.raises(ValidationError):
        ExecutionGraph.model_validate({"mode": "agent", "topology": "single", "stages": []})


@pytest.mark.requirement("G-ROLE-4")
def test_tiers_rank_the_roles_as_the_spec_does() -> None:
    lowest = {role: max((tier for tier in Tier if allows(tier, role)), key=lambda tier: tier.value) for role in Role}
    assert {role for role, tier in lowest.items() if tier is Tier.A} == {Role.SETTLEMENT, Role.INTERMEDIARY}
    assert {role for role, tier in lowest.items() if tier is Tier.C} == {Role.CORE, Role.ELM}
    assert Tier.D not in lowest.values()


@pytest.mark.requirement("A-AUD-1")
@pytest.mark.parametrize("key", ["output", "content", "text", "tool_output", "prompt", "secret_key", "url", "query"])
def test_the_audit_chain_takes_no_content(key: str) -> None:
    assert names_content(key)
    with pytest.raises(ValidationError, match="names content"):
        example(RECORDS["AuditEvent"], fields={key: "x"})
    assert not names_content(f"{key}_sha256")


@pytest.mark.requirement("A-AUD-1")
@pytest.mark.parametrize("value", ["two words", "a\nb", "x" * 65, 1.5, None, ["a"], {"a": 1}, "sha256:abc "])
def test_the_audit_chain_takes_digests_codes_and_numbers_only(value: object) -> None:
    with pytest.raises(ValidationError):
        example(RECORDS["AuditEvent"], fields={"tool_name": value})


def test_the_order_of_a_schemas_properties_survives_the_wire() -> None:
    spec = ToolSpec(name="x", parameters={"type": "object", "properties": {"zeta": {}, "a": {}, "mm": {}}})
    read = ToolSpec.from_bytes(spec.to_bytes())
    assert list(read.parameters["properties"]) == ["zeta", "a", "mm"]
    assert read == spec


@pytest.mark.parametrize("text", ["[1]", "{", '{"a":NaN}', "{" * 100_000, '{"a": 1}', '{"a":1,"a":2}'])
def test_a_document_has_one_spelling_and_nothing_else_passes(text: str) -> None:
    plain = ToolSpec(name="x", parameters={"a": 1}).to_plain() | {"parameters": text}
    with pytest.raises(MalformedRecord):
        ToolSpec.from_bytes(canonical.encode(plain))
