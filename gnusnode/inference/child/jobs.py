"""What the scheduler runs: anything that feeds tokens to a sequence and wants some of the logits."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from typing import Final

import numpy as np

from gnusnode.inference.child.kv import KvCache, Lease
from gnusnode.inference.child.native import Batch, Context, Row

_SCORED_ROWS: Final = 32
"""Wanted rows of one job in a step: each costs a product with the whole vocabulary, like a decoded token."""
_SAFE: Final = 1e-20


class Job(ABC):
    """One sequence of tokens to be fed. The scheduler leases it room, feeds it step by step, and commits each step.

    A step that was aborted is not committed: ``fed`` stays and the same tokens are fed again.

    Attributes:
        tokens: everything to be fed, in order; a generation appends what it samples.
        prompt_length: how many of the first of them are the prompt.
        total: most tokens the sequence may ever hold.
        elastic: it may begin with a part of the cells for ``total``, and grow.
        interrupted: it gave its cells back and has to be fed again, up to where it was.
        stepwise: what follows the prompt is fed a token a step even where it is known, because a token that is fed in
            company of the next ones gets other bits.
        served: when it got its last token, in the scheduler's count of decodes.
        finished: nothing more will be fed; the scheduler takes the lease back.
    """

    def __init__(self, number: int, tokens: list[int], total: int) -> None:
        self.number = number
        self.tokens = tokens
        self.prompt_length = len(tokens)
        self.total = total
        self.stepwise = False
        self.elastic = False
        self.interrupted = False
        self.served = 0
        self.lease: Lease | None = None
        self.finished = False
        self.submitted = time.perf_counter()

    @property
    def fed(self) -> int:
        return self.lease.fed if self.lease else 0

    @property
    def decodes(self) -> bool:
        """Whether the next step continues a running answer: one token, first served."""
        return self.fed >= self.prompt_length and (self.stepwise or len(self.tokens) - self.fed == 1)

    @property
    def shareable(self) -> list[int]:
        """The first tokens, as far as those of another sequence will do in their place."""
        return self.tokens if self.elastic else self.tokens[: self.prompt_length]

    def admitted(self, lease: Lease) -> None:
        self.lease = lease

    def suspended(self) -> None:
        """The lease was taken back; there will be another one, or ``close``."""
        self.lease = None
        self.interrupted = True

    def put(self, batch: Batch, room: int) -> int:
        """Add at most ``room`` tokens to the batch; returns how many."""
        assert self.lease is not None
        start = self.lease.fed
        end = self.prompt_length if self.stepwise and start < self.prompt_length else len(self.tokens)
        count = min(room, end - start)
        wanted = self._wanted_from(start, count)
        count = min(count, wanted + _SCORED_ROWS)
        self._row = batch.size + wanted
        self._wanted = count - wanted
        if count == 1 and wanted == 0:
            batch.add(self.tokens[start], start, self.lease.seq)
        else:
            batch.extend(self.tokens[start : start + count], start, self.lease.seq, wanted)
        self._put = count
        return count

    def commit(self, context: Context) -> None:
        """The step was computed: take note, and use the rows that were wanted."""
        assert self.lease is not None
        start = self.lease.fed
        self.lease.fed = start + self._put
        for offset in range(self._wanted):
            position = self.lease.fed - self._wanted + offset
            self.take(context.logits(self._row + offset), position)

    def undo(self, context: Context) -> None:
        """The step was aborted: forget what it may have written."""
        assert self.lease is not None
        if not context.remove(self.lease.seq, self.lease.fed):
            context.remove(self.lease.seq)
            self.lease.fed = 0

    def _wanted_from(self, start: int, count: int) -> int:
        """Offset in ``tokens[start:start + count]`` from which logits are wanted: the last token's, if it is there."""
        return count - 1 if start + count == len(self.tokens) else count

    @abstractmethod
    def take(self, row: Row, position: int) -> None:
        """Logits after the token at ``position``. A view: it is gone with the next step."""

    def close(self, cache: KvCache) -> None:
        """Free what the job holds besides its lease. Called once, whatever the end."""
        return


class Softmax:
    """Log-probabilities over the vocabulary in one reused buffer: an allocation per token would cost as much again.

    The process has to let numpy overflow in silence (``np.seterr``): asking for it each time costs more than the sum.
    """

    def __init__(self, n_vocab: int) -> None:
        self._scratch = np.empty(n_vocab, np.float32)

    def log_normaliser(self, row: Row) -> float:
        """log(sum(exp(row)))."""
        # Unshifted first: logits of real models stay where float32 can raise e to them, and a pass over the row is
        # a percent of a small model's step.
        np.exp(row, out=self._scratch)
        total = float(self._scratch.sum())
        if _SAFE < total < 1 / _SAFE:
            return math.log(total)
        peak = float(row.max())
        np.subtract(row, peak, out=self._scratch)
        np.exp(self._scratch, out=self._scratch)
        return peak + math.log(float(self._scratch.sum()))
