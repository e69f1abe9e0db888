"""Measures the rpc and prints one JSON record a line.

    python scripts/bench/rpc.py [--only local|memory|libp2p] [--calls 500] [--rounds 5]

`local`: within one process, through the pipe that roles use. `memory`: two members of an in-memory network in one
process, so CPU is that of both sides without a real connection. `libp2p`: two processes on loopback; CPU of each side.
Per call or item: wall milliseconds (p50, p95) and CPU microseconds; `paced` is 16 answers at 30 ms a token.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any, ClassVar

import trio
from pydantic import TypeAdapter

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

import record  # noqa: E402 - stands beside this file

from gnusnode.contracts.base import Record  # noqa: E402 - found through the line above
from gnusnode.contracts.generation import Delta  # noqa: E402
from gnusnode.contracts.methods import StreamMethod, UnaryMethod  # noqa: E402
from gnusnode.contracts.services import ChoiceDelta, Empty  # noqa: E402
from gnusnode.identity import NodeIdentity  # noqa: E402
from gnusnode.net.local import LocalRpc  # noqa: E402
from gnusnode.net.memory import MemoryNetwork  # noqa: E402
from gnusnode.net.port import Net  # noqa: E402
from gnusnode.net.rpc import CallContext, Rpc, Service  # noqa: E402
from gnusnode.net.swarmrpc import SwarmRpc  # noqa: E402

STREAMS = 16
PACE = 0.03
TOKEN = ChoiceDelta(index=0, delta=Delta(text=" token", tokens=(1234,)))


class Text(Record):
    record_name: ClassVar[str] = "bench-text"
    max_bytes: ClassVar[int] = 4 * 1024 * 1024

    text: str


class Tokens(Record):
    record_name: ClassVar[str] = "bench-tokens"

    count: int
    pace: float


class Cpu(Record):
    record_name: ClassVar[str] = "bench-cpu"

    seconds: float


ECHO = UnaryMethod("bench", "echo", Text, Text)
CPU = UnaryMethod("bench", "cpu", Empty, Cpu)
STREAM = StreamMethod[Tokens, ChoiceDelta]("bench", "stream", Tokens, TypeAdapter(ChoiceDelta))
METHODS = (ECHO, CPU, STREAM)


async def echo(asked: Text, _: CallContext) -> Text:
    return asked


async def cpu(_: Empty, __: CallContext) -> Cpu:
    return Cpu(seconds=time.process_time())


async def stream(asked: Tokens, _: CallContext, send: Callable[[ChoiceDelta], Awaitable[None]]) -> None:
    for _number in range(asked.count):
        await send(TOKEN)
        await trio.sleep(asked.pace)


SERVICE = Service("bench", {"echo": echo, "cpu": cpu}, {"stream": stream})


def context() -> CallContext:
    return CallContext("11111111-1111-4111-8111-111111111111", time.monotonic() + 120)


class Meter:
    """CPU seconds of both sides, and wall times of single calls."""

    def __init__(self, rpc: Rpc, *, two: bool) -> None:
        self._rpc = rpc
        self._two = two
        self.walls: list[float] = []

    async def cpus(self) -> tuple[float, float]:
        """This process, and the other one where there is one."""
        far = (await self._rpc.call(CPU, Empty(), context())).seconds if self._two else 0.0
        return time.process_time(), far

    async def per(self, units: int, rounds: int, work: Callable[[], Awaitable[None]]) -> dict[str, Any]:
        """Microseconds of CPU for one of ``units`` of ``work``, by round."""
        await work()  # warm
        self.walls.clear()
        near: list[float] = []
        far: list[float] = []
        for _ in range(rounds):
            before = await self.cpus()
            await work()
            after = await self.cpus()
            near.append((after[0] - before[0]) / units * 1e6)
            far.append((after[1] - before[1]) / units * 1e6)
        found: dict[str, Any] = {"cpu_us": record.spread([a + b for a, b in zip(near, far, strict=True)], 1)}
        if self._two:
            found |= {"caller_cpu_us": record.spread(near, 1), "callee_cpu_us": record.spread(far, 1)}
        if self.walls:
            ordered = sorted(self.walls)
            found |= {f"wall_ms_p{p}": round(ordered[len(ordered) * p // 100] * 1e3, 3) for p in (50, 95)}
        return found


async def measure(name: str, rpc: Rpc, calls: int, rounds: int, *, two: bool = False) -> None:
    meter = Meter(rpc, two=two)
    small, big = Text(text="x" * 50), Text(text="x" * 1_000_000)

    async def one(asked: Text) -> None:
        begin = time.perf_counter()
        await rpc.call(ECHO, asked, context())
        meter.walls.append(time.perf_counter() - begin)

    async def in_turn() -> None:
        for _ in range(calls):
            await one(small)

    async def at_once() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(32):
                nursery.start_soon(one, small)

    async def megabytes() -> None:
        for _ in range(5):
            await one(big)

    async def read(count: int, pace: float) -> None:
        async with rpc.stream(STREAM, Tokens(count=count, pace=pace), context()) as items:
            async for _ in items:
                pass

    async def paced() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(STREAMS):
                nursery.start_soon(read, 40, PACE)

    figures = {
        "unary": await meter.per(calls, rounds, in_turn),
        "unary_32_at_once": await meter.per(32, rounds, at_once),
        "unary_1_mb_both_ways": await meter.per(5, rounds, megabytes),
    }
    meter.walls.clear()
    figures["item_full_speed"] = await meter.per(calls * 4, rounds, lambda: read(calls * 4, 0.0))
    figures["item_paced"] = await meter.per(STREAMS * 40, max(1, rounds // 2), paced)
    record.emit(f"rpc.{name}", figures)


@asynccontextmanager
async def swarm_rpc(net: Net, callee: str | None) -> AsyncGenerator[tuple[SwarmRpc, LocalRpc], None]:
    local = LocalRpc(net.peer_id)
    rpc = SwarmRpc(
        net,
        local,
        gate=lambda peer: None,
        serving=lambda service: [callee] if callee else [],
        accepts=lambda peer, method: None,
        methods=METHODS,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(rpc.run)
        yield rpc, local
        nursery.cancel_scope.cancel()


async def bench_local(calls: int, rounds: int) -> None:
    rpc = LocalRpc("12D3KooWbench")
    async with rpc.serve(SERVICE):
        await measure("local", rpc, calls, rounds)


async def bench_memory(calls: int, rounds: int) -> None:
    network = MemoryNetwork()
    near, far = (NodeIdentity.generate().peer_id for _ in range(2))
    async with (
        network.join(near) as a,
        network.join(far) as b,
        swarm_rpc(a, far) as (rpc, _),
        swarm_rpc(b, None) as (_, local),
        local.serve(SERVICE),
    ):
        await a.connect(far, b.addresses())
        await measure("memory", rpc, calls, rounds)


async def bench_libp2p(calls: int, rounds: int) -> None:
    from gnusnode.net.p2p.host import open_net
    from gnusnode.net.p2p.options import NetOptions

    child = await trio.lowlevel.open_process([sys.executable, __file__, "--serve"], stdin=PIPE, stdout=PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    async with child.stdin, child.stdout:  # it serves until its input ends
        said = b""
        while not said.endswith(b"\n"):
            said += await child.stdout.receive_some() or b"\n"
        where = json.loads(said)
        async with open_net(secrets.token_bytes(32), NetOptions()) as net:
            await net.connect(where["peer"], where["addresses"])
            async with swarm_rpc(net, where["peer"]) as (rpc, _):
                await measure("libp2p", rpc, calls, rounds, two=True)
    await child.wait()


async def serve_libp2p() -> None:
    """The other process: says where it listens, and serves until its standard input ends."""
    from gnusnode.net.p2p.host import open_net
    from gnusnode.net.p2p.options import NetOptions

    async with (
        open_net(secrets.token_bytes(32), NetOptions(listen=("/ip4/127.0.0.1/tcp/0",))) as net,
        swarm_rpc(net, None) as (_, local),
        local.serve(SERVICE),
    ):
        print(json.dumps({"peer": net.peer_id, "addresses": net.addresses()}), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


BENCHES = {"local": bench_local, "memory": bench_memory, "libp2p": bench_libp2p}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(BENCHES))
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        trio.run(serve_libp2p)
        return
    for name in [options.only] if options.only else list(BENCHES):
        trio.run(BENCHES[name], options.calls, options.rounds)


if __name__ == "__main__":
    main()
