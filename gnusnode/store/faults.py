"""What an error of LMDB or of the file system means, in terms of the error tree."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Final

import lmdb

from gnusnode.errors import DataError, storage_error

SALVAGE_HINT: Final = (
    "stop the node, save what can be read with `gnusnode audit export --salvage FILE`, see `gnusnode doctor`, "
    "then restore a backup or move the directory away to start afresh"
)

_NEARLY_NOTHING: Final = 1024 * 1024


def damaged(what: str, where: Path | str) -> DataError:
    """The error of state that contradicts itself."""
    return DataError(what, where=str(where), hint=SALVAGE_HINT)


def translate(error: lmdb.Error | OSError, where: Path) -> DataError:
    """The typed error that tells a person what happened to the store at ``where``."""
    if isinstance(error, lmdb.Error):
        if error.code <= 0:  # LMDB's own codes are negative, those of the system positive
            return damaged(f"the store cannot be used: {error}", where)
        error = OSError(error.code, os.strerror(error.code))
    # LMDB reports a write that stopped half way as EIO; on a full disk that is what a short write means.
    if error.errno == errno.EIO and _free_bytes(where) < _NEARLY_NOTHING:
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return storage_error(error, where, "cannot use the store")


def _free_bytes(where: Path) -> int:
    try:
        return shutil.disk_usage(where if where.exists() else where.parent).free
    except OSError:
        return 0
