"""Fixtures that every test may use."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

import gnusnode.net.p2p  # noqa: F401 - before any test imports libp2p: what the node leaves out, the tests do too
from gnusnode.identity import NodeIdentity

# No deadlines: the machines that run the tests are shared. Derandomised in CI, so that a red run can be repeated.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("local"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture
def signer() -> NodeIdentity:
    """A node's key; the same in every run."""
    return NodeIdentity(bytes(range(32)))


@pytest.fixture
def stranger() -> NodeIdentity:
    """Another node's key."""
    return NodeIdentity(bytes(range(1, 33)))
