"""Large files on their way into the model store: space check, cloning, copying and hashing, all cancellable.

The work runs in worker threads, some MiB at a time, so that the event loop lives, progress is told from the loop's own
thread and a cancellation waits for one piece only.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import trio

from gnusnode.errors import DataError, DiskFull, ModelNotFound, storage_error
from gnusnode.identity import sync_directory

Progress = Callable[[int, int | None], None]
"""Called in the event loop with (bytes done, bytes in all or None where nobody knows)."""

Mode = Literal["copy", "link"]
"""``copy`` gives an independent file; ``link`` may share the original's storage where both lie on one filesystem."""

SMALL_RESERVE: Final = 16 * 1024 * 1024
"""Disk space that a file which people asked for by its path must leave free."""

_PIECE: Final = 8 * 1024 * 1024
_FICLONE: Final = 0x40049409
"""linux/fs.h: share the extents of a file, copy on write (btrfs, XFS, bcachefs)."""


class Hasher(Protocol):
    def update(self, data: memoryview, /) -> None: ...


@dataclass(frozen=True)
class Stamp:
    """What tells cheaply that a file is still the one that was hashed. Any write, rename or link changes it."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path | int) -> Stamp:
        """Of a path (not following a symbolic link) or an open descriptor.

        Raises:
            OSError: there is no such file.
            DataError: not a regular file.
        """
        found = os.fstat(path) if isinstance(path, int) else path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise DataError("this is not a regular file", where=str(path))
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def as_tuple(self) -> tuple[int, int, int, int, int]:
        return (self.device, self.inode, self.size, self.mtime_ns, self.ctime_ns)

    def same_content(self, other: Stamp) -> bool:
        """Whether only names of the file changed between the two."""
        mine = (self.device, self.inode, self.size, self.mtime_ns)
        return mine == (other.device, other.inode, other.size, other.mtime_ns)


@dataclass(frozen=True)
class Hashed:
    """A file that was read to its end, and what it was while it was read."""

    sha256: str
    """``sha256:<hex>``."""
    stamp: Stamp


@contextmanager
def explained(path: Path, what: str) -> Generator[None]:
    """Turns the failures of the operating system on our own files into ``DataError`` and ``DiskFull``."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path, what) from error


def require_space(directory: Path, size: int, reserve: int) -> None:
    """Refuses before anything starts when ``size`` more bytes would leave fewer than ``reserve`` free.

    Raises:
        DiskFull: with the figures.
    """
    with explained(directory, "cannot see the free space"):
        space = os.statvfs(directory)
    free = space.f_bavail * space.f_frsize
    if size + reserve > free:
        raise DiskFull(
            f"{mib(size)} are needed and {mib(reserve)} must stay free, but only {mib(free)} are",
            where=str(directory),
            hint="free some space, remove a model with `gnusnode models rm`, or set models.path to a larger disk",
        )


def mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


async def hash_file(path: Path, progress: Progress | None = None) -> Hashed:
    """The sha256 of a file.

    Raises:
        ModelNotFound: there is no such file.
        DataError: it cannot be read, or it changed meanwhile.
    """
    source = await trio.to_thread.run_sync(open_source, path)
    try:
        return await _read_through(source, path, None, progress)
    finally:
        os.close(source)


async def bring(source: Path, target: Path, mode: Mode, progress: Progress | None, *, reserve: int) -> Hashed:
    """Makes ``target`` (which must not exist) hold what ``source`` holds, hashed in the same go.

    ``link`` tries a hard link; else extents are shared where the filesystem can; else the bytes are copied, after a
    check that the disk can take them. ``target`` is the caller's to remove when this raises.

    Raises:
        ModelNotFound, DataError, DiskFull.
    """
    descriptor = await trio.to_thread.run_sync(open_source, source)
    try:
        if mode == "link" and await trio.to_thread.run_sync(_link, descriptor, source, target):
            return await _read_through(descriptor, target, None, progress)
        with explained(target, "cannot make the file"):
            out = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            return await _copy(descriptor, out, target, progress, reserve)
        finally:
            os.close(out)
    finally:
        os.close(descriptor)


def open_source(path: Path) -> int:
    """A descriptor of a regular file for reading; never hangs on a pipe or device.

    Raises:
        ModelNotFound, DataError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise ModelNotFound("there is no such file", where=str(path)) from error
    except OSError as error:
        raise storage_error(error, path, "cannot open the file") from error
    try:
        Stamp.of(descriptor)
    except DataError as error:
        os.close(descriptor)
        raise DataError(error.what, where=str(path), hint="give the path of a model file") from None
    return descriptor


async def _copy(source: int, out: int, target: Path, progress: Progress | None, reserve: int) -> Hashed:
    if await trio.to_thread.run_sync(_clone, source, out):
        return await _read_through(out, target, None, progress)
    await trio.to_thread.run_sync(require_space, target.parent, os.fstat(source).st_size, reserve)
    digest = (await _read_through(source, target, out, progress)).sha256
    with explained(target, "cannot write the file"):
        await trio.to_thread.run_sync(os.fsync, out)
        return Hashed(digest, Stamp.of(out))


async def copy_span(
    source: int,
    start: int,
    size: int,
    where: Path,
    *,
    out: int | None = None,
    out_at: int = 0,
    progress: Progress | None = None,
) -> str:
    """The ``sha256:<hex>`` of ``size`` bytes of ``source`` from ``start``, written to ``out`` where one is given.

    Raises:
        DataError: the file ends earlier, or cannot be read or written; ``where`` names it.
        DiskFull.
    """
    hasher, buffer, done = hashlib.sha256(), bytearray(min(_PIECE, max(size, 1))), 0
    await trio.lowlevel.checkpoint()
    while done < size:
        view = memoryview(buffer)[: size - done]
        count = await trio.to_thread.run_sync(_piece, source, start + done, view, hasher, out, out_at + done, where)
        if not count:
            raise DataError("the file became shorter while it was read", where=str(where), hint="try again")
        done += count
        if progress:
            progress(done, size)
    return f"sha256:{hasher.hexdigest()}"


async def _read_through(source: int, where: Path, out: int | None, progress: Progress | None) -> Hashed:
    before = Stamp.of(source)
    digest = await copy_span(source, 0, before.size, where, out=out, progress=progress)
    after = Stamp.of(source)
    if not before.same_content(after):
        raise DataError("the file changed while it was read", where=str(where), hint="try again when nobody writes it")
    return Hashed(digest, after)


def _piece(source: int, at: int, buffer: memoryview, hasher: Hasher, out: int | None, out_at: int, where: Path) -> int:
    with explained(where, "cannot read the file" if out is None else "cannot copy the file"):
        count = os.preadv(source, [buffer], at)
        view = buffer[:count]
        hasher.update(view)
        written = 0
        while out is not None and written < count:
            written += os.pwrite(out, view[written:], out_at + written)
    return count


def _link(descriptor: int, source: Path, target: Path) -> bool:
    """A hard link to the very file that ``descriptor`` holds, where the system allows one."""
    with suppress(OSError):  # another filesystem, somebody else's file, no such feature: the caller copies
        os.link(source, target)
        if os.path.samestat(os.fstat(descriptor), target.lstat()):
            return True
        target.unlink()
    return False


def _clone(source: int, out: int) -> bool:
    with suppress(OSError):  # not a filesystem that can: the caller copies
        fcntl.ioctl(out, _FICLONE, source)
        return True
    return False


def write_atomically(path: Path, data: bytes, work: Path) -> None:
    """Replaces ``path`` by ``data`` or changes nothing. ``work`` is a directory on the same filesystem.

    Raises:
        DataError, DiskFull.
    """
    temporary = work / f"{path.name[:100]}.{os.urandom(6).hex()}"
    with explained(path, "cannot write the file"):
        try:
            with open(temporary, "xb", opener=_private) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def take_lock(path: Path, *, shared: bool = False, wait: bool = True) -> int | None:
    """An advisory lock that lives as long as the returned descriptor; None when not ``wait`` and another has it.

    Each use opens the file anew, so two tasks of one process exclude each other too. ``wait`` blocks its thread.
    """
    with explained(path, "cannot open the lock"):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
    return handle


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Generator[bool]:
    """Holds the lock of ``path`` alone. Yields whether it was taken; without ``wait`` it may not be."""
    handle = take_lock(path, wait=wait)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)
