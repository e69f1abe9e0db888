"""API keys: made once, kept as hashes, looked up in constant time."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
import time
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Protocol

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from gnusnode.errors import DataError, NotFound

PREFIX: Final = "gnus-"
_MAX_TOKEN: Final = 128
_MAX_FILE: Final = 64 * 1024 * 1024
"""Bytes of the key file that are read: some hundred thousand keys. What is longer is cut, and so damaged."""
_MOVE_AWAY: Final = "check owner and mode, or move it away and create keys anew"


class Scope(StrEnum):
    """What a key may do. ``admin`` includes the others."""

    READ = "read"
    CHAT = "chat"
    APPROVE = "approve"
    ADMIN = "admin"


class KeyLimits(BaseModel):
    """Limits of one key; None: no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Prompt and output tokens together; charged when an answer is complete."""
    in_flight: Annotated[int, Field(ge=1, le=10_000)] | None = None


class ApiKey(BaseModel):
    """What is kept of a key: everything but the key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]
    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    """Of the whole token. A plain hash is enough: 256 random bits cannot be guessed."""
    scopes: frozenset[Scope]
    tenant: Annotated[str, StringConstraints(min_length=1, max_length=128)] = "local"
    limits: KeyLimits = KeyLimits()
    created: int
    """Unix seconds, like ``expires``."""
    expires: int | None = None

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes


class NewKey(BaseModel):
    """What one asks for when making a key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    scopes: Annotated[frozenset[Scope], Field(min_length=1)] = frozenset({Scope.READ, Scope.CHAT})
    tenant: Annotated[str, StringConstraints(min_length=1, max_length=128)] = "local"
    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    in_flight: Annotated[int, Field(ge=1, le=10_000)] | None = None
    expires_in_seconds: Annotated[int, Field(ge=1)] | None = None


class KeyStore(Protocol):
    """Where keys are kept. Calls are quick and may be made from the event loop; ``create`` and ``revoke`` write."""

    def list(self) -> list[ApiKey]: ...

    def in_use(self) -> bool:
        """Whether a key was ever made here: from then on every caller needs one, also when the last one is revoked."""
        ...

    def find(self, token: str) -> ApiKey | None:
        """The key that ``token`` is, expired or not; None when it is none of ours."""
        ...

    def create(self, new: NewKey) -> tuple[ApiKey, str]:
        """A new key and its token, which is not kept and cannot be shown again."""
        ...

    def revoke(self, key_id: str) -> ApiKey:
        """Raises ``NotFound`` when there is no such key."""
        ...


_KEYS: Final[TypeAdapter[list[ApiKey]]] = TypeAdapter(list[ApiKey])


class FileKeyStore:
    """Keys in one 0600 JSON file, written atomically. Changes made by another process are seen at the next call.

    Raises:
        DataError: the file is there and cannot be trusted or read. Every call raises until that is put right.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int, int] | None = None
        self._by_id: dict[str, ApiKey] = {}
        self._refresh()

    def list(self) -> list[ApiKey]:
        self._refresh()
        return sorted(self._by_id.values(), key=lambda key: (key.created, key.id))

    def in_use(self) -> bool:
        self._refresh()
        return self._stamp is not None

    def find(self, token: str) -> ApiKey | None:
        self._refresh()
        return match(token, self._by_id)

    def create(self, new: NewKey) -> tuple[ApiKey, str]:
        self._refresh()
        key, token = make(new, now=int(time.time()))
        self._write([*self._by_id.values(), key])
        return key, token

    def revoke(self, key_id: str) -> ApiKey:
        self._refresh()
        key = self._by_id.get(key_id)
        if key is None:
            raise NotFound(f"there is no key {key_id!r}", hint="list them with: gnusnode keys list")
        self._write(other for other in self._by_id.values() if other.id != key_id)
        return key

    def _refresh(self) -> None:
        """Only a file that is not there stands for "no keys": whatever else cannot be read must not open the node."""
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            self._stamp, self._by_id = None, {}
            return
        except OSError as error:
            raise self._unusable(error) from error
        try:
            with os.fdopen(handle, "rb") as file:
                status = os.fstat(handle)
                stamp = (status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size)
                if stamp == self._stamp:
                    return
                self._check(status)
                keys = _KEYS.validate_json(file.read(_MAX_FILE), strict=False)
        except OSError as error:
            raise self._unusable(error) from error
        except ValidationError as error:
            raise DataError(
                "the file of API keys is damaged",
                where=str(self._path),
                hint="restore it from a backup, or remove it and create keys anew",
            ) from error
        self._stamp, self._by_id = stamp, {key.id: key for key in keys}

    def _check(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise DataError("the API keys are not a regular file", where=str(self._path), hint=_MOVE_AWAY)
        if status.st_uid not in {os.geteuid(), 0}:
            raise DataError(
                f"the file of API keys belongs to another user (uid {status.st_uid})",
                where=str(self._path),
                hint=f"if you trust what is in it: chown {os.geteuid()} {self._path}",
            )
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise DataError(
                "other users can read the API keys",
                where=str(self._path),
                hint=f"make new keys if others use this machine; then: chmod 600 {self._path}",
            )

    def _unusable(self, error: OSError) -> DataError:
        if self._path.is_symlink():
            what = "the file of API keys is a symbolic link, which could be turned to other keys"
            return DataError(what, where=str(self._path), hint="put the file itself there, or remove the link")
        return DataError(f"cannot read the API keys: {error.strerror}", where=str(self._path), hint=_MOVE_AWAY)

    def _write(self, keys: Iterable[ApiKey]) -> None:
        kept = list(keys)
        text = json.dumps([key.model_dump(mode="json") for key in kept], indent=1)
        part = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}.part")
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise DataError(
                f"cannot write the API keys: {error.strerror or error}",
                where=str(self._path),
                hint="check that the home is writable and the disk has room",
            ) from error
        self._refresh()


class MemoryKeyStore:
    """The same, kept nowhere: for tests and for a node without a home."""

    def __init__(self) -> None:
        self._by_id: dict[str, ApiKey] = {}
        self._used = False

    def list(self) -> list[ApiKey]:
        return list(self._by_id.values())

    def in_use(self) -> bool:
        return self._used

    def find(self, token: str) -> ApiKey | None:
        return match(token, self._by_id)

    def create(self, new: NewKey) -> tuple[ApiKey, str]:
        key, token = make(new, now=int(time.time()))
        self._by_id[key.id] = key
        self._used = True
        return key, token

    def revoke(self, key_id: str) -> ApiKey:
        if key_id not in self._by_id:
            raise NotFound(f"there is no key {key_id!r}")
        return self._by_id.pop(key_id)


def make(new: NewKey, *, now: int) -> tuple[ApiKey, str]:
    """A key with 256 random bits. The id stands in the token, so that a lookup compares one hash only."""
    key_id = secrets.token_hex(6)
    token = f"{PREFIX}{key_id}-{secrets.token_urlsafe(32)}"
    limits = KeyLimits(
        requests_per_minute=new.requests_per_minute,
        tokens_per_minute=new.tokens_per_minute,
        in_flight=new.in_flight,
    )
    key = ApiKey(
        id=key_id,
        name=new.name,
        sha256=_hash(token),
        scopes=new.scopes,
        tenant=new.tenant,
        limits=limits,
        created=now,
        expires=None if new.expires_in_seconds is None else now + new.expires_in_seconds,
    )
    return key, token


def match(token: str, by_id: dict[str, ApiKey]) -> ApiKey | None:
    """The key whose token this is; the secret part is compared in constant time."""
    if not token.startswith(PREFIX) or len(token) > _MAX_TOKEN:
        return None
    key = by_id.get(token.removeprefix(PREFIX).partition("-")[0])
    if key is None or not hmac.compare_digest(key.sha256, _hash(token)):
        return None
    return key


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
