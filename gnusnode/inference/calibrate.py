"""Which determinism class an artifact has on this machine, found out by trying."""

from __future__ import annotations

import uuid
from typing import Final, Literal

import trio

from gnusnode.contracts.generation import ContextProfile, Delta, Done, GenerateRequest, Prompt, TokenLogprob
from gnusnode.errors import GnusError
from gnusnode.inference.engine import Engine

Determinism = Literal["A", "B", "C"]

_PROMPT: Final = "A short description of the sea at night, in plain words:"
_TOKENS: Final = 24
_TOGETHER: Final = 3

_Trace = tuple[tuple[int, ...], tuple[TokenLogprob, ...]]


async def determinism_class(engine: Engine) -> Determinism:
    """Compares one generation alone with the same one batched with itself, on a canonical engine.

    A: tokens and log-probabilities are the same to the last bit. B: they differ, so an answer that another run takes
    over is a valid continuation and not the same text. Costs some hundred decoded tokens.

    Raises:
        GnusError: the engine failed.
    """
    alone = await _trace(engine)
    traces: list[_Trace] = []
    failures: list[GnusError] = []

    async def one() -> None:
        try:
            traces.append(await _trace(engine))
        except GnusError as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(_TOGETHER):
            nursery.start_soon(one)
    if failures:
        raise failures[0]
    return "A" if all(trace == alone for trace in traces) else "B"


async def _trace(engine: Engine) -> _Trace:
    request = GenerateRequest(
        request_id=str(uuid.uuid4()),
        prompt=Prompt(text=_PROMPT),
        max_tokens=_TOKENS,
        top_logprobs=2,
        profile=ContextProfile.CANONICAL,
    )
    tokens: tuple[int, ...] = ()
    logprobs: list[TokenLogprob] = []
    async with engine.generate(request) as events:
        async for event in events:
            if isinstance(event, Delta):
                logprobs += event.logprobs
            elif isinstance(event, Done):
                tokens = event.tokens
    return tokens, tuple(logprobs)
