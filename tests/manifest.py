"""The requirement manifest: what must be true, which tests prove it, what is still missing.

Tests are found by parsing every test file, so the answer does not depend on which of them were selected or could run.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MANIFEST: Final = ROOT / "tests" / "requirements.toml"
PARTLY: Final = "partly:"


@dataclass(frozen=True)
class Requirement:
    id: str
    section: str
    sentence: str


@dataclass(frozen=True)
class Tag:
    """One id that one test claims to prove. ``test`` is ``path::name``, or the path alone for a whole module."""

    id: str
    test: str


@dataclass(frozen=True)
class Manifest:
    requirements: tuple[Requirement, ...]
    gaps: dict[str, str]

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(requirement.id for requirement in self.requirements)


def load(path: Path = MANIFEST) -> Manifest:
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    gaps = tables.pop("gaps", {})
    rows = [(name, row) for table in tables.values() for name, row in table.items()]
    return Manifest(tuple(Requirement(name, section, sentence) for name, (section, sentence) in rows), gaps)


def tags(folder: Path = ROOT / "tests") -> list[Tag]:
    """Every ``pytest.mark.requirement`` in the test files below ``folder``, in the order of the files."""
    found: list[Tag] = []
    for path in sorted(folder.rglob("test_*.py")):
        place = path.relative_to(folder.parent).as_posix()
        found += tags_of(path.read_text(encoding="utf-8"), place)
    return found


def tags_of(source: str, place: str) -> list[Tag]:
    """The tags of one test file.

    Raises:
        ValueError: a tag whose ids cannot be read off the page.
    """
    return [Tag(name, test) for test, node in _walk(ast.parse(source), place) for name in _ids(node, place)]


def _walk(node: ast.AST, test: str) -> Iterator[tuple[str, ast.Call]]:
    """The calls of ``….requirement(…)`` below ``node``, each with the test that it stands at."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _walk(child, f"{test}::{child.name}")
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr == "requirement":
            yield test, child
        yield from _walk(child, test)


def _ids(call: ast.Call, place: str) -> list[str]:
    ids = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
    if not ids or len(ids) != len(call.args) or not all(isinstance(name, str) for name in ids):
        raise ValueError(f"{place}:{call.lineno}: requirement() takes its ids as literal texts")
    return [str(name) for name in ids]


def faults(manifest: Manifest, found: list[Tag]) -> list[str]:
    """What does not agree between the manifest and the tests, one sentence each."""
    proven = {tag.id for tag in found}
    wrong = [f"{tag.test} names {tag.id}, which is not in the manifest" for tag in found if tag.id not in manifest.ids]
    wrong += [f"the gap {name} is not a requirement" for name in sorted(manifest.gaps.keys() - manifest.ids)]
    wrong += [f"{name} has neither a test nor a gap" for name in sorted(manifest.ids - proven - manifest.gaps.keys())]
    for name, reason in manifest.gaps.items():
        if reason.startswith(PARTLY) and name not in proven:
            wrong.append(f"the gap {name} says that a part is proven, but no test names it")
        if not reason.startswith(PARTLY) and name in proven:
            wrong.append(f"{name} has a test now: drop its gap, or begin it with '{PARTLY}'")
    return wrong


def render(manifest: Manifest, found: list[Tag]) -> str:
    """``docs/requirements.md``."""
    proven: dict[str, list[str]] = {}
    for tag in found:
        tests = proven.setdefault(tag.id, [])
        if tag.test not in tests:
            tests.append(tag.test)
    full = [name for name in proven if name not in manifest.gaps]
    part = [name for name in proven if name in manifest.gaps]
    lines = [
        "# Requirements and the tests that prove them",
        "",
        "Made by `scripts/requirements.py --write` from `tests/requirements.toml` and the tests; not written by hand.",
        "",
        f"{len(manifest.ids)} requirements: {len(full)} proven, {len(part)} proven in part,"
        f" {len(manifest.ids) - len(full) - len(part)} open.",
        "",
        "| id | section | what must be true | proven by | missing |",
        "|---|---|---|---|---|",
    ]
    for each in manifest.requirements:
        tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in proven.get(each.id, []))
        gap = manifest.gaps.get(each.id, "")
        lines.append(f"| {each.id} | {each.section} | {_cell(each.sentence)} | {tests} | {_cell(gap)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
