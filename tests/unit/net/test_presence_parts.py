"""What fakes play elsewhere: the real membership on disk and the real rpc, over a network in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from gnusnode.contracts.services import ExpertList
from gnusnode.contracts.swarm import RevocationKind, Role
from gnusnode.identity import NodeIdentity
from gnusnode.net.context import NetContext
from gnusnode.net.facts import NodeFacts, ThisStart
from gnusnode.net.hello import Admission
from gnusnode.net.local import LocalRpc
from gnusnode.net.membership import Membership
from gnusnode.net.memory import MemoryNet, MemoryNetwork
from gnusnode.net.peerentry import PeerEntry, PeerState
from gnusnode.net.peers import PeerTable
from gnusnode.net.presence import Presence, PresenceOptions
from gnusnode.net.rpc import Service
from gnusnode.net.swarmfolder import SwarmState
from gnusnode.net.swarmrpc import SwarmRpc
from gnusnode.observe.observer import Observer
from tests.fakes.cards import card
from tests.fakes.meeting import key

SERVING = frozenset({Role.CORE, Role.ELM})


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Peer:
    """A node with everything real but the wire."""

    def __init__(self, identity: NodeIdentity, members: Membership, observer: Observer, network: MemoryNetwork) -> None:
        self.identity = identity
        self.members = members
        self.table = PeerTable(identity.peer_id)
        self.net: MemoryNet
        self._observer = observer
        self._network = network

    async def run(self, peers: tuple[str, ...], *, task_status: trio.TaskStatus[None]) -> None:
        own, table = self.identity.peer_id, self.table
        local = LocalRpc(own)
        async with self._network.join(own) as self.net:
            rpc = SwarmRpc(
                self.net,
                local,
                gate=Admission(own, table, self.members).allows,
                serving=lambda service: [entry.peer for entry in table.serving(service)],
                accepts=lambda _peer, _method: None,
            )
            context = NetContext(
                self.net,
                table,
                self.identity,
                self.members,
                lambda: NodeFacts(SERVING, {"core": 1, "elm": 1}),
                self.members.own_records,
                self._observer,
                now_ms,
                ThisStart.now(now_ms()),
            )
            presence = Presence(context, rpc, options=PresenceOptions(configured=peers, dht=False))
            async with (
                local.serve(experts("core", card("gnus/x", peer=own))),
                local.serve(experts("elm")),
                trio.open_nursery() as nursery,
            ):
                await nursery.start(rpc.run)
                await nursery.start(presence.run)
                task_status.started()

    async def until(self, other: Peer, condition: Callable[[PeerEntry], bool]) -> PeerEntry:
        with trio.fail_after(20):
            async with self.table.changes() as changes:
                while (entry := self.table.get(other.identity.peer_id)) is None or not condition(entry):
                    await anext(changes)
                return entry


def experts(service: str, *cards: Any) -> Service:
    async def answer(_request: object, _context: object) -> ExpertList:
        await trio.lowlevel.checkpoint()
        return ExpertList(experts=tuple(cards))

    return Service(service, {"experts": answer}, {})


@pytest.mark.requirement("G-ROLE-4")
async def test_a_node_is_refused_then_joins_serves_and_is_revoked(tmp_path: Path) -> None:
    network, nodes = MemoryNetwork(), list[Peer]()
    for number in (11, 12):
        home, observer = tmp_path / str(number), Observer.create()
        home.mkdir()
        members = await Membership.open(home, key(number), observer)
        nodes.append(Peer(key(number), members, observer, network))
    founder, guest = nodes
    swarm = await founder.members.init("home", operator="ann")
    async with trio.open_nursery() as nursery:
        await nursery.start(founder.run, ())
        await nursery.start(guest.run, founder.net.addresses())

        refused = await guest.until(founder, lambda entry: entry.state is PeerState.REFUSED)
        assert refused.code == "wrong_swarm"

        await founder.members.grant(guest.identity.peer_id, SERVING, operator="bob")
        await guest.members.begin_join(SwarmState("home", swarm.root))
        await guest.members.add([record.to_bytes() for record in founder.members.records_known()])
        await guest.members.finish_join()
        for one, another in ((founder, guest), (guest, founder)):
            usable = await one.until(another, lambda entry: entry.state is PeerState.USABLE)
            assert [seen.expert_id for seen in usable.cards] == ["gnus/x"]

        await founder.members.revoke(RevocationKind.PEER, guest.identity.peer_id)
        for one, another in ((founder, guest), (guest, founder)):
            revoked = await one.until(another, lambda entry: entry.state is PeerState.REFUSED)
            assert revoked.code == "revoked"
        nursery.cancel_scope.cancel()
