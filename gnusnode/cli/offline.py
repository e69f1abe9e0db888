"""Reading a stopped node's store: the audit chain, or whatever a damaged store still gives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import trio

from gnusnode.config.lock import HomeLock
from gnusnode.config.paths import Home
from gnusnode.errors import NotFound
from gnusnode.identity import NodeIdentity, rotations
from gnusnode.store.audit import open_audit
from gnusnode.store.db import open_store
from gnusnode.store.salvage import salvage


def read_audit(home: Home, task: str, *arguments: Any) -> dict[str, Any]:
    """``verify``, ``tail COUNT`` or ``export FILE`` on the store of a node that does not run.

    Raises:
        NotFound: there is no store yet. AlreadyRunning: a node started meanwhile. DataError: damaged.
    """
    _require_store(home)
    with HomeLock.acquire(home):
        return trio.run(_read_audit, home, task, arguments)


def _require_store(home: Home) -> None:
    if not os.path.lexists(home.data):
        raise NotFound("there is no store here yet", where=str(home.data), hint="start the node once: gnusnode start")


async def _read_audit(home: Home, task: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
    identity = NodeIdentity.load(home.key)
    async with open_store(home.data) as store:
        log = await open_audit(store, identity, rotations=rotations(home.key))
        match task:
            case "verify":
                return (await log.verify()).to_plain()
            case "tail":
                return {"data": [event.to_plain() for event in await log.tail(*arguments)]}
            case _:
                return {"events": await log.export(*arguments)}


def salvage_store(home: Home, out: Path) -> dict[str, Any]:
    """Every readable entry of a store, however damaged.

    Raises:
        NotFound: there is no store. AlreadyRunning, DataError.
    """
    _require_store(home)
    with HomeLock.acquire(home):
        found = salvage(home.data, out)
    return {"file": str(out), "entries": found.entries, "damage": found.damage}
