"""The model store: files named by their sha256, and one JSON manifest a name.

    <home>/models/<sha256>.gguf      the file; several names may share it
    <home>/models/<name>.json        its manifest, ``StoredModel``
    <home>/models/.work/             files that are not finished; what a crash leaves there is removed at the next start
    <home>/models/.partial/          downloads that can be resumed, for two weeks

Plain files, not the database: a model is moved, linked and inspected with the tools of the system, a damaged manifest
costs one name, and ``gnusnode models`` works while no daemon runs.

A file is registered only when its header was accepted, and handed out only when its sha256 is right: remembered by
inode, size, modification and change time, computed again when any of these differs.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import trio

from gnusnode.errors import ModelInvalid, ModelNotFound
from gnusnode.inference.artifacts import filework
from gnusnode.inference.artifacts.filework import Hashed, Mode, Progress
from gnusnode.inference.artifacts.gguf import GgufHeader, read_header
from gnusnode.inference.artifacts.modelrecord import (
    FETCH_AGAIN,
    GenerationDefaults,
    StoredModel,
    Traits,
    checked_name,
    model_name,
    require_digest,
)
from gnusnode.inference.artifacts.registry import Listing, Registry

__all__ = ["GenerationDefaults", "Listing", "LoadableModel", "ModelStore", "StoredModel", "Traits"]

DEFAULT_RESERVE: Final = 64 * 1024 * 1024
_CLEANUP_SECONDS: Final = 30
Result = TypeVar("Result")


@dataclass(frozen=True)
class LoadableModel:
    """A model whose file has just been found to be what its manifest says."""

    manifest: StoredModel
    path: Path
    header: GgufHeader

    @property
    def template(self) -> str | None:
        """The chat template to render with: the manifest's, else the file's."""
        return self.manifest.traits.template or self.header.template


class ModelStore:
    """The models of one node. Safe for many tasks and processes at once.

    Args:
        root: ``<home>/models``; ``prepare`` makes it.
        reserve: bytes of disk space that an added file must leave free.
        clock: Unix seconds.
    """

    def __init__(self, root: Path, *, reserve: int = DEFAULT_RESERVE, clock: Callable[[], float] = time.time) -> None:
        self.root = root
        self.reserve = reserve
        self._registry = Registry(root)
        self._clock = clock

    @property
    def partial(self) -> Path:
        """Where resumable downloads lie: on the store's filesystem, so that a finished one is only renamed."""
        return self._registry.partial

    def file(self, sha256: str) -> Path:
        """Where the file of this digest is or would be. Read-only for everyone."""
        return self._registry.file(sha256)

    def chunks(self, sha256: str) -> Path:
        """Beside it, where its chunk manifest is kept; goes with the file."""
        return self._registry.chunks(sha256)

    async def prepare(self) -> None:
        """Makes the directories; removes what interrupted additions left, and downloads forgotten for two weeks.

        Call once at start.

        Raises:
            DataError, DiskFull.
        """
        await self._run("cannot make the directory of models", lambda: self._registry.prepare(self._clock()))

    async def add(
        self,
        file: Path,
        name: str | None = None,
        *,
        mode: Mode = "copy",
        source: str | None = None,
        expect: str | None = None,
        traits: Traits | None = None,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> StoredModel:
        """Brings a local GGUF file into the store. Adding the same file under the same name again changes nothing.

        Args:
            name: how requests call it; made from the file's name when not given.
            mode: whether the file may share the original's storage.
            source: where it came from, when not from this path.
            expect: ``sha256:<hex>`` that the file must have.
            traits: what is known beyond the file; kept as it was when not given.
            replace: let the name point to this file from now on, if it is taken.

        Raises:
            RequestError: the name is not a model name.
            ModelNotFound, DataError: the file is missing or unreadable.
            ModelInvalid: the header or the sha256 is refused.
            Conflict: the name belongs to another file.
            DiskFull: it would not fit, or did not.
        """
        name = model_name(file.stem) if name is None else checked_name(name)
        # Cheap, and spares a large copy of what is no model. The copy is what counts: ``adopt`` reads it again.
        await trio.to_thread.run_sync(read_header, file)
        async with self.workspace() as work:
            staged = work / f"{os.urandom(8).hex()}.gguf"
            try:
                hashed = await filework.bring(file, staged, mode, progress, reserve=self.reserve)
                require_digest(hashed.sha256, expect, where=str(file))
                source = source or f"file:{file}"
                return await self.adopt(staged, hashed, name, source=source, traits=traits, replace=replace)
            finally:
                with trio.move_on_after(_CLEANUP_SECONDS, shield=True):
                    await trio.to_thread.run_sync(lambda: staged.unlink(missing_ok=True))

    async def adopt(
        self,
        staged: Path,
        hashed: Hashed,
        name: str,
        *,
        source: str,
        traits: Traits | None = None,
        replace: bool = False,
    ) -> StoredModel:
        """Registers a file that lies on the store's filesystem and was hashed while it was written. It is moved.

        Raises:
            RequestError, ModelInvalid, Conflict, DataError, DiskFull: as ``add``; ``staged`` is then left alone.
        """
        checked_name(name)
        header = await trio.to_thread.run_sync(read_header, staged)
        return await self._run(
            "cannot register the model",
            lambda: self._registry.register(
                staged,
                hashed,
                header,
                name=name,
                source=source,
                traits=traits,
                replace=replace,
                now=int(self._clock()),
            ),
        )

    async def scan(self) -> Listing:
        """All manifests, sorted by name, and the problems of those that cannot be read."""
        return await self._run("cannot list the models", self._registry.scan)

    async def list(self) -> tuple[StoredModel, ...]:
        """All readable manifests, sorted by name."""
        return (await self.scan()).models

    async def get(self, key: str) -> StoredModel:
        """The model of a name, a sha256, or at least eight first digits of one.

        Raises:
            ModelNotFound: nobody has it.
            Conflict: the digits fit several files.
            DataError: its manifest is damaged.
        """
        return await self._run("cannot look for the model", lambda: self._registry.get(key))

    async def resolve(self, key: str, progress: Progress | None = None) -> LoadableModel:
        """The model of ``key``, its file sure to hold the bytes that its sha256 names. Call before every load.

        Raises:
            ModelNotFound, Conflict, DataError: as ``get``.
            ModelInvalid: the file is missing, altered or refused.
        """
        model = await self.get(key)
        stamp = await self._run("cannot look at the file", lambda: self._registry.stamp(model.sha256))
        if stamp is None or stamp.as_tuple() != model.stamp:
            model = await self._verify(model, progress)
        path = self._registry.file(model.sha256)
        return LoadableModel(model, path, await trio.to_thread.run_sync(read_header, path))

    async def verify(self, key: str, progress: Progress | None = None) -> StoredModel:
        """Hashes the whole file of ``key``, whatever was remembered of it.

        Raises:
            ModelNotFound, Conflict, DataError: as ``get``.
            ModelInvalid: the file is missing or altered.
        """
        return await self._verify(await self.get(key), progress)

    async def remove(self, key: str) -> StoredModel:
        """Forgets the name of ``key``; the file goes with its last name. An engine that runs it is not disturbed.

        Raises:
            ModelNotFound, Conflict, DataError: as ``get``.
        """
        return await self._run("cannot remove the model", lambda: self._registry.remove(key))

    @asynccontextmanager
    async def workspace(self) -> AsyncGenerator[Path]:
        """A directory for unfinished files, which ``prepare`` of another process leaves alone while this is held."""
        lock = await self._run(
            "cannot use the store", lambda: filework.take_lock(self._registry.work_lock, shared=True)
        )
        try:
            yield self._registry.work
        finally:
            if lock is not None:
                os.close(lock)

    async def _verify(self, model: StoredModel, progress: Progress | None) -> StoredModel:
        path = self._registry.file(model.sha256)
        try:
            hashed = await filework.hash_file(path, progress)
        except ModelNotFound as error:
            raise ModelInvalid("the file of this model is gone", where=str(path), hint=FETCH_AGAIN) from error
        require_digest(hashed.sha256, model.sha256, where=str(path))
        fresh = model.model_copy(update={"verified_at": int(self._clock()), "stamp": hashed.stamp.as_tuple()})
        await self._run("cannot note the verification", lambda: self._registry.remember(model, fresh))
        return fresh

    async def _run(self, what: str, work: Callable[[], Result]) -> Result:
        """Runs blocking work of the registry in a thread and explains the system's failures."""
        with filework.explained(self.root, what):
            return await trio.to_thread.run_sync(work)
