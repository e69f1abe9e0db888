"""Where the router learns which experts exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from gnusnode.contracts.services import CORE_EXPERTS, ELM_EXPERTS, Empty, ExpertCard
from gnusnode.errors import Unavailable
from gnusnode.net.rpc import CallContext, Rpc

_METHODS: Final = (CORE_EXPERTS, ELM_EXPERTS)


class Directory(Protocol):
    async def cards(self, context: CallContext) -> tuple[ExpertCard, ...]:
        """All experts that can be reached now, in no particular order."""
        ...


class RpcDirectory:
    """Asks the expert services of one node, or of whoever serves them. One that fails to answer has no experts.

    Args:
        peer: the node to ask; None: whom the rpc finds.
    """

    def __init__(self, rpc: Rpc, peer: str | None = None) -> None:
        self._rpc = rpc
        self._peer = peer

    async def cards(self, context: CallContext) -> tuple[ExpertCard, ...]:
        cards: list[ExpertCard] = []
        for method in _METHODS:
            if not self._rpc.offers(method.service):
                continue
            try:
                cards.extend((await self._rpc.call(method, Empty(), context, peer=self._peer)).experts)
            except Unavailable:
                continue
        return tuple(cards)


class SwarmDirectory:
    """This node's experts, asked each time, and those of others, as the peer table knows them: no peer is waited for.

    Args:
        own: the directory of this node's services.
        peer_id: of this node; what others say in its name does not count.
        remote: the cards of usable peers, kept fresh by their announcements.
    """

    def __init__(self, own: Directory, peer_id: str, remote: Callable[[], tuple[ExpertCard, ...]]) -> None:
        self._own = own
        self._peer_id = peer_id
        self._remote = remote

    async def cards(self, context: CallContext) -> tuple[ExpertCard, ...]:
        own = await self._own.cards(context)
        return (*own, *(card for card in self._remote() if card.peer != self._peer_id))
