"""The disclosed sampler chain of a job, with the grammar beside it.

Every output token costs exactly one draw of the seeded generator, grammar or not, so that a job resumed after n tokens
continues with draw n + 1. A grammar is asked about the one token that was sampled; only a refusal pays for asking about
more.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np

from gnusnode.contracts.generation import Sampling
from gnusnode.errors import RequestError, SchemaRefused
from gnusnode.inference.child.native import NativeError, Row, Vocab, lib

_SHORTLIST: Final = 64
"""Greedy under a grammar: how many of the best tokens are asked about before the whole vocabulary is."""
_PENALTY_WINDOW: Final = 4096
"""Output tokens that frequency and presence penalties look back on."""


class Candidates:
    """The array that llama.cpp's samplers work on: scratch memory, shared by all jobs of a child."""

    def __init__(self, n_vocab: int) -> None:
        self._cells = np.zeros(n_vocab, dtype=[("id", "i4"), ("logit", "f4"), ("p", "f4")])
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._array = lib.llama_token_data_array()
        kinds: dict[str, Any] = dict(lib.llama_token_data_array._fields_)
        self._array.data = ctypes.cast(self._cells.ctypes.data, kinds["data"])

    def fill(self, row: Row) -> None:
        """All tokens with their logits."""
        self._cells["id"] = self._ids
        self._cells["logit"] = row
        self._reset(len(self._cells))

    def fill_some(self, ids: Any, row: Row) -> None:
        """Only ``ids``, in the order given."""
        count = len(ids)
        self._cells["id"][:count] = ids
        self._cells["logit"][:count] = row[ids]
        self._reset(count)

    def fill_one(self, token: int) -> None:
        self._cells[0] = (token, 0.0, 0.0)
        self._reset(1)

    def apply(self, sampler: Any) -> None:
        lib.llama_sampler_apply(sampler, ctypes.byref(self._array))

    @property
    def selected(self) -> int:
        """The token a selecting sampler chose."""
        index = int(self._array.selected)
        if not 0 <= index < int(self._array.size):
            raise NativeError("the sampler chain selected no token")
        return int(self._cells["id"][index])

    @property
    def logits(self) -> Row:
        """Logits of the candidates as the samplers left them; a refused one is minus infinity."""
        return self._cells["logit"][: int(self._array.size)]

    def _reset(self, size: int) -> None:
        self._array.size = size
        self._array.selected = -1
        self._array.sorted = False


class TokenSampler:
    """Chooses a job's tokens. ``close`` frees the native samplers.

    Raises:
        SchemaRefused: llama.cpp did not take the grammar.
    """

    def __init__(self, vocab: Vocab, candidates: Candidates, sampling: Sampling, *, grammar: str | None = None) -> None:
        self._candidates = candidates
        self._greedy = sampling.temperature == 0
        self._dist: Any = None
        """The chain's last member when it draws; the chain owns it."""
        self._chain = self._build(vocab.size, sampling)
        self._grammar = None
        if grammar is not None:
            self._grammar = lib.llama_sampler_init_grammar(vocab.handle, grammar.encode("utf-8"), b"root")
            if not self._grammar:
                self.close()
                raise SchemaRefused(
                    "the grammar of this schema was refused by the engine",
                    param="response_format",
                    hint="simplify the schema",
                )

    def pick(self, row: Row) -> int:
        """The next token after logits ``row``; the sampler's state moves on by it."""
        if self._grammar is None:
            token = self._unconstrained(row)
        else:
            token = self._constrained(row)
            lib.llama_sampler_accept(self._grammar, token)
        if self._chain is not None:
            lib.llama_sampler_accept(self._chain, token)
        return token

    def replay(self, row: Row, claimed: int) -> bool:
        """Whether the chain would have picked ``claimed``; the state moves on by the claim."""
        matches = self._unconstrained(row) == claimed
        if self._chain is not None:
            lib.llama_sampler_accept(self._chain, claimed)
        return matches

    def resume(self, tokens: tuple[int, ...]) -> None:
        """Move the state on by tokens that were delivered before.

        Raises:
            RequestError: they do not follow the grammar.
        """
        for token in tokens:
            if self._grammar is not None:
                if not self._allows(token):
                    raise RequestError("the resumed tokens do not follow the schema", param="resume_tokens")
                lib.llama_sampler_accept(self._grammar, token)
            if self._chain is not None:
                self._draw()
                lib.llama_sampler_accept(self._chain, token)

    def close(self) -> None:
        for sampler in (self._chain, self._grammar):
            if sampler:
                lib.llama_sampler_free(sampler)
        self._chain = self._grammar = None

    def _unconstrained(self, row: Row) -> int:
        if self._chain is None:
            return _argmax(row)
        self._candidates.fill(row)
        self._candidates.apply(self._chain)
        return self._candidates.selected

    def _constrained(self, row: Row) -> int:
        before = lib.llama_sampler_clone(self._chain) if self._chain is not None and not self._greedy else None
        try:
            token = self._unconstrained(row)
            if self._allows(token):
                return token
            if self._chain is None:
                return self._best_allowed(row)
            self._candidates.fill(row)
            self._candidates.apply(self._grammar)
            if not np.isfinite(self._candidates.logits.max()):
                raise NativeError("the grammar allows no token of the vocabulary here")
            # The clone still holds the draw that was spent on the refused token.
            self._candidates.apply(before or self._chain)
            return self._candidates.selected
        finally:
            if before:
                lib.llama_sampler_free(before)

    def _allows(self, token: int) -> bool:
        self._candidates.fill_one(token)
        self._candidates.apply(self._grammar)
        return bool(np.isfinite(self._candidates.logits[0]))

    def _best_allowed(self, row: Row) -> int:
        best = np.argpartition(row, -_SHORTLIST)[-_SHORTLIST:] if len(row) > _SHORTLIST else np.arange(len(row))
        for ids in (np.sort(best), np.arange(len(row))):
            self._candidates.fill_some(ids, row)
            self._candidates.apply(self._grammar)
            allowed = self._candidates.logits
            winner = int(allowed.argmax())
            if np.isfinite(allowed[winner]):
                return int(ids[winner])
        raise NativeError("the grammar allows no token of the vocabulary here")

    def _draw(self) -> None:
        if self._dist is not None:
            self._candidates.fill_one(0)
            self._candidates.apply(self._dist)

    def _build(self, n_vocab: int, sampling: Sampling) -> Any:
        """The chain in its order: penalties, top-k, top-p, min-p, temperature, draw. None: plain argmax will do."""
        penalised = sampling.frequency_penalty != 0 or sampling.presence_penalty != 0
        if self._greedy and not penalised:
            return None
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        if not chain:
            raise NativeError("llama_sampler_chain_init answered NULL")
        members: list[Any] = []
        if penalised:
            window, repeat = _PENALTY_WINDOW, 1.0
            frequency, presence = sampling.frequency_penalty, sampling.presence_penalty
            members.append(lib.llama_sampler_init_penalties(n_vocab, window, repeat, frequency, presence))
        if self._greedy:
            members.append(lib.llama_sampler_init_greedy())
        else:
            if sampling.top_k:
                members.append(lib.llama_sampler_init_top_k(sampling.top_k))
            if sampling.top_p < 1:
                members.append(lib.llama_sampler_init_top_p(sampling.top_p, 1))
            if sampling.min_p > 0:
                members.append(lib.llama_sampler_init_min_p(sampling.min_p, 1))
            members.append(lib.llama_sampler_init_temp(sampling.temperature))
            self._dist = lib.llama_sampler_init_dist(sampling.seed)
            members.append(self._dist)
        for member in members:
            if not member:
                raise NativeError("a sampler of the chain could not be made")
            lib.llama_sampler_chain_add(chain, member)
        return chain


def _argmax(row: Row) -> int:
    token = int(row.argmax())
    if not np.isfinite(row[token]):
        raise NativeError("the model produced logits that are not numbers")
    return token
