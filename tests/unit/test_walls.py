"""Walls of the house that import-linter cannot name: tools run in one room, files and functions stay short."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOM = "roles/intermediary/tools/"


def imports(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_only_the_tool_room_may_start_foreign_code() -> None:
    for package in ("gnusnode", "roles", "crdt", "sandbox"):
        for file in (ROOT / package).rglob("*.py"):
            place = file.relative_to(ROOT).as_posix()
            if not place.startswith((ROOM, "sandbox/run/")):
                assert "sandbox.run" not in imports(file), place


def test_a_file_is_readable_in_one_sitting() -> None:
    for package in ("gnusnode", "roles", "crdt", "sandbox"):
        for file in (ROOT / package).rglob("*.py"):
            lines = file.read_text("utf-8").count("\n")
            assert lines <= 400, f"{file.relative_to(ROOT)} has {lines} lines: split it by idea"


def test_a_function_fits_on_a_screen() -> None:
    for package in ("gnusnode", "roles", "crdt", "sandbox"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    length = (node.end_lineno or node.lineno) - node.lineno + 1
                    assert length <= 60, f"{file.relative_to(ROOT)}: {node.name} has {length} lines"
