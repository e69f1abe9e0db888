"""The files that this node can give to others: found in its model store, cut into chunks and vouched for once each."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from gnusnode.clock import unix_ms
from gnusnode.contracts import canonical
from gnusnode.contracts.artifacts import CHUNK_BYTES, MAX_CHUNKS, ChunkManifest
from gnusnode.contracts.base import MalformedRecord
from gnusnode.contracts.dsse import Signer
from gnusnode.errors import DataError, GnusError, ModelNotFound, NotFound
from gnusnode.inference.artifacts import elm as elms
from gnusnode.inference.artifacts import filework
from gnusnode.inference.artifacts.filework import Stamp, explained
from gnusnode.inference.artifacts.modelrecord import StoredModel, require_digest
from gnusnode.inference.artifacts.models import ModelStore
from gnusnode.net.blobs.wire import ElmParts, Held

_KNOWN: Final = 8
"""Manifests kept in memory."""
_MAX_SIDECAR: Final = ChunkManifest.max_bytes + 1024


@dataclass(frozen=True)
class Vouched:
    """The manifest of a file, and what the file was when it was made."""

    stamp: Stamp
    manifest: ChunkManifest
    record: bytes


@dataclass
class _Job:
    ended: trio.Event = field(default_factory=trio.Event)
    result: Vouched | GnusError | None = None


class OpenFile:
    """A file of the store that is what its manifest says, open for reading."""

    def __init__(self, handle: int, vouched: Vouched, path: Path) -> None:
        self._handle = handle
        self._vouched = vouched
        self._path = path

    @property
    def manifest(self) -> ChunkManifest:
        return self._vouched.manifest

    def read(self, at: int, size: int) -> bytes:
        """Exactly ``size`` bytes. Blocks.

        Raises:
            DataError: unreadable, or changed since it was hashed.
        """
        with explained(self._path, "cannot read the file"):
            data = os.pread(self._handle, size, at)
        if len(data) != size or not Stamp.of(self._handle).same_content(self._vouched.stamp):
            raise DataError("the file changed while it was read", where=str(self._path), hint="verify the model")
        return data

    def close(self) -> None:
        os.close(self._handle)


class Holdings:
    """What the model store has for others.

    Args:
        signer: vouches for the chunk hashes.
        nursery: where files are hashed, one at a time; who asked for a manifest may leave meanwhile.
        chunk_bytes: how new manifests cut.
        now_ms: the wall clock, for new manifests.
    """

    def __init__(
        self,
        store: ModelStore,
        signer: Signer,
        nursery: trio.Nursery,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        now_ms: Callable[[], int] = unix_ms,
    ) -> None:
        self._store = store
        self._signer = signer
        self._nursery = nursery
        self._chunk_bytes = chunk_bytes
        self._now_ms = now_ms
        self._known: OrderedDict[str, Vouched] = OrderedDict()
        self._jobs: dict[str, _Job] = {}
        self._one_at_a_time = trio.Lock()

    async def held(self, digest: str) -> Held:
        """The file of ``digest``, or the one that the expert artifact of that hash uses.

        Raises:
            NotFound: neither is here.
        """
        try:
            return _held(await self._store.get(digest), None)
        except ModelNotFound:
            found = await elms.installed(self._store, trusted_signers=(), require_signature=False)
        for one in found.elms:
            if one.manifest.artifact_hash == digest:
                return _held(await self._store.get(one.manifest.model.sha256), _parts(one))
        raise NotFound("this node does not hold it", where=digest)

    async def vouched(self, digest: str) -> Vouched:
        """The manifest of the file of ``digest``; hashes the file when it was never hashed, or changed since.

        Raises:
            NotFound: it is not here, or too large to be given away.
            ModelInvalid, DataError: the file is not what its name says.
        """
        model = await self._store.get(digest)
        stamp = await trio.to_thread.run_sync(_stamp, self._store.file(model.sha256))
        known = self._known.get(model.sha256)
        if known is not None and known.stamp == stamp:
            return known
        job = self._jobs.get(model.sha256)
        if job is None:
            job = self._jobs[model.sha256] = _Job()
            self._nursery.start_soon(self._work, model, job)
        await job.ended.wait()
        match job.result:
            case Vouched() as found:
                return found
            case GnusError() as error:
                raise GnusError.from_wire(error.to_wire())  # of its own for each that waits
            case None:
                raise NotFound("this node is closing", where=digest)

    async def open(self, digest: str) -> OpenFile:
        """The file of ``digest`` for reading; the caller closes it.

        Raises:
            as ``vouched``.
        """
        vouched = await self.vouched(digest)
        path = self._store.file(vouched.manifest.artifact_hash)
        handle = await trio.to_thread.run_sync(filework.open_source, path)
        if Stamp.of(handle) == vouched.stamp:
            return OpenFile(handle, vouched, path)
        os.close(handle)
        raise DataError("the file changed just now", where=str(path), hint="try again")

    # --- hashing ------------------------------------------------------------------------------------------------------

    async def _work(self, model: StoredModel, job: _Job) -> None:
        await trio.lowlevel.checkpoint()
        try:
            async with self._one_at_a_time:
                job.result = await self._recall(model) or await self._hash(model)
            self._remember(job.result)
        except GnusError as error:
            job.result = error
        finally:
            del self._jobs[model.sha256]
            job.ended.set()

    def _remember(self, vouched: Vouched) -> None:
        self._known[vouched.manifest.artifact_hash] = vouched
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)

    async def _recall(self, model: StoredModel) -> Vouched | None:
        """What lies beside the file, if it is still true of it, and signed by us."""
        path = self._store.file(model.sha256)
        return await trio.to_thread.run_sync(
            _load, self._store.chunks(model.sha256), path, model.sha256, self._signer.peer_id
        )

    async def _hash(self, model: StoredModel) -> Vouched:
        path = self._store.file(model.sha256)
        handle = await trio.to_thread.run_sync(filework.open_source, path)
        try:
            before = Stamp.of(handle)
            if not 0 < before.size <= self._chunk_bytes * MAX_CHUNKS:
                raise NotFound("this file is too large to be given to peers", where=model.name)
            whole, chunks = await self._digests(handle, path, before.size)
            if Stamp.of(handle) != before:
                raise DataError("the file changed while it was read", where=str(path), hint="try again")
        finally:
            os.close(handle)
        require_digest(whole, model.sha256, where=str(path))
        manifest = ChunkManifest.signed(
            self._signer,
            artifact_hash=model.sha256,
            size=before.size,
            chunk_bytes=self._chunk_bytes,
            chunks=chunks,
            issued_at_ms=self._now_ms(),
        )
        made = Vouched(before, manifest, manifest.to_bytes())
        async with self._store.workspace() as work:
            await trio.to_thread.run_sync(_save, self._store.chunks(model.sha256), made, work)
        return made

    async def _digests(self, handle: int, path: Path, size: int) -> tuple[str, tuple[str, ...]]:
        """Of the whole file and of each chunk, in one pass."""
        whole, chunks, buffer = hashlib.sha256(), list[str](), bytearray(self._chunk_bytes)

        def take(at: int) -> None:
            with memoryview(buffer) as view, explained(path, "cannot read the file"):
                count = os.preadv(handle, [view], at)
                if count != min(len(buffer), size - at):
                    raise DataError("the file changed while it was read", where=str(path), hint="try again")
                whole.update(view[:count])
                chunks.append(f"sha256:{hashlib.sha256(view[:count]).hexdigest()}")

        await trio.lowlevel.checkpoint()
        for at in range(0, size, self._chunk_bytes):
            await trio.to_thread.run_sync(take, at)
        return f"sha256:{whole.hexdigest()}", tuple(chunks)


def _held(model: StoredModel, elm: ElmParts | None) -> Held:
    return Held(sha256=model.sha256, size=model.size, name=model.name, elm=elm)


def _parts(elm: elms.InstalledElm) -> ElmParts:
    return ElmParts(
        manifest=elm.manifest.to_json(),
        template=None if elm.template is None else elm.template.encode("utf-8"),
        capability=elm.capability and elm.capability.to_bytes(),
    )


def _stamp(path: Path) -> Stamp:
    with explained(path, "cannot look at the file"):
        try:
            return Stamp.of(path)
        except FileNotFoundError as error:
            raise NotFound("the file of this model is gone", where=path.name) from error


def _load(sidecar: Path, path: Path, sha256: str, signer: str) -> Vouched | None:
    try:
        with sidecar.open("rb") as file:
            plain: Any = canonical.decode(file.read(_MAX_SIDECAR + 1), max_bytes=_MAX_SIDECAR)
        stamp, record = Stamp(*plain["stamp"]), plain["manifest"]
        manifest = ChunkManifest.from_bytes(record)
    except (OSError, canonical.NotCanonical, MalformedRecord, KeyError, TypeError):
        return None  # none, or damaged: the file is hashed again
    mine = (manifest.artifact_hash, manifest.signer) == (sha256, signer) and manifest.signature_is_valid()
    return Vouched(stamp, manifest, record) if mine and stamp == _stamp(path) else None


def _save(sidecar: Path, vouched: Vouched, work: Path) -> None:
    data = canonical.encode({"stamp": list(vouched.stamp.as_tuple()), "manifest": vouched.record})
    filework.write_atomically(sidecar, data, work)
