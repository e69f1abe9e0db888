"""The swarm as this node stands in it: what the router may know, what becomes of peers, who holds which file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import trio

from gnusnode.contracts.roster import Roster
from gnusnode.contracts.swarm import Role, Tier
from gnusnode.errors import GnusError, ModelNotFound
from gnusnode.net.blobs import BlobServer, Puller
from gnusnode.net.facts import NodeFacts
from gnusnode.net.local import LocalRpc
from gnusnode.net.membership import Membership
from gnusnode.net.names import artifact_key
from gnusnode.net.peerentry import PeerEntry
from gnusnode.net.peers import PeerTable
from gnusnode.net.port import Net, PeerAddresses
from gnusnode.net.presence import Presence
from gnusnode.net.rpc import Rpc
from gnusnode.net.swarmdesk import SwarmDesk
from roles.router.facts import PeerFacts, Swarm
from roles.router.health import Key

PLANNED: Final = ("core", "elm", "memory", "verifier", "grounding")
"""Services that a plan may build on."""
SEEK_SECONDS: Final = 8.0
"""How long holders of a file that nobody usable announces are looked for in the DHT."""
PROVIDE_SECONDS: Final = 60.0
"""How often it is looked whether there are model files that the DHT was not told of."""
PROVIDED: Final = 8
"""Model files that the DHT is told of: it takes few keys of a node, and nobody can take one back."""
LIED_SECONDS: Final = 600.0
"""How long a peer is asked nothing after it sent a file that was not the one it named."""


@dataclass
class SwarmNode:
    """This node's part in a swarm. Made by ``network.open_swarm``; ``run`` makes it seen by others.

    Attributes:
        net, presence, puller: None where the node takes part in no network.
        blobs: None where it gives no model files to others.
    """

    membership: Membership
    table: PeerTable
    desk: SwarmDesk
    rpc: Rpc
    local: LocalRpc
    now_ms: Callable[[], int]
    net: Net | None = None
    presence: Presence | None = None
    puller: Puller | None = None
    blobs: BlobServer | None = None
    facts: Callable[[], NodeFacts] = NodeFacts
    """What the node offers; set by whoever knows, before ``run``."""
    finders: list[AsyncIterator[PeerAddresses]] = field(default_factory=list[AsyncIterator[PeerAddresses]])
    services: list[Callable[..., Any]] = field(default_factory=list[Callable[..., Any]])
    """What ``run`` starts, in this order; each tells when it has started."""

    @property
    def roster(self) -> Roster:
        return self.membership.roster

    def granted(self, configured: Collection[Role]) -> frozenset[Role]:
        """The roles that the settings ask for and the swarm grants; alone, all that the settings ask for."""
        if self.membership.swarm is None:
            return frozenset(configured)
        return self.membership.own_roles(configured)

    def view(self) -> Swarm:
        """What the router may know when it decides."""
        own, roster, now = self.local.peer_id, self.roster, self.now_ms()
        mine = roster.standing(own, now).operators
        members, boundary, peers = {own}, {own}, dict[str, PeerFacts]()
        for entry in self.table.usable():
            standing = roster.standing(entry.peer, now)
            if standing.tier is not Tier.D:
                members.add(entry.peer)
                if standing.operators and standing.operators <= mine:
                    boundary.add(entry.peer)
            peers[entry.peer] = _facts_of(entry, standing.tier, self.table.now())
        offered = frozenset(name for name in PLANNED if self.rpc.offers(name))
        return Swarm(own, frozenset(members), frozenset(boundary), offered, peers)

    def trusts(self, peer: str) -> bool:
        """Whether this node works for ``peer`` without a plan: members with a certificate."""
        return self.membership.standing(peer).tier is not Tier.D

    def report(self, key: Key, error: GnusError | None) -> None:
        """A draft of another node's expert came to its end: its reputation follows.

        A lost node is not excluded: it is unusable for as long as it is away, and the router asks it last for a while.
        One that has no such expert may just have unloaded it; it is excluded if it goes on offering it.
        """
        peer, expert_id = key
        if isinstance(error, ModelNotFound):
            if self.presence is not None:
                self.presence.prober.doubt(peer, expert_id)
        elif peer != self.local.peer_id:
            self.table.rate(peer, good=error is None)

    def holders(self, sha256: str) -> list[str]:
        """Usable peers that announce the model file."""
        return [
            entry.peer
            for entry in self.table.usable()
            if entry.announcement and any(one.artifact_hash == sha256 for one in entry.announcement.artifacts)
        ]

    async def seek(self, sha256: str) -> None:
        """Looks in the DHT for holders of a model file, and gives those that were found time to say hello."""
        assert self.net is not None
        assert self.presence is not None
        with trio.move_on_after(SEEK_SECONDS):
            async with self.table.changes() as changes:
                for peer in await self.net.find(artifact_key(sha256)):
                    self.presence.dialer.found(peer, "dht")
                while not self.holders(sha256):
                    await anext(changes)

    async def provide(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Says in the DHT which model files are here; the network renews what was said."""
        assert self.net is not None
        said: set[str] = set()
        task_status.started()
        while True:
            hashes = {one.artifact_hash for one in self.facts().artifacts}
            for sha256 in sorted(hashes)[:PROVIDED] if self.net.connected() else ():
                if sha256 not in said:
                    with suppress(GnusError):  # nobody took it: the next look tries again
                        await self.net.provide(artifact_key(sha256))
                        said.add(sha256)
            await trio.sleep(PROVIDE_SECONDS)

    def status(self) -> dict[str, Any]:
        """For ``gnusnode status``."""
        status = self.desk.swarm_status()
        return {
            "id": status["swarm_id"],
            "name": status["name"],
            "state": status["state"],
            "roles": status.get("roles", []),
            "addresses": list(self.net.addresses()) if self.net else [],
            "peers": asdict(self.table.counts()),
        }

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answers peers and looks for them, until cancelled."""
        async with trio.open_nursery() as nursery:
            for service in self.services:
                await nursery.start(service)
            task_status.started()


def _facts_of(entry: PeerEntry, tier: Tier, now: float) -> PeerFacts:
    return PeerFacts(
        tier=tier,
        reputation=entry.reputation,
        rtt_seconds=(entry.rtt_ms or 0.0) / 1000,
        failures=entry.failures,
        age_seconds=max(0.0, now - entry.announced_at) if entry.announcement else 0.0,
    )
