"""``gnusnode config``: what is set, where it comes from, and whether it holds."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from gnusnode.cli import output
from gnusnode.cli.connect import home_of
from gnusnode.cli.node import ConfigOption, ProfileOption
from gnusnode.cli.output import HomeOption, JsonOption, guarded

app = typer.Typer(no_args_is_help=True, help="Settings: show, set, unset, validate, schema, path.")


@app.command("show")
@guarded
def show(
    origin: Annotated[bool, typer.Option("--origin", help="Also say where each value comes from.")] = False,
    config: ConfigOption = None,
    profile: ProfileOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every option with its value."""
    from gnusnode.config.load import load

    loaded = load(home_of(home), flags={"profile": profile}, config=config)
    values = _flat(loaded.settings.model_dump(mode="json"))
    if as_json:
        output.emit({key: {"value": value, "origin": loaded.origin(key)} for key, value in values.items()})
        return
    for key, value in values.items():
        text = f"{key} = {json.dumps(value, ensure_ascii=False)}"
        output.say(f"{text}    # {loaded.origin(key)}" if origin else text)


@app.command("validate")
@guarded
def validate(
    config: ConfigOption = None,
    profile: ProfileOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check file, environment and profile without starting anything."""
    from gnusnode.config.load import load

    loaded = load(home_of(home), flags={"profile": profile}, config=config)
    where = str(loaded.file) if loaded.file else None
    output.emit({"valid": True, "file": where}) if as_json else output.say(f"valid ({where or 'no file: defaults'})")


@app.command("schema")
@guarded
def schema() -> None:
    """Print the JSON Schema of all options."""
    from gnusnode.config.schema import schema as settings_schema

    output.emit(settings_schema())


@app.command("path")
@guarded
def path(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show where the node keeps its things."""
    place = home_of(home)
    names = ("root", "config", "key", "data", "blobs", "models", "logs", "run_json", "lock")
    where = {name: str(getattr(place, name)) for name in names} | {"socket": str(place.socket_path())}
    output.emit(where) if as_json else output.fields(where)


@app.command("set")
@guarded
def set_value(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Dotted name, such as api.listen.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The new value; lists by commas.")],
    config: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Set an option in the TOML file; comments are kept. Takes effect at the next start."""
    from gnusnode.config.edit import set_value as write_value

    place = home_of(home)
    if config is None:
        place.ensure()
    file = config or place.config
    write_value(file, key, value)
    output.say(f"{key} set in {file}")
    output.note("It takes effect at the next start of the node.")


@app.command("unset")
@guarded
def unset(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Dotted name, such as api.listen.")],
    config: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Take an option out of the TOML file: profile or default hold again from the next start on."""
    from gnusnode.config.edit import unset as drop

    file = config or home_of(home).config
    drop(file, key)
    output.say(f"{key} is no longer set in {file}")


def _flat(tree: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for section, content in tree.items():
        if isinstance(content, dict):
            flat |= {f"{section}.{name}": value for name, value in content.items()}  # pyright: ignore[reportUnknownVariableType]
        else:
            flat[section] = content
    return flat
