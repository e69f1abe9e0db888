"""Fixtures of the network's tests."""

from __future__ import annotations

import pytest
import trio

from tests.fakes.meeting import Meeting


@pytest.fixture
async def meeting(nursery: trio.Nursery) -> Meeting:
    """Nodes that meet over a network in memory; they end with the test."""
    return Meeting(nursery)
