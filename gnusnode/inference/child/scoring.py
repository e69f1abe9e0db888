"""Jobs that look at the model's opinion of given tokens: the check of a claimed answer, and labels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gnusnode.contracts.generation import ClassifyRequest, ClassifyResult, ScoreRequest, ScoreResult
from gnusnode.inference.child.channel import Outbox
from gnusnode.inference.child.jobs import Job, Softmax
from gnusnode.inference.child.kv import KvCache
from gnusnode.inference.child.native import Batch, Context, Row
from gnusnode.inference.child.sampling import TokenSampler

CONTENT_FREE = "N/A"
"""What calibration scores the labels for: what is left is the model's liking for the labels themselves."""


class ScoreJob(Job):
    """Prompt and answer are fed in one go; every answer token is compared with the logits before it."""

    def __init__(
        self, number: int, request: ScoreRequest, sampler: TokenSampler | None, softmax: Softmax, outbox: Outbox
    ) -> None:
        answer = list(request.answer_tokens)
        tokens = [*request.prompt_tokens, *answer[:-1]]
        super().__init__(number, tokens, len(tokens))
        # The lease's shared prefix may cover prompt tokens only: the logits of all others are wanted.
        self.prompt_length = len(request.prompt_tokens)
        self._answer = answer
        self._sampler = sampler
        self._softmax = softmax
        self._outbox = outbox
        self._gaps: list[float] = []
        self._ranks: list[int] = []
        self._logprobs: list[float] = []
        self._replayed: list[bool] = []

    @property
    def decodes(self) -> bool:
        return False

    def take(self, row: Row, position: int) -> None:
        index = position - self.prompt_length + 1
        if index < len(self._gaps):
            return  # fed again after an abort
        claimed = self._answer[index]
        logit = float(row[claimed])
        self._gaps.append(float(row.max()) - logit)
        self._ranks.append(int(np.count_nonzero(row > row[claimed])))
        self._logprobs.append(logit - self._softmax.log_normaliser(row))
        if self._sampler is not None:
            self._replayed.append(self._sampler.replay(row, claimed))
        if len(self._gaps) == len(self._answer):
            self._finish()

    def close(self, cache: KvCache) -> None:
        if self._sampler is not None:
            self._sampler.close()

    def _wanted_from(self, start: int, count: int) -> int:
        return min(count, max(0, self.prompt_length - 1 - start))

    def _finish(self) -> None:
        self.finished = True
        result = ScoreResult(
            gaps=tuple(self._gaps),
            ranks=tuple(self._ranks),
            logprobs=tuple(self._logprobs),
            replayed=tuple(self._replayed) if self._sampler is not None else None,
            argmax_match=self._ranks.count(0) / len(self._ranks),
        )
        self._outbox.result(self.number, result.to_plain())


class LabelJob(Job):
    """Log-probability of every label after a prompt, in two decodes: the prompt, then all label tails side by side.

    Where cells cannot be shared between sequences, the tails follow each other on the one sequence.
    """

    def __init__(
        self,
        number: int,
        prompt: list[int],
        labels: list[list[int]],
        softmax: Softmax,
        cache: KvCache,
        on_done: Callable[[tuple[float, ...]], None],
    ) -> None:
        super().__init__(number, prompt, len(prompt) + sum(len(label) - 1 for label in labels))
        self._labels = labels
        self._softmax = softmax
        self._cache = cache
        self._on_done = on_done
        self._logprobs = [0.0] * len(labels)
        self._prompt_scored = False
        self._waiting: list[int] = []
        """Labels whose tails have not been fed."""
        self._tails: list[tuple[int, int, int]] = []
        """(label, sequence, first row) of the step at hand."""

    @property
    def decodes(self) -> bool:
        return False

    def put(self, batch: Batch, room: int) -> int:
        if self.fed < len(self.tokens):
            return super().put(batch, room)
        return self._put_tails(batch, room)

    def commit(self, context: Context) -> None:
        if not self._tails:
            return super().commit(context)
        for label, _, row in self._tails:
            tail = self._labels[label]
            for offset, token in enumerate(tail[1:]):
                logits = context.logits(row + offset)
                self._logprobs[label] += float(logits[token]) - self._softmax.log_normaliser(logits)
            self._waiting.remove(label)
        self._clear_tails(context)
        if not self._waiting:
            self._finish()
        return None

    def undo(self, context: Context) -> None:
        if self._tails:
            self._clear_tails(context)
        else:
            super().undo(context)

    def take(self, row: Row, position: int) -> None:
        if self._prompt_scored:
            return  # fed again, because this memory could not forget a tail alone
        self._prompt_scored = True
        normaliser = self._softmax.log_normaliser(row)
        for index, label in enumerate(self._labels):
            self._logprobs[index] = float(row[label[0]]) - normaliser
        self._waiting = [index for index, label in enumerate(self._labels) if len(label) > 1]
        if not self._waiting:
            self._finish()

    def close(self, cache: KvCache) -> None:
        cache.give_back([seq for _, seq, _ in self._tails if self.lease and seq != self.lease.seq])
        self._tails = []

    def _put_tails(self, batch: Batch, room: int) -> int:
        assert self.lease is not None
        own = self.lease.seq
        sequences = self._cache.borrow_sequences(len(self._waiting)) if self._cache.kept else []
        used = 0
        for label in self._waiting:
            tail = self._labels[label][:-1]
            # A tail longer than the room goes alone, once the batch can hold it.
            over = used + len(tail) > room
            if (self._tails and (over or not sequences)) or batch.size + len(tail) > batch.capacity:
                break
            seq = own
            if sequences:
                seq = sequences.pop()
                self._cache.memory.copy(own, seq, len(self.tokens))
            row = batch.extend(tail, len(self.tokens), seq, 0)
            self._tails.append((label, seq, row))
            used += len(tail)
        self._cache.give_back(sequences)
        return used

    def _clear_tails(self, context: Context) -> None:
        assert self.lease is not None
        borrowed = [seq for _, seq, _ in self._tails if seq != self.lease.seq]
        self._cache.give_back(borrowed)
        if len(borrowed) < len(self._tails) and not context.remove(self.lease.seq, len(self.tokens)):
            context.remove(self.lease.seq)
            self.lease.fed = 0
        self._tails = []

    def _finish(self) -> None:
        self.finished = True
        self._on_done(tuple(self._logprobs))


def classify_result(
    request: ClassifyRequest, raw: tuple[float, ...], baseline: tuple[float, ...] | None
) -> ClassifyResult:
    """Probabilities over the labels from their log-probabilities, less those for a content-free input."""
    scores = np.asarray(raw) - (np.asarray(baseline) if baseline is not None else 0.0)
    weights = np.exp(scores - scores.max())
    probabilities = weights / weights.sum()
    order = np.argsort(-probabilities, kind="stable")
    return ClassifyResult(
        label=request.labels[int(order[0])],
        probabilities=tuple(float(p) for p in probabilities),
        margin=float(probabilities[order[0]] - probabilities[order[1]]),
        raw_logprobs=raw,
    )
