"""``gnusnode …``: a client of the node's own API, one module a noun. Heavy imports stay inside the commands."""

from __future__ import annotations


def main() -> None:
    """Entry point of the console script."""
    from gnusnode.cli.app import app

    app()
