"""One generation: prefill, then a token a step until it ends."""

from __future__ import annotations

import time
from typing import Any, Literal

import numpy as np

from gnusnode.contracts.generation import (
    ContextProfile,
    Done,
    GenerateRequest,
    Started,
    Timing,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from gnusnode.inference.child.channel import Outbox
from gnusnode.inference.child.jobs import Job, Softmax
from gnusnode.inference.child.kv import KvCache, Lease
from gnusnode.inference.child.native import Row, Vocab
from gnusnode.inference.child.sampling import TokenSampler
from gnusnode.inference.child.text import TextAssembler, printable


class GenerateJob(Job):
    """Streams an answer into the outbox. ``resume_tokens`` follow the prompt as if they had just been sampled.

    An interruption is a pause: what was sampled stays, and its time counts as time in the queue.

    Args:
        stepwise: feed the resumed tokens one by one also where the profile promises no bits.
    """

    def __init__(
        self,
        number: int,
        prompt: list[int],
        request: GenerateRequest,
        vocab: Vocab,
        sampler: TokenSampler,
        softmax: Softmax,
        outbox: Outbox,
        *,
        stepwise: bool = False,
    ) -> None:
        super().__init__(number, [*prompt, *request.resume_tokens], len(prompt) + request.max_tokens)
        self.prompt_length = len(prompt)
        canonical = request.profile is ContextProfile.CANONICAL
        self.stepwise = canonical or stepwise
        self.elastic = not canonical
        self._prompt = prompt
        self._request = request
        self._vocab = vocab
        self._sampler = sampler
        self._softmax = softmax
        self._outbox = outbox
        self._text = TextAssembler(request.stop)
        self._logprob_sum = 0.0
        self._sampled = 0
        self._cached = 0
        self._started = self._first_token = self._suspended = 0.0

    def admitted(self, lease: Lease) -> None:
        super().admitted(lease)
        now = time.perf_counter()
        if self.interrupted:
            pause = now - self._suspended
            self._started += pause
            self._first_token += pause if self._sampled else 0.0
            return
        self._started = now
        self._cached = min(lease.cached, len(self._prompt))
        started = Started(prompt_tokens=tuple(self._prompt), cached_tokens=self._cached)
        self._outbox.started(self.number, started.to_plain())
        self._replay_resumed()

    def suspended(self) -> None:
        super().suspended()
        self.stepwise = not self.elastic  # once it was interrupted, speed is worth more than bits
        self._suspended = time.perf_counter()

    def take(self, row: Row, position: int) -> None:
        token = self._sampler.pick(row)
        normaliser = self._softmax.log_normaliser(row)
        logprob = float(row[token]) - normaliser
        if not self._sampled:
            self._first_token = time.perf_counter()
        self._sampled += 1
        self._logprob_sum += logprob
        self.tokens.append(token)
        text, reason = self._advance(token)
        top = self._request.top_logprobs
        entries = [] if top is None else [self._describe(row, token, logprob, normaliser, top)]
        # The plain form of a Delta, written out: this runs for every token.
        self._outbox.delta(self.number, {"kind": "delta", "text": text, "tokens": [token], "logprobs": entries})
        if reason:
            self._finish(reason)

    def close(self, cache: KvCache) -> None:
        self._sampler.close()

    def _advance(self, token: int) -> tuple[str, Literal["stop", "length"] | None]:
        """The text that became certain with ``token``, and why the answer ends with it, if it does."""
        if token in self._vocab.eog:
            return self._text.flush(), "stop"
        text = self._text.feed(self._vocab.piece(token))
        if self._text.stopped:
            return text, "stop"
        if len(self.tokens) - len(self._prompt) >= self._request.max_tokens:
            return text + self._text.flush(), "length"
        return text, None

    def _replay_resumed(self) -> None:
        """Bring text and sampler to where they were after the resumed tokens; their text was delivered before."""
        resumed = self._request.resume_tokens
        self._sampler.resume(resumed)
        for count, token in enumerate(resumed, 1):
            if token in self._vocab.eog:
                return self._finish("stop")
            self._text.feed(self._vocab.piece(token))
            if self._text.stopped:
                return self._finish("stop")
            if count >= self._request.max_tokens:
                return self._finish("length")
        return None

    def _describe(self, row: Row, token: int, logprob: float, normaliser: float, top: int) -> dict[str, Any]:
        best = np.argpartition(row, -top)[-top:] if top else np.zeros(0, np.int64)
        ordered = sorted((int(other) for other in best), key=lambda other: (-float(row[other]), other))
        entry = TokenLogprob(
            token=token,
            piece=printable(self._vocab.piece(token, special=True)),
            logprob=logprob,
            top=tuple(
                TopLogprob(
                    token=other,
                    piece=printable(self._vocab.piece(other, special=True)),
                    logprob=float(row[other]) - normaliser,
                )
                for other in ordered
            ),
        )
        return entry.to_plain()

    def _finish(self, reason: Literal["stop", "length"]) -> None:
        self.finished = True
        now = time.perf_counter()
        first = self._first_token or now
        output = self.tokens[len(self._prompt) :]
        done = Done(
            finish_reason=reason,
            tokens=tuple(output),
            mean_logprob=self._logprob_sum / self._sampled if self._sampled else None,
            usage=Usage(
                prompt_tokens=len(self._prompt),
                completion_tokens=len(output),
                cached_tokens=self._cached,
            ),
            timing=Timing(
                queue_ms=(self._started - self.submitted) * 1e3,
                prefill_ms=(first - self._started) * 1e3,
                decode_ms=(now - first) * 1e3,
            ),
        )
        self._outbox.done(self.number, done.to_plain())
