"""Our own surface, ``/gnus/v1``: status, plans, keys, events, stopping, the bug report."""

from __future__ import annotations

from typing import Any

import trio
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gnusnode.api.bodies import read_body
from gnusnode.api.document import body_of
from gnusnode.api.envelope import json_response
from gnusnode.api.events import EventStream
from gnusnode.api.facade import NodeFacade
from gnusnode.api.gateway import info_of
from gnusnode.api.keys import ApiKey, KeyStore, NewKey, Scope
from gnusnode.api.options import ApiOptions
from gnusnode.contracts.base import SignedRecord
from gnusnode.errors import Unprocessable
from gnusnode.observe.observer import Observer


def node_routes(node: NodeFacade, options: ApiOptions, observer: Observer) -> APIRouter:
    """What the node is and did, and how to stop it."""
    router = APIRouter(prefix="/gnus/v1", tags=["gnus"])

    @router.get("/status", summary="What the node is and how it does")
    async def status() -> Response:
        return json_response(node.status())

    @router.get("/plans/{request_id}", summary="The signed records of a request, and whether they hold")
    async def plan(request: Request, request_id: str) -> Response:
        caller = info_of(request.scope).principal
        view = await node.plan(request_id, tenant=None if caller.allows(Scope.ADMIN) else caller.tenant)
        verification = {
            "plan": _verdict(node, view.plan),
            "former_plans": [_verdict(node, plan) for plan in view.former_plans],
            "outputs": [_verdict(node, output) for output in view.outputs],
        }
        return json_response({**view.to_plain(), "verification": verification})

    @router.get("/events", summary="What happens in the node, as server-sent events")
    async def events(request: Request, after: int | None = None) -> Response:
        resume = request.headers.get("last-event-id", "")
        place = int(resume) if resume.isdecimal() else after
        return EventStream(observer, node.stopping, options.sse_keepalive_seconds, after=place)

    @router.post("/stop", status_code=202, summary="Begin an orderly shutdown")
    async def stop() -> Response:
        node.request_stop()
        return json_response({"stopping": True}, status=202)

    @router.get("/bugreport", summary="Redacted configuration, versions, last events, task tree")
    async def bugreport() -> Response:
        return json_response(await node.bugreport())

    return router


def key_routes(keys: KeyStore) -> APIRouter:
    """API keys. A token is shown once, in the answer that makes it."""
    router = APIRouter(prefix="/gnus/v1/keys", tags=["gnus"])

    @router.get("", summary="All keys, without their secrets")
    async def list_keys() -> Response:
        return json_response({"object": "list", "data": [_plain(key) for key in keys.list()]})

    @router.post("", status_code=201, openapi_extra=body_of(NewKey), summary="Make a key")
    async def create(request: Request) -> Response:
        new = await read_body(request, NewKey, shape_error=Unprocessable)
        key, token = await trio.to_thread.run_sync(keys.create, new)
        return json_response({**_plain(key), "key": token}, status=201)

    @router.delete("/{key_id}", summary="Revoke a key at once")
    async def revoke(key_id: str) -> Response:
        key = await trio.to_thread.run_sync(keys.revoke, key_id)
        return json_response({"id": key.id, "object": "key", "deleted": True})

    return router


def _verdict(node: NodeFacade, record: SignedRecord) -> dict[str, Any]:
    return {"digest": record.digest, "signer": record.signer_peer, "outcome": node.verify(record)}


def _plain(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "object": "key",
        "name": key.name,
        "scopes": sorted(key.scopes),
        "tenant": key.tenant,
        "limits": key.limits.model_dump(exclude_none=True),
        "created": key.created,
        "expires": key.expires,
    }
