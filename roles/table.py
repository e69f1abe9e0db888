"""What a role is to the node that runs it, and the roles that there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Protocol

import trio

from gnusnode.contracts.swarm import Role as RoleName
from gnusnode.net.rpc import Rpc, Service


class Role(Protocol):
    """One role as the supervisor runs it.

    ``run`` serves until it is cancelled; it calls ``ready`` once others can call it. It may be run again after a
    failure, so whatever it keeps between runs has to be fit for that.
    """

    @property
    def name(self) -> RoleName: ...

    @property
    def serves(self) -> tuple[str, ...]:
        """Names of its services."""
        ...

    @property
    def critical(self) -> bool:
        """Whether the node is of no use without it."""
        ...

    async def run(self, ready: Callable[[], None]) -> None: ...

    def statistics(self) -> dict[str, int]:
        """Counts for ``status``."""
        ...

    def health(self) -> str | None:
        """Why the role cannot do its work just now, in words; None when it can."""
        ...


@dataclass(frozen=True)
class ServingRole:
    """A role that is nothing but services over the rpc port."""

    name: RoleName
    rpc: Rpc
    services: Sequence[Service]
    counts: Callable[[], dict[str, int]] = dict
    ails: Callable[[], str | None] = lambda: None
    critical: bool = False

    @property
    def serves(self) -> tuple[str, ...]:
        return tuple(service.name for service in self.services)

    async def run(self, ready: Callable[[], None]) -> None:
        async with AsyncExitStack() as stack:
            for service in self.services:
                await stack.enter_async_context(self.rpc.serve(service))
            ready()
            await trio.sleep_forever()

    def statistics(self) -> dict[str, int]:
        return self.counts()

    def health(self) -> str | None:
        return self.ails()
