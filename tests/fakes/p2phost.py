"""Real libp2p hosts on loopback, for tests of what is built on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.network.config import ConnectionConfig
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as Noise
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux
from multiaddr import Multiaddr

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)


def options(**changed: Any) -> Any:
    """The network options that the parts look at."""
    return SimpleNamespace(**{"network_name": "test", "relay": "client", "dht": True} | changed)


@asynccontextmanager
async def open_host(listen: Sequence[str] = LOOPBACK, *, psk: str | None = None) -> AsyncIterator[Any]:
    """A host with Noise and Yamux only, that listens on ``listen`` while the context is open."""
    keys = create_new_key_pair()
    addresses = [Multiaddr(each) for each in listen]
    host = new_host(
        key_pair=keys,
        listen_addrs=addresses,
        sec_opt={NOISE: Noise(keys, noise_privkey=create_noise_key_pair().private_key)},
        muxer_opt={YAMUX: Yamux},
        connection_config=ConnectionConfig(min_connections=0, low_watermark=0, high_watermark=200, max_connections=300),
        psk=psk,
    )
    async with host.run(addresses):
        try:
            yield host
        finally:
            with trio.move_on_after(5, shield=True):
                await host.close()


async def connect(one: Any, other: Any) -> None:
    with trio.fail_after(20):
        await one.connect(info_from_p2p_addr(other.get_addrs()[0]))


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Waits for what another network stack does in its own time and tells nobody: there is no event to wait for."""
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.02)
