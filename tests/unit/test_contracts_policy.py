"""Policies only ever narrow each other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from gnusnode.contracts.plan import MemoryMode, PrivacyMode
from gnusnode.contracts.policy import PolicyEnvelope, narrow
from gnusnode.contracts.tools import ToolPolicy
from gnusnode.errors import Forbidden
from tests.property.records import records

policies = records(PolicyEnvelope).map(lambda policy: policy.model_copy(update={"tenant": "local"}))


def normal(policy: PolicyEnvelope) -> PolicyEnvelope:
    return narrow(policy, policy)


def test_the_default_allows_no_tool_and_keeps_prompts_among_members() -> None:
    policy = PolicyEnvelope()
    assert policy.tool_policy.capability_whitelist == ()
    assert policy.privacy_mode is PrivacyMode.RESTRICTED


@settings(max_examples=40)
@given(policies, policies, policies)
def test_narrowing_does_not_depend_on_order(a: PolicyEnvelope, b: PolicyEnvelope, c: PolicyEnvelope) -> None:
    assert narrow(a, b) == narrow(b, a)
    assert narrow(narrow(a, b), c) == narrow(a, narrow(b, c))
    assert narrow(normal(a), a) == normal(a)


@settings(max_examples=40)
@given(policies, policies)
def test_the_result_allows_nothing_that_one_of_them_forbids(a: PolicyEnvelope, b: PolicyEnvelope) -> None:
    both = narrow(a, b)
    for one in (a, b):
        assert both.max_tokens <= one.max_tokens
        assert both.max_wall_ms <= one.max_wall_ms
        assert both.max_spend <= one.max_spend
        assert both.step_by_step >= one.step_by_step
        assert both.allow_resume <= one.allow_resume
        assert set(both.tool_policy.capability_whitelist) <= set(one.tool_policy.capability_whitelist)
        assert set(both.tool_policy.allowlisted_domains) <= set(one.tool_policy.allowlisted_domains)
        assert set(both.tool_policy.allowlisted_paths) <= set(one.tool_policy.allowlisted_paths)
        assert both.tool_policy.human_approval >= one.tool_policy.human_approval
        required, asked = both.attestation_requirements, one.attestation_requirements
        assert required.min_reputation >= asked.min_reputation
        assert required.require_tool_attestation >= asked.require_tool_attestation
        assert required.require_task_attestation >= asked.require_task_attestation
        if one.allowed_models is not None:
            assert both.allowed_models is not None
            assert set(both.allowed_models) <= set(one.allowed_models)


@pytest.mark.parametrize(
    ("field", "loose", "strict"),
    [
        ("privacy_mode", PrivacyMode.PLAINTEXT, PrivacyMode.RESTRICTED),
        ("privacy_mode", PrivacyMode.RESTRICTED, PrivacyMode.PRIVATE_BOUNDARY),
        ("memory_mode", MemoryMode.POLICY_SCOPED, MemoryMode.TRUSTED_ONLY),
        ("memory_mode", MemoryMode.TRUSTED_ONLY, MemoryMode.OFF),
        ("allowed_models", None, ("small",)),
        ("allowed_models", ("small", "large"), ("small",)),
    ],
)
def test_the_stricter_of_two_modes_wins(field: str, loose: object, strict: object) -> None:
    a, b = (PolicyEnvelope.model_validate({field: value}) for value in (loose, strict))
    assert getattr(narrow(a, b), field) == strict


def test_a_tool_needs_to_be_allowed_by_both() -> None:
    a = PolicyEnvelope(tool_policy=ToolPolicy(capability_whitelist=("tool:code.run", "tool:web.fetch.readonly")))
    b = PolicyEnvelope(tool_policy=ToolPolicy(capability_whitelist=("tool:web.fetch.readonly",), human_approval=True))
    tools = narrow(a, b).tool_policy
    assert tools.capability_whitelist == ("tool:web.fetch.readonly",)
    assert tools.human_approval


def test_policies_of_two_tenants_have_nothing_in_common() -> None:
    with pytest.raises(Forbidden, match="tenant"):
        narrow(PolicyEnvelope(tenant="a"), PolicyEnvelope(tenant="b"))
