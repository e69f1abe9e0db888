"""Errors out of nurseries."""

from __future__ import annotations

from gnusnode.errors import GnusError


def leaves(group: BaseExceptionGroup[GnusError]) -> list[GnusError]:
    """The errors in a group of groups, in order."""
    found: list[GnusError] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
