"""From the bytes of a request to a checked model, with errors that name the field as OpenAI does."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from gnusnode.errors import Cancelled, GnusError, RequestError

T = TypeVar("T", bound=BaseModel)

_BAD_JSON: Final = "the body is not JSON"
_TYPES: Final = frozenset({"str", "int", "float", "bool", "none", "dict", "list"})


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
    faults = error.errors(include_url=False, include_input=False)
    # Of a field that may be several things, the fault that lies deepest belongs to the thing that was meant.
    same_field = [fault for fault in faults if fault["loc"][:1] == faults[0]["loc"][:1]]
    fault = max(same_field, key=lambda one: len(one["loc"]))
    param = ".".join(str(part) for part in fault["loc"] if _is_field(part)) or None
    reason = fault["msg"].removeprefix("Value error, ")
    return {"what": f"{param}: {reason}" if param else reason, "param": param}


def _is_field(part: int | str) -> bool:
    """Whether a part of a location is a field or an index, and not the name of a type that was tried."""
    return isinstance(part, int) or (part.isidentifier() and part.islower() and part not in _TYPES)
