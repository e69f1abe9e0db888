"""Who holds a file, and how each says that it is cut: asked before a download begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio
from pydantic import ValidationError

from gnusnode.contracts import ids
from gnusnode.inference.artifacts.chunked import ChunkLayout
from gnusnode.inference.artifacts.elmrecord import ElmManifest
from gnusnode.net.blobs.download import Fetching
from gnusnode.net.blobs.source import Lied, Lost, Refused, open_source
from gnusnode.net.blobs.wire import Held


@dataclass(frozen=True)
class Offer:
    """What one holder says it has."""

    held: Held
    layout: ChunkLayout


@dataclass
class Survey:
    """Answers by peer; grows while it runs."""

    offers: dict[str, Offer] = field(default_factory=dict[str, Offer])
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    """Why a peer is no source."""
    liars: set[str] = field(default_factory=set[str])

    def layouts(self) -> dict[ChunkLayout, list[str]]:
        """Who vouches for which layout; the one that most do comes first, then the one that was named first."""
        groups: dict[ChunkLayout, list[str]] = {}
        for peer, offer in self.offers.items():
            groups.setdefault(offer.layout, []).append(peer)
        return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


async def survey(fetching: Fetching, digest: str, peers: Sequence[str]) -> Survey:
    """Asks all of ``peers`` at once. The first one with an offer waits a moment for the others, not for the slowest."""
    found = Survey()
    limits = fetching.limits
    async with trio.open_nursery() as nursery:

        async def ask(peer: str) -> None:
            await trio.lowlevel.checkpoint()
            try:
                found.offers[peer] = await _offer(fetching, digest, peer)
            except (Lost, Refused) as error:
                found.reasons[peer] = str(error)
            except Lied as error:
                found.reasons[peer] = str(error)
                found.liars.add(peer)
                fetching.blame(peer, str(error))
            else:
                grace = trio.current_time() + limits.survey_grace
                nursery.cancel_scope.deadline = min(nursery.cancel_scope.deadline, grace)

        for peer in peers:
            nursery.start_soon(ask, peer)
    # In the order of the peers, whoever was quickest.
    found.offers = {peer: found.offers[peer] for peer in peers if peer in found.offers}
    return found


async def _offer(fetching: Fetching, digest: str, peer: str) -> Offer:
    async with open_source(fetching.net, peer, fetching.limits.patience) as source:
        held = await source.have(digest)
        _check(held, digest)
        layout = await source.layout(held.sha256, fetching.roster(), fetching.now_ms())
        if layout.size != held.size:
            raise Lied("names two sizes of one file")
        return Offer(held, layout)


def _check(held: Held, digest: str) -> None:
    """The file asked for, or an expert artifact whose manifest has this hash and names the file.

    Raises:
        Lied: neither.
    """
    if held.sha256 == digest and held.elm is None:
        return
    if held.elm is None or ids.sha256(held.elm.manifest) != digest:
        raise Lied("answers for another file than the one asked for")
    try:
        manifest = ElmManifest.model_validate_json(held.elm.manifest)
    except ValidationError as error:
        raise Lied("holds an expert artifact whose manifest is malformed") from error
    if (manifest.model.sha256, manifest.model.size) != (held.sha256, held.size):
        raise Lied("answers with another file than the expert artifact names")
