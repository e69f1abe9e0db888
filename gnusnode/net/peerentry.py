"""What this node knows of one other node: frozen facts, and the state that follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from gnusnode.contracts.generation import EngineState
from gnusnode.contracts.roster import Standing
from gnusnode.contracts.services import ExpertCard
from gnusnode.contracts.swarm import MAX_ADDRESSES, NodeAnnouncement, OfferedArtifact, Role

_ROLES: Final = frozenset(role.value for role in Role)


class PeerState(StrEnum):
    """How far a peer has come. ``refused`` and ``banned`` stand beside the way from ``discovered`` to ``usable``."""

    DISCOVERED = "discovered"
    """Somebody named it."""
    DIALLED = "dialled"
    """It was dialled, so far in vain."""
    CONNECTED = "connected"
    """There is a connection, and no hello yet."""
    AUTHENTICATED = "authenticated"
    """The hello was accepted on both sides."""
    USABLE = "usable"
    """It answered for the services that it claims."""
    REFUSED = "refused"
    """One side does not want the other; the reason says which and why."""
    BANNED = "banned"


@dataclass(frozen=True)
class Refusal:
    """Why a peer is not welcome."""

    code: str
    """An ``Outcome`` or an error's code."""
    text: str


@dataclass(frozen=True)
class Link:
    """The living connection to a peer."""

    address: str
    inbound: bool
    relayed: bool
    since: float
    """By the table's clock."""


@dataclass(frozen=True)
class Introduction:
    """What a peer said of itself in its hello. ``roles`` and ``services`` are empty until it accepted us."""

    version: str
    instance: str
    roles: frozenset[Role] = frozenset()
    services: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Version by name."""


@dataclass(frozen=True)
class PeerEntry:
    """One peer. Times are seconds of the table's clock; ``last_seen`` is the last sign of life.

    Attributes:
        sources: how we heard of it: ``configured``, ``known``, ``mdns``, ``dht``, ``gossip``, ``inbound``, ``manual``.
        dials, failures: attempts so far, and those in vain since the last success.
        admitted: whether this node accepted it on the present connection.
        refusal, refused_by: ours and theirs.
        last_word: the latest announcement with its key, whether it holds or not, and of whichever instance.
        probed: ``claims`` when the last probe was answered; None: no probe was, or it is stale.
        skew_ms: its clock minus ours.
        note: what went wrong last.
        exclusion: why nothing is asked of it just now.
        left_alone: why it asks nothing of this node just now, as it says.
        reputation: 0 to 1; where nothing is known, 0.5.
    """

    peer: str
    last_seen: float
    addresses: tuple[str, ...] = ()
    sources: frozenset[str] = frozenset()
    dials: int = 0
    failures: int = 0
    link: Link | None = None
    hello: Introduction | None = None
    admitted: bool = False
    refusal: Refusal | None = None
    refused_by: Refusal | None = None
    standing: Standing | None = None
    announcement: NodeAnnouncement | None = None
    announced_at: float = 0.0
    last_word: NodeAnnouncement | None = None
    cards: tuple[ExpertCard, ...] = ()
    probed: frozenset[tuple[str, bool]] | None = None
    rtt_ms: float | None = None
    skew_ms: float | None = None
    note: str = ""
    banned: str | None = None
    exclusion: str = ""
    left_alone: str = ""
    reputation: float = 0.5

    @property
    def state(self) -> PeerState:
        if self.banned is not None:
            return PeerState.BANNED
        if self.refusal or self.refused_by:
            return PeerState.REFUSED
        if self.link is None:
            return PeerState.DIALLED if self.dials else PeerState.DISCOVERED
        if self.hello is None:
            return PeerState.CONNECTED
        return PeerState.USABLE if self.probed is not None and not self.exclusion else PeerState.AUTHENTICATED

    @property
    def reason(self) -> str:
        """Why it is not further than it is, or this node is not with it; for people. Empty: nothing is wrong."""
        if self.banned is not None:
            return self.banned or "banned by the operator"
        if self.refusal is not None:
            return f"refused here: {self.refusal.text}"
        if self.refused_by is not None:
            return f"it refuses this node: {self.refused_by.text}"
        if self.exclusion:
            return self.exclusion
        if self.left_alone:
            return f"it leaves this node alone for now: {self.left_alone}"
        return "" if self.state is PeerState.USABLE else self.note

    @property
    def code(self) -> str:
        """The refusal's code, or ``excluded``; empty where there is neither."""
        refusal = self.refusal or self.refused_by
        return refusal.code if refusal else "excluded" if self.exclusion else ""

    @property
    def services(self) -> Mapping[str, int]:
        return self.hello.services if self.hello else MappingProxyType({})

    @property
    def roles(self) -> frozenset[Role]:
        """What it does by its latest word, as far as it was granted that; nothing before it said hello."""
        if self.hello is None:
            return frozenset()
        said = frozenset(self.announcement.roles) if self.announcement else self.hello.roles
        return said & frozenset(self.standing.roles) if self.standing else said

    @property
    def announced_experts(self) -> frozenset[str]:
        """The experts that its announcement names."""
        artifacts = self.announcement.artifacts if self.announcement else ()
        return frozenset(name for artifact in artifacts for name in artifact.expert_ids)

    @property
    def claims(self) -> frozenset[tuple[str, bool]]:
        """The announced experts, and whether their engines are ready: only then is all known that their cards tell."""
        artifacts = self.announcement.artifacts if self.announcement else ()
        return frozenset((name, one.state is EngineState.READY) for one in artifacts for name in one.expert_ids)

    @property
    def rank(self) -> tuple[float, float, str]:
        """Sorts the best first: good ones, then near ones; names decide ties."""
        return (-round(self.reputation, 1), self.rtt_ms or 0.0, self.peer)

    def serves(self, service: str) -> bool:
        """Whether it offers ``service`` and was granted the role of that name."""
        if service not in self.services or self.standing is None:
            return False
        return service not in _ROLES or Role(service) in self.standing.roles

    # --- the entry after something happened ---------------------------------------------------------------------------

    def unspoken(self) -> PeerEntry:
        """Without all that the peer said over a connection."""
        return replace(self, hello=None, admitted=False, cards=(), probed=None, standing=None)

    def located(self, addresses: Iterable[str], source: str) -> PeerEntry:
        """With these addresses before the ones that were known."""
        merged = tuple(dict.fromkeys((*addresses, *self.addresses)))[:MAX_ADDRESSES]
        return replace(self, addresses=merged, sources=self.sources | {source})

    def loaded(self, record: NodeAnnouncement, at: float) -> PeerEntry:
        """With the load that ``record`` tells of; experts that it does not name stay as they are."""
        by_hash = {artifact.artifact_hash: artifact for artifact in record.artifacts}
        cards = tuple(_loaded(card, by_hash.get(card.engine.artifact_hash)) for card in self.cards)
        return replace(self, announcement=record, announced_at=at, last_word=record, cards=cards)

    def to_plain(self, now: float) -> dict[str, Any]:
        """The entry as plain JSON; ages in seconds before ``now``."""
        link, hello, standing = self.link, self.hello, self.standing
        heartbeat = round(now - self.announced_at, 1) if self.announcement else None
        return {
            "peer": self.peer,
            "state": self.state.value,
            "reason": self.reason,
            "addresses": list(self.addresses),
            "sources": sorted(self.sources),
            "connection": link and {"address": link.address, "inbound": link.inbound, "relayed": link.relayed},
            "version": hello.version if hello else None,
            "instance": hello.instance if hello else None,
            "roles": sorted(role.value for role in self.roles),
            "services": dict(self.services),
            "tier": standing.tier.value if standing else None,
            "operators": sorted(standing.operators) if standing else [],
            "experts": [
                {
                    "id": card.expert_id,
                    "service": card.service,
                    "artifact_hash": card.engine.artifact_hash,
                    "state": card.engine.state.value,
                    "slots": card.engine.slots,
                    "free_slots": card.engine.free_slots,
                    "queued": card.engine.queued,
                    "decode_rate": card.engine.decode_rate,
                }
                for card in self.cards
            ],
            "rtt_ms": self.rtt_ms and round(self.rtt_ms, 2),
            "skew_ms": self.skew_ms and round(self.skew_ms, 1),
            "heartbeat_age_s": heartbeat,
            "seen_s_ago": round(max(0.0, now - self.last_seen), 1),
            "dials": self.dials,
            "failures": self.failures,
            "reputation": round(self.reputation, 3),
        }


def _loaded(card: ExpertCard, artifact: OfferedArtifact | None) -> ExpertCard:
    if artifact is None:
        return card
    load = {
        "slots": artifact.slots,
        "free_slots": artifact.free_slots,
        "queued": artifact.queued,
        "decode_rate": artifact.decode_rate,
        "prefill_rate": artifact.prefill_rate,
        "state": artifact.state,
    }
    return card.model_copy(update={"engine": card.engine.model_copy(update=load)})
