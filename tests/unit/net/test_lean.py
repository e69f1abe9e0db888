"""What of libp2p stays out of the process, and names in addresses without its DNS library."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import trio
from multiaddr import Multiaddr

from gnusnode.errors import PeerUnreachable
from gnusnode.net.p2p.resolver import SystemResolver
from tests.unit.net.worlds import RealWorld

OPEN_A_HOST = """
import json, sys, trio
from gnusnode.net.p2p.host import open_net
from gnusnode.net.p2p.options import NetOptions

async def main():
    async with open_net(bytes(32), NetOptions(listen=("/ip4/127.0.0.1/tcp/0",), dht=True, relay="client")):
        print(json.dumps(sorted(sys.modules)))

trio.run(main)
"""


def test_a_host_runs_without_the_modules_that_it_never_uses() -> None:
    ran = subprocess.run([sys.executable, "-c", OPEN_A_HOST], capture_output=True, text=True, check=True, timeout=60)
    packages = {name.partition(".")[0] for name in json.loads(ran.stdout)}
    assert "libp2p" in packages
    unwanted = {"aioquic", "OpenSSL", "requests", "urllib3", "httpx", "rich", "dns", "trio_websocket", "miniupnpc"}
    assert not packages & (unwanted | {"fastecdsa", "sqlite3"})


def test_what_was_left_out_says_so_when_it_is_used() -> None:
    from libp2p.transport.quic.transport import QUICTransport

    with pytest.raises(NotImplementedError, match=r"libp2p\.transport\.quic\.transport\.QUICTransport is left out"):
        QUICTransport()  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("kind", ["dns", "dns4"])
async def test_a_peer_is_dialled_by_a_name_that_only_the_system_knows(kind: str) -> None:
    world = RealWorld()
    async with world.join(1) as a, world.join(2) as b:
        named = b.addresses()[0].replace("/ip4/127.0.0.1/", f"/{kind}/localhost/")
        assert kind in named
        with trio.fail_after(20):
            await a.connect(b.peer_id, [named])


async def test_an_unknown_name_fails_with_what_the_system_says() -> None:
    world = RealWorld(dial_seconds=20)
    async with world.join(1) as a, world.join(2) as b:
        with trio.fail_after(30), pytest.raises(PeerUnreachable, match=r"/tcp/1: the name cannot be resolved$"):
            await a.connect(b.peer_id, ["/dns4/nowhere.invalid/tcp/1"])


async def test_a_name_for_txt_records_is_refused_in_words() -> None:
    with pytest.raises(NotImplementedError, match="/dns4"):
        await SystemResolver().resolve(Multiaddr("/dnsaddr/example.org"))
