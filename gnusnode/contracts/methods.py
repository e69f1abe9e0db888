"""How a service's methods are declared: a name and two record types. Pure data, shared by caller and callee."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from pydantic import TypeAdapter

from gnusnode.contracts.base import Record

Req = TypeVar("Req", bound=Record)
Res = TypeVar("Res")


@dataclass(frozen=True)
class UnaryMethod(Generic[Req, Res]):
    """``service.name``: one ``request``, one ``response``."""

    service: str
    name: str
    request: type[Req]
    response: type[Res]
    version: int = 1


@dataclass(frozen=True)
class StreamMethod(Generic[Req, Res]):
    """``service.name``: one ``request``, then items that ``items`` accepts (a record type or a tagged union)."""

    service: str
    name: str
    request: type[Req]
    items: TypeAdapter[Res]
    version: int = 1


Method: TypeAlias = UnaryMethod[Any, Any] | StreamMethod[Any, Any]
