"""Does a peer serve what it claims? Its expert services are asked for their experts, before anything is sent to them.

A lie excludes the peer at once: an expert that is said to live on another node, or one that it goes on announcing
without serving it, or listing although it refused a draft for want of it. An honest node may unload a model between its
announcement and our question, so a missing expert is held against it only when a later announcement still names it.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Final

from gnusnode.contracts.methods import UnaryMethod
from gnusnode.contracts.roster import Roster
from gnusnode.contracts.services import CORE_EXPERTS, ELM_EXPERTS, Empty, ExpertCard, ExpertList
from gnusnode.contracts.swarm import NodeAnnouncement, RevocationKind
from gnusnode.errors import GnusError
from gnusnode.net.context import NetContext
from gnusnode.net.peerentry import PeerEntry
from gnusnode.net.rpc import CallContext, Rpc
from gnusnode.net.text import printable

PROBE_SECONDS: Final = 5.0
LIE_SECONDS: Final = 300.0
"""First exclusion of a peer that claimed what is not so."""
MAX_CARDS: Final = 256
_MAX_DOUBTS: Final = 1024

_METHODS: Final[dict[str, UnaryMethod[Empty, ExpertList]]] = {"core": CORE_EXPERTS, "elm": ELM_EXPERTS}


@dataclass(frozen=True)
class _Doubt:
    """Experts that an announcement named in vain.

    Attributes:
        refused: a draft was refused for want of them; else they were missing in the peer's list.
    """

    instance: str
    seq: int
    experts: frozenset[str]
    refused: bool = False

    def is_older_than(self, record: NodeAnnouncement) -> bool:
        """Whether ``record`` was made after what is doubted, by the same run of the peer."""
        return self.instance == record.instance and self.seq < record.seq


class _Lie(Exception):
    """What the peer claimed and is not so."""


class Prober:
    """Probes peers and writes the outcome into the table."""

    def __init__(self, context: NetContext, rpc: Rpc) -> None:
        self._of = context
        self._net = context.net
        self._table = context.table
        self._rpc = rpc
        self._doubts: dict[str, _Doubt] = {}

    def is_due(self, entry: PeerEntry) -> bool:
        """Whether what the peer serves is unknown, or no longer what it was at the last probe."""
        return entry.probed is None or entry.probed != entry.claims or self._is_doubtful(entry)

    def doubt(self, peer: str, expert_id: str) -> None:
        """A draft was refused because the peer has no such expert: its next announcement is judged by that."""
        entry = self._table.get(peer)
        record = entry.announcement if entry else None
        if entry is not None and record is not None and expert_id in entry.announced_experts:
            self._keep(peer, _Doubt(record.instance, record.seq, frozenset({expert_id}), refused=True))

    async def probe(self, peer: str) -> bool:
        """Whether the peer answered for all that it claims. Never raises for what a peer does."""
        entry = self._table.get(peer)
        if entry is None:
            return False
        try:
            if entry.rtt_ms is None:
                self._table.pinged(peer, await self._net.ping(peer) * 1000)
            cards: list[ExpertCard] = []
            for service in _METHODS:
                if entry.serves(service):
                    cards += await self._experts(peer, service)
        except _Lie as lie:
            return self._caught(peer, str(lie))
        except GnusError as error:
            self._table.probe_failed(peer, f"it does not answer for its services: {printable(error.what)}")
            return False
        return self._judge(peer, tuple(cards), entry.claims)

    async def _experts(self, peer: str, service: str) -> list[ExpertCard]:
        context = CallContext(str(uuid.uuid4()), time.monotonic() + PROBE_SECONDS)
        found = (await self._rpc.call(_METHODS[service], Empty(), context, peer=peer)).experts
        check_cards(found, peer, service)
        return in_force(found, self._of.members.roster, self._of.now_ms())

    def _judge(self, peer: str, cards: tuple[ExpertCard, ...], claims: frozenset[tuple[str, bool]]) -> bool:
        self._table.probed(peer, cards, claims=claims)
        entry = self._table.get(peer)
        record = entry.announcement if entry else None
        before = self._doubts.pop(peer, None)
        if entry is None or record is None:
            return True
        missing = entry.announced_experts - {card.expert_id for card in cards}
        if before is not None and before.is_older_than(record):
            lies = before.experts & (entry.announced_experts - missing if before.refused else missing)
            if lies:
                named = printable(", ".join(sorted(lies)[:3]))
                return self._caught(peer, f"it announces {named} and does not serve it")
        elif before is not None and before.refused:
            self._keep(peer, before)  # asked too early: nothing that it announced later was heard yet
            return True
        if missing:
            self._keep(peer, _Doubt(record.instance, record.seq, missing))
        return True

    def _keep(self, peer: str, doubt: _Doubt) -> None:
        if len(self._doubts) >= _MAX_DOUBTS:
            self._doubts.clear()
        self._doubts[peer] = doubt

    def _caught(self, peer: str, lie: str) -> bool:
        """Excludes the peer; when that is over it has to answer a new probe."""
        self._table.probe_failed(peer, lie)
        self._table.exclude(peer, LIE_SECONDS, lie)
        return False

    def _is_doubtful(self, entry: PeerEntry) -> bool:
        before, record = self._doubts.get(entry.peer), entry.announcement
        if before is None or record is None or before.instance != record.instance:
            self._doubts.pop(entry.peer, None)
            return False
        return before.is_older_than(record)


def check_cards(cards: tuple[ExpertCard, ...], peer: str, service: str) -> None:
    """Refuses a list that cannot be true.

    Raises:
        _Lie: says why.
    """
    if len(cards) > MAX_CARDS:
        raise _Lie(f"it lists more than {MAX_CARDS} experts")
    for card in cards:
        if card.peer != peer:
            raise _Lie(f"it lists the expert {card.expert_id!r} as that of another node, {card.peer}")
        if not card.expert_id.isprintable():
            raise _Lie("it lists an expert whose name cannot be printed")
        if card.service != service:
            raise _Lie(f"its service {service} lists an expert of the service {card.service}")


def in_force(cards: tuple[ExpertCard, ...], roster: Roster, at_ms: int) -> list[ExpertCard]:
    """Each expert once, without those whose artifact was revoked."""
    fresh = {card.expert_id: card for card in reversed(cards)}
    return [c for c in fresh.values() if not roster.is_revoked(RevocationKind.ARTIFACT, c.engine.artifact_hash, at_ms)]
