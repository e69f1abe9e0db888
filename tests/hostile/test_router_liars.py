"""Experts of other nodes that lie while they stream, as the router that asked them sees it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from gnusnode.contracts.generation import Delta, Done, GenerateRequest, Started
from gnusnode.contracts.swarm import Tier
from gnusnode.errors import RecordRefused, RequestError
from roles.router.facts import PeerFacts
from tests.fakes.workers import END, ByteEngine, Fault, Worker, net
from tests.fakes.world import task, text_of


@pytest.mark.parametrize(
    "lie", [{"text": "x" * 100_000, "tokens": ()}, {"text": "", "tokens": ()}], ids=["long", "mute"]
)
async def test_words_without_tokens_and_words_that_say_nothing_are_bounded_too(lie: dict[str, Any]) -> None:
    class Liar(ByteEngine):
        async def _events(self, request: GenerateRequest) -> AsyncGenerator[Started | Delta | Done, None]:
            async with aclosing(super()._events(request)) as items:
                async for item in items:
                    for _ in range(100 if isinstance(item, Delta) else 1):
                        yield item.model_copy(update=lie if isinstance(item, Delta) else {})

    liar = Worker(Liar(), facts=PeerFacts(Tier.C, 0.9))
    async with net([liar, Worker(ByteEngine())]) as swarm:
        seen, error = await swarm.ask(task(max_tokens=64))
        assert swarm.reports[0] == (liar.peer, "record_refused")
    assert len(text_of(seen)) < 100_000
    assert error is None or isinstance(error, RecordRefused)


async def test_that_nobody_can_go_on_from_a_liars_tokens_is_not_held_against_the_request() -> None:
    class Liar(ByteEngine):
        async def _events(self, request: GenerateRequest) -> AsyncGenerator[Started | Delta | Done, None]:
            async with aclosing(super()._events(request)) as items:
                async for item in items:
                    yield item.model_copy(update={"tokens": (2**31 - 1,)} if isinstance(item, Delta) else {})

    class Strict(ByteEngine):
        async def _events(self, request: GenerateRequest) -> AsyncGenerator[Started | Delta | Done, None]:
            if any(token > END for token in request.resume_tokens):
                raise RequestError("a token is outside the vocabulary", param="resume_tokens")
            async with aclosing(super()._events(request)) as items:
                async for item in items:
                    yield item

    liar = Worker(Liar(), Fault("word", 5), facts=PeerFacts(Tier.C, 0.9))
    async with net([liar, Worker(Strict())]) as swarm:
        _, error = await swarm.ask(task(max_tokens=64))
    assert isinstance(error, RecordRefused)
