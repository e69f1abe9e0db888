"""A small swarm in memory whose members hold model files: what the tests of ``gnusnode.net.blobs`` play in."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from gnusnode.contracts.artifacts import ChunkManifest
from gnusnode.contracts.roster import Roster
from gnusnode.contracts.swarm import MembershipCertificate, Role, Tier, swarm_id
from gnusnode.errors import GnusError
from gnusnode.identity import NodeIdentity
from gnusnode.inference.artifacts.models import ModelStore
from gnusnode.net.blobs import (
    BlobServer,
    Fetching,
    FetchLimits,
    Puller,
    ServeLimits,
    TokenBucket,
    serve_blobs,
    wire,
)
from gnusnode.net.memory import MemoryNet, MemoryNetwork
from gnusnode.net.port import MessageStream
from tests.fakes.ggufs import tiny_gguf

CHUNK = 64 * 1024
CHUNKS = 12
DATA = tiny_gguf() + random.Random(7).randbytes(CHUNK * (CHUNKS - 1))
"""A valid model of twelve chunks; the last is a short one."""
SHA256 = "sha256:" + hashlib.sha256(DATA).hexdigest()
ME, *HOLDERS = (NodeIdentity(bytes([n]) * 32) for n in range(40, 46))
QUICK = FetchLimits(reserve=0, attempts=2, backoff=0.01, survey_grace=0.2, steal_after=30.0)

Answer = Callable[[MessageStream, wire.Request], Awaitable[None]]


def roster(*members: NodeIdentity) -> Roster:
    """A swarm of ``ME`` and ``members``."""
    swarm = swarm_id(ME.peer_id)
    return Roster.build(
        ME.peer_id,
        certificates=[
            MembershipCertificate.signed(
                ME,
                swarm_id=swarm,
                peer_id=member.peer_id,
                operator="tests",
                roles=(Role.CORE,),
                tier=Tier.C,
                not_before=0,
                not_after=2**53 - 1,
                serial=1,
            )
            for member in (ME, *members)
        ],
    )


def manifest_of(data: bytes, signer: NodeIdentity, *, sha256: str = SHA256) -> ChunkManifest:
    """What ``signer`` would say of ``data`` if it were the file of ``sha256``."""
    pieces = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    return ChunkManifest.signed(
        signer,
        artifact_hash=sha256,
        size=len(data),
        chunk_bytes=CHUNK,
        chunks=tuple("sha256:" + hashlib.sha256(piece).hexdigest() for piece in pieces),
        issued_at_ms=1,
    )


@dataclass
class World:
    """``net``, ``store`` and ``puller`` are those of ``ME``."""

    network: MemoryNetwork
    net: MemoryNet
    store: ModelStore
    folder: Path
    stack: AsyncExitStack
    fetching: Fetching
    puller: Puller
    holders: list[str] = field(default_factory=list[str])
    """Who is said to hold everything."""
    blamed: dict[str, str] = field(default_factory=dict[str, str])
    nets: dict[str, MemoryNet] = field(default_factory=dict[str, MemoryNet])

    async def holder(
        self,
        identity: NodeIdentity,
        data: bytes = DATA,
        *,
        limits: ServeLimits = ServeLimits(),  # noqa: B008 - frozen
        gate: Callable[[str], GnusError | None] = lambda peer: None,
    ) -> tuple[BlobServer, ModelStore]:
        """A sound member that holds ``data`` and gives it."""
        net = await self._join(identity)
        store = ModelStore(self.folder / identity.peer_id, reserve=0)
        await store.prepare()
        file = self.folder / f"{identity.peer_id}.gguf"
        file.write_bytes(data)
        await store.add(file, "theirs")
        serving = serve_blobs(net, store, identity, gate=gate, limits=limits, chunk_bytes=CHUNK)
        return await self.stack.enter_async_context(serving), store

    async def impostor(self, identity: NodeIdentity, answer: Answer) -> None:
        """A member whose answers to ``get`` and the rest are ``answer``'s."""

        async def handle(stream: MessageStream) -> None:
            while (data := await stream.receive()) is not None:
                await answer(stream, wire.request(data))

        net = await self._join(identity)
        await self.stack.enter_async_context(net.serve(wire.PROTOCOL, handle))

    async def _join(self, identity: NodeIdentity) -> MemoryNet:
        net = await self.stack.enter_async_context(self.network.join(identity.peer_id))
        self.nets[identity.peer_id] = net
        await self.net.connect(identity.peer_id, net.addresses())
        self.holders.append(identity.peer_id)
        return net

    def leftovers(self) -> list[str]:
        return sorted(path.suffix for path in self.store.partial.iterdir())


@asynccontextmanager
async def world(
    folder: Path, *, limits: FetchLimits = QUICK, members: Sequence[NodeIdentity] = HOLDERS, **options: Any
) -> AsyncGenerator[World]:
    """``ME`` alone in its swarm; ``holder`` and ``impostor`` add others."""
    known = roster(*members)
    async with AsyncExitStack() as stack:
        network = MemoryNetwork()
        net = await stack.enter_async_context(network.join(ME.peer_id))
        store = ModelStore(folder / "mine", reserve=0)
        await store.prepare()
        blamed: dict[str, str] = {}
        holders: list[str] = []
        fetching = Fetching(net, lambda: known, blamed.__setitem__, limits, TokenBucket(limits.bytes_per_second))
        puller = Puller(store, fetching, holders=lambda sha256: list(holders), **options)
        yield World(network, net, store, folder, stack, fetching, puller, holders, blamed)


def lying(
    identity: NodeIdentity, data: bytes, get: Answer, *, sha256: str = SHA256, claims: bytes | None = None
) -> Answer:
    """Answers ``have`` and ``manifest`` as a holder of ``data`` would, and ``get`` by ``get``."""
    record = manifest_of(data if claims is None else claims, identity, sha256=sha256).to_bytes()

    async def answer(stream: MessageStream, request: wire.Request) -> None:
        await trio.lowlevel.checkpoint()
        match request:
            case wire.Have():
                await stream.send(wire.encode(wire.Held(sha256=sha256, size=len(data), name="theirs")))
            case wire.WantManifest():
                await stream.send(wire.encode(wire.Manifest(record=record)))
            case wire.Get():
                await get(stream, request)

    return answer


def gives(data: bytes) -> Answer:
    """Answers ``get`` with the chunks of ``data``."""

    async def get(stream: MessageStream, request: wire.Request) -> None:
        assert isinstance(request, wire.Get)
        await stream.send(wire.encode(wire.Bytes(data=data[request.first * CHUNK : (request.first + 1) * CHUNK])))
        await stream.send(wire.encode(wire.End()))

    return get
