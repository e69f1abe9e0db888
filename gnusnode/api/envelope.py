"""Every error of the HTTP surface in OpenAI's shape: ``{"error": {message, type, param, code, gnus}}``."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any, Final

from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gnusnode.errors import GnusError, InternalError, MethodNotAllowed, NotFound, Overloaded, RequestError

JSON: Final = "application/json"


def error_object(error: GnusError) -> dict[str, Any]:
    """The body of an error: OpenAI's four fields, and ``gnus`` with where it happened and what to do next."""
    wire = error.to_wire()
    detail = {key: wire[key] for key in ("where", "hint", "retry_after") if key in wire}
    message = wire["what"] if error.hint is None else f"{wire['what']} ({wire['hint']})"
    body = {"message": message, "type": error.kind, "param": error.param, "code": error.code}
    return {"error": body | {"gnus": {"what": wire["what"], **detail}}}


def error_headers(error: GnusError) -> dict[str, str]:
    if error.retry_after is None:
        return {}
    # The openai client honours the milliseconds, everyone else the whole seconds.
    return {
        "retry-after": str(max(1, math.ceil(error.retry_after))),
        "retry-after-ms": str(math.ceil(error.retry_after * 1000)),
    }


def error_response(error: GnusError) -> Response:
    headers = error_headers(error)
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = 'Bearer realm="gnusnode"'
    return json_response(error_object(error), status=error.status, headers=headers)


def json_response(content: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(content), status_code=status, headers=headers, media_type=JSON)


def error_bytes(status: int) -> bytes:
    """The envelope for a request that never became one: malformed, too large a head, or a server that is full."""
    match status:
        case HTTPStatus.SERVICE_UNAVAILABLE:
            error = Overloaded("this node has all the connections that it takes", where="api.max_connections")
        case HTTPStatus.INTERNAL_SERVER_ERROR:
            error = InternalError("the node made a mistake", hint="see its log")
        case _:
            error = RequestError(f"not a request that this node can read: {HTTPStatus(status).phrase.lower()}")
    return to_json(error_object(error))


def from_http_exception(request: Request, error: HTTPException) -> Response:
    """404 and 405 of the router; OPTIONS is answered by the list of methods."""
    allow = (error.headers or {}).get("Allow") or (error.headers or {}).get("allow")
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        methods = sorted({*(allow or "").replace(",", " ").split(), "OPTIONS"})
        headers = {"allow": ", ".join([*methods, "HEAD"] if "GET" in methods else methods)}
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=headers)
        refused = error_response(
            MethodNotAllowed(
                f"{request.method} is not allowed here", where=request.url.path, hint=f"use {headers['allow']}"
            )
        )
        refused.headers.update(headers)
        return refused
    if error.status_code == HTTPStatus.NOT_FOUND:
        return error_response(
            NotFound(f"nothing is at {request.url.path}", where=request.url.path, hint="see /openapi.json")
        )
    wrapped = RequestError(str(error.detail)) if error.status_code < 500 else InternalError(str(error.detail))
    return json_response(error_object(wrapped), status=error.status_code)
