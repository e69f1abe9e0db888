"""Content-addressed blobs: files named by the sha256 of their bytes.

    <root>/ab/cd/abcd…   64 hex digits, complete and durable
    <root>/tmp/…         being written; removed at the next start

A blob appears under its name only when all of it is on the disk (write, fsync, rename, fsync of the directory): a name
that exists is complete. The file system is the index. All file I/O runs off the loop.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import trio

from gnusnode.contracts import ids
from gnusnode.errors import DataError, DiskFull, NotFound, TooLarge, storage_error
from gnusnode.identity import sync_directory
from gnusnode.store import faults

T = TypeVar("T")
CHUNK: Final = 1024 * 1024
"""Bytes that a reader gives at a time."""
DEFAULT_LIMIT: Final = 256 * 1024**3
RESERVE: Final = 64 * 1024 * 1024
"""Bytes that a blob of declared size must leave free, so that the store itself can go on writing."""
_TEMPORARY: Final = "tmp"
_HEX: Final = re.compile(r"[0-9a-f]{64}")


class BlobWriter:
    """A blob being written. Made by ``Blobs.writer``; without ``commit`` nothing remains."""

    def __init__(self, blobs: Blobs, descriptor: int, draft: Path, limit: int, declared: int | None) -> None:
        self._blobs = blobs
        self._descriptor = descriptor
        self._draft = draft
        self._limit = limit
        self._declared = declared
        self._digest = hashlib.sha256()
        self.size = 0
        """Bytes so far."""

    async def write(self, chunk: bytes) -> None:
        """Appends ``chunk``.

        Raises:
            TooLarge: more than the limit, or than the declared size.
            DiskFull, DataError: the file system refused.
        """
        if self.size + len(chunk) > self._limit:
            raise TooLarge(f"the blob is larger than the {self._limit} bytes allowed", where=str(self._blobs.root))
        self.size += len(chunk)
        await self._blobs.run(partial(self._write, chunk))

    async def commit(self, *, expected: str | None = None) -> str:
        """Makes the blob durable under its content address, which is returned. A blob that is there already is kept.

        Args:
            expected: content address or ``sha256:<hex>`` that the bytes must have.

        Raises:
            DataError: the bytes have another digest, or are fewer than declared; nothing is kept.
            DiskFull: nothing is kept.
        """
        if self._declared not in (None, self.size):
            raise DataError(
                f"the blob ends after {self.size} of {self._declared} bytes",
                where=str(self._blobs.root),
                hint="fetch it again",
            )
        digest = self._digest.hexdigest()
        if expected is not None and _hex(expected) != digest:
            raise DataError(
                f"the bytes are not those of {expected}: they have sha256 {digest}",
                where=str(self._blobs.root),
                hint="fetch it again, from another source if it persists",
            )
        await self._blobs.run(partial(self._blobs.publish, self._descriptor, self._draft, digest))
        return ids.cid_from_sha256(digest)

    def _write(self, chunk: bytes) -> None:
        self._digest.update(chunk)
        view = memoryview(chunk)
        while view:
            view = view[os.write(self._descriptor, view) :]


class BlobReader:
    """An open blob. Made by ``Blobs.reader``. Every byte is hashed; the last ``read`` proves them all."""

    def __init__(self, blobs: Blobs, descriptor: int, digest: str) -> None:
        self._blobs = blobs
        self._descriptor = descriptor
        self._expected = digest
        self._digest = hashlib.sha256()
        self.size = os.fstat(descriptor).st_size

    async def read(self) -> bytes:
        """The next chunk; empty at the end.

        Raises:
            DataError: at the end, when the bytes were not those of the address: what was read must not be used.
        """
        chunk = await self._blobs.run(self._read)
        if not chunk and self._digest.hexdigest() != self._expected:
            raise faults.damaged(
                "the blob's bytes do not have the digest in its name", self._blobs.path("sha256:" + self._expected)
            )
        return chunk

    def _read(self) -> bytes:
        chunk = os.read(self._descriptor, CHUNK)
        self._digest.update(chunk)
        return chunk


class Blobs:
    """A directory of blobs. Made by ``open_blobs``; one owner a directory, which the lock of the home ensures."""

    def __init__(self, root: Path, reserve: int) -> None:
        self.root = root
        self._reserve = reserve
        self._names = threading.Lock()
        """Held while a name appears or disappears, so that ``delete`` sees whether a blob was just written again."""

    def path(self, address: str) -> Path:
        """Where the bytes of a content address or ``sha256:<hex>`` are or would be. Read-only for everyone.

        Raises:
            NotFound: not an address.
        """
        digest = _hex(address)
        return self.root / digest[:2] / digest[2:4] / digest

    async def has(self, address: str) -> bool:
        """Whether the blob is here, complete."""
        return await self.run(self.path(address).exists)

    @asynccontextmanager
    async def writer(self, *, size: int | None = None, limit: int = DEFAULT_LIMIT) -> AsyncGenerator[BlobWriter]:
        """A new blob; nothing remains of it unless ``BlobWriter.commit`` was called.

        Args:
            size: bytes that will be written, when known: refused at once if the disk cannot hold them.
            limit: most bytes that may be written.

        Raises:
            DiskFull: ``size`` bytes do not fit.
            TooLarge: ``size`` is more than ``limit``.
            DataError: the directory cannot be written.
        """
        if size is not None and size > limit:
            raise TooLarge(f"a blob of {size} bytes is larger than the {limit} bytes allowed", where=str(self.root))
        draft = self.root / _TEMPORARY / secrets.token_hex(16)
        descriptor = await self.run(partial(self._begin, draft, size))
        try:
            yield BlobWriter(self, descriptor, draft, limit if size is None else size, size)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(_abandon, descriptor, draft)

    @asynccontextmanager
    async def reader(self, address: str) -> AsyncGenerator[BlobReader]:
        """The blob of ``address``, for reading in chunks.

        Raises:
            NotFound: it is not here.
        """
        path, digest = self.path(address), _hex(address)
        descriptor = await self.run(partial(_open_blob, path, address))
        try:
            yield BlobReader(self, descriptor, digest)
        finally:
            os.close(descriptor)

    async def put(self, data: bytes) -> str:
        """Stores ``data``; returns its content address."""
        async with self.writer(size=len(data)) as writer:
            await writer.write(data)
            return await writer.commit()

    async def get(self, address: str, *, limit: int) -> bytes:
        """All bytes of the blob, proven.

        Raises:
            NotFound: it is not here.
            TooLarge: it has more than ``limit`` bytes.
            DataError: it is damaged.
        """
        async with self.reader(address) as reader:
            if reader.size > limit:
                raise TooLarge(f"the blob has {reader.size} bytes, more than the {limit} allowed", where=address)
            chunks: list[bytes] = []
            while chunk := await reader.read():
                chunks.append(chunk)
            return b"".join(chunks)

    async def verify(self, address: str) -> bool:
        """Whether the bytes on the disk still have their digest.

        Raises:
            NotFound: it is not here.
        """
        async with self.reader(address) as reader:
            try:
                while await reader.read():
                    pass
            except DataError:
                return False
            return True

    async def delete(self, address: str, *, idle_s: float = 0.0) -> bool:
        """Removes the blob; who has it open keeps reading. Says whether it removed one.

        Args:
            idle_s: keep it when it was written, or written again, less than so many seconds ago. A collector that looks
                for unreferenced blobs passes the longest time that a writer takes from ``commit`` to its reference.
        """
        return await self.run(partial(self._delete, self.path(address), idle_s))

    async def inventory(self) -> dict[str, int]:
        """Content address and bytes of every blob."""
        return await self.run(lambda: {ids.cid_from_sha256(path.name): size for path, size in self._walk()})

    async def run(self, call: Callable[[], T]) -> T:
        """``call`` in a thread, with errors of the file system typed. Once begun it is not cancelled."""
        try:
            return await trio.to_thread.run_sync(call)
        except OSError as error:
            raise storage_error(error, error.filename or self.root, "cannot use the blob store") from error

    def publish(self, descriptor: int, draft: Path, digest: str) -> None:
        """Gives the finished ``draft`` its name, durably. An older file of that name, possibly damaged, is replaced."""
        os.fsync(descriptor)
        target = self.path("sha256:" + digest)
        fresh = not target.parent.exists()
        with self._names:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.replace(target)
        sync_directory(target.parent)
        if fresh:
            sync_directory(target.parent.parent)
            sync_directory(self.root)

    def _begin(self, draft: Path, size: int | None) -> int:
        if size is not None:
            free = shutil.disk_usage(self.root).free
            if size + self._reserve > free:
                raise DiskFull(
                    f"{size} bytes do not fit: {free} are free and {self._reserve} of them stay for the node itself",
                    where=str(self.root),
                    hint="free some space, or move the home to a larger disk",
                )
        return os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)

    def _delete(self, path: Path, idle_s: float) -> bool:
        with self._names:
            try:
                if idle_s and time.time() - path.stat().st_mtime < idle_s:
                    return False
                path.unlink()
            except FileNotFoundError:
                return False
            return True

    def _walk(self) -> Iterator[tuple[Path, int]]:
        for path in self.root.glob("??/??/*"):
            with suppress(FileNotFoundError):  # deleted meanwhile
                if _HEX.fullmatch(path.name):
                    yield path, path.stat().st_size


async def open_blobs(root: Path, *, reserve: int = RESERVE) -> Blobs:
    """The blob store in ``root``, made if need be; what interrupted writers left is removed.

    Raises:
        DataError: it cannot be written.
    """
    blobs = Blobs(root, reserve)
    await blobs.run(partial(_prepare, root))
    return blobs


def _prepare(root: Path) -> None:
    temporary = root / _TEMPORARY
    temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
    for stale in temporary.iterdir():
        stale.unlink()


def _open_blob(path: Path, address: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFound("there is no such blob here", where=address) from error


def _abandon(descriptor: int, draft: Path) -> None:
    os.close(descriptor)
    draft.unlink(missing_ok=True)


def _hex(address: str) -> str:
    """The hex digest that an address names."""
    try:
        digest = address if address.startswith("sha256:") else ids.sha256_from_cid(address)
    except ValueError as error:
        raise NotFound(str(error), where=address[:100]) from error
    digest = digest.removeprefix("sha256:")
    if not _HEX.fullmatch(digest):
        raise NotFound("not a sha256 digest", where=address[:100])
    return digest
