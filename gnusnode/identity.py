"""The node's Ed25519 key: one key is the libp2p PeerID and the signer of every record.

The key file is fixed ASCII text, so that a person can recognise and back it up:

    gnusnode key v1
    peer: 12D3KooW…
    seed: <base64 of 32 bytes>

The PeerID follows from the seed, so it is the checksum too: a file whose parts do not agree was damaged and is refused.
A file that others can read is refused as well, because whoever read it can sign as this node.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import stat
from pathlib import Path
from typing import Final, Self

from nacl.signing import SigningKey

from gnusnode.contracts import ids
from gnusnode.contracts.base import MalformedRecord
from gnusnode.contracts.swarm import KeyRotation
from gnusnode.errors import DataError, storage_error

_HEADER: Final = "gnusnode key v1"
_MAX_BYTES: Final = 512
"""A key file has about 130 bytes; more is something else."""
_RESTORE: Final = "restore the file from a backup, or move it away to start with a new identity"
_RESTORE_STATEMENT: Final = "restore it from a backup, or move it away together with the key.<n>.old beside it"


class NodeIdentity:
    """A node's private key in memory. Implements ``contracts.dsse.Signer``; its ``repr`` never shows the seed."""

    __slots__ = ("_key", "peer_id")

    def __init__(self, seed: bytes) -> None:
        """Args: seed: 32 bytes, the Ed25519 seed (RFC 8032), which is also the libp2p private key."""
        self._key = SigningKey(seed)
        self.peer_id: Final[str] = ids.peer_id(bytes(self._key.verify_key))

    @classmethod
    def generate(cls) -> Self:
        return cls(secrets.token_bytes(32))

    @classmethod
    def load(cls, path: Path) -> NodeIdentity:
        """The identity of the key file ``path``.

        Raises:
            DataError: missing, not a regular file, readable by others, damaged, or unreadable; says what to do.
        """
        try:
            return _parse(path, _read_private(path))
        except FileNotFoundError:
            raise DataError("this home has no key yet", where=str(path), hint="run `gnusnode init`") from None

    @classmethod
    def load_or_create(cls, path: Path) -> NodeIdentity:
        """The identity of ``path``; a new one is made when there is no file. Directory 0700, file 0600.

        Two processes that start at once agree on one key: the file appears whole or not at all, and only once.

        Raises:
            DataError, DiskFull: see ``load``; or the file cannot be written.
        """
        fresh = cls.generate()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.path.lexists(path):
                write_new(path, fresh)
                return fresh
        except FileExistsError:
            pass  # another process was faster: its key is the key
        except OSError as error:
            raise storage_error(error, path, "cannot write the node's key") from error
        return cls.load(path)

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes. For the key file and the libp2p host only."""
        return bytes(self._key)

    def sign(self, message: bytes) -> bytes:
        """The 64-byte Ed25519 signature of ``message``."""
        return self._key.sign(message).signature

    def __repr__(self) -> str:
        return f"NodeIdentity({self.peer_id})"


def write_new(path: Path, identity: NodeIdentity) -> None:
    """Writes a key file that must not exist yet. After a crash at any point there is a whole file or none.

    Raises:
        FileExistsError: ``path`` exists (also as a dangling link).
        OSError: the file system refused.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    _write_private(draft, _render(identity))
    try:
        os.link(draft, path, follow_symlinks=False)  # unlike rename, a link never replaces
    finally:
        draft.unlink()
    sync_directory(path.parent)


def rotate(path: Path, *, now_ms: int) -> KeyRotation:
    """Replaces the key of ``path`` by a new one and gives the statement by which the old one hands over to it.

    The old key stays beside it as ``key.<n>.old`` (0600), the statement as ``key.<n>.rotation``. At any moment ``path``
    holds a whole key: the old one until the last step. A rotation that was cut short is finished by the next call, with
    the same new key and the same statement, so that no two statements about one old key can exist.

    Args:
        now_ms: unix milliseconds for a new statement. The caller holds the lock of the home.

    Raises:
        DataError, DiskFull: see ``NodeIdentity.load``; or a file cannot be written.
    """
    old = NodeIdentity.load(path)
    try:
        number = _rotation_number(path, old)
        draft = path.with_name(f"{path.name}.next")
        if not draft.exists():
            write_new(draft, NodeIdentity.generate())
        new = NodeIdentity.load(draft)
        statement = _statement(path.with_name(f"{path.name}.{number}.rotation"), old, new, now_ms)
        kept = path.with_name(f"{path.name}.{number}.old")
        if not kept.exists():
            os.link(path, kept, follow_symlinks=False)
        os.replace(draft, path)
        sync_directory(path.parent)
    except OSError as error:
        raise storage_error(error, path, "cannot rotate the node's key") from error
    return statement


def rotations(path: Path) -> list[KeyRotation]:
    """The statements of all finished rotations of ``path``, the oldest first: what a node shows to be who it was.

    Raises:
        DataError: one of them is damaged or cannot be read.
    """
    number, found = 1, list[KeyRotation]()
    current = NodeIdentity.load(path).peer_id
    while (kept := path.with_name(f"{path.name}.{number}.old")).exists():
        if NodeIdentity.load(kept).peer_id != current:  # else this rotation was cut short
            found.append(_read_statement(path.with_name(f"{path.name}.{number}.rotation")))
        number += 1
    return found


def _rotation_number(path: Path, current: NodeIdentity) -> int:
    """The first number whose place is free, or taken by this very rotation before it was cut short."""
    number = 1
    while (kept := path.with_name(f"{path.name}.{number}.old")).exists() and NodeIdentity.load(
        kept
    ).peer_id != current.peer_id:
        number += 1
    return number


def _statement(file: Path, old: NodeIdentity, new: NodeIdentity, now_ms: int) -> KeyRotation:
    """The statement in ``file``, made and written where there is none yet."""
    if file.exists():
        found = _read_statement(file)
        if (found.old_peer_id, found.new_peer_id) == (old.peer_id, new.peer_id):
            return found
    made = KeyRotation.between(old, new, issued_at_ms=now_ms)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}.tmp")
    _write_private(draft, made.to_bytes())
    os.replace(draft, file)
    sync_directory(file.parent)
    return made


def _read_statement(file: Path) -> KeyRotation:
    try:
        return KeyRotation.from_bytes(file.read_bytes())
    except MalformedRecord as error:
        raise DataError("the rotation statement is damaged", where=str(file), hint=_RESTORE_STATEMENT) from error
    except OSError as error:
        raise storage_error(error, file, "cannot read the rotation statement") from error


def sync_directory(directory: Path) -> None:
    """Makes renames and links in ``directory`` durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _render(identity: NodeIdentity) -> bytes:
    seed = base64.b64encode(identity.seed).decode("ascii")
    return f"{_HEADER}\npeer: {identity.peer_id}\nseed: {seed}\n".encode("ascii")


def _parse(path: Path, data: bytes) -> NodeIdentity:
    lines = data.decode("ascii", errors="replace").split("\n")
    if len(lines) != 4 or lines[0] != _HEADER:
        raise DataError(f"this is not a key file: it does not begin with {_HEADER!r}", where=str(path), hint=_RESTORE)
    try:
        identity = NodeIdentity(base64.b64decode(lines[2].removeprefix("seed: "), validate=True))
    except (ValueError, TypeError, binascii.Error):
        identity = None
    if identity is None or _render(identity) != data:
        raise DataError("the key file is damaged: seed and PeerID do not agree", where=str(path), hint=_RESTORE)
    return identity


def _read_private(path: Path) -> bytes:
    try:
        # O_NONBLOCK: a named pipe in the place of the key must not hang the start.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        if path.is_symlink():
            raise DataError(
                "the key file is a symbolic link, which could be turned to another key",
                where=str(path),
                hint="put the file itself there, or point --home to the directory that holds it",
            ) from error
        raise storage_error(error, path, "cannot read the node's key") from error
    try:
        _check_private(path, os.fstat(handle))
        data = os.read(handle, _MAX_BYTES + 1)
    except OSError as error:
        raise storage_error(error, path, "cannot read the node's key") from error
    finally:
        os.close(handle)
    if not data or len(data) > _MAX_BYTES:
        size = "empty" if not data else f"longer than {_MAX_BYTES} bytes"
        raise DataError(f"this is not a key file: it is {size}", where=str(path), hint=_RESTORE)
    return data


def _check_private(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise DataError("the key is not a regular file", where=str(path), hint=_RESTORE)
    if found.st_uid not in {os.geteuid(), 0}:
        raise DataError(
            f"the key file belongs to another user (uid {found.st_uid}), who can read it",
            where=str(path),
            hint=f"if you trust that user: chown {os.geteuid()} and chmod 600 the file",
        )
    if found.st_mode & 0o077:
        raise DataError(
            f"others can read the key file (mode {stat.S_IMODE(found.st_mode):04o})",
            where=str(path),
            hint="chmod 600 the file; if someone may have copied it, run `gnusnode id rotate`",
        )


def _write_private(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(handle)
