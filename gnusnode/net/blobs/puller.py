"""``models pull cid://…``: brings a model, or an expert with its model, from peers into the store."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from gnusnode.contracts import ids
from gnusnode.errors import (
    Conflict,
    ModelInvalid,
    ModelNotFound,
    NotFound,
    RequestError,
    Unavailable,
)
from gnusnode.inference.artifacts import elm as elms
from gnusnode.inference.artifacts.catalogue import Catalogue, load_catalogue
from gnusnode.inference.artifacts.chunked import ChunkedPart
from gnusnode.inference.artifacts.elmrecord import Contents, check_contents
from gnusnode.inference.artifacts.filework import Progress
from gnusnode.inference.artifacts.modelrecord import StoredModel, Traits, checked_name, is_name, short
from gnusnode.inference.artifacts.models import ModelStore
from gnusnode.net.blobs.download import Fetching, FetchStatistics
from gnusnode.net.blobs.survey import Survey, survey
from gnusnode.net.blobs.transfer import Transfer
from gnusnode.net.blobs.wire import Held

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")

Holders = Callable[[str], Sequence[str]]
"""``(sha256)``: the peers that are said to hold it now, best first. A hint."""


@dataclass(frozen=True)
class ElmTrust:
    """Which expert artifacts may be installed, as the settings say."""

    signers: Collection[str] = ()
    require_signature: bool = True


@dataclass(frozen=True)
class Pulled:
    model: StoredModel
    expert: str | None = None
    """``<expert>-<version>`` that was installed with it."""
    received: dict[str, int] = field(default_factory=dict[str, int])
    """Peer -> bytes that came from it."""


def parse_address(text: str) -> str:
    """The ``sha256:<hex>`` that a content address or digest names.

    Raises:
        RequestError: neither.
    """
    if text.startswith("cid://"):
        try:
            return ids.sha256_from_cid(text)
        except ValueError as error:
            raise RequestError(str(error), where=text[:200], hint="copy the whole address") from error
    if not _DIGEST.fullmatch(text.lower()):
        raise RequestError(
            "this is no content address", where=text[:200], hint="give cid://b… or sha256:<64 hexadecimal digits>"
        )
    return text.lower()


class Puller:
    """Fetches by content address. One a node.

    Args:
        holders: asked before and during a download.
        seek: looks for more holders and connects to them, when none is known; takes its time.
        trust: for expert artifacts.
    """

    def __init__(
        self,
        store: ModelStore,
        fetching: Fetching,
        *,
        holders: Holders,
        seek: Callable[[str], Awaitable[None]] | None = None,
        trust: ElmTrust | None = None,
        catalogue: Catalogue | None = None,
    ) -> None:
        self._store = store
        self._fetching = fetching
        self._holders = holders
        self._seek = seek
        self._trust = trust or ElmTrust()
        self._catalogue = catalogue

    @property
    def statistics(self) -> FetchStatistics:
        """Of all that this node fetched."""
        return self._fetching.statistics

    async def pull(
        self,
        address: str,
        *,
        name: str | None = None,
        peers: Sequence[str] = (),
        replace: bool = False,
        progress: Progress | None = None,
    ) -> Pulled:
        """Fetches what ``address`` names: a file by its hash, or an expert artifact by the hash of its manifest.

        Cancelled, killed or cut off, it keeps the chunks it has; the same call goes on from there.

        Args:
            name: how requests call the model; else the catalogue's name, else the holder's.
            peers: fetch from these only.
            replace: let a taken name point to the new file.

        Raises:
            RequestError: no content address, no model name.
            NotFound: nobody is known to hold it, or those who were asked do not.
            Unavailable: no holder is left; what came is kept.
            Conflict: the name is taken, or the file is being fetched already.
            TooLarge, DiskFull: before the first chunk.
            ModelInvalid: all holders lied, or the file is no model; nothing is kept.
            RecordRefused: an expert artifact that this node does not trust.
        """
        digest = parse_address(address)
        if name is not None:
            await self._require_free(checked_name(name), digest, replace)
        if (known := await self._here(digest, name, replace, progress)) is not None:
            return Pulled(known)
        found = await self._ask(digest, peers)
        held = next(iter(found.offers.values())).held
        contents = self._contents(held, digest)
        if contents is not None and (known := await self._here(held.sha256, None, replace, progress)) is not None:
            return Pulled(known, await self._install(contents, digest, progress))
        name = name or await self._name(held, contents)
        pulled = await self._download(found, peers, name, ids.cid_from_sha256(held.sha256), replace, progress)
        if contents is None:
            return pulled
        return Pulled(pulled.model, await self._install(contents, digest, progress), pulled.received)

    # --- before -------------------------------------------------------------------------------------------------------

    async def _require_free(self, name: str, digest: str, replace: bool) -> None:
        taken = next((model for model in await self._store.list() if model.name == name), None)
        if taken is not None and not replace and taken.sha256 != digest:
            raise Conflict(
                f"the name {name} belongs to another model ({short(taken.sha256)})",
                hint="choose another --name, or remove the old one with `gnusnode models rm`",
            )

    async def _here(
        self, digest: str, name: str | None, replace: bool, progress: Progress | None
    ) -> StoredModel | None:
        """The model if its file is in the store, whole; under ``name`` too, where one is given."""
        await trio.lowlevel.checkpoint()
        try:
            found = await self._store.resolve(digest, progress)
        except (ModelNotFound, ModelInvalid):
            return None  # damaged: the download replaces it
        if name in (None, found.manifest.name):
            return found.manifest
        source, traits = found.manifest.source, found.manifest.traits
        return await self._store.add(
            found.path, name, mode="link", source=source, traits=traits, replace=replace, progress=progress
        )

    async def _ask(self, digest: str, peers: Sequence[str]) -> Survey:
        holders = self._known(digest, peers)
        if not holders and self._seek is not None:
            await self._seek(digest)
            holders = self._known(digest, peers)
        if not holders:
            raise NotFound(
                "no peer is known to hold it",
                where=digest,
                hint="see `gnusnode peers list` for who is there, or name a holder with --from PEER",
            )
        reasons: dict[str, str] = {}
        most = self._fetching.limits.survey
        for first in range(0, len(holders), most):
            found = await survey(self._fetching, digest, holders[first : first + most])
            if found.offers:
                return found
            reasons |= found.reasons
        text = "; ".join(f"{peer} {reason}" for peer, reason in reasons.items())
        raise Unavailable(
            f"none of the peers that should hold it gives it: {text}",
            where=digest,
            hint="see `gnusnode peers list`, or name another holder with --from PEER",
        )

    def _known(self, digest: str, peers: Sequence[str]) -> list[str]:
        own = self._fetching.net.peer_id
        return [peer for peer in dict.fromkeys(peers or self._holders(digest)) if peer != own]

    def _contents(self, held: Held, digest: str) -> Contents | None:
        """The expert artifact, if one was asked for; checked before gigabytes are fetched for it."""
        if held.elm is None:
            return None
        return check_contents(
            held.elm.manifest,
            held.elm.template,
            held.elm.capability,
            trusted_signers=self._trust.signers,
            require_signature=self._trust.require_signature,
            where=digest,
        )

    async def _name(self, held: Held, contents: Contents | None) -> str:
        models = await self._store.list()
        if contents is not None:
            return f"elm/{contents.manifest.expert_id}-{contents.manifest.version}"
        if damaged := next((model.name for model in models if model.sha256 == held.sha256), None):
            return damaged
        known = self._entry(held.sha256)
        name = known or (held.name if is_name(held.name) and not held.name.startswith("elm/") else "model")
        if any(model.name == name for model in models):
            name = f"{name[:100]}-{held.sha256[7:15]}"
        return checked_name(name)

    def _entry(self, sha256: str) -> str | None:
        """The catalogue's name of the file."""
        self._catalogue = self._catalogue or load_catalogue()
        return next((name for name, entry in self._catalogue.models.items() if entry.sha256 == sha256), None)

    # --- the file -----------------------------------------------------------------------------------------------------

    async def _download(
        self,
        found: Survey,
        peers: Sequence[str],
        name: str,
        source: str,
        replace: bool,
        progress: Progress | None,
    ) -> Pulled:
        groups = found.layouts()
        sha256 = next(iter(groups)).sha256
        part = await trio.to_thread.run_sync(ChunkedPart, self._store.partial, sha256)
        transfer = Transfer(
            self._fetching, part, groups, found.liars, seek=lambda: self._known(sha256, peers), progress=progress
        )
        try:
            hashed = await transfer.run()
            entry = self._entry(sha256)
            traits = self._catalogue.models[entry].traits if self._catalogue and entry else Traits()
            try:
                model = await self._store.adopt(part.path, hashed, name, source=source, traits=traits, replace=replace)
            except ModelInvalid:
                part.discard()
                raise
            part.discard()
            return Pulled(model, received=transfer.received)
        finally:
            part.close()

    # --- after --------------------------------------------------------------------------------------------------------

    async def _install(self, contents: Contents, digest: str, progress: Progress | None) -> str:
        now_ms = self._fetching.now_ms()
        elm = await elms.install_contents(contents, self._store, where=digest, now_ms=now_ms, progress=progress)
        return f"{elm.expert_id}-{elm.version}"
