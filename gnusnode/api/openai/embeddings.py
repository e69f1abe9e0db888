"""``POST /v1/embeddings``."""

from __future__ import annotations

import base64
import time
from array import array
from functools import partial
from sys import byteorder
from typing import Annotated, Any, Literal

import trio
from fastapi import APIRouter
from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from gnusnode.api.bodies import read_body
from gnusnode.api.document import body_of
from gnusnode.api.envelope import json_response
from gnusnode.api.facade import NodeFacade
from gnusnode.api.gateway import info_of
from gnusnode.api.openai.common import Wire
from gnusnode.api.options import ApiOptions
from gnusnode.api.tasks import unless_gone
from gnusnode.contracts.generation import MAX_TEXT_CHARS, EmbedRequest, EmbedResult
from gnusnode.errors import DeadlineExceeded, RequestError, UnsupportedField

Tokens = Annotated[list[int], Field(max_length=8192)]


class EmbeddingsRequest(Wire):
    model: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    input: str | Annotated[list[str], Field(max_length=2048)] | Tokens | Annotated[list[Tokens], Field(max_length=2048)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None

    def texts(self) -> tuple[str, ...]:
        """Raises ``RequestError`` when the input is empty, made of token ids, or has too long a text."""
        given = [self.input] if isinstance(self.input, str) else self.input
        if not given or not all(given):
            raise RequestError("input is empty", param="input")
        texts = [text for text in given if isinstance(text, str)]
        if len(texts) != len(given):
            raise UnsupportedField(
                "token ids are not supported here: they mean something else to every model",
                param="input",
                hint="send text (in langchain: check_embedding_ctx_length=False)",
            )
        for at, text in enumerate(texts):
            if len(text) > MAX_TEXT_CHARS:
                param = "input" if isinstance(self.input, str) else f"input.{at}"
                raise RequestError(
                    f"{param} has {len(text)} characters, and {MAX_TEXT_CHARS} are the most",
                    param=param,
                    hint="shorten the text, or send it in parts",
                )
        return tuple(texts)


def embedding_routes(node: NodeFacade, options: ApiOptions) -> APIRouter:
    router = APIRouter(tags=["openai"])

    @router.post("/v1/embeddings", openapi_extra=body_of(EmbeddingsRequest), summary="Vectors of texts")
    async def create(request: Request) -> Response:
        wanted = await read_body(request, EmbeddingsRequest)
        info = info_of(request.scope)
        texts = EmbedRequest(request_id=info.request_id, texts=wanted.texts(), tenant=info.principal.tenant)
        info.headers["x-gnus-task"] = info.request_id
        result = await unless_gone(
            request.receive, partial(_embed, node, wanted.model, texts, seconds=options.request_seconds)
        )
        info.charge(result.prompt_tokens)
        return json_response(_plain(wanted, result))

    return router


async def _embed(node: NodeFacade, model: str, texts: EmbedRequest, *, seconds: float) -> EmbedResult:
    try:
        with trio.fail_after(seconds):
            return await node.embed(model, texts, deadline=time.monotonic() + seconds)
    except trio.TooSlowError as error:
        raise DeadlineExceeded(f"no embeddings within {seconds:g} s", hint="send fewer or shorter texts") from error


def _plain(wanted: EmbeddingsRequest, result: EmbedResult) -> dict[str, Any]:
    size = len(result.vectors[0])
    if wanted.dimensions not in (None, size):
        raise UnsupportedField(
            f"this model gives vectors of {size} dimensions",
            param="dimensions",
            hint=f"ask for {size}, or leave it out",
        )
    encode = _base64 if wanted.encoding_format == "base64" else list[float]
    usage = {"prompt_tokens": result.prompt_tokens, "total_tokens": result.prompt_tokens}
    return {
        "object": "list",
        "model": wanted.model,
        "data": [
            {"object": "embedding", "index": index, "embedding": encode(vector)}
            for index, vector in enumerate(result.vectors)
        ],
        "usage": usage,
    }


def _base64(vector: tuple[float, ...]) -> str:
    """float32, little endian: what the stock client asks for unless told otherwise."""
    values = array("f", vector)
    if byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode("ascii")
