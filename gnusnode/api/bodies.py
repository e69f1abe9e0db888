"""From the bytes of a request to a checked model, with errors that name the field as OpenAI does."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from gnusnode.errors import Cancelled, GnusError, RequestError

T = TypeVar("T", bound=BaseModel)

_BAD_JSON: Final = "the body is not JSON"


async def read_body(request: Request, model: type[T], *, shape_error: type[GnusError] = RequestError) -> T:
    """The body of ``request`` as a ``model``.

    Raises:
        RequestError: not JSON, or not an object.
        shape_error: JSON of the wrong shape; ``param`` names the field.
        TooLarge: more than the API takes.
        Cancelled: the client stopped in the middle of it.
    """
    try:
        data = await request.body()
    except ClientDisconnect as error:
        raise Cancelled("the body did not arrive completely") from error
    try:
        plain = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"{_BAD_JSON}: {error}", hint="send one JSON object") from error
    if not isinstance(plain, dict):
        raise RequestError(f"{_BAD_JSON} object", hint="send one JSON object")
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        raise shape_error(**_first_fault(error)) from error


def _first_fault(error: ValidationError) -> dict[str, Any]:
    first = error.errors(include_url=False, include_input=False)[0]
    # Discriminators and union members stand in the location, but are no fields: they carry brackets or dashes.
    path = [str(part) for part in first["loc"] if not (isinstance(part, str) and not part.isidentifier())]
    param = ".".join(path) or None
    reason = first["msg"].removeprefix("Value error, ")
    what = f"{param}: {reason}" if param else reason
    return {"what": what, "param": param}
