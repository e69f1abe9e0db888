from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from zeroconf import ServiceInfo, ServiceStateChange, Zeroconf

from gnusnode.errors import CannotBind
from gnusnode.net.mdns import MAX_PEERS, Mdns, open_mdns, parse, records, service_type
from gnusnode.net.port import PeerAddresses

LOOPBACK = ("127.0.0.1",)
ONE = "12D3KooWGzBpQnjpyUgAZjeH3XNBjX2TQpyTkCbT2ySQ5zqmsUqS"
TWO = "12D3KooWHLw9Sf1VTJzFuFXC2nfJ5zHfFRBBsZq9J9Fz1hMQJv9r"
KIND = service_type("test")


def txt(said: Mapping[str, str]) -> dict[bytes, bytes | None]:
    return {key.encode(): value.encode() for key, value in said.items()}


async def test_two_nodes_of_one_network_find_each_other_and_notice_new_addresses() -> None:
    where = ["/ip4/127.0.0.1/tcp/4001"]
    async with (
        open_mdns(ONE, "test", lambda: where, interfaces=LOOPBACK) as one,
        open_mdns(TWO, "test", lambda: ["/ip4/127.0.0.1/tcp/4002"], interfaces=LOOPBACK) as two,
    ):
        with trio.fail_after(30):
            assert await anext(one) == PeerAddresses(TWO, (f"/ip4/127.0.0.1/tcp/4002/p2p/{TWO}",))
            assert await anext(two) == PeerAddresses(ONE, (f"/ip4/127.0.0.1/tcp/4001/p2p/{ONE}",))
            where[:] = ["/ip4/127.0.0.1/tcp/4003", "/ip6/::1/tcp/4003"]
            expected = PeerAddresses(ONE, (f"/ip4/127.0.0.1/tcp/4003/p2p/{ONE}", f"/ip6/::1/tcp/4003/p2p/{ONE}"))
            assert await anext(two) == expected


async def test_no_blocking_call_of_zeroconf_runs_in_the_thread_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    where: dict[str, set[int]] = {}

    def watch(name: str) -> None:
        original = getattr(Zeroconf, name)

        def watched(*args: Any, **more: Any) -> Any:
            where.setdefault(name, set()).add(threading.get_ident())
            return original(*args, **more)

        monkeypatch.setattr(Zeroconf, name, watched)

    blocking = ("__init__", "register_service", "update_service", "get_service_info", "close")
    for name in blocking:
        watch(name)
    said = ["/ip4/127.0.0.1/tcp/4001"]
    async with (
        open_mdns(ONE, "test", lambda: said, interfaces=LOOPBACK),
        open_mdns(TWO, "test", lambda: ["/ip4/127.0.0.1/tcp/4002"], interfaces=LOOPBACK) as two,
    ):
        with trio.fail_after(30):
            await anext(two)
            said[:] = ["/ip4/127.0.0.1/tcp/4003"]
            await anext(two)
    assert set(where) == set(blocking)
    assert not [name for name, threads in where.items() if threading.get_ident() in threads]


async def test_another_network_and_hostile_records_are_not_found_and_the_latter_are_counted() -> None:
    hostile = ServiceInfo(
        KIND,
        f"{TWO}.{KIND}",
        addresses=[bytes([127, 0, 0, 1])],
        port=1,
        properties={"peer": TWO, "a0": "/dns4/evil.example/tcp/1"},
        server="evil.local.",
    )
    async with open_mdns(ONE, "test", lambda: ["/ip4/127.0.0.1/tcp/4001"], interfaces=LOOPBACK) as one:
        async with open_mdns(TWO, "other", lambda: ["/ip4/127.0.0.1/tcp/4002"], interfaces=LOOPBACK):
            attacker = await trio.to_thread.run_sync(lambda: Zeroconf(interfaces=list(LOOPBACK)))
            try:
                await trio.to_thread.run_sync(attacker.register_service, hostile)
                with trio.fail_after(30):
                    while not one.statistics.refused:
                        await trio.sleep(0.05)
            finally:
                await trio.to_thread.run_sync(attacker.close)
        assert one.statistics.found == 0


async def test_an_interface_that_is_not_there_is_said() -> None:
    with pytest.raises(CannotBind):
        async with open_mdns(ONE, "test", list, interfaces=("192.0.2.77",)):
            pass


def test_a_record_survives_its_own_parser() -> None:
    said = [f"/ip4/10.0.0.1/tcp/{port}/p2p/{ONE}" for port in range(1, 20)]
    circuit = f"/ip4/10.0.0.1/tcp/1/p2p/{TWO}/p2p-circuit/p2p/{ONE}"
    parsed = parse(f"{ONE}.{KIND}", KIND, txt(records(ONE, [circuit, "/ip4/0.0.0.0/tcp/1", *said])))
    assert parsed == PeerAddresses(ONE, tuple(said[:8]))


@pytest.mark.parametrize(
    "changed",
    [
        {"peer": TWO},
        {"peer": "12D3KooW"},
        {"peer": ""},
        {"a0": "/ip4/0.0.0.0/tcp/1"},
        {"a0": "/ip4/224.0.0.1/tcp/1"},
        {"a0": "/ip4/10.0.0.1/tcp/70000"},
        {"a0": "/ip4/10.0.0.1/tcp/1\n"},
        {"a0": "/ip4/10.0.0.1/tcp/1/ws"},
        {"a0": "/ip4/::1/tcp/1"},
        {"a0": "/ip6/10.0.0.1/tcp/1"},
        {"a0": f"/ip4/10.0.0.1/tcp/1/p2p/{TWO}"},
        {"a7": "x" * 250},
    ],
)
def test_a_record_with_one_bad_value_is_refused_as_a_whole(changed: dict[str, str]) -> None:
    good = {"peer": ONE, "a0": "/ip4/10.0.0.1/tcp/1", "a1": "/ip4/10.0.0.2/tcp/1"}
    assert parse(f"{ONE}.{KIND}", KIND, txt(good)) is not None
    assert parse(f"{ONE}.{KIND}", KIND, txt(good | changed)) is None


def test_a_record_under_the_name_of_another_is_refused() -> None:
    assert parse(f"{TWO}.{KIND}", KIND, txt({"peer": ONE, "a0": "/ip4/10.0.0.1/tcp/1"})) is None


@given(st.dictionaries(st.sampled_from([b"peer", b"a0", b"a1", b"z"]) | st.binary(), st.binary() | st.none()))
def test_no_record_makes_the_parser_raise(properties: dict[bytes, bytes | None]) -> None:
    parse(f"{ONE}.{KIND}", KIND, properties)


def test_a_flood_of_names_is_bounded_and_counted() -> None:
    mdns = Mdns(ONE, KIND)
    for index in range(MAX_PEERS + 10):
        mdns.heard(f"{index}.{KIND}", ServiceStateChange.Added)
    assert len(mdns._names) == MAX_PEERS
    assert mdns.statistics.refused == 10


async def test_a_peer_is_told_once_and_again_after_it_left() -> None:
    mdns, name = Mdns(ONE, KIND), f"{TWO}.{KIND}"
    info = ServiceInfo(KIND, name, port=1, properties=txt(records(TWO, ["/ip4/10.0.0.1/tcp/1"])))
    for _ in range(3):
        mdns.learned(name, info)
    assert mdns.statistics.found == 1
    assert (await anext(mdns)).peer == TWO
    mdns.heard(name, ServiceStateChange.Removed)
    mdns.learned(name, info)
    assert (await anext(mdns)).peer == TWO
