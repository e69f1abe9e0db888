"""What other machines ask a node about itself: is it alive, can it work, what does it count."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from gnusnode.api.envelope import json_response
from gnusnode.api.facade import NodeFacade


def health_routes(node: NodeFacade) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/healthz", summary="Whether the process answers")
    async def healthz() -> Response:
        return json_response({"status": "ok"})

    @router.get("/readyz", summary="Whether the node can do what its roles promise; 503 with the reasons if not")
    async def readyz() -> Response:
        readiness = node.readiness()
        ready = readiness.ready and not node.stopping.is_set()
        reasons = dict(readiness.reasons) | ({"node": "shutting down"} if node.stopping.is_set() else {})
        return json_response({"ready": ready, "reasons": reasons}, status=200 if ready else 503)

    @router.get("/metrics", summary="Counts and times in the Prometheus text format")
    async def metrics() -> Response:
        return Response(generate_latest(node.metrics), media_type=CONTENT_TYPE_LATEST)

    return router
