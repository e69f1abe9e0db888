"""``<home>/run.json``: what the running daemon says of itself, so that commands and scripts find it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from gnusnode.config.files import replace_file
from gnusnode.config.paths import Home
from gnusnode.errors import storage_error


@dataclass(frozen=True)
class RunInfo:
    """A running node. Addresses are those that were really bound: port 0 has become a number."""

    pid: int
    started: str
    """ISO 8601, UTC."""
    version: str
    peer_id: str
    socket: str
    """Path of the unix socket; surrogate escapes stand for bytes that are not UTF-8."""
    api: str
    """Base URL of the HTTP API."""
    listen: tuple[str, ...] = ()
    """Multiaddrs for peers."""


def write(home: Home, info: RunInfo) -> None:
    """Raises ``DataError`` or ``DiskFull`` when it cannot be written."""
    try:
        replace_file(home.run_json, json.dumps(asdict(info), indent=1).encode("ascii"))
    except OSError as error:
        raise storage_error(error, home.run_json, "cannot write run.json") from error


def remove(home: Home) -> None:
    """Takes the file away on an orderly stop; a missing one is fine."""
    try:
        home.run_json.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(error, home.run_json, "cannot remove run.json") from error
