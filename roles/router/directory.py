"""Where the router learns which experts exist."""

from __future__ import annotations

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
    """Asks the expert services that this node can call. One that fails to answer has no experts."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def cards(self, context: CallContext) -> tuple[ExpertCard, ...]:
        cards: list[ExpertCard] = []
        for method in _METHODS:
            if not self._rpc.offers(method.service):
                continue
            try:
                cards.extend((await self._rpc.call(method, Empty(), context)).experts)
            except Unavailable:
                continue
        return tuple(cards)
