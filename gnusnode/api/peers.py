"""``/gnus/v1/peers``: whom this node knows, how far each has come, why no further. All of it needs the scope admin."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from gnusnode.api.bodies import read_body
from gnusnode.api.document import body_of
from gnusnode.api.envelope import json_response
from gnusnode.api.facade import PeersFacade
from gnusnode.errors import Unprocessable


class ConnectPeer(BaseModel):
    """Whom to dial."""

    model_config = ConfigDict(extra="forbid")

    address: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    """A multiaddr that ends with ``/p2p/`` and the node's PeerID."""


class BanPeer(BaseModel):
    """Why, for people; shown where the peer is listed."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, StringConstraints(max_length=256)] = ""


PEER_BODIES: Final = (ConnectPeer, BanPeer)
"""For ``document.complete``."""


def peer_routes(peers: PeersFacade) -> APIRouter:
    """The peer table, and what an operator may do about a peer: by its PeerID or the end of it."""
    router = APIRouter(prefix="/gnus/v1/peers", tags=["peers"])

    @router.get("", summary="All peers with their states, and how many have come how far")
    async def overview() -> Response:
        return json_response({"object": "list", **peers.overview()})

    @router.get("/{peer}", summary="Everything that is known of a peer")
    async def show(peer: str) -> Response:
        return json_response(peers.show(peer))

    @router.post("/connect", openapi_extra=body_of(ConnectPeer), summary="Dial an address and wait for the hello")
    async def connect(request: Request) -> Response:
        asked = await read_body(request, ConnectPeer, shape_error=Unprocessable)
        return json_response(await peers.connect(asked.address))

    @router.post("/{peer}/ping", summary="Measure one round trip")
    async def ping(peer: str) -> Response:
        return json_response(await peers.ping(peer))

    @router.post("/{peer}/ban", openapi_extra=body_of(BanPeer), summary="Cut a peer off and keep it out")
    async def ban(request: Request, peer: str) -> Response:
        asked = await read_body(request, BanPeer, shape_error=Unprocessable)
        return json_response(await peers.ban(peer, asked.reason))

    @router.post("/{peer}/unban", summary="Undo a ban")
    async def unban(peer: str) -> Response:
        return json_response(await peers.unban(peer))

    return router
