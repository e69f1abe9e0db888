"""The HTTP application: every route in one list, behind the gateway."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gnusnode import __version__
from gnusnode.api.audit import audit_routes
from gnusnode.api.document import complete
from gnusnode.api.envelope import error_response, from_http_exception
from gnusnode.api.facade import NodeFacade, SwarmSurface
from gnusnode.api.gateway import Gateway
from gnusnode.api.gnus import key_routes, node_routes
from gnusnode.api.health import health_routes
from gnusnode.api.keys import KeyStore, NewKey
from gnusnode.api.openai.chat import chat_routes
from gnusnode.api.openai.chat_request import ChatRequest
from gnusnode.api.openai.completions import CompletionRequest, completion_routes
from gnusnode.api.openai.embeddings import EmbeddingsRequest, embedding_routes
from gnusnode.api.openai.models import model_routes
from gnusnode.api.options import ApiOptions
from gnusnode.api.peers import PEER_BODIES, peer_routes
from gnusnode.api.pull import PullOrder, pull_routes
from gnusnode.api.swarm import SWARM_BODIES, swarm_routes
from gnusnode.errors import GnusError, InternalError, Unprocessable
from gnusnode.observe.observer import Observer


def build_app(
    node: NodeFacade, options: ApiOptions, keys: KeyStore, observer: Observer, swarm: SwarmSurface | None = None
) -> Gateway:
    """The ASGI application of a node. It does no work of its own until it is called.

    Args:
        swarm: None leaves out the routes about the swarm.
    """
    app = _routes(node, options, keys, observer)
    bodies: tuple[type[BaseModel], ...] = (ChatRequest, CompletionRequest, EmbeddingsRequest, NewKey)
    if swarm is not None:
        app.include_router(swarm_routes(swarm.desk))
        app.include_router(peer_routes(swarm.peers))
        app.include_router(pull_routes(swarm.pulls, node.stopping, options))
        bodies = (*bodies, *SWARM_BODIES, *PEER_BODIES, PullOrder)
    complete(app, bodies)
    return Gateway(app, node, options, keys, observer)


def _routes(node: NodeFacade, options: ApiOptions, keys: KeyStore, observer: Observer) -> FastAPI:
    app = FastAPI(
        title="gnusnode",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            HTTPException: _unrouted,
            RequestValidationError: _wrong_parameters,
            GnusError: _expected,
            Exception: _bug,
        },
    )
    for router in (
        model_routes(node),
        chat_routes(node, options),
        completion_routes(node, options),
        embedding_routes(node, options),
        node_routes(node, options, observer),
        audit_routes(node),
        key_routes(keys),
        health_routes(node),
    ):
        app.include_router(router)
    return app


async def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return from_http_exception(request, error)


async def _expected(_request: Request, error: Exception) -> Response:
    assert isinstance(error, GnusError)
    return error_response(error)


async def _wrong_parameters(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return error_response(Unprocessable(f"{name}: {first['msg']}", param=name))


async def _bug(_request: Request, _error: Exception) -> Response:
    # Starlette raises the exception again after this answer; the gateway logs it.
    return error_response(InternalError("the node made a mistake", hint="see its log"))
