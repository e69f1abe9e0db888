"""Who belongs to a swarm and holds which role: certificates, admins, revocations, new keys, quorums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gnusnode.contracts.consensus import QuorumCertificate, Vote
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.plan import ExecutionPlan
from gnusnode.contracts.registry import SIGNED_RECORDS
from gnusnode.contracts.roster import Roster
from gnusnode.contracts.swarm import (
    AdminDelegation,
    KeyRotation,
    MembershipCertificate,
    Revocation,
    RevocationKind,
    Role,
    Tier,
    swarm_id,
)
from gnusnode.contracts.verify import verify, verify_quorum
from gnusnode.identity import NodeIdentity
from tests.property.records import NOW, ROSTER, example

ROOT, ADMIN, NODE, NEW, THIEF = (NodeIdentity(bytes([n]) * 32) for n in range(40, 45))
SWARM = swarm_id(ROOT.peer_id)
DAY = 86_400_000
FAR = NOW + 30 * DAY


def certificate(peer: NodeIdentity, by: NodeIdentity = ROOT, **fields: Any) -> MembershipCertificate:
    given: dict[str, Any] = {
        "swarm_id": SWARM,
        "peer_id": peer.peer_id,
        "operator": "alice",
        "roles": (Role.ROUTER,),
        "tier": Tier.B,
        "not_before": NOW - DAY,
        "not_after": FAR,
        "serial": 1,
    }
    return MembershipCertificate.signed(by, **{**given, **fields})


def delegation(**fields: Any) -> AdminDelegation:
    given: dict[str, Any] = {
        "swarm_id": SWARM,
        "peer_id": ADMIN.peer_id,
        "roles": (Role.ROUTER, Role.ELM),
        "tier": Tier.B,
        "not_before": NOW - DAY,
        "not_after": FAR,
        "serial": 1,
    }
    return AdminDelegation.signed(fields.pop("by", ROOT), **{**given, **fields})


def revocation(kind: RevocationKind, target: str, by: NodeIdentity = ROOT, **fields: Any) -> Revocation:
    given: dict[str, Any] = {"effective_at_ms": NOW - 5, "issued_at_ms": NOW - 5, "reason": "stolen"}
    return Revocation.signed(by, swarm_id=SWARM, kind=kind, target=target, **{**given, **fields})


def rotation(old: NodeIdentity, new: NodeIdentity, at_ms: int = NOW - 10) -> KeyRotation:
    return KeyRotation.between(old, new, issued_at_ms=at_ms)


def outcome(roster: Roster, peer: NodeIdentity = NODE, at_ms: int = NOW) -> Outcome:
    return roster.standing(peer.peer_id, at_ms).outcome


# --- certificates -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G-ROLE-4")
def test_a_certificate_of_the_root_gives_exactly_its_roles_and_tier() -> None:
    standing = Roster.build(ROOT.peer_id, certificates=[certificate(NODE)]).standing(NODE.peer_id, NOW)
    assert (standing.outcome, standing.roles, standing.tier) == (Outcome.OK, {Role.ROUTER}, Tier.B)
    assert standing.operators == {"alice"}


def test_certificates_in_force_add_up() -> None:
    held = [certificate(NODE), certificate(NODE, roles=(Role.SETTLEMENT,), tier=Tier.A, serial=2)]
    standing = Roster.build(ROOT.peer_id, certificates=held).standing(NODE.peer_id, NOW)
    assert (standing.roles, standing.tier) == ({Role.ROUTER, Role.SETTLEMENT}, Tier.A)


@pytest.mark.requirement("G-ROLE-4")
@pytest.mark.parametrize(("role", "tier"), [(Role.INTERMEDIARY, "B"), (Role.SETTLEMENT, "C"), (Role.ROUTER, "C")])
def test_no_certificate_grants_a_role_below_its_tier(role: Role, tier: str) -> None:
    with pytest.raises(ValueError, match="cannot hold the role"):
        certificate(NODE, roles=(role,), tier=tier)


def test_a_certificate_counts_from_its_beginning_to_its_end() -> None:
    roster = Roster.build(ROOT.peer_id, certificates=[certificate(NODE, not_before=NOW, not_after=NOW + 10)])
    assert outcome(roster, at_ms=NOW - 1) is Outcome.CERTIFICATE_NOT_YET_VALID
    assert outcome(roster, at_ms=NOW + 9) is Outcome.OK
    assert outcome(roster, at_ms=NOW + 10) is Outcome.CERTIFICATE_EXPIRED


@pytest.mark.requirement("G-ROLE-4")
def test_nobody_certifies_itself() -> None:
    own = certificate(NODE, by=NODE)
    roster = Roster.build(ROOT.peer_id, certificates=[own])
    assert outcome(roster) is Outcome.UNKNOWN_SIGNER
    assert roster.refused == ((own.digest, Outcome.UNKNOWN_SIGNER),)


def test_a_changed_certificate_and_one_of_another_swarm_are_left_out_and_listed() -> None:
    changed = certificate(NODE).model_copy(update={"roles": (Role.ROUTER, Role.VERIFIER)})
    foreign = certificate(NODE, swarm_id=ROSTER.swarm_id)
    roster = Roster.build(ROOT.peer_id, certificates=[changed, foreign])
    assert outcome(roster) is Outcome.UNKNOWN_SIGNER
    assert dict(roster.refused) == {changed.digest: Outcome.BAD_SIGNATURE, foreign.digest: Outcome.WRONG_SWARM}


def test_an_open_swarm_lets_strangers_compute_and_nothing_else() -> None:
    roster = Roster.build(ROOT.peer_id, certificates=[certificate(NODE)], open_to_all=True)
    standing = roster.standing(THIEF.peer_id, NOW)
    assert (standing.roles, standing.tier) == ({Role.CORE, Role.ELM}, Tier.D)
    open_solo = replace(ROSTER, grants={}, open_to_all=True)
    assert verify(example(SIGNED_RECORDS["ExpertOutput"], expert_role="planner"), NOW, open_solo) is Outcome.OK
    assert verify(example(ExecutionPlan), NOW, open_solo) is Outcome.ROLE_NOT_GRANTED
    assert verify(example(SIGNED_RECORDS["CapabilityManifest"]), NOW, open_solo) is Outcome.ROLE_NOT_GRANTED


def test_an_open_swarm_takes_back_no_member_as_a_stranger() -> None:
    gone = certificate(NODE, not_after=NOW)
    assert outcome(Roster.build(ROOT.peer_id, certificates=[gone], open_to_all=True)) is Outcome.CERTIFICATE_EXPIRED


# --- admins -----------------------------------------------------------------------------------------------------------


def test_an_admin_certifies_within_its_delegation() -> None:
    by_admin = certificate(NODE, by=ADMIN)
    roster = Roster.build(ROOT.peer_id, certificates=[by_admin], delegations=[delegation()])
    assert outcome(roster) is Outcome.OK
    assert verify(by_admin, NOW, roster) is Outcome.OK


@pytest.mark.parametrize(
    "fields", [{"roles": (Role.VERIFIER,)}, {"roles": (Role.ROUTER,), "tier": Tier.A}], ids=["role", "tier"]
)
def test_an_admin_grants_no_more_than_it_was_given(fields: dict[str, Any]) -> None:
    beyond = certificate(NODE, by=ADMIN, **fields)
    roster = Roster.build(ROOT.peer_id, certificates=[beyond], delegations=[delegation()])
    assert outcome(roster) is Outcome.ROLE_NOT_GRANTED
    assert verify(beyond, NOW, roster) is Outcome.ROLE_NOT_GRANTED


def test_an_admin_cannot_make_admins() -> None:
    passed_on = delegation(by=ADMIN, peer_id=THIEF.peer_id)
    roster = Roster.build(
        ROOT.peer_id, certificates=[certificate(NODE, by=THIEF)], delegations=[delegation(), passed_on]
    )
    assert outcome(roster) is Outcome.UNKNOWN_SIGNER
    assert verify(passed_on, NOW, roster) is Outcome.ROLE_NOT_GRANTED


def test_what_an_admin_granted_ends_with_its_delegation() -> None:
    roster = Roster.build(
        ROOT.peer_id, certificates=[certificate(NODE, by=ADMIN)], delegations=[delegation(not_after=NOW + 10)]
    )
    assert outcome(roster, at_ms=NOW + 9) is Outcome.OK
    assert outcome(roster, at_ms=NOW + 10) is Outcome.CERTIFICATE_EXPIRED


def test_a_revoked_admin_takes_its_grants_with_it() -> None:
    gone = revocation(RevocationKind.DELEGATION, ADMIN.peer_id)
    roster = Roster.build(
        ROOT.peer_id, certificates=[certificate(NODE, by=ADMIN)], delegations=[delegation()], revocations=[gone]
    )
    assert outcome(roster) is Outcome.REVOKED


# --- taking back ------------------------------------------------------------------------------------------------------


def test_a_revocation_counts_from_its_effective_time() -> None:
    back = revocation(RevocationKind.PEER, NODE.peer_id, effective_at_ms=NOW)
    roster = Roster.build(ROOT.peer_id, certificates=[certificate(NODE)], revocations=[back])
    assert outcome(roster, at_ms=NOW - 1) is Outcome.OK
    assert outcome(roster, at_ms=NOW) is Outcome.REVOKED


def test_revoking_one_certificate_leaves_the_others() -> None:
    first, second = certificate(NODE), certificate(NODE, roles=(Role.ELM,), serial=2)
    back = revocation(RevocationKind.CERTIFICATE, first.digest)
    roster = Roster.build(ROOT.peer_id, certificates=[first, second], revocations=[back])
    assert roster.standing(NODE.peer_id, NOW).roles == {Role.ELM}
    assert verify(first, NOW, roster) is Outcome.REVOKED


def test_an_admin_may_revoke_members_but_neither_admins_nor_the_root() -> None:
    mine = revocation(RevocationKind.PEER, NODE.peer_id, by=ADMIN)
    too_high = revocation(RevocationKind.PEER, ROOT.peer_id, by=ADMIN)
    sideways = revocation(RevocationKind.DELEGATION, ADMIN.peer_id, by=ADMIN)
    roster = Roster.build(
        ROOT.peer_id,
        certificates=[certificate(NODE)],
        delegations=[delegation()],
        revocations=[mine, too_high, sideways],
    )
    assert outcome(roster) is Outcome.REVOKED
    assert dict(roster.refused) == dict.fromkeys([too_high.digest, sideways.digest], Outcome.ROLE_NOT_GRANTED)


def test_a_member_may_revoke_nothing() -> None:
    theirs = revocation(RevocationKind.PEER, NODE.peer_id, by=THIEF)
    roster = Roster.build(ROOT.peer_id, certificates=[certificate(NODE), certificate(THIEF)], revocations=[theirs])
    assert outcome(roster) is Outcome.OK
    assert verify(theirs, NOW, roster) is Outcome.UNKNOWN_SIGNER


def test_what_a_revoked_admin_takes_back_afterwards_does_not_count() -> None:
    gone = revocation(RevocationKind.DELEGATION, ADMIN.peer_id, effective_at_ms=NOW - 100)
    late = revocation(RevocationKind.PEER, NODE.peer_id, by=ADMIN, issued_at_ms=NOW - 50)
    for order in ([gone, late], [late, gone]):
        roster = Roster.build(
            ROOT.peer_id, certificates=[certificate(NODE)], delegations=[delegation()], revocations=order
        )
        assert outcome(roster) is Outcome.OK


# --- new keys ---------------------------------------------------------------------------------------------------------


def test_a_new_key_takes_over_and_the_old_one_is_worth_nothing() -> None:
    roster = Roster.build(ROOT.peer_id, certificates=[certificate(NODE)], rotations=[rotation(NODE, NEW, NOW)])
    assert (outcome(roster, NODE, NOW - 1), outcome(roster, NEW, NOW - 1)) == (Outcome.OK, Outcome.UNKNOWN_SIGNER)
    assert (outcome(roster, NODE), outcome(roster, NEW)) == (Outcome.REVOKED, Outcome.OK)


def test_a_chain_of_new_keys_is_followed() -> None:
    steps = [rotation(NODE, NEW, NOW - 20), rotation(NEW, THIEF, NOW - 10)]
    roster = Roster.build(ROOT.peer_id, certificates=[certificate(NODE)], rotations=steps)
    assert [outcome(roster, peer) for peer in (NODE, NEW, THIEF)] == [Outcome.REVOKED, Outcome.REVOKED, Outcome.OK]


def test_keys_that_hand_over_in_a_circle_end_the_search() -> None:
    steps = [rotation(NODE, NEW, NOW + 50), rotation(NEW, NODE, NOW + 50)]
    roster = Roster.build(ROOT.peer_id, certificates=[certificate(NODE)], rotations=steps)
    assert outcome(roster, NEW, NOW + 60) is Outcome.REVOKED


def test_a_handover_without_the_new_keys_consent_is_refused() -> None:
    good = rotation(NODE, NEW)
    forced = KeyRotation.signed(NODE, new_peer_id=THIEF.peer_id, issued_at_ms=good.issued_at_ms, proof=good.proof)
    roster = Roster.build(ROOT.peer_id, certificates=[certificate(NODE)], rotations=[forced])
    assert outcome(roster, NODE) is Outcome.OK
    assert verify(forced, NOW, roster) is Outcome.BAD_SIGNATURE


def test_two_handovers_of_one_key_void_each_other() -> None:
    both = [rotation(NODE, NEW), rotation(NODE, THIEF)]
    roster = Roster.build(ROOT.peer_id, certificates=[certificate(NODE)], rotations=both)
    assert [outcome(roster, peer) for peer in (NODE, NEW, THIEF)] == [
        Outcome.REVOKED,
        Outcome.UNKNOWN_SIGNER,
        Outcome.UNKNOWN_SIGNER,
    ]


def test_revoking_a_stolen_key_takes_back_what_the_thief_moved() -> None:
    held = [certificate(NODE)]
    back = revocation(RevocationKind.PEER, NODE.peer_id)
    roster = Roster.build(ROOT.peer_id, certificates=held, revocations=[back], rotations=[rotation(NODE, THIEF)])
    assert outcome(roster, THIEF) is Outcome.UNKNOWN_SIGNER
    renewed = Roster.build(
        ROOT.peer_id,
        certificates=[*held, certificate(NEW)],
        revocations=[back],
        rotations=[rotation(NODE, NEW)],
    )
    assert outcome(renewed, NEW) is Outcome.OK


# --- quorums ----------------------------------------------------------------------------------------------------------


def quorum(*voters: NodeIdentity, **fields: Any) -> QuorumCertificate:
    subject = {"swarm_id": SWARM, "event_hash": SWARM, "committee_hash": SWARM, "round": 0, "decision": "approve"}
    votes = [
        Vote.signed(by, **subject, method="human", issued_at_ms=NOW, expires_at_ms=NOW + 10)
        for by in sorted(voters, key=lambda voter: voter.peer_id)
    ]
    return QuorumCertificate.model_validate({**subject, "decided_at_ms": NOW, "votes": tuple(votes), **fields})


def voters() -> Roster:
    held = [certificate(NODE, roles=(Role.MEMORY,)), certificate(NEW, roles=(Role.VERIFIER,)), certificate(THIEF)]
    return Roster.build(ROOT.peer_id, certificates=held)


def test_a_quorum_certificate_is_believed_after_its_votes_expired() -> None:
    assert verify_quorum(quorum(NODE, NEW), NOW + DAY, voters()) is Outcome.OK


def test_a_quorum_certificate_is_as_good_as_its_worst_vote() -> None:
    assert verify_quorum(quorum(NODE, THIEF), NOW, voters()) is Outcome.ROLE_NOT_GRANTED
    good = quorum(NODE, NEW)
    forged = good.votes[0].model_copy(update={"method": "grounding"})
    assert verify_quorum(quorum(NODE, NEW, votes=(forged, good.votes[1])), NOW, voters()) is Outcome.BAD_SIGNATURE
    assert verify_quorum(good, NOW, ROSTER) is Outcome.WRONG_SWARM
    assert verify_quorum(good, NOW - 60_001, voters()) is Outcome.CLOCK_SKEW


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"round": 1}, "something else"),
        ({"decision": "reject"}, "something else"),
        ({"decided_at_ms": NOW + 10}, "not in force"),
        ({"votes": quorum(NODE).votes * 2}, "one per member"),
    ],
)
def test_votes_that_do_not_belong_together_make_no_certificate(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        quorum(NODE, **fields)
