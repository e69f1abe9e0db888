"""Small files that are replaced whole: a reader, or a crash, sees the old content or the new one."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from gnusnode.identity import sync_directory


def replace_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Writes ``data`` beside ``path`` and renames it there, durably. An existing file keeps its mode, a link its place.

    Raises:
        OSError: the file system refused; ``path`` is as it was.
    """
    target = Path(os.path.realpath(path))
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            if target.exists():
                os.fchmod(handle, target.stat().st_mode & 0o777)
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.replace(draft, target)
        sync_directory(target.parent)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
