"""``GET /v1/models`` and ``/v1/models/{id}``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from gnusnode.api.envelope import json_response
from gnusnode.api.facade import ModelCard, NodeFacade
from gnusnode.errors import ModelNotFound


def model_routes(node: NodeFacade) -> APIRouter:
    router = APIRouter(tags=["openai"])

    @router.get("/v1/models", summary="The models that answer here")
    async def list_models() -> Response:
        return json_response({"object": "list", "data": [_plain(card) for card in node.models()]})

    @router.get("/v1/models/{model_id:path}", summary="One model")
    async def retrieve(model_id: str) -> Response:
        return json_response(_plain(find_model(node, model_id)))

    return router


def find_model(node: NodeFacade, model_id: str) -> ModelCard:
    """Raises ``ModelNotFound``."""
    for card in node.models():
        if card.id == model_id:
            return card
    raise ModelNotFound(f"the model {model_id!r} is not known here", param="model", hint="see GET /v1/models")


def context_of(node: NodeFacade, model_id: str) -> int | None:
    """The context length of a model in tokens; None when it is the router's choice, or unknown."""
    return next((card.n_ctx for card in node.models() if card.id == model_id), None)


def _plain(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "gnus": {
            "generates": card.generates,
            "embeds": card.embeds,
            "artifact_hash": card.artifact_hash,
            "n_ctx": card.n_ctx,
            "state": card.state,
        },
    }
