"""The OpenAPI document. Bodies are read by ``bodies.read_body``, so FastAPI has to be told of them here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REF: Final = "#/components/schemas/{model}"


class ErrorDetail(BaseModel):
    """Our own part of an error."""

    what: str
    where: str | None = None
    hint: str | None = None
    retry_after: float | None = None


class ErrorObject(BaseModel):
    message: str
    type: str
    param: str | None
    code: str
    gnus: ErrorDetail


class ErrorBody(BaseModel):
    """Every error of every route."""

    error: ErrorObject


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """The ``openapi_extra`` of a route that reads ``model``; ``complete`` adds the schema itself."""
    content = {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def complete(app: FastAPI, bodies: Sequence[type[BaseModel]]) -> None:
    """Makes ``app`` describe ``bodies`` and the error envelope."""
    describe = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            plain = describe()
            models: list[type[BaseModel]] = [*bodies, ErrorBody]
            _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
            plain.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
            envelope = {"schema": {"$ref": _REF.format(model=ErrorBody.__name__)}}
            for path in plain["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
                    operation["responses"]["default"] = {
                        "description": "An error",
                        "content": {"application/json": envelope},
                    }
            app.openapi_schema = plain
        return app.openapi_schema

    app.openapi = document
