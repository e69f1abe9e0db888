"""From a ``--home`` to the folder and the running node behind it. Imports late: one pays only for what one uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnusnode.cli.client import NodeClient
    from gnusnode.config.paths import Home


def home_of(home: str | None) -> Home:
    """The node's folder: the flag (or ``GNUSNODE_HOME``), else the platform's usual place."""
    from gnusnode.config.paths import Home

    return Home.locate(home)


def connect(home: str | None, *, timeout: float | None = 60.0) -> NodeClient:
    """A client of the node that runs on this home.

    Raises:
        NotRunning: none does.
    """
    from gnusnode.cli.client import NodeClient

    return NodeClient.of(home_of(home).root, timeout=timeout)
