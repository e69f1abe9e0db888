"""What the parts that meet other nodes need to know of the membership. ``net.membership`` implements it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from gnusnode.contracts.roster import Roster, Standing


class Members(Protocol):
    @property
    def roster(self) -> Roster:
        """The live roster: another object after each change."""
        ...

    def standing(self, peer: str) -> Standing:
        """What ``peer`` is and may do now."""
        ...

    def records_against(self, peer: str) -> Sequence[Any]:
        """The revocations of ``peer``, and the delegations of who signed them: what shows it that it is out."""
        ...

    async def add(self, records: Iterable[bytes]) -> Any:
        """Takes over those of ``records`` (their encodings, unchecked) that hold up."""
        ...

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        """One item after each change of the roster."""
        ...
