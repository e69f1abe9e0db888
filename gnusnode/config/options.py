"""The options as data: what loading, ``config set``, the example file and the documentation are made from."""

from __future__ import annotations

import json
import types
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gnusnode.config.settings import Settings


@dataclass(frozen=True)
class Option:
    """One leaf of the settings tree."""

    key: str
    """Dotted: ``api.listen``."""
    field: FieldInfo

    @property
    def env(self) -> str:
        return "GNUSNODE_" + self.key.upper().replace(".", "__")

    @property
    def description(self) -> str:
        return self.field.description or ""

    @property
    def is_list(self) -> bool:
        return get_origin(self.field.annotation) is tuple

    @property
    def default_text(self) -> str:
        """The default as TOML, or nothing where there is none."""
        return "" if self.field.default is None else toml_value(self.field.default)

    @property
    def kind(self) -> str:
        """The type in words, for people."""
        return _kind(self.field.annotation)

    def parse(self, text: str) -> Any:
        """The plain value of a text from the environment or the command line; lists by commas or as JSON.

        Raises:
            ValueError: JSON that is none, in the place of a list.
        """
        if not self.is_list:
            return text
        if text.lstrip().startswith("["):
            return json.loads(text)
        return [item.strip() for item in text.split(",") if item.strip()]


@cache
def options() -> dict[str, Option]:
    """All options by dotted key, in the order of the settings tree."""
    found: dict[str, Option] = {}
    for name, field in Settings.model_fields.items():
        section = section_model(name)
        if section is None:
            found[name] = Option(name, field)
        else:
            for leaf, inner in section.model_fields.items():
                found[f"{name}.{leaf}"] = Option(f"{name}.{leaf}", inner)
    return found


def section_model(name: str) -> type[BaseModel] | None:
    """The model of the section ``name``; None for an option of the top level or an unknown name."""
    field = Settings.model_fields.get(name)
    kind = field.annotation if field else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def toml_value(value: Any) -> str:
    """A scalar or a list of scalars as TOML."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    return f"{value:g}" if isinstance(value, float) and not value.is_integer() else str(value)


def _kind(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_kind(part) for part in arguments if part is not type(None))
    if origin is tuple:
        return f"list of {_kind(arguments[0])}"
    if hasattr(annotation, "__metadata__"):
        return _kind(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    return {"str": "text", "int": "integer", "float": "number", "bool": "true or false"}.get(
        annotation.__name__, annotation.__name__.lower()
    )
