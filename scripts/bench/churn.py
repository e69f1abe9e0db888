"""Nodes that come and go: a thousand connections, ten restarts with one key, a killed bootstrap node, a dead peer,
addresses that lead nowhere.

    python scripts/bench/churn.py [connects restarts bootstrap dead nowhere] [--connects N]

The nodes are whole daemons without models, with the product's own times.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import record
from swarm import nodes

from tests.swarm.swarmlab import Member, Swarm, free_port

POLL_S = 0.05
TTL_S = 30.0


@contextmanager
def mesh(*names: str) -> Iterator[Swarm]:
    """The founder and others, all usable to each other."""
    with nodes() as made:
        made.found()
        for name in names:
            made.join(name, "--no-model")
        settled(made.members)
        yield made


def settled(members: list[Member]) -> float:
    """Seconds until each of ``members`` counts all others usable."""
    began = time.perf_counter()
    for member in members:
        member.await_usable(len(members) - 1)
    return time.perf_counter() - began


def seconds_until(member: Member, holds: Callable[[], bool], what: str, patience: float = 60) -> float:
    began = time.perf_counter()
    member.until(holds, what, patience=patience)
    return time.perf_counter() - began


def holdings(member: Member) -> dict[str, float]:
    process = psutil.Process(member.running.process.pid)
    return {
        "rss_mb": round(process.memory_info().rss / 1e6, 1),
        "files": process.num_fds(),
        "threads": process.num_threads(),
        "peers": len(member.peers()),
    }


def connects(count: int) -> dict[str, Any]:
    """So many whole connections of one member (TCP, network key, Noise, yamux, one protocol), each closed at once."""
    with mesh("honest", "evil") as made:
        target, honest, evil = made.members
        evil.stop()
        target.await_usable(1)
        before = holdings(target)
        began = time.perf_counter()
        came = trio.run(_come_and_go, evil, target, count)
        seconds = time.perf_counter() - began
        target.until(lambda: len(target.peers()) <= before["peers"], "forgets who came and went", patience=2 * TTL_S)
        after = holdings(target)
        honest.stop()
        honest.restart()
        again = seconds_until(target, lambda: target.status()["usable"] == 1, "takes the honest one")
        evil.restart()
        settled(made.members)
        return {"connections": count, "outcomes": came, "seconds": round(seconds, 1), "before": before, "after": after,
                "honest_usable_after_s": round(again, 2)}  # fmt: skip


async def _come_and_go(evil: Member, target: Member, count: int) -> dict[str, int]:
    from gnusnode.errors import GnusError
    from gnusnode.identity import NodeIdentity
    from gnusnode.net.p2p.host import open_net
    from gnusnode.net.p2p.options import NetOptions

    key = json.loads((evil.home / "swarm" / "swarm.json").read_text())["network_key"]
    options = NetOptions(listen=(), network_key=bytes.fromhex(key))
    outcomes = {"connected": 0, "refused": 0}
    peer, address = target.peer_id, target.address
    async with open_net(NodeIdentity.load(evil.home / "key").seed, options) as net:
        for _ in range(count):
            try:
                await net.connect(peer, [address])
            except GnusError:
                outcomes["refused"] += 1  # the node's own limit of connections a peer and a second
                await trio.sleep(0.2)
            else:
                outcomes["connected"] += 1
                await net.disconnect(peer)
    return outcomes


def restarts(_: int) -> dict[str, Any]:
    """One node ten times killed or stopped and started again with its key: seconds until all count it usable."""
    with mesh("b", "c") as made:
        founder, restless = made.members[:2]
        times, ghosts = [], 0
        for number in range(10):
            (restless.stop if number % 2 else restless.kill)()
            began = time.perf_counter()
            restless.start()
            settled(made.members)
            times.append(time.perf_counter() - began)
            ghosts += sum(len(member.peers()) - 2 for member in made.members)
        return {"usable_everywhere_s": record.spread(times, 2), "ghosts": ghosts, "peers": len(founder.peers())}


def bootstrap(_: int) -> dict[str, Any]:
    """The node that everybody joined through is killed: the rest keep their mesh, and one of them restarts."""
    with mesh("b", "c", "d") as made:
        founder, *rest = made.members
        founder.kill()
        noticed = settled(rest)
        rest[0].kill()
        began = time.perf_counter()
        rest[0].start()
        settled(rest)
        without = time.perf_counter() - began
        began = time.perf_counter()
        founder.start()
        settled(made.members)
        return {
            "mesh_of_the_rest_s": round(noticed, 2),
            "restart_without_bootstrap_s": round(without, 2),
            "bootstrap_back_s": round(time.perf_counter() - began, 2),
        }


def nowhere(_: int) -> dict[str, Any]:
    """Start to usable when the first addresses of the only bootstrap peer are a black hole and a mute port."""
    with nodes() as made, socket.socket() as mute:
        made.found()
        mute.bind(("127.0.0.1", free_port()))
        mute.listen()
        peer, port = made.first.peer_id, mute.getsockname()[1]
        joiner = made.join("joiner", "--no-model", start=False)
        lost = [f"/ip6/100::1/tcp/4001/p2p/{peer}", f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}", made.first.address]
        flags = [word for address in lost for word in ("--peer", address)]
        times = []
        for _ in range(5):
            began = time.perf_counter()
            joiner.start(*flags)
            joiner.await_usable(1)
            times.append(time.perf_counter() - began)
            joiner.stop()
            made.first.await_usable(0)
        return {"usable_s": record.spread(times, 2)}


def dead(_: int) -> dict[str, Any]:
    """A peer is killed: when it is out, how often it is dialled, when it leaves the table."""
    with mesh("b", "victim") as made:
        founder, _other, victim = made.members
        peer = victim.peer_id
        dialled = founder.peers()[peer]["dials"]
        victim.kill()
        out = seconds_until(founder, lambda: founder.status()["usable"] == 1, "noticed")
        most = 0

        def gone() -> bool:
            nonlocal most
            entry = founder.peers().get(peer)
            most = max(most, entry["dials"] - dialled if entry else 0)
            return entry is None

        left = out + seconds_until(founder, gone, "forgets it", patience=3 * TTL_S)
        return {"unusable_s": round(out, 2), "gone_from_table_s": round(left, 1), "dials_meanwhile": most}


BENCHES: dict[str, Callable[[int], dict[str, Any]]] = {
    "connects": connects,
    "restarts": restarts,
    "bootstrap": bootstrap,
    "dead": dead,
    "nowhere": nowhere,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benches", nargs="*", choices=[[], *BENCHES], default=[], help="which; none: all")
    parser.add_argument("--connects", type=int, default=1000)
    arguments = parser.parse_args()
    for name in arguments.benches or BENCHES:
        record.emit(f"churn.{name}", BENCHES[name](arguments.connects), load=os.getloadavg())


if __name__ == "__main__":
    main()
