"""One daemon per home: an advisory lock that the kernel drops when its holder dies."""

from __future__ import annotations

import fcntl
import json
import os
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from gnusnode.config.paths import Home
from gnusnode.errors import AlreadyRunning, storage_error


class HomeLock:
    """Holds ``<home>/lock`` until closed. The file stays behind and says nothing: only the kernel's lock counts."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    @classmethod
    def acquire(cls, home: Home) -> Self:
        """Takes the lock at once or fails.

        Raises:
            AlreadyRunning: another process holds it; names its pid and start time.
            DataError, DiskFull: the lock file cannot be opened or written.
        """
        try:
            handle = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise storage_error(error, home.lock, "cannot open the lock of this home") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, 0)
            os.pwrite(handle, _card(), 0)
        except BlockingIOError:
            text = _describe(os.pread(handle, 512, 0))
            os.close(handle)
            raise AlreadyRunning(
                f"a node already runs on this home{text}",
                where=str(home.root),
                hint="stop it with `gnusnode stop`, or give this one another --home",
            ) from None
        except OSError as error:
            os.close(handle)
            raise storage_error(error, home.lock, "cannot lock this home") from error
        return cls(handle)

    def close(self) -> None:
        """Releases the lock; a second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _card() -> bytes:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return json.dumps({"pid": os.getpid(), "started": started}).encode("ascii")


def _describe(card: bytes) -> str:
    """`` (pid 12, since …)``, or nothing: a holder writes its card just after it has the lock."""
    try:
        fields = json.loads(card)
        return f" (pid {int(fields['pid'])}, since {str(fields['started'])[:40]})"
    except (ValueError, KeyError, TypeError):
        return ""
