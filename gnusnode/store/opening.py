"""From a directory to an open LMDB environment, with every reason why that may fail named.

Nothing is mapped before it was looked at: LMDB maps its data and its lock file, and a truncated file or a full disk
under a mapping ends the process by SIGBUS instead of an exception.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import lmdb

from gnusnode.errors import AlreadyRunning, DataError, GnusError
from gnusnode.identity import sync_directory
from gnusnode.store import faults, tables
from gnusnode.store.check import check_data_file
from gnusnode.store.memory import fitting_map
from gnusnode.store.txn import Handles

DATA_FILE: Final = "data.mdb"
LOCK_FILE: Final = "lock.mdb"
OWNER_FILE: Final = "owner.lock"
CREATED_FILE: Final = "created"
"""Exists once the data file is durable: from then on an absent or empty data file is a loss, not a fresh start."""

_SCHEMA_KEY: Final = b"schema"
_MAX_READERS: Final = 126
_LOCK_BYTES: Final = 16 * 1024
"""More than LMDB's table of readers takes."""
_TWO_ROOTS: Final = 2 * 4096
"""A data file shorter than that has never held anything."""


def open_environment(path: Path, map_size: int, owned: ExitStack) -> tuple[lmdb.Environment, Handles]:
    """The environment in ``path`` and the handles of its tables; ``owned`` closes it. Blocks.

    Raises:
        AlreadyRunning, DiskFull, DataError: see ``open_store``.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _take(path / OWNER_FILE, owned)
        created = (path / CREATED_FILE).exists()
        _look_at(path / DATA_FILE, created=created)
        _reserve(path / LOCK_FILE)
        env = lmdb.open(
            os.fspath(path),
            map_size=fitting_map(map_size),
            max_dbs=len(tables.ALL),
            max_readers=_MAX_READERS,
            mode=0o600,
            lib_version=0,
        )
        owned.callback(env.close)
        env.reader_check()
        handles = _open_tables(env, path, created=created)
        if not created:
            _mark_created(path)
    except GnusError:
        raise
    except (lmdb.Error, OSError) as error:
        raise faults.translate(error, path) from error
    return env, handles


def _take(lock: Path, owned: ExitStack) -> None:
    """Takes the store for this opening; the kernel gives it back when the process ends, however it ends."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    owned.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise AlreadyRunning(
            "the store is already open, in this process or in another one",
            where=str(lock.parent),
            hint="stop the other node, or give this one its own --home",
        ) from error


def _look_at(data: Path, *, created: bool) -> None:
    """Checks the data file, if there should be one."""
    size = data.stat().st_size if data.exists() else 0
    if created and size == 0:
        raise faults.damaged("the data file of an existing store is " + ("empty" if data.exists() else "gone"), data)
    if not created and data.is_file() and size < _TWO_ROOTS:
        data.unlink(missing_ok=True)  # the disk was full, or the process died, while the file was first written
        return
    if data.exists():
        check_data_file(data)


def _reserve(lock: Path) -> None:
    """Makes sure that LMDB's lock file has its disk blocks: LMDB writes to it through a mapping."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, _LOCK_BYTES)
        else:  # macOS
            os.pwrite(descriptor, bytes(_LOCK_BYTES), 0)
    finally:
        os.close(descriptor)


def _open_tables(env: lmdb.Environment, path: Path, *, created: bool) -> Handles:
    """The handle of every table; makes those that are missing and checks the schema version."""
    while True:
        try:
            with env.begin(write=True) as txn:
                handles = {table: env.open_db(table.name.encode("ascii"), txn=txn) for table in tables.ALL}
                meta = handles[tables.META]
                found = txn.get(_SCHEMA_KEY, db=meta)
                if found is None and not created:
                    found = b"%d" % tables.SCHEMA_VERSION
                    txn.put(_SCHEMA_KEY, found, db=meta)
            _check_schema(found, path)
        except lmdb.MapFullError:
            env.set_mapsize(env.info()["map_size"] * 2)
        else:
            return handles


def _check_schema(found: bytes | None, path: Path) -> None:
    if found is None or not found.isdigit():
        raise faults.damaged("the store does not say which schema version it has", path)
    version = int(found)
    if version > tables.SCHEMA_VERSION:
        raise DataError(
            f"the store has schema version {version}; this gnusnode knows up to {tables.SCHEMA_VERSION}",
            where=str(path),
            hint="install the gnusnode that wrote it, or a newer one; this one changed nothing",
        )
    if version != tables.SCHEMA_VERSION:
        raise faults.damaged(f"schema version {version} has never existed", path)


def _mark_created(path: Path) -> None:
    descriptor = os.open(path / CREATED_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(path)
