"""Heartbeats and probes: what others come to know, how soon, and what they do not believe."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock as Clock

from gnusnode.contracts.generation import EngineState
from gnusnode.contracts.hello import Heartbeat
from gnusnode.contracts.swarm import Role
from gnusnode.errors import NoExpert
from gnusnode.net.names import announcements_topic
from gnusnode.net.peerentry import PeerState
from gnusnode.net.port import PeerAddresses
from tests.fakes.cards import card
from tests.fakes.meeting import (
    Meeting,
    artifact,
    both,
    certificate,
    key,
    pair,
    sign,
    swallow,
    value,
)

USABLE, REFUSED, GONE = PeerState.USABLE, PeerState.REFUSED, None


class TestHeartbeat:
    async def test_load_reaches_the_router_with_the_next_heartbeat(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a, b = await pair(meeting, experts=["gnus/a"])
        b.facts = type(b.facts)(b.facts.roles, b.facts.services, (artifact(queued=3, expert_ids=("gnus/a",)),))
        await trio.sleep(11)
        [seen] = a.table.cards()
        assert seen.engine.queued == 3

    async def test_that_no_slot_is_free_any_more_is_told_within_two_seconds(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a, b = await pair(meeting, experts=["gnus/a"])
        await trio.sleep(3)
        b.facts = type(b.facts)(b.facts.roles, b.facts.services, (artifact(free_slots=0, expert_ids=("gnus/a",)),))
        await trio.sleep(2.1)
        assert [seen.engine.free_slots for seen in a.table.cards()] == [0]

    async def test_a_new_expert_is_usable_soon_after_it_was_loaded(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a, b = await pair(meeting, experts=["gnus/a"])
        await trio.sleep(3)
        b.experts.append(card("gnus/b", peer=b.peer, artifact_hash=artifact().artifact_hash))
        b.facts = type(b.facts)(b.facts.roles, b.facts.services, (artifact(expert_ids=("gnus/a", "gnus/b")),))
        b.presence.announcer.poke()
        await trio.sleep(3)
        assert sorted(seen.expert_id for seen in a.table.cards()) == ["gnus/a", "gnus/b"]

    async def test_what_a_card_lacks_while_the_model_loads_is_known_once_it_is_ready(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        """Its template, without which another node may not go on with an answer of this one."""
        a, b = await pair(meeting, experts=["gnus/a"])

        def serves(state: EngineState, template: str | None) -> None:
            offered = artifact(state=state.value, expert_ids=("gnus/a",))
            [one] = b.experts
            engine = one.engine.model_copy(update={"state": state, "template_hash": template})
            b.experts[:] = [one.model_copy(update={"engine": engine})]
            b.facts = type(b.facts)(b.facts.roles, b.facts.services, (offered,))
            b.presence.announcer.poke()

        serves(EngineState.STARTING, None)
        await trio.sleep(5)
        assert [seen.engine.template_hash for seen in a.table.cards()] == [None]
        template = "sha256:" + "5" * 64
        serves(EngineState.READY, template)
        await trio.sleep(5)
        assert [seen.engine.template_hash for seen in a.table.cards()] == [template]

    async def test_changes_are_told_at_most_once_a_second(self, autojump_clock: Clock, meeting: Meeting) -> None:
        a, b = await pair(meeting, experts=["gnus/a"])
        first = a.entry(b).announcement
        for turn in range(100):
            free = turn % 2
            b.facts = type(b.facts)(b.facts.roles, b.facts.services, (artifact(free_slots=free),))
            b.presence.announcer.poke()
            await trio.sleep(0.1)
        last = a.entry(b).announcement
        assert first is not None
        assert last is not None
        assert last.seq - first.seq <= 12

    async def test_who_leaves_is_gone_at_once(self, autojump_clock: Clock, meeting: Meeting) -> None:
        a, b = await pair(meeting)
        await meeting.stop(b)
        assert a.state(b) is GONE
        await trio.sleep(40)
        assert value(a, "gnusnode_dials_total", outcome="failed") == 0

    async def test_who_is_killed_is_unusable_at_once_and_gone_after_the_ttl(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a, b = await pair(meeting, experts=["gnus/a"])
        await meeting.stop(b, goodbye=False)
        assert a.state(b) is PeerState.DISCOVERED
        assert a.table.cards() == ()
        await trio.sleep(32)
        assert a.state(b) is GONE

    async def test_who_is_frozen_is_gone_once_the_network_notices(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a, b = await pair(meeting, experts=["gnus/a"])
        meeting.network.cut(b.peer, silent=True)
        await trio.sleep(17)
        assert a.table.usable() == ()

    async def test_a_peer_without_heartbeats_is_asked_directly_and_stays_usable(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a, b = await pair(meeting)
        b.net.publish = swallow  # type: ignore[method-assign]  # its gossip is lost on the way
        await trio.sleep(100)
        assert a.state(b) is USABLE
        assert a.table.now() - a.entry(b).last_seen < 30

    async def test_a_role_that_was_not_granted_is_not_announced(self, autojump_clock: Clock, meeting: Meeting) -> None:
        a = await meeting.start(key(11))
        only_elm = certificate(key(12).peer_id, roles=[Role.ELM])
        b = await meeting.start(
            key(12), peers=a.net.addresses(), records=[only_elm], roles=frozenset({Role.ELM, Role.CORE, Role.ROUTER})
        )
        await both(a, b, USABLE)
        assert a.entry(b).hello.roles == {Role.ELM}  # type: ignore[union-attr]
        assert a.entry(b).announcement.roles == (Role.ELM,)  # type: ignore[union-attr]
        assert a.table.serving("core") == ()
        assert [entry.peer for entry in a.table.serving("elm")] == [b.peer]

    async def test_nodes_of_one_swarm_learn_of_each_other_from_a_third(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        meeting.replicated = True
        a = await meeting.start(key(11))
        others = [await meeting.start(key(n), peers=a.net.addresses()) for n in (12, 13, 14)]
        for node in others:
            await both(a, node, USABLE)
        for one in others:
            for another in others:
                if one is not another:
                    await both(one, another, USABLE)

    async def test_however_much_a_node_serves_its_announcement_stays_within_its_size(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a, b = await pair(meeting, experts=["gnus/a"])
        many = tuple(
            artifact(artifact_hash=f"sha256:{n:064x}", expert_ids=tuple(f"{n}-{m:0120}" for m in range(16)))
            for n in range(64)
        )
        b.facts = type(b.facts)(b.facts.roles, b.facts.services, many)
        await trio.sleep(11)
        heard = a.entry(b).announcement
        assert heard is not None
        assert 20 < len(heard.artifacts) < 64
        assert len(heard.to_bytes()) <= heard.max_bytes


class TestForgery:
    @pytest.mark.requirement("G-ROLE-4")
    async def test_replayed_forged_and_foreign_announcements_are_refused_and_counted(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a, b = await pair(meeting, experts=["gnus/a"])
        await trio.sleep(11)  # what came with the hello may come once more by gossip
        honest = a.entry(b).announcement
        assert honest is not None
        topic = announcements_topic(honest.swarm_id)
        forged = honest.model_copy(update={"seq": honest.seq + 10})
        stranger = sign(key(60), honest, seq=1)
        lies = sign(key(12), honest, seq=99, roles=(Role.ROUTER,))
        async with meeting.network.join(b.peer) as net:
            await net.connect(a.peer, a.net.addresses())
            for record, outcome in (
                (honest, "replayed"),
                (forged, "bad_signature"),
                (stranger, "bad_signature"),  # not even its own publisher
                (lies, "role_not_granted"),
            ):
                await net.publish(topic, Heartbeat(announcement=record).to_bytes())
                await trio.sleep(1)
                refused = {"record": "node-announcement", "outcome": outcome}
                assert value(a, "gnusnode_records_refused_total", **refused) > 0, outcome
            await net.publish(topic, b"\xff garbage")
        assert a.entry(b).announcement.seq < 90  # type: ignore[union-attr]

    async def test_somebody_elses_announcement_cannot_be_published_again(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a, b = await pair(meeting)
        honest = a.entry(b).announcement
        assert honest is not None
        c = await meeting.start(key(13), peers=a.net.addresses())
        await both(a, c, USABLE)
        newer = sign(key(12), honest, seq=honest.seq + 5)  # signed by b itself, and withheld
        await c.net.publish(announcements_topic(honest.swarm_id), Heartbeat(announcement=newer).to_bytes())
        assert a.entry(b).announcement != newer


class TestProbe:
    async def test_whose_expert_is_said_to_be_elsewhere_is_excluded_with_the_reason(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        b = await meeting.start(key(12), experts=["gnus/b"])
        b.experts[:] = [card("gnus/b", peer=key(99).peer_id)]
        a.presence.dialer.found(PeerAddresses(b.peer, b.net.addresses()), "manual")
        with trio.fail_after(20):
            await a.until(b, PeerState.AUTHENTICATED)
        await trio.sleep(2)
        assert "another node" in a.entry(b).reason
        assert a.table.cards() == ()
        await trio.sleep(60)
        assert a.rpc.calls <= 2

    async def test_who_announces_an_expert_for_longer_than_it_serves_it_is_excluded(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a, b = await pair(meeting, experts=["gnus/b"])
        b.experts.clear()
        await trio.sleep(11)
        b.facts = type(b.facts)(b.facts.roles, b.facts.services, (artifact(expert_ids=("gnus/b", "gnus/c")),))
        await trio.sleep(25)
        assert a.state(b) is PeerState.AUTHENTICATED
        assert "does not serve it" in a.entry(b).reason

    async def test_who_refuses_a_draft_for_want_of_the_expert_and_goes_on_offering_it_is_excluded(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a, b = await pair(meeting, experts=["gnus/b"])
        a.presence.prober.doubt(b.peer, "gnus/b")
        assert a.state(b) is USABLE
        await trio.sleep(12)  # one more announcement
        assert a.state(b) is PeerState.AUTHENTICATED
        assert "announces gnus/b and does not serve it" in a.entry(b).reason
        await trio.sleep(5)
        assert "it leaves this node alone for now: it announces gnus/b" in b.entry(a).reason
        b.experts.clear()
        b.facts = type(b.facts)(b.facts.roles, b.facts.services)
        await trio.sleep(400)  # an exclusion ends, and is told to have ended
        assert a.entry(b).exclusion == b.entry(a).reason == ""

    async def test_who_refuses_a_draft_of_an_expert_that_it_has_just_unloaded_is_no_liar(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a, b = await pair(meeting, experts=["gnus/b"])
        b.experts.clear()
        a.presence.prober.doubt(b.peer, "gnus/b")
        b.facts = type(b.facts)(b.facts.roles, b.facts.services)
        await trio.sleep(40)
        assert a.state(b) is USABLE

    async def test_who_takes_on_a_role_is_asked_anew_what_it_serves_and_is_no_liar(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        b = await meeting.start(key(12), roles=frozenset({Role.ELM}))
        b.facts = type(b.facts)(frozenset({Role.ELM}), {"elm": 1})
        a.presence.dialer.found(PeerAddresses(b.peer, b.net.addresses()), "manual")
        await both(a, b, USABLE)
        await trio.sleep(5)
        b.experts[:] = [card("gnus/b", peer=b.peer)]
        both_roles = frozenset({Role.CORE, Role.ELM})
        b.facts = type(b.facts)(both_roles, {"core": 1, "elm": 1}, (artifact(expert_ids=("gnus/b",)),))
        with trio.fail_after(5):
            while [seen.expert_id for seen in a.table.cards()] != ["gnus/b"]:
                await trio.sleep(0.1)
        await trio.sleep(25)
        assert a.state(b) is USABLE

    async def test_who_does_not_answer_for_its_services_is_not_usable_until_it_does(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a = await meeting.start(key(11))
        b = await meeting.start(key(12), experts=["gnus/b"])
        b.rpc_error = NoExpert("starting")
        a.presence.dialer.found(PeerAddresses(b.peer, b.net.addresses()), "manual")
        await trio.sleep(10)
        assert a.state(b) is PeerState.AUTHENTICATED
        assert "starting" in a.entry(b).reason
        calls = a.rpc.calls
        assert calls <= 6
        b.rpc_error = None
        with trio.fail_after(30):
            await a.until(b, USABLE)

    async def test_a_lie_is_forgiven_after_its_time_once_the_peer_tells_the_truth(
        self, autojump_clock: Clock, meeting: Meeting
    ) -> None:
        a, b = await pair(meeting, experts=["gnus/b"])
        truth, b.experts[:] = list(b.experts), [card("gnus/b", peer=key(99).peer_id)]
        b.facts = type(b.facts)(b.facts.roles, b.facts.services, (artifact(expert_ids=("gnus/b", "gnus/c")),))
        await trio.sleep(15)
        assert a.table.cards() == ()
        b.experts[:] = [*truth, card("gnus/c", peer=b.peer)]
        await trio.sleep(200)
        assert a.table.cards() == ()
        await trio.sleep(120)
        assert sorted(seen.expert_id for seen in a.table.cards()) == ["gnus/b", "gnus/c"]
