"""The hello: who is let in, what each side is told, clocks that differ, keys that were copied."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock as Clock

from gnusnode.contracts.outcome import Outcome
from gnusnode.errors import Forbidden, UnsupportedProtocol
from gnusnode.net.peerentry import PeerState
from tests.fakes.meeting import (
    ROOT,
    Meeting,
    both,
    certificate,
    key,
    pair,
    revocation,
    short_lived,
    swallow,
    until_reset,
    value,
)

USABLE, REFUSED, GONE = PeerState.USABLE, PeerState.REFUSED, None


class TestHello:
    @pytest.mark.requirement("G-ROLE-4")
    async def test_two_members_that_knew_nothing_of_each_other_become_usable(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        began = trio.current_time()
        a = await meeting.start(key(11), experts=["gnus/a"])
        b = await meeting.start(key(12), peers=a.net.addresses())
        await both(a, b, USABLE)
        assert trio.current_time() - began < 3
        [seen] = b.table.cards()
        assert (seen.expert_id, seen.peer) == ("gnus/a", a.peer)
        assert b.entry(a).hello.services == {"core": 1, "elm": 1}  # type: ignore[union-attr]
        assert a.admission.allows(b.peer) is None
        assert b.admission.allows(a.peer) is None

    async def test_whoever_only_answers_is_greeted_by_the_listener_after_a_while(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a, b = await meeting.start(key(11)), await meeting.start(key(12))
        with trio.fail_after(60):
            await a.net.connect(b.peer, b.net.addresses())  # behind the back of the dial loop
        await both(a, b, USABLE)

    async def test_where_both_dialled_at_once_nobody_waits_long_for_the_other_to_speak(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        spoken = trio.Event()

        async def listen(_stream: object) -> None:
            spoken.set()

        async with meeting.network.join(key(50).peer_id) as net, net.serve("/gnus/hello/1", listen):
            a.table.discovered(net.peer_id, net.addresses(), "mdns")
            a.table.dialled(net.peer_id)  # and of the two connections the other one is kept
            await net.connect(a.peer, a.net.addresses())
            with trio.fail_after(1):
                await spoken.wait()

    async def test_both_may_dial_at_once(self, autojump_clock: Clock, meeting: Meeting) -> None:
        addresses = [f"/ip4/10.9.9.{n}/tcp/8478" for n in (1, 2)]
        named = [f"{address}/p2p/{key(n).peer_id}" for address, n in zip(addresses, (11, 12), strict=True)]
        a = await meeting.start(key(11), peers=[named[1]], address=addresses[0])
        b = await meeting.start(key(12), peers=[named[0]], address=addresses[1])
        await both(a, b, USABLE)

    @pytest.mark.requirement("G-ROLE-4")
    async def test_a_stranger_is_refused_and_both_sides_say_why(self, autojump_clock: Clock, meeting: Meeting) -> None:
        a = await meeting.start(key(11), experts=["gnus/secret"])
        b = await meeting.start(key(12), peers=a.net.addresses(), member=False)
        await both(a, b, REFUSED)
        assert "not a member" in a.entry(b).reason
        assert "not a member" in b.entry(a).reason
        assert b.entry(a).reason.startswith("it refuses this node")
        refused = a.admission.allows(b.peer)
        assert isinstance(refused, Forbidden)
        assert "unknown_signer" in str(refused)
        assert refused.where == b.peer

    @pytest.mark.requirement("G-ROLE-4")
    async def test_a_stranger_learns_nothing_from_the_hello_of_what_the_swarm_serves(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11), experts=["gnus/secret"])
        b = await meeting.start(key(12), peers=a.net.addresses(), member=False)
        await both(a, b, REFUSED)
        seen = b.entry(a)
        assert (seen.announcement, dict(seen.services), seen.cards) == (None, {}, ())
        assert seen.hello is not None
        assert not seen.hello.roles

    async def test_another_swarm_is_refused_without_showing_it_our_certificates(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        other = key(2)
        a = await meeting.start(key(11))
        b = await meeting.start(
            key(12), peers=a.net.addresses(), root=other.peer_id, records=[certificate(key(12).peer_id, root=other)]
        )
        await both(a, b, REFUSED)
        for one, another in ((a, b), (b, a)):
            assert "names the swarm" in one.entry(another).reason
            assert one.entry(another).code == "wrong_swarm"
            assert not one.members.knows(another.peer)

    @pytest.mark.requirement("G-ROLE-4")
    async def test_an_expired_certificate_is_refused_with_that_reason(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        old = certificate(key(12).peer_id, begin=-10, days=5)
        a = await meeting.start(key(11))
        b = await meeting.start(key(12), peers=a.net.addresses(), records=[old])
        await both(a, b, REFUSED)
        assert a.entry(b).code == b.entry(a).code == "certificate_expired"

    @pytest.mark.requirement("G-ROLE-4")
    async def test_a_revoked_member_loses_its_admission_at_once(self, autojump_clock: Clock, meeting: Meeting) -> None:
        a, b = await pair(meeting)
        await a.members.add([revocation(b.peer).to_bytes()])
        assert a.admission.allows(b.peer) is not None
        with trio.fail_after(10):
            await a.until(b, REFUSED)
        assert a.entry(b).code == "revoked"
        assert a.table.usable() == ()
        with trio.fail_after(10):
            await b.until(a, REFUSED)
        assert "was revoked" in b.entry(a).reason
        assert b.members.standing(b.peer).outcome is Outcome.REVOKED, "the refusal came with its proof"

    async def test_a_node_that_is_stopping_is_not_taken_for_one_that_speaks_another_language(
        self, autojump_clock: Clock, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a, b = await pair(meeting)

        async def gone(*_: object) -> None:
            raise UnsupportedProtocol("nobody serves that any more", where=b.peer)

        monkeypatch.setattr(a.net, "open_stream", gone)
        await a.presence.greeter.greet(b.peer)
        assert a.state(b) is not REFUSED
        assert a.entry(b).refusal is None

    async def test_a_membership_that_runs_out_during_a_connection_ends_the_admission(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        b = await meeting.start(key(12), peers=a.net.addresses(), records=[short_lived(key(12).peer_id)])
        await both(a, b, USABLE)
        with trio.fail_after(90):
            await a.until(b, REFUSED)
        assert a.entry(b).code == "certificate_expired"

    async def test_who_joins_over_a_refused_connection_is_usable_without_a_new_one(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        b = await meeting.start(key(12), peers=a.net.addresses(), member=False)
        await both(a, b, REFUSED)
        before = b.table.get(a.peer)
        b.members.move(ROOT.peer_id, [certificate(b.peer)])
        await both(a, b, USABLE)
        assert before is not None
        assert b.entry(a).link == before.link

    async def test_a_refused_peer_is_let_go_and_not_dialled_all_the_time(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        b = await meeting.start(key(12), peers=a.net.addresses(), member=False)
        await both(a, b, REFUSED)
        await trio.sleep(200)
        assert b.peer not in a.net.connected() or a.entry(b).link is not None
        assert 1 < value(b, "gnusnode_dials_total", outcome="ok") <= 4

    async def test_on_an_open_swarm_everybody_may_offer_the_open_roles(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11), open_to_all=True)
        b = await meeting.start(key(12), peers=a.net.addresses(), member=False, open_to_all=True, experts=["gnus/b"])
        await both(a, b, USABLE)
        assert a.entry(b).standing.tier.value == "D"  # type: ignore[union-attr]
        assert [seen.expert_id for seen in a.table.cards()] == ["gnus/b"]

    async def test_a_peer_that_breaks_the_rules_is_refused_and_the_node_lives_on(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        for number, data in enumerate((b"", b"\xff" * 100, b"\xa0", b"\x00" * 200_000)):
            async with meeting.network.join(key(50 + number).peer_id) as net:
                await net.connect(a.peer, a.net.addresses())
                stream = await net.open_stream(a.peer, "/gnus/hello/1")
                await stream.send(data)
                assert await until_reset(stream)
        b = await meeting.start(key(12), peers=a.net.addresses())
        await both(a, b, USABLE)

    async def test_a_peer_cannot_make_a_node_answer_hellos_without_pause(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        async with meeting.network.join(key(50).peer_id) as net:
            await net.connect(a.peer, a.net.addresses())
            began = trio.current_time()
            for _ in range(20):
                stream = await net.open_stream(a.peer, "/gnus/hello/1")
                await stream.send(b"no hello")
                assert await until_reset(stream)
            assert trio.current_time() - began >= 1.9

    async def test_a_peer_without_our_hello_is_refused_as_such(self, autojump_clock: Clock, meeting: Meeting) -> None:
        async with meeting.network.join(key(50).peer_id) as net:
            a = await meeting.start(key(11), peers=net.addresses())
            with trio.fail_after(10):
                while (entry := a.table.get(net.peer_id)) is None or entry.state is not REFUSED:
                    await trio.sleep(0.1)
            assert entry.code == "unsupported_protocol"

    async def test_a_peer_that_says_nothing_is_given_up(self, autojump_clock: Clock, meeting: Meeting) -> None:
        async def mute(_stream: object) -> None:
            await trio.sleep_forever()

        async with meeting.network.join(key(50).peer_id) as net, net.serve("/gnus/hello/1", mute):
            a = await meeting.start(key(11))
            await a.net.connect(net.peer_id, net.addresses())
            await trio.sleep(5)
            assert isinstance(a.admission.allows(net.peer_id), Forbidden)
            await trio.sleep(120)
            assert net.peer_id not in a.net.connected()
            assert a.table.get(net.peer_id) is None

    async def test_more_certificates_than_a_hello_may_carry_do_not_stop_it(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        many = [certificate(key(12).peer_id, days=90 + n) for n in range(40)]
        b = await meeting.start(key(12), peers=a.net.addresses(), records=many)
        await both(a, b, USABLE)


class TestClocks:
    async def test_a_difference_is_measured_on_both_sides_although_the_way_is_long(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        meeting.network.delay(0.4)
        a = await meeting.start(key(11))
        b = await meeting.start(key(12), peers=a.net.addresses(), clock_ms=7_000)
        await both(a, b, USABLE)
        assert a.entry(b).skew_ms == pytest.approx(7_000, abs=5)
        assert b.entry(a).skew_ms == pytest.approx(-7_000, abs=5)
        await trio.sleep(2)
        assert "clock-skew" in a.warnings() & b.warnings()

    async def test_a_long_way_alone_is_no_difference(self, autojump_clock: Clock, meeting: Meeting) -> None:
        meeting.network.delay(1.0)
        a, b = await pair(meeting)
        await trio.sleep(2)
        assert abs(a.entry(b).skew_ms or 0) < 5
        assert "clock-skew" not in a.warnings() | b.warnings()

    async def test_only_the_node_whose_clock_is_off_is_warned_when_there_are_several(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        others = [await meeting.start(key(n), peers=a.net.addresses()) for n in (12, 13)]
        wrong = await meeting.start(key(14), peers=a.net.addresses(), clock_ms=-20_000)
        for node in (*others, wrong):
            await both(a, node, USABLE)
        await trio.sleep(2)
        assert "clock-skew" in wrong.warnings()
        assert "clock-skew" not in a.warnings()

    async def test_beyond_a_minute_both_refuse_and_are_told_of_their_clocks(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        b = await meeting.start(key(12), peers=a.net.addresses(), clock_ms=75_000)
        await both(a, b, REFUSED)
        assert "75 s ahead of ours" in a.entry(b).reason
        assert "75 s" in b.entry(a).reason
        await trio.sleep(2)
        assert "clock-skew" in a.warnings() & b.warnings()

    async def test_heartbeats_hold_across_clocks_that_differ_by_less_than_a_minute(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        b = await meeting.start(key(12), peers=a.net.addresses(), clock_ms=-50_000)
        await both(a, b, USABLE)
        await trio.sleep(60)
        for one, another in ((a, b), (b, a)):
            assert one.entry(another).announcement is not None
            assert one.table.now() - one.entry(another).announced_at <= 11


class TestDuplicates:
    async def test_a_copied_key_is_noticed_by_both_nodes_and_by_who_hears_them(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        b = await meeting.start(key(12), peers=a.net.addresses())
        await both(a, b, USABLE)
        double = await meeting.start(key(12), peers=a.net.addresses())
        await trio.sleep(40)
        assert "duplicate-identity" in a.warnings() & b.warnings() & double.warnings()

    async def test_a_copied_key_is_noticed_although_the_gossip_carries_but_one_of_the_two(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        b = await meeting.start(key(12), peers=a.net.addresses())
        await both(a, b, USABLE)
        b.net.publish = swallow  # type: ignore[method-assign]  # as libp2p, where one stream stands for the key
        double = await meeting.start(key(12), peers=a.net.addresses())
        double.net.publish = swallow  # type: ignore[method-assign]
        await trio.sleep(100)
        assert "duplicate-identity" in a.warnings() & b.warnings() & double.warnings()

    async def test_a_clock_that_is_set_right_ends_the_warning(self, autojump_clock: Clock, meeting: Meeting) -> None:
        a = await meeting.start(key(11))
        b = await meeting.start(key(12), peers=a.net.addresses(), clock_ms=20_000)
        await both(a, b, USABLE)
        await trio.sleep(2)
        assert "clock-skew" in a.warnings()
        b.clock_ms = 0
        await trio.sleep(60)
        assert "clock-skew" not in a.warnings() | b.warnings()

    async def test_the_warning_ends_some_time_after_one_of_them_has_stopped(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        b = await meeting.start(key(12), peers=a.net.addresses())
        double = await meeting.start(key(12), peers=a.net.addresses())
        await trio.sleep(40)
        assert "duplicate-identity" in b.warnings()
        await meeting.stop(double)
        await trio.sleep(180)
        assert "duplicate-identity" not in a.warnings() | b.warnings()

    @pytest.mark.parametrize("goodbye", [True, False])
    async def test_restarts_are_no_duplicates_and_leave_no_ghosts(
        self, autojump_clock: Clock, meeting: Meeting, goodbye: bool
    ) -> None:
        a = await meeting.start(key(11))
        b = await meeting.start(key(12), peers=a.net.addresses(), experts=["gnus/0"])
        await both(a, b, USABLE)
        for turn in range(10):
            await meeting.stop(b, goodbye=goodbye)
            began = trio.current_time()
            b = await meeting.start(key(12), peers=a.net.addresses(), experts=[f"gnus/{turn}"])
            await both(a, b, USABLE)
            assert trio.current_time() - began < 5
            assert [seen.expert_id for seen in a.table.cards()] == [f"gnus/{turn}"]
            assert len(a.table.entries()) == 1
        await trio.sleep(60)
        assert "duplicate-identity" not in a.warnings() | b.warnings()
        assert a.state(b) is USABLE
