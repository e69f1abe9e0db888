"""The pure parts behind the peer table: states, bounds, expiry, bans, instances, conduct, the address book."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.roster import Standing
from gnusnode.contracts.swarm import NodeAnnouncement, OfferedArtifact, Role, Tier
from gnusnode.errors import DataError, NotFound, RequestError
from gnusnode.net.addressbook import AT_ONCE, CAPACITY, GIVE_UP, LONGEST, SILENT, AddressBook, addresses_of, target_of
from gnusnode.net.conduct import HALF_LIFE, Conduct
from gnusnode.net.instances import FORGET, GRACE, InstanceWatch, Sighting, is_rival
from gnusnode.net.peerentry import Introduction, Link, PeerState, Refusal
from gnusnode.net.peerfile import PeerFile, Remembered
from gnusnode.net.peers import PeerChange, PeerTable
from gnusnode.net.port import PeerAddresses
from gnusnode.net.text import printable
from tests.fakes.cards import card
from tests.fakes.meeting import EPOCH_MS, HASH, artifact, key

A, B, C = (key(number).peer_id for number in (11, 12, 13))
MEMBER = Standing(Outcome.OK, frozenset({Role.CORE, Role.ELM}), Tier.C, frozenset({"ann"}))
TTL = 30.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> PeerTable:
    return PeerTable(key(1).peer_id, ttl=TTL, capacity=8, now=clock)


def announcement(number: int, *, seq: int = 1, instance: str = "a" * 32, **fields: object) -> NodeAnnouncement:
    usual = {"swarm_id": HASH, "roles": (Role.CORE,), "version": "1", "nonce": f"{seq:032x}"}
    times = {"issued_at_ms": EPOCH_MS, "expires_at_ms": EPOCH_MS + 30_000}
    return NodeAnnouncement.signed(key(number), instance=instance, seq=seq, **{**usual, **times, **fields})


def link(table: PeerTable, *, inbound: bool = False) -> Link:
    return Link("/ip4/10.0.0.1/tcp/1", inbound, False, table.now())


def greet(
    table: PeerTable, peer: str, *, instance: str = "a" * 32, refusal: Refusal | None = None, by: Refusal | None = None
) -> Sighting:
    hello = Introduction("1.0", instance, frozenset({Role.CORE}), {"core": 1})
    return table.greeted(peer, hello, standing=MEMBER, refusal=refusal, refused_by=by, rtt_ms=5.0, skew_ms=0.0)


def state(table: PeerTable, peer: str = A) -> PeerState | None:
    entry = table.get(peer)
    return entry and entry.state


class TestTable:
    def test_a_peer_goes_its_way_from_discovered_to_usable_and_back(self, table: PeerTable) -> None:
        seen: list[PeerState | None] = []
        table.listen(lambda change: seen.append(change.after and change.after.state))
        table.discovered(A, ["/ip4/10.0.0.1/tcp/1"], "mdns")
        table.dialled(A)
        table.connected(A, link(table))
        greet(table, A)
        table.probed(A, (card("gnus/a", peer=A),))
        table.disconnected(A)
        table.left(A)
        states = [state for at, state in enumerate(seen) if not at or seen[at - 1] is not state]
        assert states == [
            PeerState.DISCOVERED,
            PeerState.DIALLED,
            PeerState.CONNECTED,
            PeerState.AUTHENTICATED,
            PeerState.USABLE,
            PeerState.DIALLED,
            None,
        ]

    def test_counts_tell_how_many_have_come_at_least_so_far(self, table: PeerTable) -> None:
        for peer in (A, B, C):
            table.discovered(peer, [], "mdns")
        for peer in (A, B):
            table.dialled(peer)
            table.connected(peer, link(table))
        greet(table, A)
        table.probed(A, ())
        counts = table.counts()
        assert (counts.discovered, counts.dialled, counts.connected) == (3, 2, 2)
        assert (counts.authenticated, counts.usable, counts.refused, counts.banned) == (1, 1, 0, 0)

    def test_a_peer_that_dialled_this_node_counts_as_dialled(self, table: PeerTable) -> None:
        table.connected(A, link(table, inbound=True))
        counts = table.counts()
        assert (counts.discovered, counts.dialled, counts.connected) == (1, 1, 1)

    def test_the_end_of_a_name_has_to_be_long_enough_and_the_hint_says_so(self, table: PeerTable) -> None:
        table.discovered(A, [], "mdns")
        assert table.find(A[-4:]).peer == A
        with pytest.raises(NotFound) as refused:
            table.find(A[-3:])
        assert "at least the last 4 characters" in (refused.value.hint or "")
        with pytest.raises(NotFound) as unknown:
            table.find("nobody")
        assert "characters" not in (unknown.value.hint or "")

    def test_the_roles_that_are_shown_are_those_of_the_latest_word_as_far_as_granted(self, table: PeerTable) -> None:
        table.connected(A, link(table))
        greet(table, A)

        def shown() -> list[str]:
            return table.get(A).to_plain(table.now())["roles"]  # type: ignore[union-attr]

        assert shown() == ["core"]
        table.announced(announcement(11, roles=(Role.CORE, Role.ELM)))
        granted = Standing(Outcome.OK, frozenset({Role.CORE, Role.ELM}), Tier.C, frozenset({"x"}))
        table.judged(A, granted, None)
        assert shown() == ["core", "elm"]
        table.judged(A, Standing(Outcome.OK, frozenset({Role.ELM}), Tier.C, frozenset({"x"})), None)
        assert shown() == ["elm"]
        table.disconnected(A)
        assert shown() == []

    def test_either_sides_refusal_is_shown_as_what_it_is(self, table: PeerTable) -> None:
        table.connected(A, link(table))
        greet(table, A, refusal=Refusal("revoked", "its membership was revoked"))
        table.connected(B, link(table))
        greet(table, B, by=Refusal("wrong_swarm", "it names another swarm"))
        assert (state(table, A), state(table, B)) == (PeerState.REFUSED, PeerState.REFUSED)
        assert table.get(A).reason == "refused here: its membership was revoked"  # type: ignore[union-attr]
        assert table.get(B).reason == "it refuses this node: it names another swarm"  # type: ignore[union-attr]

    def test_a_hello_that_overtakes_the_news_of_its_connection_counts(self, table: PeerTable) -> None:
        greet(table, A)
        table.connected(A, link(table, inbound=True))
        assert state(table) is PeerState.AUTHENTICATED

    def test_what_was_said_over_a_connection_ends_with_it(self, table: PeerTable) -> None:
        table.connected(A, link(table))
        greet(table, A)
        table.probed(A, (card("gnus/a", peer=A),))
        table.disconnected(A)
        table.connected(A, link(table))
        assert state(table) is PeerState.CONNECTED
        assert not table.get(A).admitted  # type: ignore[union-attr]
        assert table.cards() == ()

    def test_a_silent_peer_without_a_connection_goes_at_the_ttl_and_a_configured_one_stays(
        self, table: PeerTable, clock: Clock
    ) -> None:
        table.discovered(A, [], "gossip")
        table.discovered(B, [], "configured")
        clock.now += TTL - 1
        table.expire()
        assert table.get(A) is not None
        clock.now += 2
        table.expire()
        assert (table.get(A), state(table, B)) == (None, PeerState.DISCOVERED)

    def test_an_announcement_holds_for_the_ttl_although_its_peer_is_connected(
        self, table: PeerTable, clock: Clock
    ) -> None:
        table.connected(A, link(table))
        table.announced(announcement(11))
        clock.now += TTL + 1
        table.expire()
        assert table.get(A).announcement is None  # type: ignore[union-attr]

    def test_an_announcement_out_of_order_changes_nothing(self, table: PeerTable) -> None:
        assert table.announced(announcement(11, seq=5)) is Sighting.CURRENT
        assert table.announced(announcement(11, seq=4)) is Sighting.STALE
        assert table.announced(announcement(11, seq=5)) is Sighting.STALE
        assert table.get(A).announcement.seq == 5  # type: ignore[union-attr]

    def test_load_of_an_announcement_shows_in_the_cards_at_once(self, table: PeerTable) -> None:
        table.connected(A, link(table))
        greet(table, A)
        table.probed(A, (card("gnus/a", peer=A, artifact_hash=HASH), card("gnus/other", peer=A)))
        table.announced(announcement(11, artifacts=(artifact(free_slots=1, queued=9, decode_rate=3.0),)))
        engines = {c.expert_id: c.engine for c in table.cards()}
        assert (engines["gnus/a"].free_slots, engines["gnus/a"].queued, engines["gnus/a"].decode_rate) == (1, 9, 3.0)
        assert engines["gnus/other"].queued == 0

    def test_this_node_itself_never_stands_in_its_table(self, table: PeerTable) -> None:
        own = key(1).peer_id
        table.discovered(own, [], "mdns")
        table.connected(own, link(table))
        table.announced(announcement(1))
        assert table.entries() == ()

    def test_it_is_bounded_and_hearsay_never_pushes_out_who_is_connected_or_spoke_itself(
        self, table: PeerTable, clock: Clock
    ) -> None:
        table.connected(A, link(table))
        table.announced(announcement(12))
        for number in range(100, 200):
            clock.now += 0.01
            table.discovered(key(number).peer_id, [], "dht")
        assert len(table.entries()) == 8
        assert table.get(A) is not None
        assert table.get(B) is not None

    def test_a_table_full_of_connections_takes_no_more(self, table: PeerTable) -> None:
        for number in range(100, 120):
            table.connected(key(number).peer_id, link(table))
        assert len(table.entries()) == 8

    def test_the_ending_of_a_peer_id_names_the_peer_when_it_is_the_only_one(self, table: PeerTable) -> None:
        table.discovered(A, [], "mdns")
        table.discovered(B, [], "mdns")
        assert table.find(A[-6:]).peer == A
        assert table.find(B).peer == B
        for name in ("", A[-3:], "nobody"):
            with pytest.raises(NotFound, match="not known here"):
                table.find(name)

    def test_the_node_itself_is_told_apart_from_a_stranger(self, table: PeerTable) -> None:
        own = key(1).peer_id
        for name in (own, own[-6:]):
            with pytest.raises(NotFound, match="the node itself"):
                table.find(name)

    def test_bans_outlive_the_entry_and_unban_pardons(self, table: PeerTable, clock: Clock) -> None:
        table.connected(A, link(table))
        greet(table, A)
        table.exclude(A, 100, "lied")
        table.ban(A, "spam")
        clock.now += 10 * TTL
        table.expire()
        assert (state(table), table.get(A).reason) == (PeerState.BANNED, "spam")  # type: ignore[union-attr]
        table.unban(A)
        assert table.get(A).exclusion == ""  # type: ignore[union-attr]
        with pytest.raises(NotFound):
            table.unban(A)

    def test_an_excluded_peer_is_not_usable_until_its_time_is_over(self, table: PeerTable, clock: Clock) -> None:
        table.connected(A, link(table))
        greet(table, A)
        table.probed(A, (card("gnus/a", peer=A),))
        table.exclude(A, 10, "its engine died")
        assert (table.usable(), table.cards()) == ((), ())
        assert table.get(A).reason == "its engine died"  # type: ignore[union-attr]
        clock.now += 11
        table.expire()
        assert [entry.peer for entry in table.usable()] == [A]

    def test_leaving_and_coming_back_does_not_end_an_exclusion(self, table: PeerTable) -> None:
        table.connected(A, link(table))
        table.exclude(A, 100, "lied")
        table.left(A)
        table.connected(A, link(table))
        greet(table, A, instance="b" * 32)
        table.probed(A, ())
        assert table.usable() == ()

    def test_the_best_come_first_and_only_who_was_granted_the_role_serves(self, table: PeerTable) -> None:
        for peer, rtt in ((A, 30.0), (B, 10.0), (C, 20.0)):
            table.connected(peer, link(table))
            greet(table, peer)
            table.probed(peer, ())
            table.pinged(peer, rtt)
        table.rate(B, good=False)
        assert [entry.peer for entry in table.serving("core")] == [C, A, B]
        table.judged(C, Standing(Outcome.OK, frozenset({Role.ELM})), None)
        assert [entry.peer for entry in table.serving("core")] == [A, B]
        assert table.serving("router") == ()

    def test_a_goodbye_is_told_apart_from_silence(self, table: PeerTable, clock: Clock) -> None:
        gone: list[PeerChange] = []
        table.listen(lambda change: gone.append(change) if change.after is None else None)
        table.announced(announcement(11))
        table.announced(announcement(12))
        table.announced(announcement(11, seq=2, leaving=True))
        clock.now += TTL + 1
        table.expire()
        assert [(change.peer, change.goodbye) for change in gone] == [(A, True), (B, False)]

    async def test_a_slow_reader_of_changes_loses_the_oldest_and_no_memory(self, table: PeerTable) -> None:
        async with table.changes() as changes:
            for number in range(3000):
                table.discovered(A, [f"/ip4/10.0.0.1/tcp/{number + 1}"], "mdns")
            first = await anext(changes)
        assert first.after is not None
        assert first.after.addresses[0] == "/ip4/10.0.0.1/tcp/1977"


class TestInstances:
    def test_a_restart_is_one_change_and_its_last_words_are_ignored(self) -> None:
        watch = InstanceWatch()
        assert watch.heard(A, "old", 7, 0) is Sighting.CURRENT
        assert watch.heard(A, "new", 1, 5) is Sighting.CURRENT
        assert watch.heard(A, "old", 8, 5 + GRACE / 2) is Sighting.STALE
        assert watch.heard(A, "new", 2, 15) is Sighting.CURRENT

    def test_an_instance_that_speaks_long_after_it_was_replaced_is_a_clash(self) -> None:
        watch = InstanceWatch()
        watch.heard(A, "one", 1, 0)
        watch.heard(A, "two", 1, 5)
        assert watch.heard(A, "one", 2, 5 + GRACE + 1) is Sighting.CLASH
        assert watch.heard(A, "two", 2, 16) is Sighting.CURRENT

    def test_repeating_old_words_of_a_replaced_instance_fakes_no_clash(self) -> None:
        watch = InstanceWatch()
        watch.heard(A, "one", 9, 0)
        watch.heard(A, "two", 1, 5)
        for seq in range(10):
            assert watch.heard(A, "one", seq, 30) is Sighting.STALE

    def test_the_survivor_of_a_clash_is_the_one_that_counts_again(self) -> None:
        watch = InstanceWatch()
        watch.heard(A, "one", 1, 0)
        watch.heard(A, "two", 1, 1)
        assert watch.heard(A, "one", 2, 2 + FORGET) is Sighting.CURRENT

    def test_a_hello_of_a_replaced_instance_is_a_clash_at_once(self) -> None:
        watch = InstanceWatch()
        assert watch.met(A, "one", 0) is Sighting.CURRENT
        assert watch.met(A, "two", 1) is Sighting.CURRENT
        assert watch.met(A, "one", 2) is Sighting.CLASH

    @pytest.mark.parametrize(
        ("issued", "instance", "rival"),
        [(10_000, "other", True), (10_000, "own", False), (999, "other", False), (1_500, "other", False)],
    )
    def test_only_what_was_signed_after_our_start_by_another_instance_is_a_rival(
        self, issued: int, instance: str, rival: bool
    ) -> None:
        assert is_rival(issued, instance, own="own", started_ms=1_000) is rival


class TestConduct:
    def test_reputation_moves_with_what_happens_and_comes_back_to_the_middle(self) -> None:
        conduct = Conduct()
        for _ in range(50):
            conduct.rate(A, True, 0)
        good = conduct.reputation(A, 0)
        conduct.rate(A, False, 0)
        assert 0.5 < conduct.reputation(A, 0) < good < 1
        assert abs(conduct.reputation(A, 20 * HALF_LIFE) - 0.5) < 0.01

    def test_each_repeated_exclusion_is_longer_until_it_is_forgotten(self) -> None:
        conduct = Conduct()
        ends = [conduct.exclude(A, 10, "bad", 0) for _ in range(3)]
        assert ends == [10, 20, 40]
        later = 20 * HALF_LIFE
        assert conduct.exclude(A, 10, "bad", later) == later + 10

    @given(st.lists(st.booleans(), max_size=200))
    def test_reputation_stays_between_0_and_1(self, calls: list[bool]) -> None:
        conduct = Conduct()
        for good in calls:
            conduct.rate(A, good, 0)
        assert 0 <= conduct.reputation(A, 0) <= 1


class TestAddressBook:
    def book(self) -> AddressBook:
        return AddressBook(random.Random(1))

    def test_backoff_grows_from_one_second_to_a_minute_and_configured_peers_are_never_given_up(self) -> None:
        book, now, waits = self.book(), 0.0, []
        book.add(PeerAddresses(A, ("/ip4/10.0.0.1/tcp/1",)), now, configured=True)
        for _ in range(20):
            book.failed(A, now)
            due = book.next_due((), only_configured=True)
            waits.append(due - now)
            now = due
        assert 1 <= waits[0] <= 2
        assert all(1 <= wait <= LONGEST for wait in waits)
        assert all(wait >= LONGEST / 2 for wait in waits[6:])

    def test_who_never_answers_is_given_up_and_hearsay_alone_does_not_bring_it_back_soon(self) -> None:
        book, found = self.book(), PeerAddresses(A, ("/ip4/10.0.0.1/tcp/1",))
        book.add(found, 0)
        for _ in range(GIVE_UP):
            book.failed(A, 0)
        assert book.known() == ()
        assert not book.add(found, 1, hearsay=True)
        assert book.add(found, 1)

    def test_a_lost_configured_peer_is_due_at_once_and_another_one_after_its_backoff(self) -> None:
        book = self.book()
        book.add(PeerAddresses(A, ("/ip4/10.0.0.1/tcp/1",)), 0, configured=True)
        book.add(PeerAddresses(B, ("/ip4/10.0.0.2/tcp/1",)), 0)
        book.lost(A, 100)
        book.lost(B, 100)
        due = {target.peer: target.due for target in book.due(200, (), only_configured=False)}
        assert due[A] - 100 <= AT_ONCE
        assert due[B] - 100 >= 1

    def test_a_lost_peer_that_does_not_answer_is_left_alone_until_something_is_heard_of_it(self) -> None:
        book = self.book()
        book.add(PeerAddresses(A, ("/ip4/10.0.0.1/tcp/1",)), 0)
        book.lost(A, 100)
        assert book.next_due((), only_configured=False) <= 102
        book.failed(A, 102)
        assert book.next_due((), only_configured=False) >= 102 + SILENT
        book.heard(A, 110)
        assert book.next_due((), only_configured=False) <= 114
        book.failed(A, 114)  # somebody else hears it, and we cannot reach it: the usual backoff
        assert book.next_due((), only_configured=False) <= 114 + LONGEST
        book.heard(A, 115)
        assert book.next_due((), only_configured=False) > 115, "each word of it brings no attempt of its own"

    def test_a_configured_peer_that_is_lost_is_sought_all_the_time(self) -> None:
        book = self.book()
        book.add(PeerAddresses(A, ("/ip4/10.0.0.1/tcp/1",)), 0, configured=True)
        book.lost(A, 100)
        book.failed(A, 101)
        assert book.next_due((), only_configured=False) <= 103

    def test_hearsay_crowds_out_neither_a_configured_address_nor_grows_without_bound(self) -> None:
        book = self.book()
        book.add(PeerAddresses(A, ("/ip4/10.0.0.1/tcp/1",)), 0, configured=True)
        book.add(PeerAddresses(A, tuple(f"/ip4/10.0.1.{n}/tcp/1" for n in range(100))), 0)
        [target] = book.due(0, (), only_configured=False)
        assert target.addresses[0] == "/ip4/10.0.0.1/tcp/1"
        assert len(target.addresses) == 16
        for number in range(CAPACITY + 10):
            book.add(PeerAddresses(f"peer{number}", ("/ip4/10.0.0.9/tcp/1",)), 0)
        assert len(book.known()) == CAPACITY

    def test_an_address_that_names_another_peer_is_left_out(self) -> None:
        book = self.book()
        assert not book.add(PeerAddresses(A, (f"/ip4/10.0.0.1/tcp/1/p2p/{B}",)), 0)

    def test_the_last_part_of_a_relayed_address_is_who_is_meant(self) -> None:
        relayed = f"/ip4/10.0.0.1/tcp/1/p2p/{A}/p2p-circuit/p2p/{B}"
        assert target_of(relayed).peer == B
        assert addresses_of([relayed, f"/ip4/10.0.0.2/tcp/1/p2p/{B}"])[0].addresses[0] == relayed

    @pytest.mark.parametrize("text", ["", "/ip4/10.0.0.1/tcp/1", "/p2p/nobody", f"/p2p/{A}x", "/p2p/" + "1" * 500])
    def test_an_address_that_names_nobody_is_refused(self, text: str) -> None:
        with pytest.raises(RequestError, match="names no peer"):
            target_of(text)


class TestPeerFile:
    def test_what_was_saved_is_remembered(self, tmp_path: Path) -> None:
        file = PeerFile(tmp_path / "peers.json")
        assert file.load() == Remembered()
        kept = Remembered({A: "spam"}, {B: (f"/ip4/10.0.0.1/tcp/1/p2p/{B}",)})
        file.save(kept)
        assert file.load() == kept
        assert (tmp_path / "peers.json").stat().st_mode & 0o077 == 0

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"bans": {"x": "y"}}', '{"bans": 1}', '{"more": 1}'])
    def test_a_damaged_file_is_said_and_never_taken_for_an_empty_one(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "peers.json"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match="damaged"):
            PeerFile(path).load()


def test_what_a_peer_wrote_cannot_move_the_cursor() -> None:
    assert printable("ok\x1b[2J\r\nfine\u202e") == "ok\ufffd[2J\ufffd\ufffdfine\ufffd"


def test_an_offered_artifact_carries_what_routing_needs() -> None:
    made = artifact(determinism="A", n_ctx=4096, expert_ids=("gnus/a",))
    again = OfferedArtifact.from_bytes(made.to_bytes())
    assert (again.determinism, again.n_ctx, again.expert_ids) == ("A", 4096, ("gnus/a",))
    with pytest.raises(ValueError):
        artifact(determinism="D")
