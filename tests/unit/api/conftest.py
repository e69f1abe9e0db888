"""Fixtures of the HTTP tests."""

from __future__ import annotations

import pytest

from tests.unit.api.scripted import ScriptedNode


@pytest.fixture
def node() -> ScriptedNode:
    return ScriptedNode()
