"""What a node remembers of its peers over a restart: whom it banned, and where members were last reached."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gnusnode.config.files import replace_file
from gnusnode.contracts.base import describe
from gnusnode.contracts.ids import PeerId
from gnusnode.contracts.swarm import Multiaddr
from gnusnode.errors import DataError, storage_error

MAX_KNOWN: Final = 256
_MAX_BYTES: Final = 4 * 1024 * 1024


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    bans: dict[PeerId, str] = Field(default={}, max_length=4096)
    known: dict[PeerId, list[Multiaddr]] = Field(default={}, max_length=MAX_KNOWN)


@dataclass(frozen=True)
class Remembered:
    """Reasons of bans by PeerID, and addresses of members by PeerID."""

    bans: Mapping[str, str] = field(default_factory=dict[str, str])
    known: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])


class PeerFile:
    """``<home>/peers.json``. Blocking: call it in a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Remembered:
        """What was saved; nothing where there is no file.

        Raises:
            DataError: it cannot be read, or is damaged: a ban must not be lost silently.
        """
        try:
            with self._path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return Remembered()
        except OSError as error:
            raise storage_error(error, self._path, "cannot read the list of peers") from error
        try:
            found = _File.model_validate_json(data)
        except ValidationError as error:
            raise DataError(
                f"the list of peers is damaged: {describe(error)}",
                where=str(self._path),
                hint="correct it, or remove it, which also lifts all bans",
            ) from error
        return Remembered(found.bans, {peer: tuple(addresses) for peer, addresses in found.known.items()})

    def save(self, remembered: Remembered) -> None:
        """Replaces the file.

        Raises:
            DataError, DiskFull.
        """
        known = dict(list(remembered.known.items())[:MAX_KNOWN])
        text = json.dumps({"bans": dict(remembered.bans), "known": known}, indent=1)
        try:
            replace_file(self._path, text.encode("utf-8"))
        except OSError as error:
            raise storage_error(error, self._path, "cannot write the list of peers") from error
