"""How long an answer of an expert will take, from its queue and its measured rates. Pure; in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gnusnode.contracts.generation import EngineInfo, EngineState
from gnusnode.contracts.services import TaskRequest

SECONDS_UNTIL_READY: Final = {
    EngineState.READY: 0.0,
    EngineState.RESTARTING: 2.0,
    EngineState.STARTING: 5.0,
    EngineState.STOPPED: 10.0,
}
"""Rough time until an engine in this state works; one that is stopped is loaded by its first request.

What is missing here (quarantine) does not come back by itself.
"""
_UNMEASURED_RATE: Final = 10.0
"""Tokens per second that an engine counts as before it measured itself."""
_TYPICAL_ANSWER: Final = 256
"""Tokens that a job in the queue is assumed to take."""
_CHARS_PER_TOKEN: Final = 4
_STALE_SECONDS: Final = 15.0
"""News of a free slot that is older than this, a heartbeat and a half, is not counted on."""


@dataclass(frozen=True)
class Estimate:
    """The parts of an answer's time.

    Attributes:
        wait: until a slot is free.
        loading: until the engine works.
        prefill: until the prompt is read.
        answer: from the first word to the last.
    """

    wait: float
    loading: float
    prefill: float
    answer: float

    @property
    def until_first(self) -> float:
        """Until the first word."""
        return self.wait + self.loading + self.prefill

    @property
    def total(self) -> float:
        return self.until_first + self.answer


def estimate(
    engine: EngineInfo, request: TaskRequest, *, warm: bool = False, mine: int = 0, age_seconds: float = 0.0
) -> Estimate:
    """Expected loading, waiting, prefill and decode of one answer.

    Args:
        warm: the engine holds the prompt in its cache.
        mine: drafts that it makes for this router now, of which it may not have told yet.
        age_seconds: how old its own figures are.
    """
    decode = engine.decode_rate or _UNMEASURED_RATE
    prefill = engine.prefill_rate or 4 * decode
    load = max(engine.slots - engine.free_slots + engine.queued, mine)
    ahead = max(0, load - engine.slots + 1)
    if age_seconds > _STALE_SECONDS:
        ahead = max(ahead, 1)
    # The rate is that of the whole engine: the streams that run share it with this one.
    streams = max(1, min(load + 1, engine.slots))
    return Estimate(
        wait=ahead * _TYPICAL_ANSWER / decode,
        loading=SECONDS_UNTIL_READY.get(engine.state, 0.0),
        prefill=0.0 if warm else prompt_tokens(request) / prefill,
        answer=min(request.generation.max_tokens, _TYPICAL_ANSWER) * streams / decode,
    )


def is_cramped(engine: EngineInfo, request: TaskRequest) -> bool:
    """Whether prompt and answer are likely too long for the engine's context."""
    return 0 < engine.n_ctx < prompt_tokens(request) + request.generation.max_tokens


def prompt_tokens(request: TaskRequest) -> float:
    """Tokens of the prompt, guessed where they are not given."""
    prompt = request.generation.prompt
    if prompt.tokens is not None:
        return len(prompt.tokens)
    if prompt.text is not None:
        return len(prompt.text) / _CHARS_PER_TOKEN
    return sum(len(message.content) for message in prompt.messages or ()) / _CHARS_PER_TOKEN
