"""The options as text for people: the commented example file and the tables of ``docs/configuration.md``."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Final

from gnusnode.config.options import Option, options, section_model
from gnusnode.config.settings import RemoteEngine

BEGIN: Final = "<!-- options: written by scripts/reference.py from gnusnode/config/settings.py -->"
END: Final = "<!-- end of options -->"

_HEAD: Final = """\
#:schema ./gnusnode.schema.json
# Settings of a gnusnode. Copy what you change to gnusnode.toml in the home of the node; every line is its default.
# Command line > GNUSNODE_* variables > this file > profile > defaults. See `gnusnode config show --origin`.
"""


def example() -> str:
    """``gnusnode.toml.example``: every option with its text, commented out at its default."""
    lines = [_HEAD]
    for section, group in _sections():
        if section:
            lines += [f"# {_title(section)}", f"[{section}]"]
        for option in group:
            name = option.key.rpartition(".")[2]
            lines += [f"# {line}" for line in wrap(option.description, 110)]
            lines += [f"# {name} = {option.default_text or '(none)'}", ""]
    return "\n".join(lines).rstrip() + "\n\n" + _remote_example()


def markdown() -> str:
    """The tables of options, one a section, between their two marks."""
    lines = [BEGIN, ""]
    for section, group in _sections():
        lines += [f"### `[{section}]`" if section else "### Top level", ""]
        if section:
            lines += [_title(section), ""]
        lines += ["| option | type | default | meaning |", "|---|---|---|---|"]
        lines += [f"| `{o.key}` | {o.kind} | {_cell(o.default_text)} | {o.description} |" for o in group]
        lines += ["", *_remote_table(group)]
    return "\n".join([*lines, END])


def _sections() -> Iterator[tuple[str, list[Option]]]:
    groups: dict[str, list[Option]] = {}
    for option in options().values():
        groups.setdefault(option.key.rpartition(".")[0], []).append(option)
    yield from groups.items()


def _title(section: str) -> str:
    model = section_model(section)
    assert model is not None
    assert model.__doc__ is not None
    return model.__doc__.strip()


def _cell(text: str) -> str:
    return f"`{text}`" if text else "none"


def _remote_table(group: list[Option]) -> list[str]:
    if not any(option.key == "inference.remote" for option in group):
        return []
    lines = ["Each `[[inference.remote]]` has:", "", "| key | meaning |", "|---|---|"]
    return [*lines, *(f"| `{name}` | {field.description} |" for name, field in RemoteEngine.model_fields.items()), ""]


def _remote_example() -> str:
    lines = [f"# {(RemoteEngine.__doc__ or '').strip()}", "# [[inference.remote]]"]
    values = {"name": '"big"', "url": '"http://192.0.2.7:8000/v1"', "model": '"llama-70b"', "key_file": '"~/.keys/big"'}
    for name, field in RemoteEngine.model_fields.items():
        lines += [f"# {name} = {values[name]}  # {field.description}"]
    return "\n".join(lines) + "\n"
