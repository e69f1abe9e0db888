"""What the router knows of the swarm and of each peer when it decides: plain data, made from roster and peer table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gnusnode.contracts.plan import PrivacyMode
from gnusnode.contracts.swarm import Tier


@dataclass(frozen=True)
class PeerFacts:
    """What is known of another node that may be asked now: the peer table leaves out those that are excluded.

    Attributes:
        tier: how far its certificate makes it trusted; ``D`` without one.
        reputation: 0 to 1; 0.5 where nothing is known.
        rtt_seconds: measured round trip.
        failures: how often in a row it failed lately, as the peer table counts.
        age_seconds: how old what it said of its slots, queue and rates is.
    """

    tier: Tier = Tier.D
    reputation: float = 0.5
    rtt_seconds: float = 0.0
    failures: int = 0
    age_seconds: float = 0.0


_OWN: Final = PeerFacts(tier=Tier.A, reputation=1.0)
_UNKNOWN: Final = PeerFacts()


@dataclass(frozen=True)
class Swarm:
    """What the router knows of the swarm when it decides.

    Attributes:
        node: PeerID of this node.
        members: PeerIDs with a membership certificate, this node included.
        boundary: PeerIDs of this node's operator, this node included.
        services: names of the services that a plan may build on.
        peers: what is known of the other nodes.
    """

    node: str
    members: frozenset[str]
    boundary: frozenset[str]
    services: frozenset[str]
    peers: Mapping[str, PeerFacts] = field(default_factory=dict[str, PeerFacts])

    def facts(self, peer: str) -> PeerFacts:
        """This node is trusted and near; a peer of which nothing is known has neither tier nor record."""
        return _OWN if peer == self.node else self.peers.get(peer, _UNKNOWN)

    def may_see(self, peer: str, privacy: PrivacyMode) -> bool:
        """Whether a prompt of this privacy may travel to ``peer``. Tier D never sees more than plain text."""
        match privacy:
            case PrivacyMode.PLAINTEXT:
                return True
            case PrivacyMode.RESTRICTED:
                known = self.peers.get(peer)
                return peer in self.members and (known is None or known.tier is not Tier.D)
            case PrivacyMode.PRIVATE_BOUNDARY:
                return peer in self.boundary
