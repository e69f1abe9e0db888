"""``/gnus/v1/audit``: the signed chain of what this node did, for whoever holds an admin key."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from gnusnode.api.envelope import json_response
from gnusnode.api.facade import NodeFacade

PAGE = 500
"""Most events in one answer."""


def audit_routes(node: NodeFacade) -> APIRouter:
    router = APIRouter(prefix="/gnus/v1/audit", tags=["gnus"])

    @router.get("/events", summary="Events from a number on, or the last ones")
    async def events(
        first: Annotated[int | None, Query(ge=0)] = None, count: Annotated[int, Query(ge=1, le=PAGE)] = PAGE
    ) -> Response:
        found = await node.audit_events(first, count)
        return json_response({"object": "list", "data": [event.to_plain() for event in found]})

    @router.get("/head", summary="The signed head of the chain")
    async def head() -> Response:
        return json_response(await node.audit_head())

    @router.get("/verify", summary="Walk the whole chain and say where it breaks, if it does")
    async def verify() -> Response:
        return json_response(await node.audit_report())

    return router
