"""Members of a swarm on the in-memory network, each with its rpc."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import trio

from gnusnode.contracts.methods import Method
from gnusnode.errors import GnusError
from gnusnode.net.link import RpcOptions
from gnusnode.net.local import LocalRpc
from gnusnode.net.memory import MemoryNet, MemoryNetwork
from gnusnode.net.swarmrpc import SwarmRpc


@dataclass(eq=False)
class Member:
    """A node: its network, its own services, and its rpc. What it refuses may be changed while it runs."""

    net: MemoryNet
    local: LocalRpc
    rpc: SwarmRpc = field(init=False)
    stop: Callable[[], None] = field(init=False)
    """Ends the run of its rpc."""
    refused: dict[str, GnusError] = field(default_factory=dict[str, GnusError])
    """Peers that the gate refuses, and how."""
    forbidden: dict[str, GnusError] = field(default_factory=dict[str, GnusError])
    """Methods, as ``service.name``, that nobody may call, and how that is said."""

    def accepts(self, peer: str, method: Method) -> GnusError | None:
        del peer
        return self.forbidden.get(f"{method.service}.{method.name}")


class Swarm(dict[str, Member]):
    """The members by PeerID."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()

    async def connect(self, a: str, b: str) -> None:
        await self[a].net.connect(b, self[b].net.addresses())

    def serving(self, service: str) -> list[str]:
        return [peer for peer, member in self.items() if member.local.offers(service)]


@asynccontextmanager
async def swarm_of(
    *peers: str, methods: Iterable[Method], options: RpcOptions | None = None
) -> AsyncGenerator[Swarm, None]:
    """A swarm whose members are not connected yet."""
    swarm = Swarm()
    options = options or RpcOptions()
    async with AsyncExitStack() as stack:
        nets = {peer: await stack.enter_async_context(swarm.network.join(peer)) for peer in peers}
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        for peer, net in nets.items():
            local = LocalRpc(peer, buffer_bytes=options.window)
            member = swarm[peer] = Member(net, local)
            member.rpc = SwarmRpc(
                net,
                local,
                gate=member.refused.get,
                serving=swarm.serving,
                accepts=member.accepts,
                options=options,
                methods=methods,
            )
            member.stop = await nursery.start(_run, member.rpc)
        yield swarm


async def _run(rpc: SwarmRpc, task_status: trio.TaskStatus[Callable[[], None]]) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(rpc.run)
        task_status.started(nursery.cancel_scope.cancel)
