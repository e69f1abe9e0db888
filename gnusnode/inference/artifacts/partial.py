"""A download that may end at any moment and go on later: the bytes, and beside them what is known of them.

``<key>.part`` holds the beginning of the file, ``<key>.json`` the sha256 of each complete chunk and the validators of
the server's entity. Only chunks whose hash is right count when a download goes on; anything behind them is cut off.
All functions block; run them in a thread.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from gnusnode.errors import Conflict
from gnusnode.inference.artifacts.filework import Hashed, Stamp, explained, write_atomically

_READ_BYTES: Final = 1024 * 1024
_MAX_STATE_BYTES: Final = 16 * 1024 * 1024
Header = Annotated[str, StringConstraints(max_length=1024)]


class Entity(BaseModel):
    """What identifies the server's file between two requests."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    etag: Header | None = None
    """A strong entity tag only: a weak one does not promise equal bytes."""
    last_modified: Header | None = None
    length: Annotated[int, Field(ge=0)] | None = None
    """Bytes of the whole file."""

    @property
    def validator(self) -> str | None:
        """What an ``If-Range`` header may carry."""
        return self.etag or self.last_modified


class _State(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    chunk: Annotated[int, Field(gt=0)]
    entity: Entity = Entity()
    hashes: tuple[str, ...] = ()


def open_part(path: Path, *, where: str) -> int:
    """A descriptor of the partial file ``path``, made if need be, and locked until it is closed.

    Args:
        where: what is fetched, for the error.

    Raises:
        Conflict: another task or process has it.
        DataError, DiskFull.
    """
    with explained(path, "cannot open the partial download"):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = os.path.samestat(os.fstat(handle), path.lstat())
        except (BlockingIOError, FileNotFoundError):
            mine = False
    if not mine:
        os.close(handle)
        raise Conflict("this file is being downloaded already", where=where, hint="wait for the other download")
    return handle


class Partial:
    """One partial file, locked while this lives. ``close`` keeps it for later, ``discard`` throws it away.

    Args:
        directory: where it lies, on the filesystem of the final file.
        url: what is fetched; another URL has another partial.
        chunk: bytes that are hashed together.

    Raises:
        Conflict: another task or process is fetching the same URL.
        DataError, DiskFull.
    """

    def __init__(self, directory: Path, url: str, chunk: int) -> None:
        key = hashlib.sha256(url.encode()).hexdigest()[:32]
        self.path = directory / f"{key}.part"
        self._state_path = directory / f"{key}.json"
        self._url = url
        self._chunk = chunk
        self.entity = Entity()
        self.at = 0
        """Bytes that are here."""
        self._hashes: list[str] = []
        self._whole = hashlib.sha256()
        self._open_chunk = hashlib.sha256()
        self._handle = open_part(self.path, where=url)

    def recover(self) -> None:
        """Takes up what an earlier attempt left, as far as its chunks are whole."""
        state = self._load()
        good: list[str] = []
        with explained(self.path, "cannot read the partial download"):
            for expected in state.hashes:
                if not self._take_chunk(len(good), expected):
                    break
                good.append(expected)
            self._hashes = good
            self.at = len(good) * self._chunk
            os.ftruncate(self._handle, self.at)
        self.entity = state.entity if good else Entity()

    def _take_chunk(self, number: int, expected: str) -> bool:
        """Adds the chunk to the hash of the whole file, if it is all there and undamaged."""
        whole, chunk = self._whole.copy(), hashlib.sha256()
        at, end = number * self._chunk, (number + 1) * self._chunk
        while at < end:
            data = os.pread(self._handle, min(_READ_BYTES, end - at), at)
            if not data:
                return False
            whole.update(data)
            chunk.update(data)
            at += len(data)
        if chunk.hexdigest() != expected:
            return False
        self._whole = whole
        return True

    def restart(self) -> None:
        """Forgets everything that is here."""
        self.at, self.entity, self._hashes = 0, Entity(), []
        self._whole, self._open_chunk = hashlib.sha256(), hashlib.sha256()
        with explained(self.path, "cannot empty the partial download"):
            os.ftruncate(self._handle, 0)
        self._save()

    def append(self, data: bytes | bytearray) -> None:
        """Writes ``data`` behind what is here and hashes it."""
        view = memoryview(data)
        while view:
            piece = view[: self._chunk - self.at % self._chunk]
            with explained(self.path, "cannot write the download"):
                piece = piece[: os.pwrite(self._handle, piece, self.at)]
            self._whole.update(piece)
            self._open_chunk.update(piece)
            self.at += len(piece)
            view = view[len(piece) :]
            if self.at % self._chunk == 0:
                self._hashes.append(self._open_chunk.hexdigest())
                self._open_chunk = hashlib.sha256()
                self._save()

    def finish(self) -> Hashed:
        """Makes the file durable and says what it is. It stays locked until ``close``."""
        with explained(self.path, "cannot write the download"):
            os.fsync(self._handle)
            return Hashed(f"sha256:{self._whole.hexdigest()}", Stamp.of(self._handle))

    @property
    def chunks(self) -> int:
        """Complete chunks so far: what a failure cannot take away any more."""
        return len(self._hashes)

    def discard(self) -> None:
        """Removes the file and its state; the file may have been moved away before."""
        with explained(self.path, "cannot remove the partial download"):
            self._state_path.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._handle)

    def _load(self) -> _State:
        fresh = _State(url=self._url, chunk=self._chunk)
        with explained(self._state_path, "cannot read the state of the partial download"):
            try:
                with self._state_path.open("rb") as file:
                    state = _State.model_validate_json(file.read(_MAX_STATE_BYTES))
            except (FileNotFoundError, ValidationError):
                return fresh  # nothing there, or damaged: begin anew
        return state if (state.url, state.chunk) == (self._url, self._chunk) else fresh

    def _save(self) -> None:
        state = _State(url=self._url, chunk=self._chunk, entity=self.entity, hashes=tuple(self._hashes))
        write_atomically(self._state_path, state.model_dump_json().encode(), self._state_path.parent)
