"""Who holds which cells of the KV cache: leases that grow, prefixes shared with running and with finished jobs.

What a finished sequence knew is copied to main memory and its cells are free at once: attention walks past every cell
that is in use, so a prefix that waits in the cache would slow down each token of everybody. Copying it back costs some
milliseconds where computing it again would cost seconds.

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
State = NDArray[np.uint8]
"""What the cache holds of a sequence, as llama.cpp writes it. It never leaves the process."""

MIN_SHARED: Final = 8
"""Shorter common prefixes are computed again: copying them is not worth a sequence."""
_KEPT_SHARE: Final = 4
"""The states of finished sequences take at most one part in so many of the memory that the cells take."""
_WORTH_WAITING: Final = 64
"""A running prefill that will hold this many more shared tokens is worth waiting for."""


class Memory(Protocol):
    """What this module does to the real cache."""

    def remove(self, seq: int, start: int = 0) -> bool: ...

    def copy(self, source: int, target: int, length: int) -> None: ...

    def save(self, seq: int) -> State | None: ...

    def load(self, seq: int, state: State) -> bool: ...


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
    """What a finished sequence knew, in main memory."""

    tokens: Ids
    state: State


@dataclass
class KvCache:
    """Leases on a cache of ``cells`` cells and ``sequences`` sequences, at most ``limit`` tokens a job.

    Args:
        kept: finished sequences that are remembered at most; 0 turns sharing off.
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
        from_live = shared if isinstance(donor, Lease) else 0
        if len(self._free) < total - from_live + spare or not self._free_seqs:
            return None
        seq, head = self._free_seqs.pop(), np.zeros(0, np.int32)
        if isinstance(donor, Lease):
            head = donor.cells[:shared]
            self._holders[head] += 1
            self.memory.copy(donor.seq, seq, shared)
        elif donor is not None and self._restore(donor, seq, shared):
            head = self._take(shared)
        else:
            shared = 0
        lease = Lease(seq, tokens, np.concatenate([head, self._take(total - shared)]), shared, shared)
        self._live.append(lease)
        return lease

    def grow(self, lease: Lease, count: int) -> bool:
        """Up to ``count`` more cells for a lease; False: there is none."""
        more = self._take(min(count, len(self._free)))
        lease.cells = np.concatenate([lease.cells, more])
        return len(more) > 0

    def release(self, lease: Lease, tokens: list[int]) -> None:
        """The job gives its cells back; what its sequence knew, ``lease.fed`` of ``tokens``, is remembered."""
        self._live.remove(lease)
        held = np.asarray(tokens[: lease.fed], np.int32)
        if self.kept and len(held) >= MIN_SHARED and not self._is_covered(held):
            self._remember(lease.seq, held)
        self.memory.remove(lease.seq)
        self._drop(lease.cells)
        self._free_seqs.append(lease.seq)

    def borrow_sequences(self, count: int) -> list[int]:
        """Up to ``count`` empty sequences, for copies whose new cells the caller's lease already covers."""
        return [self._free_seqs.pop() for _ in range(min(count, len(self._free_seqs)))]

    def give_back(self, sequences: list[int]) -> None:
        for seq in sequences:
            self.memory.remove(seq)
        self._free_seqs.extend(sequences)

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

    def _remember(self, seq: int, held: Ids) -> None:
        """Keep the state of a sequence; what it covers and what is beyond the bounds goes."""
        state = self.memory.save(seq)
        if state is None:
            return
        self._idle = [kept for kept in self._idle if _common(kept.tokens, held) < len(kept.tokens)]
        self._idle.append(_Kept(held, state))
        while len(self._idle) > self.kept or (len(self._idle) > 1 and self.kept_tokens > self.cells // _KEPT_SHARE):
            self._idle.pop(0)

    def _restore(self, kept: _Kept, seq: int, shared: int) -> bool:
        """Bring the first ``shared`` tokens of a remembered sequence back. The whole of it has to fit for a moment."""
        if len(kept.tokens) > len(self._free) or not self.memory.load(seq, kept.state):
            return False
        if shared < len(kept.tokens) and not self.memory.remove(seq, shared):
            self.memory.remove(seq)  # this kind of memory can only forget it whole
            return False
        self._touch(kept)
        return True

    @property
    def kept_tokens(self) -> int:
        """Tokens of finished sequences that are remembered."""
        return sum(len(kept.tokens) for kept in self._idle)

    def _is_covered(self, tokens: Ids) -> bool:
        for kept in self._idle:
            if _common(kept.tokens, tokens) == len(tokens):
                self._touch(kept)
                return True
        return False

    def _touch(self, kept: _Kept) -> None:
        self._idle.remove(kept)
        self._idle.append(kept)

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
