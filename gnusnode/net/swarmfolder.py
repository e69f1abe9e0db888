"""``<home>/swarm``: what a node keeps of the swarm that it belongs to.

    swarm.json   name, root, network key, addresses, a token that was not redeemed yet (0600: it holds secrets)
    root.key     the swarm's root key (0600), on the founder's node only; it is never sent anywhere
    records/     the signed membership records, one a file
    invites.json what this node has invited and who has come (0600)

The folder appears whole or not at all, and goes the same way. One writer: whoever holds the lock of the home.
"""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from gnusnode.config.files import replace_file
from gnusnode.contracts.ids import Name, PeerId
from gnusnode.contracts.invite import MAX_BOOTSTRAP, MAX_TOKEN, Key32, SwarmName
from gnusnode.contracts.swarm import Multiaddr, short_id, swarm_id
from gnusnode.errors import Conflict, DataError, storage_error
from gnusnode.identity import NodeIdentity, sync_directory, write_new
from gnusnode.net.records import RecordFiles, SwarmRecord

_RESTORE: Final = "restore it from a backup; or move the folder away and join again with a new token"


@dataclass(frozen=True)
class SwarmState:
    """The swarm that this node belongs to, or is about to join."""

    name: str
    root: str
    """PeerID of the root key: whose word counts."""
    open_to_all: bool = False
    network_key: bytes | None = field(default=None, repr=False)
    """32 bytes that a peer needs to connect at all; None on an open swarm."""
    bootstrap: tuple[str, ...] = ()
    """Multiaddrs, each ending in ``/p2p/<peer>``, that were good when the node joined."""
    pending: str | None = field(default=None, repr=False)
    """The token that still has to be redeemed."""
    operator: str = "self"
    """Who runs this node, as it says itself."""

    @property
    def swarm_id(self) -> str:
        return swarm_id(self.root)

    @property
    def short_id(self) -> str:
        return short_id(self.swarm_id)

    def joined(self) -> Self:
        return replace(self, pending=None)


class _StateFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Annotated[int, Field(ge=1, le=1)] = 1
    name: SwarmName
    root: PeerId
    open_to_all: bool
    network_key: Key32 | None
    bootstrap: Annotated[tuple[Multiaddr, ...], Field(max_length=MAX_BOOTSTRAP)]
    pending: Annotated[str, StringConstraints(max_length=MAX_TOKEN)] | None
    operator: Name


class SwarmFolder:
    """The files of one home's swarm. Blocking calls.

    Raises:
        DataError, DiskFull: damaged, or the file system refused.
    """

    def __init__(self, home: Path) -> None:
        self.path: Final = home / "swarm"
        self.records: Final = RecordFiles(self.path / "records")
        self.invites: Final = self.path / "invites.json"
        self._state = self.path / "swarm.json"
        self._root_key = self.path / "root.key"

    def state(self) -> SwarmState | None:
        """The swarm of this home; None: it belongs to none."""
        try:
            data = self._state.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(error, self._state, "cannot read the state of the swarm") from error
        try:
            found = _StateFile.model_validate_json(data)
        except ValidationError as error:
            raise DataError("the state of the swarm is damaged", where=str(self._state), hint=_RESTORE) from error
        return SwarmState(
            found.name,
            found.root,
            found.open_to_all,
            None if found.network_key is None else bytes.fromhex(found.network_key),
            found.bootstrap,
            found.pending,
            found.operator,
        )

    def create(self, state: SwarmState, *, root_key: NodeIdentity | None, records: tuple[SwarmRecord, ...]) -> None:
        """Makes the folder of a node that belongs to no swarm yet.

        Raises:
            Conflict: it belongs to one.
        """
        draft = self._draft()
        try:
            draft.mkdir(mode=0o700)
            if root_key is not None:
                write_new(draft / "root.key", root_key)
            RecordFiles(draft / "records").put(records)
            replace_file(draft / "swarm.json", _render(state))
            if os.path.lexists(self.path):
                if self.state() is not None or self._root_key.exists():
                    raise Conflict(
                        "this node belongs to a swarm already",
                        where=str(self.path),
                        hint="leave it first: gnusnode swarm leave",
                    )
                shutil.rmtree(self.path)
            draft.rename(self.path)
            sync_directory(self.path.parent)
        except OSError as error:
            raise storage_error(error, self.path, "cannot make the folder of the swarm") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def save(self, state: SwarmState) -> None:
        try:
            replace_file(self._state, _render(state))
        except OSError as error:
            raise storage_error(error, self._state, "cannot write the state of the swarm") from error

    def root_key(self, root: str) -> NodeIdentity | None:
        """The root key, where it is kept here. Read anew each time, so that it does not stay in memory.

        Raises:
            DataError: damaged, open to others, or the key of another swarm.
        """
        if not os.path.lexists(self._root_key):
            return None
        key = NodeIdentity.load(self._root_key)
        if key.peer_id != root:
            raise DataError("this is the root key of another swarm", where=str(self._root_key), hint="move it away")
        return key

    @property
    def holds_root_key(self) -> bool:
        return os.path.lexists(self._root_key)

    def discard(self) -> Path | None:
        """Takes the folder away at once and for good; one that holds a root key is put aside instead.

        Returns:
            Where the root key is now.
        """
        kept = self.holds_root_key
        aside = self._place_for_the_root_key() if kept else self._draft()
        try:
            self.path.rename(aside)
            sync_directory(aside.parent)
            if not kept:
                shutil.rmtree(aside)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(error, self.path, "cannot take the folder of the swarm away") from error
        return aside / "root.key" if kept else None

    def clear_leftovers(self) -> None:
        """Removes what was being made, or taken away, when the process was killed."""
        try:
            for leftover in self.path.parent.glob(".swarm.*.tmp"):
                shutil.rmtree(leftover)
        except OSError as error:
            raise storage_error(error, self.path.parent, "cannot clear what a killed process left") from error

    def _draft(self) -> Path:
        return self.path.with_name(f".swarm.{secrets.token_hex(8)}.tmp")

    def _place_for_the_root_key(self) -> Path:
        number = 1
        while (aside := self.path.with_name(f"swarm.left.{number}")).exists():
            number += 1
        return aside


def _render(state: SwarmState) -> bytes:
    file = _StateFile(
        name=state.name,
        root=state.root,
        open_to_all=state.open_to_all,
        network_key=None if state.network_key is None else state.network_key.hex(),
        bootstrap=state.bootstrap,
        pending=state.pending,
        operator=state.operator,
    )
    return file.model_dump_json(indent=1).encode("utf-8") + b"\n"
