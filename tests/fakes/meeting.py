"""Whole nodes that meet over a network in memory: table, hello, heartbeat, dialling, probes; experts by a list."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
import trio.testing

from gnusnode.contracts.hello import Credential
from gnusnode.contracts.methods import UnaryMethod
from gnusnode.contracts.roster import Roster, Standing
from gnusnode.contracts.services import ExpertCard, ExpertList
from gnusnode.contracts.swarm import (
    LOWEST_TIER,
    AdminDelegation,
    KeyRotation,
    MembershipCertificate,
    NodeAnnouncement,
    OfferedArtifact,
    Revocation,
    RevocationKind,
    Role,
)
from gnusnode.errors import GnusError, PeerUnreachable
from gnusnode.identity import NodeIdentity
from gnusnode.net.context import NetContext
from gnusnode.net.facts import NodeFacts, ThisStart
from gnusnode.net.hello import Admission
from gnusnode.net.memory import MemoryNet, MemoryNetwork
from gnusnode.net.peerentry import PeerEntry, PeerState
from gnusnode.net.peerfile import PeerFile
from gnusnode.net.peers import PeerTable
from gnusnode.net.port import MessageStream, PeerAddresses
from gnusnode.net.presence import Presence, PresenceOptions
from gnusnode.net.rpc import CallContext, Service
from gnusnode.observe.observer import Observer
from tests.fakes.cards import card

EPOCH_MS = 1_775_410_000_000
SERVING = frozenset({Role.CORE, Role.ELM})
HASH = "sha256:" + "ab" * 32


def key(number: int) -> NodeIdentity:
    return NodeIdentity(number.to_bytes(32, "big"))


ROOT = key(1)


def artifact(**fields: Any) -> OfferedArtifact:
    """A model as its node announces it."""
    usual = {"name": "small", "artifact_hash": HASH, "slots": 4, "free_slots": 4, "queued": 0}
    rates = {"decode_rate": 50.0, "prefill_rate": 400.0, "expert_ids": ("small",)}
    return OfferedArtifact.model_validate({**usual, **rates, **fields})


def certificate(
    peer: str,
    *,
    root: NodeIdentity = ROOT,
    roles: Sequence[Role] = (Role.CORE, Role.ELM),
    days: int = 90,
    begin: int = -1,
) -> MembershipCertificate:
    """By ``root``, from ``begin`` days on for ``days`` days."""
    day = 86_400_000
    return MembershipCertificate.signed(
        root,
        swarm_id=Roster.solo(root.peer_id).swarm_id,
        peer_id=peer,
        operator=peer[-8:],
        roles=tuple(roles),
        tier=min((LOWEST_TIER[role] for role in roles), key=lambda tier: tier.value),
        not_before=EPOCH_MS + begin * day,
        not_after=EPOCH_MS + (begin + days) * day,
        serial=1,
    )


def revocation(peer: str, at_ms: int = EPOCH_MS) -> Revocation:
    return Revocation.signed(
        ROOT,
        swarm_id=Roster.solo(ROOT.peer_id).swarm_id,
        kind=RevocationKind.PEER,
        target=peer,
        effective_at_ms=at_ms,
        reason="lost",
        issued_at_ms=at_ms,
    )


class FakeMembers:
    """A membership in memory. It believes what the roster believes."""

    def __init__(self, own: Sequence[Any], *, root: str, open_to_all: bool, now_ms: Any) -> None:
        self.own = tuple(own)
        self._records = {record.digest: record for record in own}
        self._root = root
        self._open = open_to_all
        self._now_ms = now_ms
        self._turned = trio.lowlevel.ParkingLot()
        self._version = 0
        self._build()

    def standing(self, peer: str) -> Standing:
        return self.roster.standing(peer, self._now_ms())

    def records_against(self, peer: str) -> tuple[Any, ...]:
        return tuple(r for r in self._records.values() if isinstance(r, Revocation) and r.target == peer)

    async def add(self, records: Any) -> None:
        known = len(self._records)
        for data in records:
            for kind in (MembershipCertificate, AdminDelegation, Revocation, KeyRotation):
                try:
                    record = kind.from_bytes(data) if isinstance(data, bytes) else data
                except ValueError:
                    continue
                self._records.setdefault(record.digest, record)
                break
        if len(self._records) > known:
            self._build()

    def knows(self, peer: str) -> bool:
        """Whether any record is about ``peer``."""
        return any(peer in record.to_plain().values() for record in self._records.values())

    def move(self, root: str, own: Sequence[Any]) -> None:
        """The node joins another swarm."""
        self.own = tuple(own)
        self._root, self._records = root, {record.digest: record for record in own}
        self._build()

    def _build(self) -> None:
        def of(kind: type) -> list[Any]:
            return [record for record in self._records.values() if isinstance(record, kind)]

        self.roster = Roster.build(
            self._root, certificates=of(MembershipCertificate), revocations=of(Revocation), open_to_all=self._open
        )
        self._version += 1
        self._turned.unpark_all()

    @asynccontextmanager
    async def changes(self) -> AsyncGenerator[AsyncIterator[Roster], None]:
        yield self._follow(self._version)

    async def _follow(self, seen: int) -> AsyncIterator[Roster]:
        while True:
            while seen == self._version:
                await self._turned.park()
            seen = self._version
            yield self.roster


class FakeRpc:
    """Calls to the experts of other nodes of a ``Meeting``; what they offer stands in ``experts``."""

    def __init__(self, meeting: Meeting, own: str) -> None:
        self._meeting = meeting
        self._own = own
        self.calls = 0

    async def call(
        self, method: UnaryMethod[Any, Any], request: Any, context: CallContext, *, peer: str | None = None
    ) -> Any:
        del request, context
        self.calls += 1
        await trio.lowlevel.checkpoint()
        other = self._meeting.living(peer or "")
        if other is None or peer not in self._meeting.living(self._own).net.connected():  # type: ignore[union-attr]  # we live
            raise PeerUnreachable("nobody there", where=peer)
        refused = other.admission.allows(self._own)
        if refused is not None:
            raise refused
        if other.rpc_error is not None:
            raise other.rpc_error
        return ExpertList(experts=tuple(c for c in other.experts if c.service == method.service))

    def serve(self, service: Service) -> AbstractAsyncContextManager[None]:
        raise NotImplementedError(service)

    def offers(self, service: str) -> bool:
        raise NotImplementedError(service)

    def stream(self, method: Any, request: Any, context: CallContext, *, peer: str | None = None) -> Any:
        raise NotImplementedError(method, request, context, peer)


@dataclass
class MeetingNode:
    net: MemoryNet
    table: PeerTable
    members: FakeMembers
    admission: Admission
    observer: Observer
    rpc: FakeRpc
    start: ThisStart
    presence: Presence = field(init=False)
    facts: NodeFacts = field(init=False)
    experts: list[ExpertCard] = field(default_factory=list)
    clock_ms: int = 0
    rpc_error: GnusError | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)

    @property
    def peer(self) -> str:
        return self.net.peer_id

    def entry(self, other: MeetingNode) -> PeerEntry:
        found = self.table.get(other.peer)
        assert found is not None, f"{other.peer} is not in the table"
        return found

    def state(self, other: MeetingNode) -> PeerState | None:
        found = self.table.get(other.peer)
        return found and found.state

    async def until(self, other: MeetingNode, *states: PeerState | None) -> None:
        """Returns once the other node is in one of ``states``; None: not in the table."""
        async with self.table.changes() as changes:
            while self.state(other) not in states:
                await anext(changes)

    def warnings(self) -> set[str]:
        return {warning.warnable.code for warning in self.observer.health.warnings()}


class Meeting:
    """The nodes of one test and the network between them, in the swarm of ``ROOT``."""

    def __init__(self, nursery: trio.Nursery, *, replicated: bool = False) -> None:
        """``replicated``: every node knows every member's certificate, as if the roster had been replicated."""
        self.replicated = replicated
        self.network = MemoryNetwork()
        self._nursery = nursery
        self._began = trio.current_time()
        self.nodes: list[MeetingNode] = []

    def living(self, peer: str) -> MeetingNode | None:
        return next((node for node in reversed(self.nodes) if node.peer == peer), None)

    async def start(
        self,
        identity: NodeIdentity,
        *,
        peers: Sequence[str] = (),
        member: bool = True,
        records: Sequence[Credential] | None = None,
        root: str = ROOT.peer_id,
        open_to_all: bool = False,
        clock_ms: int = 0,
        roles: frozenset[Role] = SERVING,
        experts: Sequence[str] = (),
        address: str | None = None,
        file: Path | None = None,
        finders: Sequence[AsyncIterator[PeerAddresses]] = (),
        **options: Any,
    ) -> MeetingNode:
        """A running node; ``experts``: ids of what its core serves. ``clock_ms``: how far its clock is ahead."""
        own = records if records is not None else ((certificate(identity.peer_id),) if member else ())
        wish = _Wish(identity, tuple(own), root, open_to_all, clock_ms, roles, tuple(experts), file)
        options = {"dht": False, "configured": tuple(peers), **options}
        node = await self._nursery.start(self._live, wish, address, PresenceOptions(**options), finders)
        if self.replicated:
            everything = [record for other in self.nodes for record in other.members.own]
            for other in self.nodes:
                await other.members.add(everything)
        return node

    async def stop(self, node: MeetingNode, *, goodbye: bool = True) -> None:
        """Ends a node in order, or as by ``kill -9``."""
        if not goodbye:
            self.network.cut(node.peer)
        node.scope.cancel()
        self.nodes.remove(node)
        await node.ended.wait()
        await trio.testing.wait_all_tasks_blocked()
        if not goodbye:
            self.network.heal(node.peer)

    async def _live(
        self,
        wish: _Wish,
        address: str | None,
        options: PresenceOptions,
        finders: Sequence[AsyncIterator[PeerAddresses]],
        *,
        task_status: trio.TaskStatus[MeetingNode],
    ) -> None:
        async with self.network.join(wish.identity.peer_id, (address,) if address else ()) as net:
            node = self._make(wish, net, options)
            with node.scope:
                async with trio.open_nursery() as nursery:
                    self.nodes.append(node)
                    await nursery.start(node.presence.run, finders)
                    task_status.started(node)
        node.ended.set()

    def _make(self, wish: _Wish, net: MemoryNet, options: PresenceOptions) -> MeetingNode:
        def now_ms() -> int:
            return EPOCH_MS + clock_ms() + round((trio.current_time() - self._began) * 1000)

        def clock_ms() -> int:
            return node.clock_ms if made else wish.clock_ms

        made = False
        peer = wish.identity.peer_id
        observer, table = Observer.create(), PeerTable(peer, ttl=options.ttl)
        members = FakeMembers(wish.own, root=wish.root, open_to_all=wish.open_to_all, now_ms=now_ms)
        rpc = FakeRpc(self, peer)
        offered = (artifact(expert_ids=wish.experts),) if wish.experts else ()
        node = MeetingNode(net, table, members, Admission(peer, table, members), observer, rpc, ThisStart.now(now_ms()))
        node.clock_ms, made = wish.clock_ms, True
        node.facts = NodeFacts(wish.roles, {"core": 1, "elm": 1}, offered)
        node.experts = [card(name, peer=peer, artifact_hash=HASH) for name in wish.experts]
        context = NetContext(
            net,
            table,
            wish.identity,
            members,
            lambda: node.facts,
            lambda: node.members.own,
            observer,
            now_ms,
            node.start,
            random.Random(sum(wish.identity.seed)),
        )
        node.presence = Presence(context, rpc, file=PeerFile(wish.file) if wish.file else None, options=options)
        return node


@dataclass(frozen=True)
class _Wish:
    """What a node is to be."""

    identity: NodeIdentity
    own: tuple[Any, ...]
    root: str
    open_to_all: bool
    clock_ms: int
    roles: frozenset[Role]
    experts: tuple[str, ...]
    file: Path | None


# --- what tests ask for ---------------------------------------------------------------------------------------------


async def both(a: MeetingNode, b: MeetingNode, *states: PeerState | None) -> None:
    with trio.fail_after(90):
        await a.until(b, *states)
        await b.until(a, *states)


async def pair(meeting: Meeting, **options: object) -> tuple[MeetingNode, MeetingNode]:
    """Two members, the second one dials the first, both usable."""
    a = await meeting.start(key(11), **options)  # type: ignore[arg-type]  # passed on
    b = await meeting.start(key(12), peers=a.net.addresses(), **options)  # type: ignore[arg-type]
    await both(a, b, PeerState.USABLE)
    return a, b


async def until_reset(stream: MessageStream) -> bool:
    with trio.fail_after(20):
        try:
            while await stream.receive() is not None:
                pass
        except PeerUnreachable:
            return True
    return False


def value(node: MeetingNode, name: str, /, **labels: str) -> float:
    return node.observer.metrics.registry.get_sample_value(name, labels) or 0.0


def bare(node: MeetingNode) -> str:
    return node.net.addresses()[0].partition("/p2p/")[0]


async def swallow(_topic: str, _data: bytes) -> None:
    await trio.lowlevel.checkpoint()


def sign(by: NodeIdentity, like: NodeAnnouncement, **fields: object) -> NodeAnnouncement:
    """An announcement like another one, signed anew."""
    plain = {name: getattr(like, name) for name in type(like).model_fields if name != "signature"}
    return NodeAnnouncement.signed(by, **{**plain, "nonce": os.urandom(16).hex(), **fields})


def short_lived(peer: str) -> MembershipCertificate:
    """Ends 30 seconds after the beginning of the test."""
    plain = certificate(peer)
    fields = {name: getattr(plain, name) for name in type(plain).model_fields if name != "signature"}
    return MembershipCertificate.signed(ROOT, **{**fields, "not_after": EPOCH_MS + 30_000})
