"""Who holds which cells of the KV cache: leases that may grow, shared prefixes, the least recently used one goes first.

The bookkeeping is exact. A cell shared by several sequences counts once: every cell of the cache has a number here and
a count of holders. The numbers are ours, llama.cpp places cells as it likes; only the counts must agree, and they do,
because both sides apply the same removals and copies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]

MIN_SHARED: Final = 8
"""Shorter common prefixes are computed again: copying them is not worth a sequence."""
_KEPT_SHARE: Final = 4
"""Finished sequences hold at most one part in so many of the cells: attention walks past all of them."""
_WORTH_WAITING: Final = 64
"""A running prefill that will hold this many more shared tokens is worth waiting for."""


class Memory(Protocol):
    """What this module does to the real cache."""

    def remove(self, seq: int, start: int = 0) -> bool: ...

    def copy(self, source: int, target: int, length: int) -> None: ...


@dataclass(eq=False)
class Lease:
    """Cells and a sequence that a job holds. ``fed`` is the job's to update: how many tokens the sequence has."""

    seq: int
    tokens: Ids
    """What the job began with: another one may share it, up to ``fed``."""
    cells: Ids
    cached: int
    fed: int


@dataclass(eq=False)
class _Kept:
    """A finished sequence that stays for its prefix."""

    seq: int
    tokens: Ids
    cells: Ids


@dataclass
class KvCache:
    """Leases on a cache of ``cells`` cells and ``sequences`` sequences, at most ``limit`` tokens a job.

    Args:
        kept: finished sequences that stay at most; 0 turns sharing off.
    """

    memory: Memory
    cells: int
    sequences: int
    limit: int
    kept: int
    _holders: Ids = field(init=False)
    _free: list[int] = field(init=False)
    _free_seqs: list[int] = field(init=False)
    _live: list[Lease] = field(init=False, default_factory=list[Lease])
    _idle: list[_Kept] = field(init=False, default_factory=list[_Kept])
    """Least recently used first."""

    def __post_init__(self) -> None:
        self._holders = np.zeros(self.cells, np.int32)
        self._free = list(range(self.cells))
        self._free_seqs = list(range(self.sequences))

    @property
    def free_cells(self) -> int:
        return len(self._free)

    def acquire(self, prompt: list[int], total: int, *, spare: int = 0) -> Lease | None:
        """``total`` cells for a job that begins with ``prompt``, with ``spare`` more left for others; None: not yet.

        At least one prompt token is always left to compute: the logits after it are wanted.
        """
        tokens = np.asarray(prompt, np.int32)
        shared, donor, promised = self._best_donor(tokens)
        if promised >= shared + _WORTH_WAITING:
            return None
        needed = total - shared + spare
        self._evict_for(needed, donor)
        if isinstance(donor, _Kept) and (2 * shared >= len(donor.tokens) or not self._has_room(needed)):
            self._shorten(donor, shared)
            if len(self._free) < needed:
                return None
            self._idle.remove(donor)
            seq, head = donor.seq, donor.cells
        elif not self._has_room(needed):
            return None
        else:
            seq, head = self._free_seqs.pop(), np.zeros(0, np.int32)
            if donor is not None:
                head = donor.cells[:shared]
                self._holders[head] += 1
                self.memory.copy(donor.seq, seq, shared)
                self._touch(donor)
        lease = Lease(seq, tokens, np.concatenate([head, self._take(total - shared)]), shared, shared)
        self._live.append(lease)
        return lease

    def grow(self, lease: Lease, count: int) -> bool:
        """Up to ``count`` more cells for a lease, at the cost of kept prefixes; False: there is none."""
        while len(self._free) < count and self._idle:
            self._evict_oldest()
        more = self._take(min(count, len(self._free)))
        lease.cells = np.concatenate([lease.cells, more])
        return len(more) > 0

    def release(self, lease: Lease, tokens: list[int]) -> None:
        """The job gives its cells back; what its sequence holds, the first ``lease.fed`` of ``tokens``, may stay."""
        self._live.remove(lease)
        held = np.asarray(tokens[: lease.fed], np.int32)
        if not self.kept or len(held) < MIN_SHARED or self._is_covered(held):
            self._forget(lease.seq, lease.cells)
            return
        self._drop(lease.cells[len(held) :])
        for other in [kept for kept in self._idle if _common(kept.tokens, held) == len(kept.tokens)]:
            self._idle.remove(other)
            self._forget(other.seq, other.cells)
        self._idle.append(_Kept(lease.seq, held, lease.cells[: len(held)]))
        while len(self._idle) > self.kept or (len(self._idle) > 1 and self._kept_tokens > self.cells // _KEPT_SHARE):
            self._evict_oldest()

    def borrow_sequences(self, count: int) -> list[int]:
        """Up to ``count`` empty sequences, for copies whose new cells the caller's lease already covers."""
        while len(self._free_seqs) < count and self._idle:
            self._evict_oldest()
        return [self._free_seqs.pop() for _ in range(min(count, len(self._free_seqs)))]

    def give_back(self, sequences: list[int]) -> None:
        for seq in sequences:
            self.memory.remove(seq)
        self._free_seqs.extend(sequences)

    def evict_all(self) -> None:
        """Keep no finished sequence."""
        while self._idle:
            self._evict_oldest()

    def _best_donor(self, tokens: Ids) -> tuple[int, Lease | _Kept | None, int]:
        """Usable common prefix now, its holder, and the longest that a live job will hold once it is prefilled."""
        best, donor, promised = 0, None, 0
        if not self.kept:
            return best, donor, promised
        usable = len(tokens) - 1
        for lease in self._live:
            common = min(_common(lease.tokens, tokens), usable)
            if lease.fed < len(lease.tokens):
                promised = max(promised, common)
            if min(common, lease.fed) > best:
                best, donor = min(common, lease.fed), lease
        for kept in self._idle:
            common = min(_common(kept.tokens, tokens), usable)
            if common >= best and common > 0:
                best, donor = common, kept
        return (best, donor, promised) if best >= MIN_SHARED else (0, None, promised)

    @property
    def _kept_tokens(self) -> int:
        return sum(len(kept.tokens) for kept in self._idle)

    def _has_room(self, cells: int) -> bool:
        return len(self._free) >= cells and bool(self._free_seqs)

    def _evict_for(self, cells: int, donor: Lease | _Kept | None) -> None:
        while not self._has_room(cells):
            victim = next((kept for kept in self._idle if kept is not donor), None)
            if victim is None:
                return
            self._idle.remove(victim)
            self._forget(victim.seq, victim.cells)

    def _shorten(self, kept: _Kept, length: int) -> None:
        self.memory.remove(kept.seq, length)
        self._drop(kept.cells[length:])
        kept.tokens, kept.cells = kept.tokens[:length], kept.cells[:length]

    def _is_covered(self, tokens: Ids) -> bool:
        for kept in self._idle:
            if _common(kept.tokens, tokens) == len(tokens):
                self._touch(kept)
                return True
        return False

    def _touch(self, donor: Lease | _Kept) -> None:
        if isinstance(donor, _Kept):
            self._idle.remove(donor)
            self._idle.append(donor)

    def _evict_oldest(self) -> None:
        oldest = self._idle.pop(0)
        self._forget(oldest.seq, oldest.cells)

    def _forget(self, seq: int, cells: Ids) -> None:
        self.memory.remove(seq)
        self._drop(cells)
        self._free_seqs.append(seq)

    def _take(self, count: int) -> Ids:
        taken = np.asarray(self._free[len(self._free) - count :], np.int32)
        del self._free[len(self._free) - count :]
        self._holders[taken] += 1
        return taken

    def _drop(self, cells: Ids) -> None:
        self._holders[cells] -= 1
        self._free.extend(cells[self._holders[cells] == 0].tolist())


def _common(left: Ids, right: Ids) -> int:
    """Length of the common prefix."""
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length
