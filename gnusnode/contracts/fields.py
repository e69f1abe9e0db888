"""Field types that many records share. Every text, list and map of a record is bounded here or where it is declared."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, cast

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, StringConstraints

from gnusnode.contracts.base import Record

MAX_JSON_DEPTH: Final = 12
MAX_JSON_NODES: Final = 2048
MAX_JSON_TEXT: Final = 65_536


class Part(Record):
    """A part of a record: it has no name and no signature of its own."""


def _bounded_json(value: dict[str, Any]) -> dict[str, Any]:
    left = MAX_JSON_NODES
    pending: list[tuple[Any, int]] = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        left -= 1
        if left < 0:
            raise ValueError(f"more than {MAX_JSON_NODES} values")
        if depth > MAX_JSON_DEPTH:
            raise ValueError(f"nested deeper than {MAX_JSON_DEPTH} levels")
        match item:
            case None | bool() | int() | float():
                pass
            case str():
                if len(item) > MAX_JSON_TEXT:
                    raise ValueError(f"a text is longer than {MAX_JSON_TEXT} characters")
            case list():
                pending.extend((child, depth + 1) for child in cast("list[Any]", item))
            case dict():
                for key, child in cast("dict[Any, Any]", item).items():
                    if not isinstance(key, str) or len(key) > 128:
                        raise ValueError("a key is not a text of at most 128 characters")
                    pending.append((child, depth + 1))
            case _:
                raise ValueError(f"a {type(item).__name__} is not JSON")
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_bounded_json)]
"""A JSON object of bounded depth, count and text length."""

_MAX_DOCUMENT: Final = 262_144


def _read_document(value: object) -> object:
    """A document given as its text. Constants that are no JSON, such as NaN, are refused."""
    if not isinstance(value, str):
        return value
    if len(value) > _MAX_DOCUMENT:
        raise ValueError(f"a JSON document of more than {_MAX_DOCUMENT} characters")

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(value, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError("a JSON document is nested too deeply") from error


def _write_document(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


JsonDocument = Annotated[
    dict[str, Any],
    BeforeValidator(_read_document),
    PlainSerializer(_write_document, return_type=str, when_used="json"),
]
"""A JSON object whose order of keys means something, such as a schema: on the wire it is its compact text."""

Millis = Annotated[int, Field(ge=0, lt=2**53)]
"""A duration in milliseconds."""

Moment = Millis
"""A point in time: milliseconds since the Unix epoch."""

Count = Annotated[int, Field(ge=0, lt=2**53)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Line = Annotated[str, StringConstraints(max_length=1024)]
"""A sentence for people."""

Ref = Annotated[str, StringConstraints(min_length=1, max_length=2048)]
"""An address: ``https://…`` or ``cid://…``."""

Word = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
"""A stable lower-case code, such as a risk flag."""

Capability = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*([:.][a-z0-9_-]+)*$", max_length=128)]
"""What one may do, from general to special: ``tool:web.fetch.readonly``, ``memory.retrieve``."""

Domain = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)]
"""A host name in lower case; it stands for itself only, not for its sub-domains."""

Path = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
MediaType = Annotated[str, StringConstraints(pattern=r"^[a-z0-9.+-]+/[a-z0-9.+-]+$", max_length=128)]


def check_lifetime(issued_at_ms: int, expires_at_ms: int, longest_ms: int) -> None:
    """Refuses a record that lives for no time, or for so long that nobody could remember its nonce.

    Raises:
        ValueError: says which.
    """
    if expires_at_ms <= issued_at_ms:
        raise ValueError("expires before it is issued")
    if expires_at_ms - issued_at_ms > longest_ms:
        raise ValueError(f"lives longer than {longest_ms} ms")
