"""Changing one option in the TOML file. Comments, order and all else stay as the user wrote them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import tomlkit
from pydantic import TypeAdapter, ValidationError
from tomlkit.items import Table

from gnusnode.config import explain, tomlfile
from gnusnode.config.files import replace_file
from gnusnode.config.options import Option, options
from gnusnode.config.settings import Settings
from gnusnode.contracts.base import describe
from gnusnode.errors import ConfigError, storage_error


def set_value(path: Path, key: str, text: str) -> None:
    """Sets the option ``key`` (dotted) to ``text`` in the file ``path``, which need not exist yet.

    Lists are given by commas or as JSON. The file is changed only when its new content is valid as a whole.

    Raises:
        ConfigError: unknown key, wrong value, or a file that is not valid with it.
        DataError, DiskFull: the file cannot be written.
    """
    value = _typed(_option(key, "config set"), text)
    _rewrite(path, lambda document: _put(document, key, value, path))


def unset(path: Path, key: str) -> None:
    """Takes the option ``key`` out of the file ``path``, so that profile or default hold again; a missing one is fine.

    Raises:
        ConfigError, DataError, DiskFull: as ``set_value``.
    """
    _option(key, "config unset")
    _rewrite(path, lambda document: _drop(document, key))


def _option(key: str, where: str) -> Option:
    option = options().get(key)
    if option is None:
        hint = explain.nearest(key, options()) or "`gnusnode config show` lists all options"
        raise ConfigError(f"unknown key {key}", where=where, hint=hint)
    return option


def _rewrite(path: Path, change: Callable[[tomlkit.TOMLDocument], None]) -> None:
    old = tomlfile.read(path) if path.exists() else None
    document = tomlkit.parse(old.text if old else "")
    change(document)
    new = tomlkit.dumps(document)
    _check(tomlfile.parse(new, path))
    try:
        replace_file(path, new.encode("utf-8"))
    except OSError as error:
        raise storage_error(error, path, "cannot write the configuration") from error


def _typed(option: Option, text: str) -> Any:
    """``text`` as the plain value that TOML holds for the option."""
    kind: TypeAdapter[Any] = TypeAdapter(option.field.rebuild_annotation())
    try:
        return kind.dump_python(kind.validate_python(option.parse(text)), mode="json", exclude_none=True)
    except ValidationError as error:
        raise ConfigError(f"{option.key}: {describe(error)}", where="config set") from error
    except ValueError as error:
        raise ConfigError(f"{option.key}: {error}", where="config set") from error


def _drop(document: tomlkit.TOMLDocument, key: str) -> None:
    section, dot, name = key.partition(".")
    if section not in document:
        return
    table: Any = document[section]
    if not dot:
        document.remove(section)
    elif isinstance(table, dict) and name in table:
        cast("Table", table).remove(name)


def _put(document: tomlkit.TOMLDocument, key: str, value: Any, path: Path) -> None:
    section, dot, name = key.partition(".")
    if not dot:
        document[section] = value
        return
    if section not in document:
        document[section] = tomlkit.table()
    table: Any = document[section]
    if not isinstance(table, dict):
        raise ConfigError(f"{section} is a section", where=str(path), hint=f"write [{section}]")
    cast("Table", table)[name] = value


def _check(file: tomlfile.TomlFile) -> None:
    try:
        Settings.model_validate(file.values)
    except ValidationError as error:
        raise explain.config_error(error, file.origin) from error
