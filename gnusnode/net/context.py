"""What all parts that meet other nodes are given: the network, whom to believe, what to say, what time it is."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gnusnode.contracts.dsse import Signer
from gnusnode.contracts.hello import Credential
from gnusnode.contracts.roster import Standing
from gnusnode.contracts.swarm import Role
from gnusnode.net.facts import NodeFacts, ThisStart
from gnusnode.net.members import Members
from gnusnode.net.peers import PeerTable
from gnusnode.net.port import Net
from gnusnode.observe.observer import Observer


def _random() -> random.Random:
    return random.Random()  # noqa: S311 - spreads load over time, guards nothing


@dataclass(frozen=True)
class NetContext:
    """One node among its peers.

    Attributes:
        facts: what the node offers just now.
        credentials: what shows to others that this node belongs to the swarm.
        now_ms: wall clock, milliseconds since the epoch; for records only.
        start: this start of the node.
        rng: for jitter.
    """

    net: Net
    table: PeerTable
    signer: Signer
    members: Members
    facts: Callable[[], NodeFacts]
    credentials: Callable[[], Sequence[Credential]]
    observer: Observer
    now_ms: Callable[[], int]
    start: ThisStart
    rng: random.Random = field(default_factory=_random)

    @property
    def own(self) -> str:
        """This node's PeerID."""
        return self.net.peer_id

    @property
    def swarm_id(self) -> str:
        return self.members.roster.swarm_id

    def own_standing(self) -> Standing:
        return self.members.standing(self.own)

    def own_roles(self) -> list[Role]:
        """The roles that this node runs and was granted."""
        return sorted(self.facts().roles & self.own_standing().roles)
