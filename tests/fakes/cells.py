"""A model of a KV cache that knows which cell holds what."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray


class CellMemory:
    """What llama.cpp does: a cell holds a token at a position for a set of sequences."""

    def __init__(self) -> None:
        self.sequences: dict[int, dict[int, int]] = {}
        self.contents: dict[int, int] = {}
        self._names = itertools.count()

    def write(self, seq: int, position: int, token: int) -> None:
        cell = next(self._names)
        self.sequences.setdefault(seq, {})[position] = cell
        self.contents[cell] = token

    def remove(self, seq: int, start: int = 0) -> bool:
        held = self.sequences.get(seq, {})
        self.sequences[seq] = {position: cell for position, cell in held.items() if position < start}
        return True

    def copy(self, source: int, target: int, length: int) -> None:
        assert not self.sequences.get(target), "the target of a copy must be empty"
        held = self.sequences[source]
        self.sequences[target] = {position: held[position] for position in range(length)}

    def save(self, seq: int) -> NDArray[np.uint8] | None:
        tokens = self.tokens(seq)
        return np.asarray(tokens, np.int64).view(np.uint8) if tokens else None

    def load(self, seq: int, state: NDArray[np.uint8]) -> bool:
        assert not self.sequences.get(seq), "a state goes into an empty sequence"
        for position, token in enumerate(state.view(np.int64).tolist()):
            self.write(seq, position, token)
        return True

    @property
    def used(self) -> int:
        return len({cell for held in self.sequences.values() for cell in held.values()})

    def tokens(self, seq: int) -> list[int]:
        held = self.sequences.get(seq, {})
        return [self.contents[held[position]] for position in range(len(held))]
