"""``/gnus/v1/swarm``: who belongs to the swarm. All of it needs the scope admin."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gnusnode.api.bodies import read_body
from gnusnode.api.document import body_of
from gnusnode.api.envelope import json_response
from gnusnode.api.facade import SwarmFacade
from gnusnode.errors import Unprocessable
from gnusnode.net.swarmdesk import FoundSwarm, InviteNode, JoinSwarm, MakeAdmin, Revoke, SetRoles

SWARM_BODIES = (FoundSwarm, InviteNode, JoinSwarm, MakeAdmin, Revoke, SetRoles)
"""For ``document.complete``."""


def swarm_routes(swarm: SwarmFacade) -> APIRouter:
    """Looking at the swarm, and coming, going and deciding. A token is shown once, in the answer that makes it."""
    router = APIRouter(prefix="/gnus/v1/swarm", tags=["swarm"])
    _add_looking(router, swarm)
    _add_going(router, swarm)
    _add_deciding(router, swarm)
    return router


def _add_looking(router: APIRouter, swarm: SwarmFacade) -> None:
    @router.get("", summary="The swarm and this node's place in it")
    async def status() -> Response:
        return json_response(swarm.swarm_status())

    @router.get("/members", summary="Everybody who belongs, or did")
    async def members() -> Response:
        return json_response({"object": "list", "data": swarm.swarm_members()})

    @router.get("/invites", summary="Invites that this node made, without their secrets")
    async def invites() -> Response:
        return json_response({"object": "list", "data": await swarm.swarm_invites()})

    @router.get("/admins", summary="Who may decide besides the founder")
    async def admins() -> Response:
        return json_response({"object": "list", "data": swarm.swarm_admins()})


def _add_going(router: APIRouter, swarm: SwarmFacade) -> None:
    @router.post("/init", status_code=201, openapi_extra=body_of(FoundSwarm), summary="Found a swarm")
    async def init(request: Request) -> Response:
        asked = await read_body(request, FoundSwarm, shape_error=Unprocessable)
        return json_response(await swarm.swarm_init(asked), status=201)

    @router.post("/join", openapi_extra=body_of(JoinSwarm), summary="Join the swarm of a token")
    async def join(request: Request) -> Response:
        asked = await read_body(request, JoinSwarm, shape_error=Unprocessable)
        return json_response(await swarm.swarm_join(asked))

    @router.post("/leave", summary="Forget the swarm")
    async def leave() -> Response:
        return json_response(await swarm.swarm_leave())


def _add_deciding(router: APIRouter, swarm: SwarmFacade) -> None:
    @router.post("/invites", status_code=201, openapi_extra=body_of(InviteNode), summary="Make an invite")
    async def invite(request: Request) -> Response:
        asked = await read_body(request, InviteNode, shape_error=Unprocessable)
        return json_response(await swarm.swarm_invite(asked), status=201)

    @router.delete("/invites/{invite_id}", summary="Withdraw an invite")
    async def withdraw(invite_id: str) -> Response:
        return json_response(await swarm.swarm_withdraw(invite_id))

    @router.post("/roles", openapi_extra=body_of(SetRoles), summary="Change what a member holds")
    async def roles(request: Request) -> Response:
        return json_response(await swarm.swarm_roles(await read_body(request, SetRoles, shape_error=Unprocessable)))

    @router.post("/revoke", openapi_extra=body_of(Revoke), summary="Take back trust in a peer or a certificate")
    async def revoke(request: Request) -> Response:
        return json_response(await swarm.swarm_revoke(await read_body(request, Revoke, shape_error=Unprocessable)))

    @router.post("/admins", status_code=201, openapi_extra=body_of(MakeAdmin), summary="Let a member decide too")
    async def admin(request: Request) -> Response:
        asked = await read_body(request, MakeAdmin, shape_error=Unprocessable)
        return json_response(await swarm.swarm_admin(asked), status=201)

    @router.delete("/admins/{peer}", summary="Take an admin's power back")
    async def unadmin(peer: str) -> Response:
        return json_response(await swarm.swarm_unadmin(peer))
