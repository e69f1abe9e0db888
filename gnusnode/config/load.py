"""Where the value of each option comes from: flags > ``GNUSNODE_*`` > the TOML file > the profile > defaults.

An option that nobody knows is an error with file, line and nearest match, wherever it was written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, cast

from pydantic import ValidationError

from gnusnode.config import explain, tomlfile
from gnusnode.config.options import Option, options, section_model
from gnusnode.config.paths import Home
from gnusnode.config.resources import configs_dir
from gnusnode.config.settings import Settings
from gnusnode.config.tomlfile import KeyPath, TomlFile
from gnusnode.errors import ConfigError

NOT_SETTINGS: Final = frozenset({"GNUSNODE_HOME", "GNUSNODE_CONFIG", "GNUSNODE_VENV"})
"""Variables that choose files or serve scripts. ``GNUSNODE_PROFILE`` is the option ``profile``."""


@dataclass(frozen=True)
class Loaded:
    settings: Settings
    origins: Mapping[str, str]
    """Where each option's value comes from, by dotted key; an option that is not here has its default."""
    file: Path | None
    """The TOML file that was read, when there was one."""

    def origin(self, key: str) -> str:
        return self.origins.get(key, "default")


@dataclass
class _Merge:
    """Values by section, the later layer over the earlier one, with the origin of each key."""

    values: dict[str, Any] = field(default_factory=dict[str, Any])
    origins: dict[str, str] = field(default_factory=dict[str, str])
    files: dict[str, TomlFile] = field(default_factory=dict[str, TomlFile])
    """The file that an option's value was taken from."""

    def put(self, key: str, value: Any, origin: str, file: TomlFile | None = None) -> None:
        section, dot, name = key.partition(".")
        if dot:
            self.values.setdefault(section, {})[name] = value
        else:
            self.values[section] = value
        self.origins[key] = origin
        self.files.pop(key, None)
        if file:
            self.files[key] = file

    def where(self, path: KeyPath) -> str:
        """The origin of what a validation error names."""
        key = ".".join(str(part) for part in path[:2])
        if key in self.files:
            return self.files[key].origin(path)
        if key in self.origins:
            return self.origins[key]
        return ", ".join(origin for name, origin in self.origins.items() if name.startswith(f"{key}.")) or "settings"


def load(
    home: Home,
    *,
    flags: Mapping[str, Any] | None = None,
    env: Mapping[str, str] = os.environ,
    config: Path | None = None,
) -> Loaded:
    """The settings of a node.

    Args:
        flags: values of command-line options by dotted key, ``profile`` included; None stands for "not given", and a
            text in the place of a list is split at commas.
        config: ``--config``, else ``GNUSNODE_CONFIG``, must exist; else ``<home>/gnusnode.toml`` where there is one.

    Raises:
        ConfigError: an unknown key or variable, a wrong value, a file that cannot be read; says where and what is near.
    """
    given = {key: _flag(key, value) for key, value in (flags or {}).items() if value is not None}
    file = _config_file(home, config, env)
    variables = dict(_from_env(env))
    merge = _Merge()
    _put_file(merge, _profile(given, variables, file), label="profile ")
    if file:
        _put_file(merge, file)
    for key, (value, variable) in variables.items():
        merge.put(key, value, f"env {variable}")
    for key, value in given.items():
        merge.put(key, value, "command line")
    try:
        settings = Settings.model_validate(merge.values)
    except ValidationError as error:
        raise explain.config_error(error, merge.where) from error
    return Loaded(settings, merge.origins, file.path if file else None)


def profiles() -> list[str]:
    """Names of the profiles that this installation ships."""
    return sorted(path.stem for path in (configs_dir() / "profiles").glob("*.toml"))


def _flag(key: str, value: Any) -> Any:
    option = options().get(key)
    return _parsed(option, value, "command line") if option and isinstance(value, str) else value


def _parsed(option: Option, text: str, where: str) -> Any:
    try:
        return option.parse(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{option.key} is neither a comma-separated nor a JSON list: {error}", where=where) from error


def _config_file(home: Home, config: Path | None, env: Mapping[str, str]) -> TomlFile | None:
    chosen = config or (Path(env["GNUSNODE_CONFIG"]) if env.get("GNUSNODE_CONFIG") else None)
    try:
        return tomlfile.read(chosen or home.config)
    except FileNotFoundError:
        if chosen is None:
            return None
        hint = "check --config and GNUSNODE_CONFIG"
        raise ConfigError("there is no such file", where=str(chosen), hint=hint) from None


def _profile(given: Mapping[str, Any], variables: Mapping[str, tuple[Any, str]], file: TomlFile | None) -> TomlFile:
    """The file of the profile that the strongest layer names."""
    name, origin = Settings.model_fields["profile"].default, "default"
    if "profile" in given:
        name, origin = given["profile"], "command line"
    elif "profile" in variables:
        name, origin = variables["profile"][0], f"env {variables['profile'][1]}"
    elif file and "profile" in file.values:
        name, origin = file.values["profile"], file.origin(("profile",))
    known = profiles()
    if name not in known:
        near = explain.nearest(str(name), known)
        raise ConfigError(f"there is no profile {name!r}", where=origin, hint=near or f"choose from {', '.join(known)}")
    return tomlfile.read(configs_dir() / "profiles" / f"{name}.toml")


def _put_file(merge: _Merge, file: TomlFile, label: str = "") -> None:
    for section, content in file.values.items():
        if section_model(section) is None:  # an option of the top level, or an unknown name
            merge.put(section, content, label + file.origin((section,)), file)
        elif not isinstance(content, dict):
            raise ConfigError(f"{section} is a section", where=file.origin((section,)), hint=f"write [{section}]")
        else:
            for name, value in cast("dict[str, Any]", content).items():
                merge.put(f"{section}.{name}", value, label + file.origin((section, name)), file)


def _from_env(env: Mapping[str, str]) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Dotted key, plain value and variable of each ``GNUSNODE_*`` setting."""
    known = {option.env: option for option in options().values()}
    for variable in sorted(env):
        if not variable.startswith("GNUSNODE_") or variable in NOT_SETTINGS:
            continue
        option = known.get(variable)
        if option is None:
            near = get_close_matches(variable.upper(), [*known, *NOT_SETTINGS], 1)
            hint = f"did you mean {near[0]}?" if near else "unset it; `gnusnode config schema` lists all options"
            raise ConfigError(f"unknown variable {variable}", where="environment", hint=hint)
        yield option.key, (_parsed(option, env[variable], f"env {variable}"), variable)
