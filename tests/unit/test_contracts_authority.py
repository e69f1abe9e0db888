"""A valid signature is not authority: who may issue what, when, and how it is taken back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gnusnode.contracts.base import SignedRecord
from gnusnode.contracts.outcome import Outcome, refusal
from gnusnode.contracts.plan import ExecutionPlan
from gnusnode.contracts.registry import SIGNED_RECORDS
from gnusnode.contracts.replay import ReplayGuard
from gnusnode.contracts.roster import Roster
from gnusnode.contracts.swarm import (
    AdminDelegation,
    MembershipCertificate,
    RevocationKind,
    Role,
    swarm_id,
)
from gnusnode.contracts.verify import AUTHORITY, verify
from gnusnode.errors import RecordRefused
from tests.property.records import ME, NOW, OTHERS, ROSTER, example

MAY_ISSUE = {
    "ExecutionPlan": {Role.ROUTER},
    "ToolAttestation": {Role.INTERMEDIARY},
    "ToolApproval": {Role.INTERMEDIARY},
    "Vote": {Role.MEMORY, Role.VERIFIER},
    "TaskRecord": {Role.SETTLEMENT},
    "MemoryEvent": {Role.MEMORY},
    "LearningEvent": {Role.MEMORY},
    "Receipt": {Role.CORE, Role.ELM, Role.VERIFIER, Role.GROUNDING, Role.MEMORY},
    "CapabilityManifest": set(Role),
    "ChunkManifest": set(Role),
    "AuditEvent": set(Role),
    "KeyRotation": set(Role),
}
EXPERTS = {
    "semantic_core": {Role.CORE},
    "primary_draft": {Role.CORE, Role.ELM},
    "verifier": {Role.CORE, Role.ELM, Role.VERIFIER},
    "grounding": {Role.CORE, Role.ELM, Role.GROUNDING},
}
BY_THE_ROOT = {"MembershipCertificate", "AdminDelegation", "Revocation"}
"""What the root key signs; it cannot be revoked inside its own swarm."""


# --- which role may issue which record --------------------------------------------------------------------------------


def test_every_signed_record_has_a_rule_about_who_may_issue_it() -> None:
    assert set(AUTHORITY) == set(SIGNED_RECORDS.values())


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("name", MAY_ISSUE)
def test_only_the_roles_for_it_may_issue_a_record(name: str, role: Role) -> None:
    record = example(SIGNED_RECORDS[name])
    expected = Outcome.OK if role in MAY_ISSUE[name] else Outcome.ROLE_NOT_GRANTED
    assert verify(record, NOW, Roster.solo(ME.peer_id, [role])) is expected


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("expert_role", EXPERTS)
def test_an_expert_speaks_only_for_what_its_node_was_granted(expert_role: str, role: Role) -> None:
    record = example(SIGNED_RECORDS["ExpertOutput"], expert_role=expert_role)
    expected = Outcome.OK if role in EXPERTS[expert_role] else Outcome.ROLE_NOT_GRANTED
    assert verify(record, NOW, Roster.solo(ME.peer_id, [role])) is expected


@pytest.mark.requirement("G-ROLE-4")
def test_a_node_may_announce_its_own_roles_and_no_other() -> None:
    record = example(SIGNED_RECORDS["NodeAnnouncement"], roles=(Role.ELM, Role.INTERMEDIARY))
    assert verify(record, NOW, Roster.solo(ME.peer_id, [Role.ELM, Role.INTERMEDIARY])) is Outcome.OK
    assert verify(record, NOW, Roster.solo(ME.peer_id, [Role.ELM])) is Outcome.ROLE_NOT_GRANTED


@pytest.mark.parametrize("cls", SIGNED_RECORDS.values(), ids=list(SIGNED_RECORDS))
def test_a_stranger_is_not_believed_whatever_it_signs(cls: type[SignedRecord]) -> None:
    record = example(cls)
    # The same swarm with another root and without the signer.
    roster = replace(ROSTER, root=OTHERS[0].peer_id, grants={})
    assert verify(record, NOW, roster) in {Outcome.UNKNOWN_SIGNER, Outcome.ROLE_NOT_GRANTED}


@pytest.mark.parametrize("name", sorted(set(SIGNED_RECORDS) - BY_THE_ROOT))
def test_a_revoked_key_is_not_believed_whatever_it_signs(name: str) -> None:
    cls = SIGNED_RECORDS[name]
    roster = replace(ROSTER, revoked={(RevocationKind.PEER, ME.peer_id): NOW})
    assert verify(example(cls), NOW - 1, roster) is not Outcome.REVOKED
    assert verify(example(cls), NOW, roster) is Outcome.REVOKED


@pytest.mark.parametrize("name", ["ExecutionPlan", "NodeAnnouncement", "Vote"])
def test_a_record_of_another_swarm_is_refused(name: str) -> None:
    assert (
        verify(example(SIGNED_RECORDS[name], swarm_id=swarm_id(OTHERS[0].peer_id)), NOW, ROSTER) is Outcome.WRONG_SWARM
    )


@pytest.mark.parametrize("name", ["CapabilityManifest", "ExpertOutput", "Receipt"])
def test_what_a_revoked_artifact_made_is_refused(name: str) -> None:
    record = example(SIGNED_RECORDS[name])
    roster = replace(ROSTER, revoked={(RevocationKind.ARTIFACT, record.artifact_hash): NOW})
    assert verify(record, NOW, roster) is Outcome.REVOKED


# --- time and replay --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", SIGNED_RECORDS.values(), ids=list(SIGNED_RECORDS))
def test_a_record_from_the_future_is_refused(cls: type[SignedRecord]) -> None:
    record = example(cls)
    if cls in (MembershipCertificate, AdminDelegation):
        assert verify(record, record.issued_ms - 1, ROSTER) is Outcome.NOT_YET_VALID
        return
    assert verify(record, record.issued_ms - 60_000, ROSTER) is Outcome.OK
    assert verify(record, record.issued_ms - 60_001, ROSTER) is Outcome.CLOCK_SKEW
    assert verify(record, record.issued_ms - 1, ROSTER, max_skew_ms=0) is Outcome.CLOCK_SKEW


@pytest.mark.parametrize(
    "name",
    ["ExecutionPlan", "ToolAttestation", "Vote", "NodeAnnouncement", "MembershipCertificate", "AdminDelegation"],
)
def test_an_expired_record_is_refused(name: str) -> None:
    record = example(SIGNED_RECORDS[name])
    assert verify(record, record.expires_ms - 1, ROSTER) is Outcome.OK
    assert verify(record, record.expires_ms, ROSTER) is Outcome.EXPIRED


@pytest.mark.parametrize("name", ["ExecutionPlan", "ToolAttestation", "NodeAnnouncement"])
def test_a_record_with_a_nonce_is_believed_once(name: str) -> None:
    record, seen = example(SIGNED_RECORDS[name]), ReplayGuard()
    assert verify(record, NOW, ROSTER, seen=seen) is Outcome.OK
    assert verify(record, NOW, ROSTER, seen=seen) is Outcome.REPLAYED
    assert verify(record, record.expires_ms, ROSTER, seen=seen) is Outcome.EXPIRED


def test_a_refused_record_uses_up_no_nonce() -> None:
    plan, seen = example(ExecutionPlan), ReplayGuard()
    assert verify(plan, NOW, Roster.solo(ME.peer_id, [Role.ELM]), seen=seen) is Outcome.ROLE_NOT_GRANTED
    assert verify(plan, NOW, ROSTER, seen=seen) is Outcome.OK


def test_a_full_guard_refuses_and_forgets_only_what_expired() -> None:
    guard = ReplayGuard(capacity=2)
    assert guard.admit("a", "1", expires_at_ms=10, at_ms=0) is Outcome.OK
    assert guard.admit("b", "1", expires_at_ms=20, at_ms=0) is Outcome.OK
    assert guard.admit("c", "1", expires_at_ms=20, at_ms=9) is Outcome.REPLAY_GUARD_FULL
    assert guard.admit("c", "1", expires_at_ms=20, at_ms=10) is Outcome.OK
    assert guard.admit("b", "1", expires_at_ms=20, at_ms=10) is Outcome.REPLAYED
    assert len(guard) == 2


def test_one_signer_cannot_use_up_the_guard_of_all() -> None:
    guard = ReplayGuard(capacity=10, share=2)
    for nonce in "12":
        assert guard.admit("noisy", nonce, expires_at_ms=10, at_ms=0) is Outcome.OK
    assert guard.admit("noisy", "3", expires_at_ms=10, at_ms=0) is Outcome.REPLAY_GUARD_FULL
    assert guard.admit("quiet", "1", expires_at_ms=10, at_ms=0) is Outcome.OK


# --- how a refusal is told --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [each for each in Outcome if each is not Outcome.OK])
def test_a_refusal_says_what_where_and_what_next(outcome: Outcome) -> None:
    error = refusal("execution-plan", outcome)
    assert isinstance(error, RecordRefused)
    assert error.what.startswith(f"{outcome.value}: ")
    assert error.where == "execution-plan"
    assert error.hint
