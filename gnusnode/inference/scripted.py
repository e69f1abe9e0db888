"""The engine of fixture mode: no model, the same answers on every machine, and failures on demand.

It keeps the whole contract of ``Engine``, so that everything above it can be tested, demonstrated and rehearsed without
a model. It never stands in for one: it is made only where fixture mode is asked for by name.
"""

from __future__ import annotations

import hashlib
import math
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal

import trio

from gnusnode.contracts.generation import (
    ClassifyRequest,
    ClassifyResult,
    Delta,
    Done,
    EmbedRequest,
    EmbedResult,
    EngineInfo,
    EngineState,
    GenerateRequest,
    Prompt,
    ScoreRequest,
    ScoreResult,
    Started,
    Timing,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from gnusnode.contracts.ids import sha256
from gnusnode.errors import ConfigError, ContextTooLong, EngineFailed, Overloaded
from gnusnode.inference.crashes import CrashLedger
from gnusnode.inference.dispatch import poisoned_error
from gnusnode.inference.jobs import deadline_error

_END_OF_TURN: Final = 2
_FIRST_WORD: Final = 16
"""Token ids below stand for roles and turns."""
_ROLES: Final = {"system": 3, "user": 4, "assistant": 5, "tool": 6}
_VOCABULARY: Final = 2**24
_DIMENSIONS: Final = 32
_MISS: Final = 8.0
"""Logit gap of a claimed token that the script would not have given."""


@dataclass(frozen=True)
class Rule:
    """What to do with a prompt.

    Attributes:
        match: regular expression, searched in the text of the whole prompt; the first rule that matches counts.
        answer: the text to give.
        label: what ``classify`` finds; empty: the label whose name stands in the text, else the first.
        delay: seconds before the first token.
        token_delay: seconds before each further one.
        failure: ``crash``: as when the child dies; ``hang``: no token comes any more; ``overloaded``: refused at once.
        after: tokens delivered before ``crash`` or ``hang``.
    """

    match: str = ""
    answer: str = "This is a scripted answer."
    label: str = ""
    delay: float = 0.0
    token_delay: float = 0.0
    failure: Literal["", "crash", "hang", "overloaded"] = ""
    after: int = 0


_Step = tuple[float, Started | Delta | Done]


class _Performance:
    """Plays steps in their time, up to a deadline."""

    def __init__(self, steps: Iterator[_Step], deadline: float) -> None:
        self._steps = steps
        self._deadline = deadline

    def __aiter__(self) -> _Performance:
        return self

    async def __anext__(self) -> Started | Delta | Done:
        step = next(self._steps, None)
        if step is None:
            raise StopAsyncIteration
        seconds, event = step
        with trio.move_on_at(self._deadline) as scope:
            await trio.sleep(seconds)
        if scope.cancelled_caught:
            self._steps = iter(())
            raise deadline_error()
        return event


class ScriptedEngine:
    """An ``Engine`` that answers by rules. Words are its tokens.

    Args:
        fixture: must be True; the flag by which an operator or a test asks for fixture mode.

    Raises:
        ConfigError: fixture mode was not asked for.
    """

    def __init__(
        self,
        name: str,
        rules: Sequence[Rule] = (),
        *,
        fixture: bool,
        n_ctx: int = 4096,
        crashes: CrashLedger | None = None,
    ) -> None:
        if not fixture:
            raise ConfigError(
                "a scripted engine gives made-up answers", where=name, hint="it runs in fixture mode only"
            )
        self._name = name
        self._rules = (*rules, Rule())
        self._n_ctx = n_ctx
        self._crashes = crashes or CrashLedger()
        self._words: dict[int, str] = {}
        self._active = 0

    def info(self) -> EngineInfo:
        return EngineInfo(
            model=self._name,
            artifact_hash=sha256(f"scripted:{self._name}".encode()),
            state=EngineState.READY,
            reason="fixture mode: scripted answers, no model",
            build="scripted",
            n_ctx=self._n_ctx,
            n_ctx_train=self._n_ctx,
            n_vocab=_VOCABULARY,
            embedding_size=_DIMENSIONS,
            embeds=True,
            slots=64,
            free_slots=max(0, 64 - self._active),
            prefill_rate=10_000.0,
            decode_rate=10_000.0,
            device="scripted",
            determinism="A",
        )

    @asynccontextmanager
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[AsyncIterator[Started | Delta | Done]]:
        """See ``Engine``."""
        if self._crashes.poisoned(request.request_id):
            raise poisoned_error()
        self._active += 1
        try:
            deadline = math.inf
            if request.deadline_ms is not None:
                deadline = trio.current_time() + request.deadline_ms / 1000
            yield _Performance(self._play(request), deadline)
        finally:
            self._active -= 1

    async def classify(self, request: ClassifyRequest) -> ClassifyResult:
        """The rule's label, else the first one named in the text."""
        await trio.lowlevel.checkpoint()
        wanted = self._rule(request.text).label
        named = [label for label in request.labels if label.lower() in request.text.lower()]
        best = wanted if wanted in request.labels else (named or request.labels)[0]
        other = 0.2 / (len(request.labels) - 1)
        probabilities = tuple(0.8 if label == best else other for label in request.labels)
        return ClassifyResult(
            label=best,
            probabilities=probabilities,
            margin=0.8 - other,
            raw_logprobs=tuple(math.log(value) for value in probabilities),
        )

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """A claimed token scores well when the script gives it at that place."""
        await trio.lowlevel.checkpoint()
        prompt = "".join(self._words.get(token, "") for token in request.prompt_tokens)
        expected = [*self._tokens(self._rule(prompt).answer), _END_OF_TURN]
        right = [
            index < len(expected) and token == expected[index] for index, token in enumerate(request.answer_tokens)
        ]
        return ScoreResult(
            gaps=tuple(0.0 if hit else _MISS for hit in right),
            ranks=tuple(0 if hit else 100 for hit in right),
            logprobs=tuple(
                _logprob(token) if hit else -_MISS for token, hit in zip(request.answer_tokens, right, strict=True)
            ),
            replayed=tuple(right) if request.replay is not None else None,
            argmax_match=sum(right) / len(right),
        )

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Bags of words: texts that share words are near each other."""
        await trio.lowlevel.checkpoint()
        return EmbedResult(
            vectors=tuple(_bag_of_words(text) for text in request.texts),
            prompt_tokens=sum(len(_split(text)) for text in request.texts),
        )

    def _play(self, request: GenerateRequest) -> Iterator[_Step]:
        """What happens, step by step: how long it takes and what comes then."""
        prompt, text = self._render(request.prompt)
        if len(prompt) + request.max_tokens > self._n_ctx:
            raise ContextTooLong(
                f"{len(prompt)} prompt tokens and {request.max_tokens} of answer exceed {self._n_ctx}", param="messages"
            )
        rule = self._rule(text)
        if rule.failure == "overloaded":
            raise Overloaded("the script says that this engine is full", retry_after=1.0)
        yield 0.0, Started(prompt_tokens=prompt)
        planned = _cut(rule.answer, request.stop)
        tokens = self._tokens(planned)
        given = list(request.resume_tokens)
        for index in range(len(given), min(len(tokens), request.max_tokens)):
            self._fail(rule, index, request)
            given.append(tokens[index])
            yield self._pause(rule, index), self._delta(tokens[index], request)
        stopped = planned != rule.answer and len(tokens) <= request.max_tokens
        ended = planned == rule.answer and len(tokens) < request.max_tokens
        if stopped or ended:
            self._fail(rule, math.inf, request)
        if ended:
            given.append(_END_OF_TURN)
        yield (
            self._pause(rule, math.inf),
            Done(
                finish_reason="stop" if stopped or ended else "length",
                tokens=tuple(given),
                mean_logprob=sum(map(_logprob, given)) / len(given) if given else None,
                usage=Usage(prompt_tokens=len(prompt), completion_tokens=len(given)),
                timing=Timing(),
            ),
        )

    def _fail(self, rule: Rule, index: float, request: GenerateRequest) -> None:
        """Crashes before the token at ``index`` when the rule says so."""
        if rule.failure == "crash" and index >= rule.after:
            artifact = self.info().artifact_hash
            self._crashes.record(artifact, [request.request_id], now=trio.current_time(), reason="crashed by script")
            if self._crashes.poisoned(request.request_id):
                raise poisoned_error()
            raise EngineFailed("the engine died while it worked on this request: it crashed by script")

    def _pause(self, rule: Rule, index: float) -> float:
        if rule.failure == "hang" and index >= rule.after:
            return math.inf
        return rule.delay if index == 0 else rule.token_delay

    def _delta(self, token: int, request: GenerateRequest) -> Delta:
        piece = self._words[token]
        logprobs: tuple[TokenLogprob, ...] = ()
        if request.top_logprobs is not None:
            first = _logprob(token)
            top = (TopLogprob(token=token, piece=piece, logprob=first),)
            top += tuple(
                TopLogprob(token=_FIRST_WORD + rank, piece=f"alternative {rank}", logprob=first - rank)
                for rank in range(1, request.top_logprobs)
            )
            logprobs = (TokenLogprob(token=token, piece=piece, logprob=first, top=top[: request.top_logprobs]),)
        return Delta(text=piece, tokens=(token,), logprobs=logprobs)

    def _render(self, prompt: Prompt) -> tuple[tuple[int, ...], str]:
        """Token ids and text of a prompt; contents never become the ids of roles or turns."""
        if prompt.tokens is not None:
            return prompt.tokens, "".join(self._words.get(token, "") for token in prompt.tokens)
        if prompt.text is not None:
            return self._tokens(prompt.text), prompt.text
        ids: list[int] = []
        for message in prompt.messages or ():
            ids += [_ROLES[message.role], *self._tokens(message.content), _END_OF_TURN]
        return (*ids, _ROLES["assistant"]), "\n".join(message.content for message in prompt.messages or ())

    def _tokens(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        for word in _split(text):
            token = _FIRST_WORD + zlib.crc32(word.encode("utf-8", "replace")) % (_VOCABULARY - _FIRST_WORD)
            while self._words.setdefault(token, word) != word:  # two words of one checksum
                token = _FIRST_WORD + (token + 1) % (_VOCABULARY - _FIRST_WORD)
            ids.append(token)
        return tuple(ids)

    def _rule(self, text: str) -> Rule:
        return next(rule for rule in self._rules if re.search(rule.match, text))


def _split(text: str) -> list[str]:
    """Words with the space before them; nothing is lost."""
    return re.findall(r"\s*\S+|\s+$", text)


def _cut(text: str, stops: Sequence[str]) -> str:
    ends = [found for stop in stops if (found := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


def _logprob(token: int) -> float:
    return -(token % 1000 + 1) / 10_000


def _bag_of_words(text: str) -> tuple[float, ...]:
    vector = [0.0] * _DIMENSIONS
    for word in re.findall(r"\w+", text.lower()) or [""]:
        digest = hashlib.sha256(word.encode("utf-8", "replace")).digest()
        vector[digest[0] % _DIMENSIONS] += 1.0
    norm = math.sqrt(sum(value * value for value in vector))
    return tuple(value / norm for value in vector)
