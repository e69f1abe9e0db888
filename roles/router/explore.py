"""Whose turn it is among those that nobody knows yet: a small share of the requests, drawn by the request's id."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from roles.router.health import Key

_SCALE: Final = 2.0**64


def newcomer(strangers: Sequence[Key], request_id: str, share: float) -> Key | None:
    """The newcomer that gets this request, if any does. Equal arguments give equal answers.

    Args:
        share: part of the requests that go to newcomers, however many there are; from 0 to 1.
    """
    if not strangers or _draw(request_id, "") >= share:
        return None
    return min(strangers, key=lambda key: (_draw(request_id, "/".join(key)), key))


def _draw(request_id: str, salt: str) -> float:
    """A number from 0 to 1 that nobody can choose without choosing the request's id."""
    digest = hashlib.blake2b(f"{request_id}\0{salt}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / _SCALE
