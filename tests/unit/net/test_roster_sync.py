"""Members keep their records alike: gossip, exchange, partitions, renewal; outsiders and forgers change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.swarm import MembershipCertificate, RevocationKind, Role, Tier
from gnusnode.errors import GnusError, PeerUnreachable, ProtocolViolation
from gnusnode.net import issuing, rosterexchange
from gnusnode.net.names import roster_topic
from gnusnode.net.port import MessageStream
from gnusnode.net.renewal import CHECK_SECONDS, RETRY_SECONDS, due, renew
from gnusnode.net.rosterexchange import MAX_REFUSED, exchange
from gnusnode.net.rostermsg import PAGE, ROSTER, pack, receive
from gnusnode.net.rostersync import EXCHANGE_SECONDS, GOSSIPED, RosterSync, batches
from tests.fakes.belonging import EXPERTS, START_MS, BelongingNode, Village, alike, certificates, connect, key, numbered

CORE = (Role.CORE,)
DAY = issuing.DAY_MS

pytestmark = pytest.mark.usefixtures("mock_clock")


@pytest.fixture
def village(tmp_path: Path) -> Village:
    return Village(tmp_path)


async def settle() -> None:
    """Until nothing moves any more: threads at work count as moving."""
    await trio.testing.wait_all_tasks_blocked(0.02)


# --- spreading --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G-ROLE-4")
async def test_changed_roles_and_revocations_reach_everybody_without_a_restart(village: Village) -> None:
    founder = await village.founder()
    a, b = await village.member(founder, 2), await village.member(founder, 3)
    async with village.running(founder), village.running(a), village.running(b):
        await connect(a, founder)
        await connect(b, founder)
        await connect(b, a)
        await a.until(lambda: alike(founder, a, b))
        await founder.membership.set_roles(a.peer, (Role.ELM,))
        await b.until(lambda: b.roles_of(a) == {Role.ELM})
        await a.until(lambda: a.membership.own_roles(EXPERTS) == {Role.ELM})
        await founder.membership.revoke(RevocationKind.PEER, a.peer)
        await b.until(lambda: b.outcome_of(a) is Outcome.REVOKED)


@pytest.mark.requirement("G-LAY-3")
async def test_members_that_were_parted_are_alike_as_soon_as_one_connection_joins_them(village: Village) -> None:
    founder = await village.founder()
    admin = await village.member(founder, 2)
    delegation = await founder.membership.delegate(admin.peer, EXPERTS, Tier.C)
    await admin.membership.add([delegation], gossiped=True)
    member = await village.member(founder, 3)
    async with village.running(founder), village.running(admin), village.running(member):
        await founder.membership.grant(key(30).peer_id, CORE, operator="x")
        await admin.membership.grant(key(31).peer_id, CORE, operator="x")
        await admin.membership.revoke(RevocationKind.PEER, member.peer)
        assert not alike(founder, admin)
        await connect(member, founder)
        await connect(admin, founder)
        await founder.until(lambda: alike(founder, admin))
        assert {founder.membership.standing(key(n).peer_id).outcome for n in (30, 31)} == {Outcome.OK}
        assert founder.outcome_of(member) is Outcome.REVOKED


async def test_an_exchange_moves_what_each_side_lacks_and_nothing_twice(village: Village) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)
    await founder.membership.grant(key(30).peer_id, CORE, operator="x")
    async with village.running(founder), village.running(member):
        await connect(member, founder)
        await settle()
        assert alike(founder, member)
        assert (member.sync.statistics.received, member.sync.statistics.given) == (1, 0)
        moved = await member.sync.exchange(member.net, founder.peer)  # type: ignore[arg-type]  # it runs
        assert moved is not None
        assert (moved.received, moved.given, moved.refused) == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.requirement("G-LAY-3")
async def test_ten_thousand_records_go_over_in_pages(village: Village, monkeypatch: pytest.MonkeyPatch) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)
    by = founder.membership.required_authority()
    made = [
        issuing.certificate(
            by,
            founder.membership.roster,
            numbered(number).peer_id,
            roles=CORE,
            tier=Tier.C,
            operator="x",
            now_ms=START_MS,
        )
        for number in range(1, 10_001)
    ]
    await founder.membership.add(made)
    sizes: list[int] = []
    chosen = rosterexchange.chosen

    def count(*arguments: object) -> list[bytes]:
        page = chosen(*arguments)  # type: ignore[arg-type]  # passed on
        sizes.append(len(page))
        return page

    monkeypatch.setattr(rosterexchange, "chosen", count)
    async with village.running(founder), village.running(member):
        await connect(member, founder)
        await member.until(lambda: alike(founder, member))
    assert max(sizes) <= PAGE
    assert sum(sizes) == 10_000
    sizes.clear()
    await founder.membership.grant(key(30).peer_id, CORE, operator="x")
    async with village.running(founder), village.running(member):
        await connect(founder, member)  # now the side that has more leads
        await member.until(lambda: alike(founder, member))
    assert sum(sizes) == 1


async def test_news_that_gossip_lost_come_by_the_next_comparison(
    village: Village, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)
    monkeypatch.setattr(RosterSync, "believes", lambda *_: False)
    async with village.running(founder), village.running(member):
        await connect(member, founder)
        await settle()
        await founder.membership.grant(key(30).peer_id, CORE, operator="x")
        await settle()
        assert not alike(founder, member)
        mock_clock.jump(2 * EXCHANGE_SECONDS)
        await member.until(lambda: alike(founder, member))


async def test_gossip_from_an_admin_that_is_not_known_yet_asks_for_its_delegation(village: Village) -> None:
    founder = await village.founder()
    admin, member = await village.member(founder, 2), await village.member(founder, 3)
    await admin.membership.add([await founder.membership.delegate(admin.peer, EXPERTS, Tier.C)], gossiped=True)
    async with village.running(admin), village.running(member):
        # The admin dialled, so the comparison is its task; it is not to happen here.
        admin.sync._running.add(member.peer)
        await connect(admin, member)
        await settle()
        assert not alike(admin, member)
        await admin.membership.grant(key(30).peer_id, CORE, operator="x")
        await member.until(lambda: member.membership.standing(key(30).peer_id).outcome is Outcome.OK)
        assert alike(admin, member)


async def test_a_node_follows_its_swarm_from_one_to_the_next(village: Village) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)
    async with village.running(founder), village.running(member):
        await connect(member, founder)
        await settle()
        await founder.membership.leave()
        await founder.membership.init("another", operator="alice")
        await member.membership.leave()
        assert founder.membership.swarm is not None
        await member.membership.begin_join(founder.membership.swarm)
        await member.membership.add(founder.membership.records_known(), gossiped=True)
        await settle()
        await founder.membership.grant(member.peer, CORE, operator="x")
        await member.until(lambda: member.roles_of(member) == {Role.CORE})


# --- who is refused ---------------------------------------------------------------------------------------------------


async def test_members_of_different_swarms_tell_each_other_nothing(village: Village, tmp_path: Path) -> None:
    founder = await village.founder()
    other = Village(tmp_path / "other")
    other.folder.mkdir()
    stranger = await other.node(5)
    await stranger.membership.init("theirs", operator="eve")
    other.network = village.network
    async with village.running(founder), other.running(stranger):
        await connect(stranger, founder)
        await settle()
        assert stranger.sync.statistics.exchanges_failed == 1
        assert stranger.sync.statistics.received == 0
        assert founder.outcome_of(stranger) is Outcome.UNKNOWN_SIGNER


async def test_a_member_that_nobody_knows_yet_shows_its_own_records(village: Village) -> None:
    founder = await village.founder()
    one, late = await village.member(founder, 2), await village.member(founder, 3)
    assert one.outcome_of(late) is Outcome.UNKNOWN_SIGNER
    async with village.running(one), village.running(late):
        await connect(late, one)
        await one.until(lambda: one.outcome_of(late) is Outcome.OK)
        await one.until(lambda: alike(one, late))


async def test_a_revoked_member_gets_nothing_more(village: Village) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)
    await founder.membership.revoke(RevocationKind.PEER, member.peer)
    async with village.running(founder), village.running(member):
        await connect(member, founder)
        await settle()
        assert member.sync.statistics.exchanges_failed == 1
        assert member.outcome_of(member) is Outcome.OK  # nobody told it


async def test_a_member_revoked_in_the_middle_of_an_exchange_is_cut_off(village: Village) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)
    async with village.running(founder), village.network.join(member.peer) as net:
        await net.connect(founder.peer, founder.addresses())
        stream = await net.open_stream(founder.peer, ROSTER)
        await stream.send(_compare(member))
        await receive(stream, "differ", "same")
        await founder.membership.revoke(RevocationKind.PEER, member.peer)
        await stream.send(pack("sums", sums=bytes(4096)))
        with pytest.raises(GnusError, match="revoked"):
            await receive(stream, "digests")


def _compare(node: BelongingNode) -> bytes:
    own = [record.to_bytes() for record in node.membership.own_records()]
    return pack("compare", swarm_id=node.membership.swarm_id, own=own, total="sha256:" + "0" * 64)


def forged(founder: BelongingNode, count: int) -> list[bytes]:
    """Certificates that a plain member signs for others."""
    return [
        MembershipCertificate.signed(
            key(2),
            swarm_id=founder.membership.swarm_id,
            peer_id=numbered(number).peer_id,
            operator="x",
            roles=CORE,
            tier=Tier.C,
            not_before=START_MS,
            not_after=START_MS + DAY,
            serial=number,
        ).to_bytes()
        for number in range(1, count + 1)
    ]


async def test_a_member_that_floods_with_records_without_authority_is_cut_off(village: Village) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)
    before = founder.membership.records
    flood = forged(founder, PAGE)
    async with village.running(founder), village.network.join(member.peer) as net:
        await net.connect(founder.peer, founder.addresses())
        stream = await net.open_stream(founder.peer, ROSTER)
        await stream.send(_compare(member))
        await receive(stream, "differ")
        for _ in range(MAX_REFUSED // PAGE):
            await stream.send(pack("give", records=flood))
            took = await receive(stream, "took")
            assert (took.count("added"), took.count("refused")) == (0, PAGE)
        await stream.send(pack("give", records=flood))
        with pytest.raises(PeerUnreachable):
            await receive(stream, "took")
    assert founder.membership.records is before
    assert len(founder.told("record.refused")) > 0


async def test_gossip_of_outsiders_and_of_junk_is_neither_believed_nor_passed_on(village: Village) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)
    good = batches(list(founder.membership.records_known()))[0]
    believes = founder.sync.believes
    assert believes(member.peer, good)
    assert not believes(key(9).peer_id, good)
    for junk in (b"", b"\xff", pack("news"), pack("news", records=["x"]), pack("give", records=[])):
        assert not believes(member.peer, junk)
    certificate = founder.membership.records_known()[0].to_bytes()
    assert not believes(member.peer, pack("news", records=[certificate[:-1] + b"x"]))
    assert not believes(member.peer, pack("news", records=[certificate] * (GOSSIPED + 1)))
    assert founder.sync.statistics.gossip_refused == 8


async def test_on_an_open_swarm_strangers_pass_on_the_word_of_the_root_and_no_other(village: Village) -> None:
    founder = await village.founder(open_to_all=True)
    stranger = key(9).peer_id
    assert founder.sync.believes(stranger, batches(list(founder.membership.records_known()))[0])
    assert not founder.sync.believes(stranger, pack("news", records=forged(founder, 1)))


async def test_gossiped_records_beyond_their_signers_power_change_nothing(village: Village) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)
    swarm = founder.membership.swarm
    assert swarm is not None
    before = founder.membership.records
    async with village.running(founder), village.network.join(member.peer) as net:
        await net.connect(founder.peer, founder.addresses())
        await net.publish(roster_topic(swarm.swarm_id), pack("news", records=forged(founder, 3)))
        await settle()
        assert founder.sync.statistics.refused == 3
    assert founder.membership.records is before


@pytest.mark.parametrize(
    "message",
    [
        b"\xff",
        pack("compare"),
        pack("sums", sums=bytes(4095)),
        pack("sums", sums=bytes(4112)),
        pack("sums", sums="text"),
        pack("want", digests=bytes(33)),
        pack("want", digests=bytes(32 * (PAGE + 1))),
        pack("give", records="text"),
        pack("give", records=[1]),
        pack("give", records=[b""] * (PAGE + 1)),
        pack("records", records=[]),
    ],
)
async def test_what_breaks_the_protocol_resets_the_stream(village: Village, message: bytes) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)
    async with village.running(founder), village.network.join(member.peer) as net:
        await net.connect(founder.peer, founder.addresses())
        stream = await net.open_stream(founder.peer, ROSTER)
        await stream.send(_compare(member))
        await receive(stream, "differ")
        await stream.send(message)
        with pytest.raises(PeerUnreachable):
            await receive(stream, "digests", "records", "took")


@pytest.mark.parametrize(
    "groups", ["text", [[0]], [[256, b""]], [[-1, b""]], [[0, b"x"]], [[0, "x"]], [[0.0, b""]], [[0, b""]] * 257]
)
async def test_an_answer_without_sound_groups_is_a_violation(village: Village, groups: object) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)

    async def liar(stream: MessageStream) -> None:
        await receive(stream, "compare")
        await stream.send(pack("differ"))
        await receive(stream, "sums")
        await stream.send(pack("digests", groups=groups))
        await stream.receive()

    async with (
        village.network.join(founder.peer) as theirs,
        theirs.serve(ROSTER, liar),
        village.network.join(member.peer) as net,
    ):
        await net.connect(founder.peer, theirs.addresses())
        stream = await net.open_stream(founder.peer, ROSTER)
        with pytest.raises(ProtocolViolation):
            await exchange(stream, member.membership)
        await stream.reset()


async def test_a_peer_that_says_nothing_is_given_up(village: Village, autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    founder = await village.founder()
    member = await village.member(founder, 2)

    async def mute(stream: MessageStream) -> None:
        await trio.sleep_forever()

    async with (
        village.network.join(founder.peer) as theirs,
        theirs.serve(ROSTER, mute),
        village.network.join(member.peer) as net,
    ):
        await net.connect(founder.peer, theirs.addresses())
        assert await member.sync.exchange(net, founder.peer) is None
    assert member.sync.statistics.exchanges_failed == 1


# --- renewal ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G-ROLE-4")
async def test_a_membership_near_its_end_is_renewed_by_an_admin_that_is_connected(
    village: Village, mock_clock: trio.testing.MockClock
) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2, operator="lab")
    async with village.running(founder), village.running(member):
        await connect(member, founder)
        await settle()
        village.clock.ms += 61 * DAY
        mock_clock.jump(CHECK_SECONDS)
        await member.until(lambda: not due(member.membership.roster, member.peer, village.clock.ms))
    village.clock.ms += 60 * DAY
    standing = member.membership.standing(member.peer)
    assert (standing.outcome, standing.roles, standing.operators) == (Outcome.OK, EXPERTS, {"lab"})
    assert founder.outcome_of(founder) is Outcome.OK  # it renewed its own by the way


async def test_a_membership_that_nobody_renews_is_warned_of_before_and_after_its_end(
    village: Village, mock_clock: trio.testing.MockClock
) -> None:
    member = await village.member(await village.founder(), 2)
    async with village.running(member):
        await settle()
        assert member.warnings() == set()
        for days in (80, 20):
            village.clock.ms += days * DAY
            mock_clock.jump(CHECK_SECONDS)
            await settle()
            assert member.warnings() == {"membership-ending"}
    assert member.outcome_of(member) is Outcome.CERTIFICATE_EXPIRED


async def test_a_node_whose_membership_was_revoked_is_told_so(village: Village) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)
    async with village.running(founder), village.running(member):
        await connect(member, founder)
        await settle()
        await founder.membership.revoke(RevocationKind.PEER, member.peer, reason="left")
        await member.until(lambda: member.outcome_of(member) is Outcome.REVOKED)
        await settle()
        assert member.warnings() == {"membership-revoked"}
        await member.membership.leave()
        await settle()
        assert member.warnings() == set()


@pytest.mark.requirement("G-ROLE-4")
async def test_renewal_gives_no_more_than_there_was_and_nothing_to_who_is_out(village: Village) -> None:
    founder = await village.founder()
    member, gone = await village.member(founder, 2), await village.member(founder, 3)
    assert await renew(founder.membership, member.peer) == ()  # nothing is due
    await founder.membership.revoke(RevocationKind.PEER, gone.peer)
    village.clock.ms += 61 * DAY
    made = await renew(founder.membership, member.peer)
    assert [(one.roles, one.tier) for one in made if isinstance(one, MembershipCertificate)] == [
        (tuple(sorted(EXPERTS)), Tier.C)
    ]
    with pytest.raises(GnusError, match="only a member"):
        await renew(founder.membership, gone.peer)
    with pytest.raises(GnusError, match="only a member"):
        await renew(founder.membership, key(9).peer_id)
    village.clock.ms += 365 * DAY
    with pytest.raises(GnusError, match="only a member"):
        await renew(founder.membership, member.peer)


async def test_an_admin_renews_nothing_beyond_its_power(village: Village) -> None:
    founder = await village.founder()
    admin = await village.member(founder, 2)
    await admin.membership.add([await founder.membership.delegate(admin.peer, EXPERTS, Tier.C)])
    router = await village.member(founder, 3, roles=frozenset({Role.ROUTER}))
    await admin.membership.add(founder.membership.records_known())
    village.clock.ms += 61 * DAY
    with pytest.raises(GnusError, match="may not grant"):
        await renew(admin.membership, router.peer)


async def test_the_node_with_the_root_key_stays_an_admin_under_its_present_key(
    village: Village, mock_clock: trio.testing.MockClock
) -> None:
    founder = await village.founder()
    village.clock.ms += 80 * DAY
    async with village.running(founder):
        await settle()
        village.clock.ms += 300 * DAY  # the first delegation is over
        mock_clock.jump(max(CHECK_SECONDS, RETRY_SECONDS))
        await founder.until(lambda: founder.peer in founder.membership.admins())


def test_gossip_messages_are_small_and_begin_with_delegations() -> None:
    made = certificates(GOSSIPED + 1)
    assert [len(message) < 16_384 for message in batches(list(made))] == [True, True]
