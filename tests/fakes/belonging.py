"""Nodes with a membership each, on the in-memory network; their wall clock is set by hand."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio

from gnusnode.contracts.invite import Invite
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.swarm import MembershipCertificate, Role, Tier
from gnusnode.identity import NodeIdentity
from gnusnode.net import issuing, join
from gnusnode.net.belonging import keep_membership
from gnusnode.net.invites import Invites, NewInvite
from gnusnode.net.issuing import Authority
from gnusnode.net.membership import Membership
from gnusnode.net.memory import MemoryNet, MemoryNetwork
from gnusnode.net.records import RecordSet, SwarmRecord
from gnusnode.net.rostersync import RosterSync
from gnusnode.net.swarmdesk import SwarmDesk
from gnusnode.observe.observer import Observer

START_MS = 1_775_410_000_000
EXPERTS = frozenset({Role.CORE, Role.ELM})


def key(number: int) -> NodeIdentity:
    return NodeIdentity(bytes([number]) * 32)


def numbered(number: int) -> NodeIdentity:
    """One of many keys."""
    return NodeIdentity(number.to_bytes(32, "big"))


ROOT = key(200)
ROOT_POWER = Authority(ROOT, frozenset(Role), Tier.A, 0, 2**53 - 1, is_root=True)


@dataclass
class WallClock:
    ms: int = START_MS

    def __call__(self) -> int:
        return self.ms


@dataclass(eq=False)
class BelongingNode:
    """A node that does not run: its membership on the files of its home."""

    home: Path
    identity: NodeIdentity
    membership: Membership
    invites: Invites
    observer: Observer
    net: MemoryNet | None = None
    sync: RosterSync = field(init=False)

    def __post_init__(self) -> None:
        self.sync = RosterSync(self.membership)

    @property
    def peer(self) -> str:
        return self.identity.peer_id

    def addresses(self) -> tuple[str, ...]:
        return (f"/ip4/192.0.2.1/tcp/8478/p2p/{self.peer}",) if self.net is None else self.net.addresses()

    def desk(self, *, fits: bool = True) -> SwarmDesk:
        return SwarmDesk(self.membership, self.invites, addresses=self.addresses, operator="someone", fits=lambda: fits)

    def outcome_of(self, other: BelongingNode) -> Outcome:
        return self.membership.standing(other.peer).outcome

    def roles_of(self, other: BelongingNode) -> frozenset[Role]:
        return self.membership.standing(other.peer).roles

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits for a change of the roster after which ``holds`` is true."""
        async with self.membership.changes() as changes:
            while not holds():
                await anext(changes)

    async def invite(self, **asked: Any) -> Invite:
        new = NewInvite(**{"roles": EXPERTS, **asked})
        return (await self.invites.create(new, self.addresses()))[0]

    def warnings(self) -> set[str]:
        return {warning.warnable.code for warning in self.observer.health.warnings()}

    def told(self, name: str) -> list[dict[str, Any]]:
        """The fields of all events of that name."""
        return [stamped.event.fields() for stamped in self.observer.bus.recent() if stamped.event.name == name]


class Village:
    """Makes nodes; ``clock`` is everybody's wall clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = WallClock()
        self.network = MemoryNetwork()

    async def node(self, number: int) -> BelongingNode:
        """The node of that number, from what its home holds."""
        home = self.folder / str(number)
        home.mkdir(exist_ok=True)
        observer, identity = Observer.create(), key(number)
        membership = await Membership.open(home, identity, observer, now_ms=self.clock)
        return BelongingNode(home, identity, membership, Invites(membership, observer), observer)

    async def founder(self, *, open_to_all: bool = False) -> BelongingNode:
        node = await self.node(1)
        await node.membership.init("village", operator="alice", open_to_all=open_to_all)
        return node

    @asynccontextmanager
    async def running(self, node: BelongingNode) -> AsyncGenerator[BelongingNode]:
        """The node on the network, with everything that keeps its membership."""
        async with self.network.join(node.peer) as node.net, trio.open_nursery() as nursery:
            keep = partial(keep_membership, node.net, node.membership, node.invites, node.observer, sync=node.sync)
            await nursery.start(keep)
            yield node
            nursery.cancel_scope.cancel()
        node.net = None

    async def member(self, founder: BelongingNode, number: int, **granted: Any) -> BelongingNode:
        """A node that has joined while both were off the network: as if by a token."""
        node = await self.node(number)
        invite = await founder.invite(**granted)
        assert invite.secret is not None
        await founder.invites.redeem(invite.secret, node.peer, f"operator-{number}")
        await node.membership.begin_join(join.state_of(invite, invite.to_token(), "x"))
        await join.accept(node.membership, founder.membership.records_known())
        return node


def _net(node: BelongingNode) -> MemoryNet:
    assert node.net is not None
    return node.net


async def connect(a: BelongingNode, b: BelongingNode) -> None:
    await _net(a).connect(b.peer, _net(b).addresses())


def alike(*nodes: BelongingNode) -> bool:
    return len({node.membership.records.total for node in nodes}) == 1


def certificates(count: int, now_ms: int = START_MS) -> list[MembershipCertificate]:
    """So many members of the swarm of ``ROOT``."""
    roster = RecordSet(ROOT.peer_id).roster
    return [
        issuing.certificate(
            ROOT_POWER,
            roster,
            numbered(number).peer_id,
            roles=(Role.CORE,),
            tier=Tier.C,
            operator="x",
            now_ms=now_ms,
        )
        for number in range(1, count + 1)
    ]


def merged(*groups: Iterable[SwarmRecord], now_ms: int = START_MS) -> RecordSet:
    """What a node of the swarm of ``ROOT`` holds after it has seen ``groups`` one after the other."""
    records = RecordSet(ROOT.peer_id)
    for group in groups:
        records = records.merged(group, now_ms).result
    return records
