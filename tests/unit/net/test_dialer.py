"""Dialling, the operator's orders, and many nodes at once; in memory and in virtual time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock as Clock

from gnusnode.errors import DataError, Forbidden, NotFound, PeerUnreachable, RequestError
from gnusnode.net.peerentry import PeerState
from gnusnode.net.port import PeerAddresses
from tests.fakes.meeting import (
    Meeting,
    bare,
    both,
    certificate,
    key,
    pair,
    swallow,
    value,
)

USABLE, REFUSED, GONE = PeerState.USABLE, PeerState.REFUSED, None


class TestDialling:
    async def test_a_lost_configured_peer_is_back_within_a_second(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a, b = await pair(meeting)
        meeting.network.cut(a.peer, b.peer)
        meeting.network.heal(a.peer, b.peer)
        await trio.testing.wait_all_tasks_blocked()
        assert b.state(a) is PeerState.DIALLED
        began = trio.current_time()
        await both(a, b, USABLE)
        assert trio.current_time() - began <= 1

    async def test_a_dead_peer_is_dialled_ever_more_rarely(self, autojump_clock: Clock, meeting: Meeting) -> None:
        dead = f"/ip4/10.1.1.1/tcp/1/p2p/{key(90).peer_id}"
        a = await meeting.start(key(11), peers=[dead])
        await trio.sleep(20)
        early = value(a, "gnusnode_dials_total", outcome="failed")
        assert 3 <= early <= 6
        await trio.sleep(600)
        assert value(a, "gnusnode_dials_total", outcome="failed") - early <= 22
        assert "peers-unreachable" in a.warnings()
        assert "connection refused" in a.table.entries()[0].reason

    async def test_the_warning_of_unreachable_peers_ends_with_the_first_that_answers(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        where = "/ip4/10.1.1.1/tcp/8478"
        a = await meeting.start(key(11), peers=[f"{where}/p2p/{key(12).peer_id}"])
        await trio.sleep(20)
        assert "peers-unreachable" in a.warnings()
        b = await meeting.start(key(12), address=where)
        await both(a, b, USABLE)
        await trio.sleep(2)
        assert "peers-unreachable" not in a.warnings()

    async def test_a_node_that_is_refused_by_all_that_it_was_told_of_warns_and_says_why(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        b = await meeting.start(key(12), peers=a.net.addresses(), records=[])
        await trio.sleep(20)
        assert "not a member" in b.entry(a).reason
        assert "peers-unreachable" in b.warnings()

    async def test_enough_is_enough_but_configured_peers_are_always_dialled(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        b = await meeting.start(key(12))
        c = await meeting.start(key(13), peers=a.net.addresses(), wanted=1)
        await both(a, c, USABLE)
        c.presence.dialer.found(PeerAddresses(b.peer, b.net.addresses()), "mdns")
        await trio.sleep(30)
        assert b.peer not in c.net.connected()
        c.presence.dialer.found(PeerAddresses(b.peer, b.net.addresses()), "configured")
        await both(b, c, USABLE)

    async def test_a_node_never_dials_itself(self, autojump_clock: Clock, meeting: Meeting) -> None:
        where = "/ip4/10.1.1.1/tcp/8478"
        a = await meeting.start(key(11), peers=[f"{where}/p2p/{key(11).peer_id}"], address=where)
        await trio.sleep(60)
        assert value(a, "gnusnode_dials_total", outcome="failed") == 0
        assert a.table.entries() == ()
        assert "peers-unreachable" not in a.warnings()

    async def test_what_is_found_on_the_local_network_is_dialled(self, autojump_clock: Clock, meeting: Meeting) -> None:
        a = await meeting.start(key(11))

        async def finder() -> AsyncGenerator[PeerAddresses, None]:
            yield PeerAddresses(a.peer, a.net.addresses())
            yield PeerAddresses(key(98).peer_id, ())

        b = await meeting.start(key(12), finders=[finder()])
        await both(a, b, USABLE)
        assert "mdns" in b.entry(a).sources

    async def test_peers_that_share_a_bootstrap_node_find_each_other_by_the_dht(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        meeting.replicated = True
        a = await meeting.start(key(11), dht=True)
        b = await meeting.start(key(12), peers=a.net.addresses(), dht=True)
        c = await meeting.start(key(13), peers=a.net.addresses(), dht=True)
        b.net.publish = c.net.publish = swallow  # type: ignore[method-assign]  # so that gossip cannot be what helped
        await both(b, c, USABLE)
        assert "dht" in b.entry(c).sources | c.entry(b).sources

    async def test_a_dead_entry_of_the_dht_is_no_ghost(self, autojump_clock: Clock, meeting: Meeting) -> None:
        a = await meeting.start(key(11), dht=True)
        b = await meeting.start(key(12), peers=a.net.addresses(), dht=True)
        dead = await meeting.start(key(13), peers=a.net.addresses(), dht=True)
        await both(a, dead, USABLE)
        await trio.sleep(10)
        await meeting.stop(dead, goodbye=False)
        await trio.sleep(500)
        failed = value(b, "gnusnode_dials_total", outcome="failed")
        assert b.state(dead) is GONE
        await trio.sleep(600)
        assert value(b, "gnusnode_dials_total", outcome="failed") <= failed + 1

    async def test_addresses_of_members_are_known_after_a_restart(
        self, autojump_clock: Clock, meeting: Meeting, tmp_path: Path
    ) -> None:
        a = await meeting.start(key(11))
        b = await meeting.start(key(12), peers=a.net.addresses(), file=tmp_path / "peers.json")
        await both(a, b, USABLE)
        await meeting.stop(b)
        b = await meeting.start(key(12), file=tmp_path / "peers.json")
        await both(a, b, USABLE)

    async def test_when_the_bootstrap_node_dies_the_others_keep_their_mesh(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        meeting.replicated = True
        a = await meeting.start(key(11))
        b, c = [await meeting.start(key(n), peers=a.net.addresses()) for n in (12, 13)]
        await both(b, c, USABLE)
        await meeting.stop(a, goodbye=False)
        await trio.sleep(60)
        await both(b, c, USABLE)
        meeting.network.cut(b.peer, c.peer)
        meeting.network.heal(b.peer, c.peer)
        await both(b, c, USABLE)


class TestOperator:
    async def test_connecting_by_hand_tells_how_it_went(self, autojump_clock: Clock, meeting: Meeting) -> None:
        a, b = await meeting.start(key(11)), await meeting.start(key(12))
        with trio.fail_after(20):
            seen = await b.presence.connect(a.net.addresses()[0])
        assert (seen["peer"], seen["state"]) == (a.peer, "authenticated")
        with pytest.raises(RequestError, match="names no peer"):
            await b.presence.connect("/ip4/10.0.0.1/tcp/1")
        with pytest.raises(PeerUnreachable):
            await b.presence.connect(f"/ip4/10.7.7.7/tcp/1/p2p/{key(70).peer_id}")

    async def test_a_banned_peer_is_cut_off_stays_out_and_comes_back_after_the_ban(
        self, autojump_clock: Clock, meeting: Meeting, tmp_path: Path
    ) -> None:
        a = await meeting.start(key(11), file=tmp_path / "peers.json")
        b = await meeting.start(key(12), peers=a.net.addresses())
        await both(a, b, USABLE)
        await a.presence.ban(b.peer[-6:], "spam")
        await trio.sleep(60)
        assert a.state(b) is PeerState.BANNED
        assert a.entry(b).reason == "spam"
        assert b.peer not in a.net.connected()
        await meeting.stop(a)
        a = await meeting.start(key(11), file=tmp_path / "peers.json", address=bare(a))
        await trio.sleep(60)
        assert a.table.bans() == {b.peer: "spam"}
        assert a.net.connected() == frozenset()
        with pytest.raises(Forbidden):
            await a.presence.connect(b.net.addresses()[0])
        await a.presence.unban(b.peer)
        await both(a, b, USABLE)
        with pytest.raises(NotFound, match="not banned"):
            await a.presence.unban(b.peer)

    async def test_a_node_neither_bans_nor_dials_itself(self, autojump_clock: Clock, meeting: Meeting) -> None:
        a = await meeting.start(key(11))
        with pytest.raises(RequestError, match="this is the node itself"):
            await a.presence.ban(a.peer)
        with pytest.raises(RequestError, match="this is the node itself"):
            await a.presence.connect(a.net.addresses()[0])
        assert a.table.bans() == {}

    async def test_one_who_was_never_seen_can_be_banned(self, autojump_clock: Clock, meeting: Meeting) -> None:
        a = await meeting.start(key(11))
        await a.presence.ban(key(12).peer_id)
        b = await meeting.start(key(12), peers=a.net.addresses())
        await trio.sleep(10)
        assert a.net.connected() == frozenset()
        assert value(b, "gnusnode_dials_total", outcome="failed") > 0

    async def test_ping_measures_and_show_tells_everything(self, autojump_clock: Clock, meeting: Meeting) -> None:
        meeting.network.delay(0.05)
        a, b = await pair(meeting, experts=["gnus/a"])
        assert (await a.presence.ping(b.peer))["rtt_ms"] == pytest.approx(100, abs=1)
        shown = a.presence.show(b.peer[-8:])
        assert shown["state"] == "usable"
        assert shown["announcement"]["artifacts"][0]["expert_ids"] == ["gnus/a"]
        assert a.presence.overview()["counts"]["usable"] == 1
        with pytest.raises(NotFound):
            a.presence.show("nobody")

    async def test_gauges_follow_the_table(self, autojump_clock: Clock, meeting: Meeting) -> None:
        a, b = await pair(meeting)
        assert value(a, "gnusnode_peers", state="usable") == 1
        await meeting.stop(b)
        assert value(a, "gnusnode_peers", state="usable") == 0
        names = [stamped.event.name for stamped in a.observer.bus.recent()]
        assert names.count("peer.changed") >= 3

    async def test_a_disk_that_takes_no_list_of_peers_stops_nothing_but_a_ban_says_so(
        self, autojump_clock: Clock, meeting: Meeting, tmp_path: Path
    ) -> None:
        a = await meeting.start(key(11), file=tmp_path / "gone" / "peers.json")
        b = await meeting.start(key(12), peers=a.net.addresses())
        await both(a, b, USABLE)
        await trio.sleep(70)
        assert a.state(b) is USABLE
        with pytest.raises(DataError):
            await a.presence.ban(b.peer)
        assert a.state(b) is PeerState.BANNED

    async def test_a_node_that_moves_to_another_swarm_says_goodbye_there_and_meets_the_new_one(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        other = key(2)
        a, b = await pair(meeting)
        c = await meeting.start(
            key(13), root=other.peer_id, records=[certificate(key(13).peer_id, root=other)], peers=b.net.addresses()
        )
        await both(b, c, REFUSED)
        b.members.move(other.peer_id, [certificate(b.peer, root=other)])
        await both(b, c, USABLE)
        await trio.sleep(15)
        assert a.state(b) in (GONE, REFUSED)
        assert b.entry(c).announcement.swarm_id == c.members.roster.swarm_id  # type: ignore[union-attr]


class TestMany:
    @pytest.mark.slow
    async def test_sixteen_nodes_with_one_bootstrap_form_a_mesh_and_heal_after_kills(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        meeting.replicated = True
        first = await meeting.start(key(100))
        nodes = [first, *[await meeting.start(key(100 + n), peers=first.net.addresses()) for n in range(1, 16)]]
        await trio.sleep(30)
        assert {node.table.counts().usable for node in nodes} == {15}
        for node in nodes[3:8]:
            await meeting.stop(node, goodbye=False)
        await trio.sleep(40)
        assert {(n.table.counts().usable, n.table.counts().discovered) for n in meeting.nodes} == {(10, 10)}
