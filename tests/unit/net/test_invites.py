"""Invites and joining: one token, one node; nothing is lost and nothing is given twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from gnusnode.contracts import canonical
from gnusnode.contracts.invite import Invite
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.swarm import RevocationKind, Role, Tier
from gnusnode.errors import (
    Conflict,
    DataError,
    Forbidden,
    GnusError,
    NotFound,
    Overloaded,
    PeerUnreachable,
    ProtocolViolation,
    RateLimited,
    RecordRefused,
    RequestError,
)
from gnusnode.net import invites as invites_module
from gnusnode.net import join
from gnusnode.net.invites import Invites
from gnusnode.net.membership import Membership
from gnusnode.net.port import MessageStream, Net
from gnusnode.net.rostermsg import JOIN, ROSTER, pack, receive
from tests.fakes.belonging import EXPERTS, BelongingNode, Village, connect, key

HOUR = 3_600_000


@pytest.fixture
def village(tmp_path: Path) -> Village:
    return Village(tmp_path)


async def take_on(node: BelongingNode, invite: Invite, operator: str = "bob") -> None:
    """What `swarm join` does first."""
    await node.membership.begin_join(join.state_of(invite, invite.to_token(), operator))


def is_member(node: BelongingNode) -> bool:
    """Whether its token was redeemed."""
    return node.membership.swarm is not None and node.membership.swarm.pending is None


def secret_of(invite: Invite) -> str:
    assert invite.secret is not None
    return invite.secret


# --- the token --------------------------------------------------------------------------------------------------------


async def test_a_token_is_one_line_that_survives_copying(village: Village) -> None:
    invite = await (await village.founder()).invite()
    token = invite.to_token()
    assert token.isprintable()
    assert " " not in token
    assert Invite.from_token(f"  {token[:300]}\n   {token[300:]}\n") == invite
    assert len(token) < 1500


async def test_the_home_keeps_no_secret_of_an_invite(village: Village) -> None:
    founder = await village.founder()
    secret = secret_of(await founder.invite())
    texts = [path.read_bytes() for path in founder.home.rglob("*") if path.is_file()]
    assert not any(secret.encode() in text or bytes.fromhex(secret) in text for text in texts)


async def test_a_token_that_has_expired_is_not_shown_to_anybody(village: Village) -> None:
    token = (await (await village.founder()).invite(hours=1)).to_token()
    assert join.read_token(token, village.clock.ms + HOUR - 1)
    with pytest.raises(Forbidden, match="expired"):
        join.read_token(token, village.clock.ms + HOUR)


async def test_a_changed_token_is_noticed_even_when_it_is_well_formed(village: Village) -> None:
    invite = await (await village.founder()).invite()
    forged = invite.model_copy(update={"tier": Tier.A, "roles": tuple(Role)})
    with pytest.raises(RequestError, match="signature does not fit"):
        join.read_token(forged.to_token(), village.clock.ms)


async def test_an_invite_for_tier_d_needs_an_open_swarm(village: Village) -> None:
    with pytest.raises(RequestError, match="closed swarm"):
        await (await village.founder()).invite(tier=Tier.D)


async def test_an_invite_for_tier_d_brings_expert_roles_only_and_is_no_secret(tmp_path: Path) -> None:
    founder = await Village(tmp_path).founder(open_to_all=True)
    with pytest.raises(RequestError, match="may not hold router"):
        await founder.invite(tier=Tier.D, roles=frozenset({Role.ROUTER}))
    invite = await founder.invite(tier=Tier.D)
    assert invite.secret is None
    assert await founder.invites.list() == []


async def test_an_admin_invites_within_its_delegation_only(village: Village) -> None:
    founder = await village.founder()
    admin = await village.member(founder, 2)
    await admin.membership.add([await founder.membership.delegate(admin.peer, EXPERTS, Tier.C)])
    assert (await admin.invite()).signer == admin.peer
    with pytest.raises(Forbidden, match="roles router"):
        await admin.invite(roles=frozenset({Role.ROUTER}))
    with pytest.raises(Forbidden, match="may not decide"):
        await (await village.member(founder, 3)).invite()


# --- redeeming --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G-ROLE-4")
async def test_a_secret_makes_its_first_bearer_a_member_and_nobody_else(village: Village) -> None:
    founder = await village.founder()
    invite = await founder.invite(operator="lab")
    made = await founder.invites.redeem(secret_of(invite), key(2).peer_id, "ignored")
    assert (made.peer_id, made.operator, made.tier, frozenset(made.roles)) == (key(2).peer_id, "lab", Tier.C, EXPERTS)
    with pytest.raises(Conflict, match="used by another"):
        await founder.invites.redeem(secret_of(invite), key(3).peer_id, "x")
    assert founder.membership.standing(key(3).peer_id).outcome is Outcome.UNKNOWN_SIGNER
    assert founder.warnings() == {"invite-reused"}
    assert [event["outcome"] for event in founder.told("join.attempted")] == ["ok", "used"]


async def test_the_same_node_gets_the_same_certificate_again_also_after_a_restart(village: Village) -> None:
    founder = await village.founder()
    secret = secret_of(await founder.invite())
    first = await founder.invites.redeem(secret, key(2).peer_id, "bob")
    village.clock.ms += 48 * HOUR
    assert await founder.invites.redeem(secret, key(2).peer_id, "other") == first
    assert await (await village.node(1)).invites.redeem(secret, key(2).peer_id, "other") == first
    assert len(founder.membership.roster.grants[key(2).peer_id]) == 1


async def test_a_joiner_does_not_get_the_operator_of_others_by_its_own_word(village: Village) -> None:
    founder = await village.founder()
    mallory = await founder.invites.redeem(secret_of(await founder.invite()), key(2).peer_id, "alice")
    assert mallory.operator == f"alice-{key(2).peer_id[-8:]}"
    second = await founder.invites.redeem(secret_of(await founder.invite(operator="alice")), key(3).peer_id, "x")
    assert second.operator == "alice", "the one who invites may say so"
    assert (await founder.invites.redeem(secret_of(await founder.invite()), key(4).peer_id, "dora")).operator == "dora"


async def test_a_revoked_node_does_not_get_its_certificate_again(village: Village) -> None:
    founder = await village.founder()
    secret = secret_of(await founder.invite())
    await founder.invites.redeem(secret, key(2).peer_id, "bob")
    await founder.membership.revoke(RevocationKind.PEER, key(2).peer_id)
    with pytest.raises(Forbidden, match="revoked"):
        await founder.invites.redeem(secret, key(2).peer_id, "bob")


async def test_two_nodes_that_race_for_one_token_do_not_both_get_in(village: Village) -> None:
    founder = await village.founder()
    secret = secret_of(await founder.invite())
    refused: list[GnusError] = []

    async def come(number: int) -> None:
        try:
            await founder.invites.redeem(secret, key(number).peer_id, "x")
        except GnusError as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        for number in range(2, 8):
            nursery.start_soon(come, number)
    members = [n for n in range(2, 8) if founder.membership.standing(key(n).peer_id).outcome is Outcome.OK]
    assert (len(members), len(refused)) == (1, 5)
    assert {type(error) for error in refused} == {Conflict}


async def test_a_token_for_several_nodes_serves_so_many(village: Village) -> None:
    founder = await village.founder()
    secret = secret_of(await founder.invite(uses=2))
    for number in (2, 3, 2):
        await founder.invites.redeem(secret, key(number).peer_id, "x")
    with pytest.raises(Conflict):
        await founder.invites.redeem(secret, key(4).peer_id, "x")


async def test_what_nobody_may_redeem_is_said_why(village: Village) -> None:
    founder = await village.founder()
    withdrawn, expired = await founder.invite(), await founder.invite(hours=1)
    await founder.invites.withdraw((await founder.invites.list())[0].id)
    village.clock.ms += HOUR
    for secret, error in ((secret_of(withdrawn), Conflict), (secret_of(expired), Forbidden), ("0" * 64, NotFound)):
        with pytest.raises(error):
            await founder.invites.redeem(secret, key(2).peer_id, "x")
    assert [event["outcome"] for event in founder.told("join.attempted")] == ["withdrawn", "expired", "unknown"]
    assert founder.membership.standing(key(2).peer_id).outcome is Outcome.UNKNOWN_SIGNER


async def test_an_admin_whose_power_ended_lets_nobody_in(village: Village) -> None:
    founder = await village.founder()
    admin = await village.member(founder, 2)
    await admin.membership.add([await founder.membership.delegate(admin.peer, EXPERTS, Tier.C)])
    secret = secret_of(await admin.invite())
    await admin.membership.add([await founder.membership.revoke(RevocationKind.DELEGATION, admin.peer)])
    with pytest.raises(Forbidden):
        await admin.invites.redeem(secret, key(3).peer_id, "x")
    assert (await admin.invites.list())[0].redeemed == ()


class _Crash(BaseException):
    """The process ends here."""


async def test_a_crash_between_the_mark_and_the_answer_costs_nobody_the_token(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    founder = await village.founder()
    secret = secret_of(await founder.invite())

    async def crash(*_: object, **__: object) -> None:
        raise _Crash

    with monkeypatch.context() as patch:
        patch.setattr(Membership, "add", crash)
        with pytest.raises(_Crash):
            await founder.invites.redeem(secret, key(2).peer_id, "bob")
    again = await village.node(1)
    assert again.membership.standing(key(2).peer_id).outcome is Outcome.UNKNOWN_SIGNER
    with pytest.raises(Conflict):
        await again.invites.redeem(secret, key(3).peer_id, "x")
    await again.invites.redeem(secret, key(2).peer_id, "bob")
    assert again.membership.standing(key(2).peer_id).outcome is Outcome.OK


async def test_what_cannot_be_marked_is_not_handed_out(village: Village, monkeypatch: pytest.MonkeyPatch) -> None:
    founder = await village.founder()
    secret = secret_of(await founder.invite())

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(invites_module, "replace_file", full)
        with pytest.raises(DataError, match="cannot write"):
            await founder.invites.redeem(secret, key(2).peer_id, "bob")
    assert founder.membership.standing(key(2).peer_id).outcome is Outcome.UNKNOWN_SIGNER
    await founder.invites.redeem(secret, key(3).peer_id, "carol")


@pytest.mark.parametrize("damage", [b"", b"[", b"[{}]", b"\xff"])
async def test_a_damaged_file_of_invites_is_said_and_lets_nobody_in(village: Village, damage: bytes) -> None:
    founder = await village.founder()
    secret = secret_of(await founder.invite())
    (founder.home / "swarm" / "invites.json").write_bytes(damage)
    with pytest.raises(DataError, match="invites is damaged"):
        await founder.invites.redeem(secret, key(2).peer_id, "x")
    with pytest.raises(DataError, match="invites is damaged"):
        await founder.invite()


async def test_the_number_of_open_invites_is_bounded(village: Village, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invites_module, "MAX_INVITES", 3)
    founder = await village.founder()
    first = await founder.invite(hours=1)
    await founder.invite()
    await founder.invite()
    with pytest.raises(Overloaded, match="open already"):
        await founder.invite()
    village.clock.ms += HOUR  # what is over makes room
    await founder.invite()
    assert len(await founder.invites.list()) == 3
    with pytest.raises(NotFound):
        await founder.invites.redeem(secret_of(first), key(2).peer_id, "x")


# --- over the network -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G-LAY-3")
@pytest.mark.usefixtures("mock_clock")
async def test_a_node_that_shows_its_token_becomes_a_member_on_both_sides(village: Village) -> None:
    founder, joiner = await village.founder(), await village.node(2)
    async with village.running(founder), village.running(joiner):
        await take_on(joiner, await founder.invite())
        await joiner.until(lambda: is_member(joiner))
        assert founder.roles_of(joiner) == EXPERTS
        assert joiner.roles_of(joiner) == EXPERTS
        assert founder.membership.standing(joiner.peer).operators == {"bob"}
        assert joiner.roles_of(founder) == frozenset(Role)
    again = await village.node(2)
    assert again.roles_of(again) == EXPERTS
    assert "secret" not in (again.home / "swarm" / "swarm.json").read_text()
    assert json.loads((again.home / "swarm" / "swarm.json").read_text())["pending"] is None


async def test_a_token_is_kept_until_the_inviting_node_can_be_reached(
    village: Village, mock_clock: trio.testing.MockClock
) -> None:
    founder, joiner = await village.founder(), await village.node(2)
    async with village.running(founder):
        invite = await founder.invite()
    await take_on(joiner, invite)
    joiner = await village.node(2)  # after a restart
    async with village.running(joiner):
        await trio.testing.wait_all_tasks_blocked(0.01)
        mock_clock.jump(30)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert joiner.warnings() == {"join-pending"}
    # The new network gives the founder the address that the invite names.
    village.network = type(village.network)()
    joiner = await village.node(2)
    async with village.running(founder), village.running(joiner):
        await joiner.until(lambda: is_member(joiner))
    assert joiner.warnings() == set()


@pytest.mark.usefixtures("mock_clock")
async def test_a_definite_refusal_is_said_and_not_tried_again(village: Village) -> None:
    founder, late = await village.founder(), await village.node(3)
    async with village.running(founder), village.running(late):
        invite = await founder.invite()
        await founder.invites.redeem(secret_of(invite), key(2).peer_id, "x")
        await take_on(late, invite)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert late.warnings() == {"join-pending"}
        assert late.outcome_of(late) is Outcome.UNKNOWN_SIGNER
        assert len(founder.told("join.attempted")) == 2


async def ask(net: Net, peer: str, message: bytes) -> None:
    """Sends one message to the joining protocol and reads the answer.

    Raises:
        GnusError: what the peer refused with.
    """
    stream = await net.open_stream(peer, JOIN)
    await stream.send(message)
    await receive(stream, "welcome")


async def test_guessing_is_limited_for_each_peer_and_a_good_secret_still_counts(
    village: Village, mock_clock: trio.testing.MockClock
) -> None:
    founder = await village.founder()
    guess = pack("join", secret="0" * 64, operator="x")
    async with (
        village.running(founder),
        village.network.join(key(9).peer_id) as bad,
        village.network.join(key(8).peer_id) as good,
    ):
        for net in (bad, good):
            await net.connect(founder.peer, founder.addresses())
        for _ in range(join.TRIES):
            with pytest.raises(NotFound):
                await ask(bad, founder.peer, guess)
        with pytest.raises(RateLimited) as refused:
            await ask(bad, founder.peer, guess)
        assert (refused.value.retry_after or 0) > 500
        await ask(good, founder.peer, pack("join", secret=secret_of(await founder.invite()), operator="x"))
        mock_clock.jump(join.TRIES_SECONDS + 1)
        with pytest.raises(NotFound):
            await ask(bad, founder.peer, guess)
    assert founder.told("join.attempted")[join.TRIES]["outcome"] == "limited"


@pytest.mark.usefixtures("mock_clock")
@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff" * 64,
        canonical.encode(["join"]),
        pack("hello"),
        pack("join"),
        pack("join", secret="0" * 63, operator="x"),
        pack("join", secret=b"0" * 64, operator="x"),
        pack("join", secret="0" * 64, operator=""),
        pack("join", secret="0" * 64, operator="a\nb"),
        pack("join", secret="0" * 64, operator="x" * 129),
        pack("join", secret="0" * 64, operator="x", more="y" * 100_000),
    ],
)
async def test_what_is_no_request_to_join_resets_the_stream_and_tells_nothing(village: Village, message: bytes) -> None:
    founder = await village.founder()
    async with village.running(founder), village.network.join(key(9).peer_id) as net:
        await net.connect(founder.peer, founder.addresses())
        with pytest.raises(PeerUnreachable):
            await ask(net, founder.peer, message)
    assert founder.told("join.attempted") == []


async def test_our_own_troubles_are_not_told_to_strangers(village: Village) -> None:
    founder = await village.founder()
    secret = secret_of(await founder.invite())
    async with village.running(founder), village.network.join(key(9).peer_id) as net:
        await net.connect(founder.peer, founder.addresses())
        (founder.home / "swarm" / "invites.json").write_bytes(b"damaged")
        with pytest.raises(GnusError) as refused:
            await ask(net, founder.peer, pack("join", secret=secret, operator="x"))
    assert str(founder.home) not in str(refused.value.to_wire())
    assert refused.value.status == 503


@pytest.mark.usefixtures("mock_clock")
async def test_an_outsider_gets_nothing_of_the_roster(village: Village) -> None:
    founder = await village.founder()
    swarm = founder.membership.swarm_id
    total = founder.membership.records.total
    async with village.running(founder), village.network.join(key(9).peer_id) as net:
        await net.connect(founder.peer, founder.addresses())
        for first in (
            pack("compare", swarm_id=swarm, own=[], total=total),
            pack("compare", swarm_id="sha256:" + "0" * 64, own=[], total=total),
        ):
            stream = await net.open_stream(founder.peer, ROSTER)
            await stream.send(first)
            with pytest.raises(RecordRefused):
                await receive(stream, "same", "differ")
            assert await stream.receive() is None
        stream = await net.open_stream(founder.peer, ROSTER)
        await stream.send(pack("want", digests=bytes(32)))
        with pytest.raises(PeerUnreachable):
            await receive(stream, "records")


# --- what the joiner believes -----------------------------------------------------------------------------------------


async def redeem_at(village: Village, invite: Invite, answer: Any) -> None:
    """Redeems ``invite`` at a node that holds the inviting node's key and answers what ``answer`` sends."""
    inviter = next(iter(invite.inviters))

    async def serve(stream: MessageStream) -> None:
        await receive(stream, "join")
        await answer(stream)

    async with (
        village.network.join(inviter, [address.partition("/p2p/")[0] for address in invite.bootstrap]) as liar,
        liar.serve(JOIN, serve),
        village.network.join(key(2).peer_id) as net,
    ):
        await join.redeem(net, invite, "bob", village.clock.ms)


async def test_certificates_that_the_root_did_not_sign_make_no_member(village: Village) -> None:
    founder = await village.founder()
    invite = await founder.invite()
    other = Village(village.folder / "other")
    other.folder.mkdir()
    stranger = await other.founder()
    made = await stranger.membership.grant(key(2).peer_id, EXPERTS, operator="x")

    async def answer(stream: MessageStream) -> None:
        records = [record.to_bytes() for record in stranger.membership.records_known()]
        await stream.send(pack("welcome", certificate=made.to_bytes(), count=len(records)))
        await stream.send(pack("records", records=records))

    with pytest.raises(RecordRefused, match="unknown_signer"):
        await redeem_at(village, invite, answer)


async def test_a_certificate_for_somebody_else_makes_no_member(village: Village) -> None:
    founder = await village.founder()
    invite = await founder.invite()
    made = await founder.membership.grant(key(3).peer_id, EXPERTS, operator="x")

    async def answer(stream: MessageStream) -> None:
        await stream.send(pack("welcome", certificate=made.to_bytes(), count=0))

    with pytest.raises(RecordRefused, match="unknown_signer"):
        await redeem_at(village, invite, answer)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (pack("welcome", certificate=b"", count=2**40), b""),
        (pack("welcome", certificate="text", count=0), b""),
        (pack("welcome", certificate=b"x", count=-1), b""),
        (pack("welcome", certificate=b"x", count=3), pack("records", records=[])),
        (pack("welcome", certificate=b"x", count=3), pack("records", records=["text"])),
        (pack("welcome", certificate=b"x" * 9000, count=0), b""),
    ],
)
async def test_an_answer_that_breaks_the_protocol_is_refused(village: Village, first: bytes, then: bytes) -> None:
    invite = await (await village.founder()).invite()

    async def answer(stream: MessageStream) -> None:
        await stream.send(first)
        if then:
            await stream.send(then)

    # A violation is one kind of "cannot be redeemed there now".
    with pytest.raises((ProtocolViolation, PeerUnreachable)):
        await redeem_at(village, invite, answer)


async def test_a_home_may_hold_invites_of_its_present_swarm_only(village: Village) -> None:
    founder = await village.founder()
    secret = secret_of(await founder.invite())
    await founder.membership.leave()
    await founder.membership.init("another", operator="alice")
    assert await Invites(founder.membership, founder.observer).list() == []
    with pytest.raises(NotFound):
        await founder.invites.redeem(secret, key(2).peer_id, "x")


@pytest.mark.usefixtures("mock_clock")
async def test_a_swarm_of_more_records_than_one_message_holds_is_handed_over_whole(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnusnode.net.rostermsg.PAGE", 4)
    founder, joiner = await village.founder(), await village.node(2)
    for number in range(30, 41):
        await founder.membership.grant(key(number).peer_id, EXPERTS, operator="x")
    async with village.running(founder), village.running(joiner):
        await take_on(joiner, await founder.invite())
        await joiner.until(lambda: is_member(joiner))
        assert joiner.membership.records.total == founder.membership.records.total
        await connect(joiner, founder)
