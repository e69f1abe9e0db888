"""Who may connect, where others can reach us, and how a peer is dialled: the parts without a network."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from gnusnode.errors import ConfigError, PeerUnreachable
from gnusnode.net.p2p.addresses import FRESH_SECONDS, Interfaces, announced
from gnusnode.net.p2p.dial import MAX_ADDRESSES, STAGGER_SECONDS, dial_any
from gnusnode.net.p2p.gates import MAX_PER_PEER, Gates
from gnusnode.net.p2p.options import NetOptions
from gnusnode.net.port import NetStatistics


def gates(**options: object) -> Gates:
    return Gates(NetOptions(**options), NetStatistics())  # type: ignore[arg-type]  # plain values of the fields


# --- gates ------------------------------------------------------------------------------------------------------------


def test_denied_networks_stay_out_also_within_allowed_ones() -> None:
    gate = gates(allow=("10.0.0.0/8", "fd00::/8"), deny=("10.9.0.0/16",))
    assert gate.refuses_address("10.1.2.3") is None
    assert gate.refuses_address("fd00::1") is None
    assert gate.refuses_address("10.9.2.3") == "denied"
    assert gate.refuses_address("192.168.1.1") == "denied"
    assert gate.refuses_address("2001:db8::1") == "denied"


@pytest.mark.parametrize("host", [None, "", "not an address", "10.0.0.1:80"])
def test_an_address_that_cannot_be_read_is_denied(host: str | None) -> None:
    assert gates().refuses_address(host) == "denied"


def test_an_ipv4_address_is_the_same_when_it_comes_by_ipv6() -> None:
    gate = gates(deny=("10.0.0.0/8",), max_per_address=1)
    assert gate.refuses_address("::ffff:10.1.1.1") == "denied"
    with gate.slot("192.0.2.1"):
        assert gate.refuses_address("::ffff:192.0.2.1") == "per-ip"


def test_addresses_of_one_ipv6_subscriber_count_together() -> None:
    gate = gates(max_per_address=2)
    with gate.slot("2001:db8:1:2::1"), gate.slot("2001:db8:1:2::2"):
        assert gate.refuses_address("2001:db8:1:2:ffff::3") == "per-ip"
        assert gate.refuses_address("2001:db8:1:3::1") is None


def test_the_places_are_limited_in_all() -> None:
    gate = gates(max_connections=2)
    with gate.slot("192.0.2.1"), gate.slot("192.0.2.2"):
        assert gate.refuses_address("192.0.2.3") == "full"
    assert gate.refuses_address("192.0.2.3") is None


def test_a_peer_has_few_connections_and_a_banned_one_none() -> None:
    statistics = NetStatistics()
    gate = Gates(NetOptions(), statistics)
    assert gate.refuses_peer("P", MAX_PER_PEER - 1, inbound=True) is None
    assert gate.refuses_peer("P", MAX_PER_PEER, inbound=True) == "per-peer"
    gate.banned = frozenset({"P"})
    assert gate.refuses_peer("P", 0, inbound=True) == "banned"
    assert gate.refuses_peer("P", 0, inbound=False) == "banned"
    assert statistics.inbound_refused == {"per-peer": 1, "banned": 1}  # what we dialled is not refused inbound


def test_a_network_that_is_none_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"net\.deny"):
        gates(deny=("10.0.0.0/64",))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=60))
def test_places_always_come_back(steps: list[tuple[bool, int]]) -> None:
    gate = gates(max_connections=1000, max_per_address=1000)
    open_slots = list[object]()
    for comes, host in steps:
        if comes:
            slot = gate.slot(f"192.0.2.{host}")
            slot.__enter__()
            open_slots.append(slot)
        elif open_slots:
            open_slots.pop(host % len(open_slots)).__exit__(None, None, None)  # type: ignore[attr-defined]  # a slot
        assert gate.inbound == len(open_slots)


# --- addresses --------------------------------------------------------------------------------------------------------


def test_an_unspecified_address_stands_for_real_ones_and_never_for_itself() -> None:
    interfaces = ("127.0.0.1", "1.2.3.4", "192.168.1.5", "::1", "fe80::1%eth0", "2001:db8::5")
    assert announced(("/ip4/0.0.0.0/tcp/8478",), interfaces) == (
        "/ip4/192.168.1.5/tcp/8478",
        "/ip4/1.2.3.4/tcp/8478",
    )
    assert announced(("/ip6/::/tcp/8478",), interfaces) == ("/ip6/2001:db8::5/tcp/8478",)


def test_loopback_is_announced_only_where_there_is_nothing_else() -> None:
    assert announced(("/ip4/127.0.0.1/tcp/1",), ("127.0.0.1", "192.168.1.5")) == ("/ip4/127.0.0.1/tcp/1",)
    assert announced(("/ip4/0.0.0.0/tcp/1",), ("127.0.0.1",)) == ("/ip4/127.0.0.1/tcp/1",)
    assert announced(("/ip4/127.0.0.1/tcp/1", "/ip4/192.168.1.5/tcp/2"), ()) == ("/ip4/192.168.1.5/tcp/2",)
    assert announced((), ("192.168.1.5",)) == ()


def test_interfaces_are_read_again_after_a_while() -> None:
    now = [0.0]
    reads = iter([("192.168.1.5",), ("10.0.0.5",)])
    interfaces = Interfaces(lambda: next(reads), lambda: now[0])
    assert interfaces.addresses() == interfaces.addresses() == ("192.168.1.5",)
    now[0] = FRESH_SECONDS
    assert interfaces.addresses() == ("10.0.0.5",)


# --- dialling ---------------------------------------------------------------------------------------------------------


async def test_mute_and_dead_addresses_do_not_keep_a_good_one_waiting(autojump_clock: MockClock) -> None:
    async def dial(address: str) -> None:
        if address == "mute":
            await trio.sleep_forever()
        if address == "dead":
            raise OSError(111, "Connection refused")

    start = trio.current_time()
    await dial_any(["mute", "dead", "mute", "good"], dial, peer="P", seconds=5)
    assert trio.current_time() - start <= 3 * STAGGER_SECONDS


async def test_an_address_has_its_own_time_and_the_error_says_what_each_did(autojump_clock: MockClock) -> None:
    async def dial(address: str) -> None:
        if address == "mute":
            await trio.sleep_forever()
        raise OSError(111, "Connection refused")

    start = trio.current_time()
    with pytest.raises(PeerUnreachable) as caught:
        await dial_any(["mute", "dead"], dial, peer="P", seconds=5)
    assert trio.current_time() - start == pytest.approx(5)
    assert str(caught.value) == "P: mute: no answer within 5 s; dead: Connection refused"


async def test_a_list_of_addresses_does_not_make_this_node_a_scanner(autojump_clock: MockClock) -> None:
    dialled = list[str]()

    async def dial(address: str) -> None:
        dialled.append(address)
        raise OSError(111, "Connection refused")

    with pytest.raises(PeerUnreachable):
        await dial_any([str(number) for number in range(10_000)], dial, peer="P", seconds=5)
    assert len(dialled) == MAX_ADDRESSES
