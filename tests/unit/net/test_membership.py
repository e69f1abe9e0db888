"""Who belongs, on one node: founding, granting, admins, revoking, leaving, and what lies on the disk."""

from __future__ import annotations

import itertools
import stat
from pathlib import Path

import pytest

from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.swarm import (
    AdminDelegation,
    KeyRotation,
    MembershipCertificate,
    Revocation,
    RevocationKind,
    Role,
    Tier,
)
from gnusnode.errors import Conflict, DataError, Forbidden, RequestError
from gnusnode.identity import NodeIdentity, write_new
from gnusnode.net import issuing
from gnusnode.net.issuing import Authority
from gnusnode.net.membership import Membership
from gnusnode.net.records import MAX_RECORDS, RETENTION_MS, RecordFiles, RecordSet, read_record
from gnusnode.observe.observer import Observer
from tests.fakes.belonging import (
    EXPERTS,
    ROOT,
    ROOT_POWER,
    START_MS,
    BelongingNode,
    Village,
    certificates,
    key,
    merged,
    numbered,
)

CORE = (Role.CORE,)
DAY = issuing.DAY_MS


@pytest.fixture
def village(tmp_path: Path) -> Village:
    return Village(tmp_path)


# --- founding and leaving ---------------------------------------------------------------------------------------------


async def test_without_a_swarm_a_node_believes_itself_alone(village: Village) -> None:
    node, other = await village.node(1), await village.node(2)
    assert node.membership.swarm is None
    assert node.outcome_of(node) is Outcome.OK
    assert node.roles_of(node) == frozenset(Role)
    assert node.outcome_of(other) is Outcome.UNKNOWN_SIGNER


@pytest.mark.requirement("G-ROLE-4")
async def test_the_founder_holds_all_roles_by_a_certificate_of_a_root_key_that_is_not_its_own(village: Village) -> None:
    node = await village.founder()
    swarm = node.membership.swarm
    assert swarm is not None
    assert swarm.root != node.peer
    assert node.roles_of(node) == frozenset(Role)
    assert node.membership.admins() == {node.peer}
    assert len(swarm.network_key or b"") == 32


async def test_an_open_swarm_has_no_network_key_and_lets_strangers_compute(village: Village) -> None:
    node, stranger = await village.founder(open_to_all=True), await village.node(2)
    assert node.membership.swarm is not None
    assert node.membership.swarm.network_key is None
    assert (node.outcome_of(stranger), node.roles_of(stranger)) == (Outcome.OK, EXPERTS)
    assert node.membership.standing(stranger.peer).tier is Tier.D


async def test_the_files_are_closed_to_others_and_the_secrets_do_not_show(village: Village) -> None:
    node = await village.founder()
    folder = node.home / "swarm"
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    swarm = node.membership.swarm
    assert swarm is not None
    assert swarm.network_key is not None
    assert swarm.network_key.hex() not in repr(swarm)
    assert repr(swarm.network_key) not in repr(swarm)


async def test_a_node_comes_back_as_what_it_was(village: Village) -> None:
    before = await village.founder()
    await before.membership.grant(key(2).peer_id, CORE, operator="bob")
    after = await village.node(1)
    assert after.membership.swarm == before.membership.swarm
    assert after.membership.records.total == before.membership.records.total
    assert after.membership.standing(key(2).peer_id) == before.membership.standing(key(2).peer_id)


async def test_one_belongs_to_one_swarm_at_a_time(village: Village) -> None:
    node = await village.founder()
    with pytest.raises(Conflict, match="already"):
        await node.membership.init("another", operator="alice")
    again = await village.node(1)
    with pytest.raises(Conflict, match="already"):
        await again.membership.init("another", operator="alice")


async def test_leaving_forgets_everybody_and_keeps_the_root_key_aside(village: Village) -> None:
    node = await village.founder()
    certificate = await node.membership.grant(key(2).peer_id, CORE, operator="bob")
    kept = await node.membership.leave()
    assert kept is not None
    assert kept.read_text().startswith("gnusnode key")
    assert node.membership.standing(key(2).peer_id).outcome is Outcome.UNKNOWN_SIGNER
    assert node.outcome_of(node) is Outcome.OK
    assert (await node.membership.add([certificate])).added == ()
    assert (await village.node(1)).membership.swarm is None
    await node.membership.init("another", operator="alice")  # and may begin anew


async def test_a_member_that_leaves_keeps_nothing(village: Village) -> None:
    member = await village.member(await village.founder(), 2)
    assert await member.membership.leave() is None
    assert list(member.home.iterdir()) == []
    with pytest.raises(RequestError, match="no swarm"):
        await member.membership.leave()


@pytest.mark.parametrize("damage", [b"", b"{", b'{"format":1}', b"\xff" * 64])
async def test_a_damaged_state_is_said_and_not_taken_for_no_swarm(village: Village, damage: bytes) -> None:
    node = await village.founder()
    (node.home / "swarm" / "swarm.json").write_bytes(damage)
    with pytest.raises(DataError, match="damaged"):
        await village.node(1)


async def test_the_root_key_of_another_swarm_grants_nothing(village: Village) -> None:
    node = await village.founder()
    path = node.home / "swarm" / "root.key"
    path.unlink()
    write_new(path, key(99))
    with pytest.raises(DataError, match="another swarm"):
        await node.membership.grant(key(2).peer_id, CORE, operator="bob")


# --- granting ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G-ROLE-4")
async def test_a_node_does_what_both_its_certificate_and_its_settings_name(village: Village) -> None:
    member = await village.member(await village.founder(), 2, roles=frozenset({Role.CORE, Role.ELM}))
    assert member.membership.own_roles({Role.ELM, Role.SETTLEMENT}) == {Role.ELM}
    assert (await village.node(3)).membership.own_roles({Role.SETTLEMENT}) == {Role.SETTLEMENT}


@pytest.mark.requirement("G-ROLE-4")
async def test_the_lowest_tier_that_the_roles_need_is_granted_unless_another_is_asked_for(village: Village) -> None:
    node = await village.founder()
    given = [
        await node.membership.grant(key(2).peer_id, CORE, operator="x"),
        await node.membership.grant(key(3).peer_id, (Role.CORE, Role.ROUTER), operator="x"),
        await node.membership.grant(key(4).peer_id, CORE, tier=Tier.A, operator="x"),
    ]
    assert [one.tier for one in given] == [Tier.C, Tier.B, Tier.A]
    assert [one.serial for one in given] == [2, 3, 4]
    with pytest.raises(RequestError, match="cannot hold the role intermediary"):
        await node.membership.grant(key(5).peer_id, (Role.INTERMEDIARY,), tier=Tier.B, operator="x")


async def test_a_plain_member_grants_and_takes_back_nothing(village: Village) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)
    for act in (
        member.membership.grant(key(3).peer_id, CORE, operator="x"),
        member.membership.set_roles(founder.peer, CORE),
        member.membership.revoke(RevocationKind.PEER, founder.peer),
        member.membership.delegate(member.peer, CORE, Tier.C),
    ):
        with pytest.raises(Forbidden, match="may not decide"):
            await act


@pytest.mark.requirement("G-ROLE-4")
async def test_changed_roles_are_exactly_the_new_ones(village: Village) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)
    await founder.membership.set_roles(member.peer, (Role.ELM,))
    assert founder.roles_of(member) == {Role.ELM}
    await founder.membership.set_roles(member.peer, (Role.ELM, Role.ROUTER))
    standing = founder.membership.standing(member.peer)
    assert (standing.roles, standing.tier) == ({Role.ELM, Role.ROUTER}, Tier.B)
    await founder.membership.set_roles(member.peer, (Role.ELM,))
    standing = founder.membership.standing(member.peer)
    assert (standing.roles, standing.tier, standing.operators) == ({Role.ELM}, Tier.C, {"operator-2"})


async def test_changes_come_to_those_who_follow_and_many_at_once_are_one(village: Village) -> None:
    node = await village.founder()
    async with node.membership.changes() as changes:
        await node.membership.grant(key(2).peer_id, CORE, operator="x")
        await node.membership.grant(key(3).peer_id, CORE, operator="x")
        roster = await anext(changes)
        assert roster is node.membership.roster
        assert {key(2).peer_id, key(3).peer_id} <= set(roster.grants)
        await node.membership.revoke(RevocationKind.PEER, key(3).peer_id)
        assert (await anext(changes)).standing(key(3).peer_id, START_MS).outcome is Outcome.REVOKED


# --- admins -----------------------------------------------------------------------------------------------------------


async def admin_of(village: Village, founder: BelongingNode, number: int = 2) -> BelongingNode:
    """A member that may grant core and elm up to tier C."""
    admin = await village.member(founder, number)
    made = await founder.membership.delegate(admin.peer, EXPERTS, Tier.C)
    await admin.membership.add([made])
    return admin


@pytest.mark.requirement("G-ROLE-4")
async def test_an_admin_grants_within_its_delegation_and_not_beyond(village: Village) -> None:
    founder = await village.founder()
    admin = await admin_of(village, founder)
    made = await admin.membership.grant(key(3).peer_id, CORE, operator="x")
    await founder.membership.add([made])
    assert founder.membership.standing(key(3).peer_id).roles == {Role.CORE}
    with pytest.raises(Forbidden, match="may not grant the roles router"):
        await admin.membership.grant(key(3).peer_id, (Role.ROUTER,), operator="x")
    with pytest.raises(Forbidden, match="may not grant tier B"):
        await admin.membership.grant(key(3).peer_id, CORE, tier=Tier.B, operator="x")
    with pytest.raises(Forbidden, match="root key makes admins"):
        await admin.membership.delegate(key(3).peer_id, CORE, Tier.C)
    with pytest.raises(Forbidden, match="only the swarm's root key"):
        await admin.membership.revoke(RevocationKind.PEER, founder.peer)


@pytest.mark.requirement("G-ROLE-4")
async def test_what_an_admin_signs_beyond_its_power_is_refused_by_everybody_and_counted(village: Village) -> None:
    founder = await village.founder()
    admin = await admin_of(village, founder)
    beyond = MembershipCertificate.signed(
        admin.identity,
        swarm_id=founder.membership.swarm_id,
        peer_id=key(3).peer_id,
        operator="x",
        roles=(Role.INTERMEDIARY,),
        tier=Tier.A,
        not_before=START_MS,
        not_after=START_MS + DAY,
        serial=9,
    )
    report = await founder.membership.add([beyond.to_bytes()])
    assert report.refused == ((beyond.digest, Outcome.ROLE_NOT_GRANTED),)
    assert founder.membership.standing(key(3).peer_id).outcome is Outcome.UNKNOWN_SIGNER
    assert founder.told("record.refused") == [
        {"record": "membership-certificate", "outcome": "role_not_granted", "signer": admin.peer}
    ]
    assert len(list((founder.home / "swarm" / "records").iterdir())) == len(founder.membership.records.records)


async def test_a_certificate_ends_with_the_power_of_its_admin(village: Village) -> None:
    founder = await village.founder()
    admin = await admin_of(village, founder)
    village.clock.ms += 330 * DAY
    made = await admin.membership.grant(key(3).peer_id, CORE, operator="x")
    assert made.not_after - village.clock.ms < 36 * DAY


async def test_removing_an_admin_ends_what_it_granted(village: Village) -> None:
    founder = await village.founder()
    admin = await admin_of(village, founder)
    await founder.membership.add([await admin.membership.grant(key(3).peer_id, CORE, operator="x")])
    await founder.membership.revoke(RevocationKind.DELEGATION, admin.peer)
    assert founder.membership.standing(key(3).peer_id).outcome is Outcome.REVOKED
    assert founder.outcome_of(admin) is Outcome.OK
    with pytest.raises(Forbidden, match="for good"):
        await founder.membership.delegate(admin.peer, EXPERTS, Tier.C)


async def test_the_founders_node_still_decides_when_its_root_key_is_kept_elsewhere(village: Village) -> None:
    founder = await village.founder()
    (founder.home / "swarm" / "root.key").rename(founder.home / "safe")
    made = await founder.membership.grant(key(2).peer_id, (Role.INTERMEDIARY,), operator="x")
    assert made.signer == founder.peer
    assert founder.membership.standing(key(2).peer_id).outcome is Outcome.OK
    with pytest.raises(Forbidden, match="root key"):
        await founder.membership.delegate(key(2).peer_id, EXPERTS, Tier.C)


async def test_a_revoked_node_gets_no_new_certificate(village: Village) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)
    await founder.membership.revoke(RevocationKind.PEER, member.peer, reason="stolen")
    assert founder.outcome_of(member) is Outcome.REVOKED
    with pytest.raises(Forbidden, match="for good"):
        await founder.membership.grant(member.peer, CORE, operator="x")


async def test_a_new_key_takes_the_membership_along(village: Village) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)
    statement = KeyRotation.between(member.identity, key(3), issued_at_ms=START_MS)
    observer = Observer.create()
    renamed = await Membership.open(member.home, key(3), observer, rotations=[statement], now_ms=village.clock)
    assert renamed.standing(key(3).peer_id).roles == EXPERTS
    await founder.membership.add(renamed.own_records())
    assert founder.membership.standing(key(3).peer_id).roles == EXPERTS
    assert founder.outcome_of(member) is Outcome.REVOKED


# --- the set ----------------------------------------------------------------------------------------------------------


def test_what_expired_long_ago_is_forgotten() -> None:
    records = merged(certificates(2))
    end = max(one.expires_ms or 0 for one in records.records.values())
    kept = records.merged([], end + RETENTION_MS)
    gone = records.merged([], end + RETENTION_MS + 1)
    assert kept.result is records
    assert (gone.result.records, len(gone.gone)) == ({}, 2)


def test_a_full_set_takes_the_roots_word_only(monkeypatch: pytest.MonkeyPatch) -> None:
    delegated = issuing.delegation(
        ROOT_POWER, RecordSet(ROOT.peer_id).roster, key(2).peer_id, roles=CORE, tier=Tier.C, now_ms=START_MS
    )
    full = merged([delegated], certificates(3))
    monkeypatch.setattr("gnusnode.net.records.MAX_RECORDS", len(full.records))
    power = issuing.authority(full.roster, key(2), None, START_MS)
    assert power is not None
    more = issuing.certificate(
        power, full.roster, key(3).peer_id, roles=CORE, tier=Tier.C, operator="x", now_ms=START_MS
    )
    revocation = issuing.revocation(
        ROOT_POWER, full.roster, RevocationKind.PEER, key(4).peer_id, reason="", now_ms=START_MS
    )
    merge = full.merged([more, revocation], START_MS)
    assert (merge.added, merge.surplus) == ((revocation,), 1)
    assert MAX_RECORDS >= 10_000


def test_outsiders_records_cost_no_roster() -> None:
    records = merged(certificates(3))
    stranger = MembershipCertificate.signed(
        key(9),
        swarm_id=records.roster.swarm_id,
        peer_id=key(9).peer_id,
        operator="x",
        roles=CORE,
        tier=Tier.C,
        not_before=START_MS,
        not_after=START_MS + DAY,
        serial=1,
    )
    moved = KeyRotation.between(key(9), key(10), issued_at_ms=START_MS)
    merge = records.merged([stranger, moved], START_MS)
    assert merge.result is records
    assert {outcome for _, outcome in merge.refused} == {Outcome.UNKNOWN_SIGNER}


def test_two_handovers_are_enough_to_void_each_other_and_all_nodes_keep_the_same_two() -> None:
    member = certificates(1)
    stolen = numbered(1)
    assert stolen.peer_id == member[0].peer_id
    moves = [KeyRotation.between(stolen, key(n), issued_at_ms=START_MS) for n in range(20, 26)]
    one, other = merged(member, moves[:3], moves[3:]), merged(member, moves[::-1])
    assert one.total == other.total
    assert len(one.roster.rotations) == 2
    assert all(one.roster.standing(key(n).peer_id, START_MS).outcome is not Outcome.OK for n in range(20, 26))


def test_a_member_cannot_fill_the_set_with_its_own_keys() -> None:
    member = certificates(1)
    keys = [1, *range(100, 200)]
    joined = [
        KeyRotation.between(numbered(old), numbered(new), issued_at_ms=START_MS)
        for old, new in itertools.pairwise(keys)
    ]
    fork = [KeyRotation.between(numbered(100), numbered(300 + n), issued_at_ms=START_MS) for n in range(20)]
    assert len(merged(member, joined).records) == 1 + 32
    assert len(merged(member, joined, fork).records) == 1 + 1 + 2
    assert merged(member, joined, fork).total == merged(fork, member, joined, fork, joined).total


def delegated(*peers: NodeIdentity) -> list[AdminDelegation]:
    roster = RecordSet(ROOT.peer_id).roster
    return [
        issuing.delegation(ROOT_POWER, roster, peer.peer_id, roles=CORE, tier=Tier.C, now_ms=START_MS) for peer in peers
    ]


def power_of(records: RecordSet, admin: NodeIdentity, now_ms: int = START_MS) -> Authority:
    power = issuing.authority(records.roster, admin, None, now_ms)
    assert power is not None
    return power


def test_power_taken_back_from_a_moment_in_the_past_takes_what_was_signed_since_out_of_the_set() -> None:
    records = merged(delegated(key(2)))
    flood = [
        issuing.certificate(
            power_of(records, key(2)),
            records.roster,
            numbered(n).peer_id,
            roles=CORE,
            tier=Tier.C,
            operator="x",
            now_ms=START_MS + DAY,
        )
        for n in range(1, 6)
    ]
    stolen = Revocation.signed(
        ROOT,
        swarm_id=records.roster.swarm_id,
        kind=RevocationKind.DELEGATION,
        target=key(2).peer_id,
        effective_at_ms=START_MS + DAY // 2,
        reason="stolen",
        issued_at_ms=START_MS + 2 * DAY,
    )
    full = records.merged(flood, START_MS + DAY).result
    after = full.merged([stolen], START_MS + 2 * DAY)
    assert len(full.records) == 6
    assert set(after.gone) == {one.digest for one in flood}
    again = after.result.merged(flood, START_MS + 2 * DAY)
    assert {outcome for _, outcome in again.refused} == {Outcome.REVOKED}


def test_what_an_admin_revoked_stays_revoked_when_its_own_time_is_long_over() -> None:
    records = merged(delegated(key(2)), certificates(1))
    target = numbered(1).peer_id
    made = issuing.revocation(
        power_of(records, key(2)), records.roster, RevocationKind.PEER, target, reason="", now_ms=START_MS
    )
    late = START_MS + 3650 * DAY
    kept = records.merged([made], START_MS).result.merged(certificates(2, late), late).result
    assert kept.roster.standing(target, late).outcome is Outcome.REVOKED


# --- the files --------------------------------------------------------------------------------------------------------


def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    files = RecordFiles(tmp_path / "records")
    made = certificates(4)
    files.put(made)
    paths = sorted(files.folder.iterdir())
    paths[0].write_bytes(paths[0].read_bytes()[:-1])
    paths[1].rename(paths[1].with_name("0" * 64 + ".cbor"))
    (files.folder / "notes.txt").write_text("hello")
    (files.folder / "folder").mkdir()
    (files.folder / ".cut-short.tmp").write_bytes(b"half")
    found = files.load()
    assert len(found.records) == 2
    assert set(found.damaged) == {paths[0].name, "0" * 64 + ".cbor", "notes.txt", "folder"}
    assert not (files.folder / ".cut-short.tmp").exists()


async def test_damaged_records_are_said_left_out_and_replaced_when_they_come_again(village: Village) -> None:
    founder = await village.founder()
    made = await founder.membership.grant(key(2).peer_id, CORE, operator="x")
    path = founder.home / "swarm" / "records" / f"{made.digest.removeprefix('sha256:')}.cbor"
    path.write_bytes(b"\x00" * 100)
    again = await village.node(1)
    assert again.warnings() == {"swarm-records-damaged"}
    assert again.membership.standing(key(2).peer_id).outcome is Outcome.UNKNOWN_SIGNER
    await again.membership.add([made])
    assert read_record(path.read_bytes()).record == made
    assert (await village.node(1)).warnings() == set()


async def test_records_of_another_swarm_that_lie_around_do_not_count(village: Village) -> None:
    founder = await village.founder()
    RecordFiles(founder.home / "swarm" / "records").put(certificates(2))
    again = await village.node(1)
    assert again.membership.records.total == founder.membership.records.total


async def test_a_full_disk_leaves_the_roster_as_it_was(village: Village, monkeypatch: pytest.MonkeyPatch) -> None:
    founder = await village.founder()
    before = founder.membership.records

    def refuse(*_: object) -> None:
        raise DataError("no space")

    monkeypatch.setattr(RecordFiles, "put", refuse)
    with pytest.raises(DataError):
        await founder.membership.grant(key(2).peer_id, CORE, operator="x")
    assert founder.membership.records is before
    assert founder.membership.take_outbox() == []
