"""Whatever comes in whatever order: the same records make the same set, and nothing forged gets in."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnusnode.contracts.base import MalformedRecord
from gnusnode.contracts.invite import PREFIX, Invite
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.swarm import (
    AdminDelegation,
    KeyRotation,
    MembershipCertificate,
    Revocation,
    RevocationKind,
    Role,
    Tier,
    allows,
    swarm_id,
)
from gnusnode.net.records import RecordSet, SwarmRecord, read_record
from tests.fakes.belonging import ROOT, START_MS, key, merged

DAY = 24 * 3600 * 1000
SWARM = swarm_id(ROOT.peer_id)
PEERS = [key(n) for n in range(1, 6)]
ADMINS = PEERS[:2]
peers, admins = st.sampled_from(PEERS), st.sampled_from(ADMINS)
moments = st.integers(START_MS - 3 * DAY, START_MS + 3 * DAY)
role_sets = st.sets(st.sampled_from([Role.CORE, Role.ELM, Role.ROUTER]), min_size=1).map(
    lambda roles: tuple(sorted(roles))
)


@st.composite
def certificates(draw: st.DrawFn) -> MembershipCertificate:
    begins = draw(moments)
    roles = draw(role_sets)
    return MembershipCertificate.signed(
        draw(st.sampled_from([ROOT, *PEERS])),
        swarm_id=SWARM,
        peer_id=draw(peers).peer_id,
        operator="x",
        roles=roles,
        tier=draw(st.sampled_from([tier for tier in Tier if all(allows(tier, role) for role in roles)])),
        not_before=begins,
        not_after=begins + draw(st.integers(1, 4)) * DAY,
        serial=draw(st.integers(0, 3)),
    )


@st.composite
def delegations(draw: st.DrawFn) -> AdminDelegation:
    begins = draw(moments)
    return AdminDelegation.signed(
        draw(st.sampled_from([ROOT, ROOT, *ADMINS])),
        swarm_id=SWARM,
        peer_id=draw(admins).peer_id,
        roles=draw(role_sets),
        tier=draw(st.sampled_from([Tier.A, Tier.B, Tier.C])),
        not_before=begins,
        not_after=begins + 4 * DAY,
        serial=1,
    )


@st.composite
def revocations(draw: st.DrawFn) -> Revocation:
    at = draw(moments)
    kind = draw(st.sampled_from([RevocationKind.PEER, RevocationKind.DELEGATION]))
    return Revocation.signed(
        draw(st.sampled_from([ROOT, *PEERS])),
        swarm_id=SWARM,
        kind=kind,
        target=draw(peers).peer_id,
        effective_at_ms=at,
        reason="",
        issued_at_ms=at,
    )


@st.composite
def rotations(draw: st.DrawFn) -> KeyRotation:
    old, new = draw(st.lists(peers, min_size=2, max_size=2, unique_by=lambda one: one.peer_id))
    return KeyRotation.between(old, new, issued_at_ms=draw(moments))


pools: st.SearchStrategy[list[SwarmRecord]] = st.lists(
    st.one_of(certificates(), delegations(), revocations(), rotations()), min_size=1, max_size=14
)


def reconcile(a: RecordSet, b: RecordSet) -> tuple[RecordSet, RecordSet]:
    """Exchanges until nothing moves; the number of rounds is bounded by what may depend on what."""
    for _ in range(6):
        before = (a.total, b.total)
        a = a.merged(b.records.values(), START_MS).result
        b = b.merged(a.records.values(), START_MS).result
        if (a.total, b.total) == before:
            break
    return a, b


@settings(max_examples=60)
@given(pools, st.randoms(use_true_random=False))
def test_two_nodes_that_saw_different_parts_in_different_order_end_alike(
    pool: list[SwarmRecord], chance: random.Random
) -> None:
    one, other = list(pool), [record for record in pool if chance.random() < 0.7]
    chance.shuffle(one)
    chance.shuffle(other)
    cut = chance.randrange(len(one))
    a, b = reconcile(merged(one[:cut], one[cut:]), merged(*([record] for record in other)))
    assert a.total == b.total
    for peer in PEERS:
        assert a.roster.standing(peer.peer_id, START_MS) == b.roster.standing(peer.peer_id, START_MS)


@settings(max_examples=60)
@given(pools)
def test_a_set_is_what_its_own_records_make_of_it(pool: list[SwarmRecord]) -> None:
    records = merged(pool)
    assert merged(list(records.records.values())).total == records.total
    assert records.merged(pool, START_MS).result.total == records.total
    assert not records.roster.refused


@settings(max_examples=80)
@given(delegations(), certificates())
@pytest.mark.requirement("G-ROLE-4")
def test_a_certificate_of_an_admin_counts_exactly_within_its_delegation(
    delegation: AdminDelegation, certificate: MembershipCertificate
) -> None:
    records = merged([delegation, certificate])
    by_root = certificate.signer == ROOT.peer_id
    delegated = delegation.signer == ROOT.peer_id and delegation.peer_id == certificate.signer
    within = set(certificate.roles) <= set(delegation.roles) and certificate.tier.value >= delegation.tier.value
    in_time = delegation.not_before <= certificate.not_before < delegation.not_after
    kept = certificate.digest in records.records
    assert kept == (by_root or (delegated and (within or not in_time)))
    standing = records.roster.standing(certificate.peer_id, START_MS)
    if standing.outcome is Outcome.OK:
        assert by_root or (delegated and within and delegation.not_before <= START_MS < delegation.not_after)


@given(st.binary(max_size=600))
def test_bytes_that_are_no_record_are_refused_in_peace(data: bytes) -> None:
    assert read_record(data).record is None


@settings(max_examples=80)
@given(pools, st.data())
def test_a_record_changed_in_any_byte_is_refused(pool: list[SwarmRecord], data: st.DataObject) -> None:
    original = data.draw(st.sampled_from(pool)).to_bytes()
    place = data.draw(st.integers(0, len(original) - 1))
    changed = bytearray(original)
    changed[place] ^= data.draw(st.integers(1, 255))
    assert read_record(bytes(changed)).record is None
    assert read_record(original).record is not None
    assert read_record(original[:place]).record is None


# --- tokens -----------------------------------------------------------------------------------------------------------

TOKEN = Invite.signed(
    ROOT,
    swarm="village",
    root=ROOT.peer_id,
    open_to_all=False,
    network_key="7" * 64,
    bootstrap=(f"/ip4/192.0.2.1/tcp/8478/p2p/{key(1).peer_id}",),
    secret="5" * 64,
    roles=(Role.CORE,),
    tier=Tier.C,
    operator=None,
    issued_at_ms=START_MS,
    expires_at_ms=START_MS + DAY,
).to_token()


@given(st.integers(0, len(TOKEN) - 1), st.characters(min_codepoint=33, max_codepoint=126))
def test_a_token_changed_in_any_character_is_refused(place: int, character: str) -> None:
    changed = TOKEN[:place] + character + TOKEN[place + 1 :]
    if changed == TOKEN:
        assert Invite.from_token(changed).swarm == "village"
        return
    with pytest.raises(MalformedRecord):
        Invite.from_token(changed)


@given(st.integers(0, len(TOKEN) - 1))
def test_a_token_that_was_cut_off_is_refused(length: int) -> None:
    with pytest.raises(MalformedRecord):
        Invite.from_token(TOKEN[:length])


@given(st.text(max_size=200) | st.text(max_size=200).map(lambda text: PREFIX + text))
def test_any_text_is_refused_in_peace(text: str) -> None:
    with pytest.raises(MalformedRecord):
        Invite.from_token(text)


@given(st.data())
def test_two_sets_say_by_their_sums_whether_they_are_alike(data: st.DataObject) -> None:
    pool = data.draw(pools)
    a, b = merged(pool), merged(pool[1:])
    assert (a.total == b.total) == (a.records.keys() == b.records.keys())
    assert sorted(b"".join(a.buckets)[i : i + 32].hex() for i in range(0, 32 * len(a.records), 32)) == sorted(
        digest.removeprefix("sha256:") for digest in a.records
    )
