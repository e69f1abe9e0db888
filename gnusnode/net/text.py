"""What a peer wrote, as people may be shown it."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` as a terminal may show it: nothing in it moves a cursor or begins a line."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
