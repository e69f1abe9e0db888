"""Finds secrets in what is about to leave, in any spelling. Time in proportion to the secrets and to the text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from gnusnode.policy.wording import Said, layers, skeleton

SHORTEST: Final = 6
"""Letters and digits that a word needs to count as a secret: shorter ones stand everywhere."""
_MAX_ALIKE: Final = 64
"""Secrets with one beginning that are told apart; where there are more, the beginning alone counts."""


class Secrets:
    """The words of secret texts, ready to be looked for."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._by_start: defaultdict[str, set[str]] = defaultdict(set)
        for text in texts:
            for atom in Said(text).atoms:
                shape = skeleton(atom)
                if len(shape) >= SHORTEST:
                    self._by_start[shape[:SHORTEST]].add(shape)

    def are_in(self, text: str) -> bool:
        """Whether one of them stands in ``text``: as it is, encoded, backwards, in other letters, spaced out."""
        if not self._by_start:
            return False
        shapes = [skeleton(layer) for layer in layers(text)]
        return any(self._stands_in(shape) or self._stands_in(shape[::-1]) for shape in shapes)

    def _stands_in(self, shape: str) -> bool:
        for at in range(len(shape) - SHORTEST + 1):
            alike = self._by_start.get(shape[at : at + SHORTEST])
            if alike and (len(alike) > _MAX_ALIKE or any(shape.startswith(secret, at) for secret in alike)):
                return True
        return False
