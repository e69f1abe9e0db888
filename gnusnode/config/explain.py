"""Validation errors in words that a user can act on: where, which key, why, and what was probably meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gnusnode.config.settings import Settings
from gnusnode.config.tomlfile import KeyPath
from gnusnode.errors import ConfigError

_MAX_SHOWN: Final = 80
_MAX_REASON: Final = 300
"""Characters: a reason may quote the value."""


def config_error(error: ValidationError, where: Callable[[KeyPath], str]) -> ConfigError:
    """The first fault of ``error`` as a ``ConfigError``; further ones are counted. ``where`` tells a key's origin."""
    details = error.errors(include_url=False)
    first = details[0]
    path, model = _walk(first["loc"])
    same = [item for item in details if _walk(item["loc"])[0] == path]
    paths = {_walk(item["loc"])[0] for item in details}
    others = sum(one != path[: len(one)] for one in paths)  # a wrong item makes its list wrong too: one fault
    key = ".".join(str(part) for part in path) or "settings"
    if first["type"] == "extra_forbidden":
        what, hint = f"unknown key {key}", nearest(str(path[-1]), model.model_fields, _all_keys())
    else:
        what, hint = f"{key}{_shown(first['input'])}: {' or '.join(_reason(item) for item in same)}", None
    if others:
        what += f"; {others} more key{'s' if others > 1 else ''} at fault"
    return ConfigError(what, where=where(path), hint=hint)


def nearest(name: str, near: Iterable[str], far: Iterable[str] = ()) -> str | None:
    """``did you mean "…"?`` for the closest of ``near``, else for the option of that name in another section."""
    found = get_close_matches(name, list(near), 1)
    found = found or [key for key in far if key.endswith(f".{name}")][:1]
    return f'did you mean "{found[0]}"?' if found else None


def _walk(loc: tuple[int | str, ...]) -> tuple[KeyPath, type[BaseModel]]:
    """The part of ``loc`` that a user wrote, and the innermost model on the way: pydantic adds the arms of unions."""
    path: KeyPath = ()
    model: type[BaseModel] = Settings
    kind: Any = Settings
    for part in loc:
        if isinstance(part, int):
            path, kind = (*path, part), get_args(kind)[0]
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            model, path = kind, (*path, part)
            kind = kind.model_fields[part].annotation if part in kind.model_fields else None
        else:
            break
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        model = kind
    return path, model


def _reason(item: ErrorDetails) -> str:
    text = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return text[:1].lower() + text[1:_MAX_REASON]


def _shown(value: object) -> str:
    """`` = VALUE``; nothing for a table, whose faults are those of several keys together."""
    text = "" if isinstance(value, dict | BaseModel) else f" = {value!r}"
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def _all_keys() -> list[str]:
    from gnusnode.config.options import options  # here, since only an error needs it

    return list(options())
