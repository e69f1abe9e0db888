"""An answer that breaks off at token 20 goes on in another process of the same model, and is the same answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from gnusnode.contracts.generation import ContextProfile
from gnusnode.contracts.services import ChoiceDone
from gnusnode.contracts.swarm import Tier
from gnusnode.inference.engine import Engine
from gnusnode.inference.frames import ChildSpec
from gnusnode.inference.process import open_llama
from roles.router.facts import PeerFacts
from tests.fakes.engines import ARTIFACT, real_model
from tests.fakes.workers import Fault, Worker, net
from tests.fakes.world import of_kind, task, text_of

pytestmark = pytest.mark.model

PROMPTS = ("Tell me a story about a fox.", "Describe how a bicycle works.", "Why is the sky blue?")
PATIENCE = 110.0


@asynccontextmanager
async def two_processes(profile: ContextProfile) -> AsyncGenerator[tuple[Engine, Engine], None]:
    spec = ChildSpec(
        model_path=str(real_model()),
        model_name="smollm2",
        artifact_hash=ARTIFACT,
        n_ctx=512,
        slots=2,
        threads=1,
        profile=profile,
    )
    async with open_llama(spec) as one, open_llama(spec) as other:
        yield one, other


async def answer(
    prompt: str, profile: ContextProfile, engines: tuple[Engine, Engine], fault: Fault | None = None
) -> str:
    """The text that two workers give, the first of which suffers ``fault``."""
    first = Worker(engines[0], fault, facts=PeerFacts(Tier.C, 1.0))
    second = Worker(engines[1], facts=PeerFacts(Tier.C, 0.2))
    async with net([first, second]) as swarm:
        seen, error = await swarm.ask(task(prompt, max_tokens=48, profile=profile, sampling={"temperature": 0.0}))
    assert error is None
    [done] = of_kind(seen, ChoiceDone)
    assert done.output.signer == (second if fault else first).peer
    assert done.resumed == (fault is not None)
    return text_of(seen)


@pytest.mark.requirement("G-RL-1")
async def test_in_the_canonical_profile_a_resumed_answer_is_the_uninterrupted_one_to_the_byte() -> None:
    profile = ContextProfile.CANONICAL
    with trio.fail_after(PATIENCE):
        async with two_processes(profile) as engines:
            for prompt in PROMPTS:
                whole = await answer(prompt, profile, engines)
                assert await answer(prompt, profile, engines, Fault("word", 20)) == whole


async def test_in_the_throughput_profile_a_resumed_answer_goes_on_where_it_stopped(
    record_property: Callable[[str, object], None],
) -> None:
    """Bits are not promised here; they agree all the same where nothing else runs: delivered tokens are fed alone."""
    profile = ContextProfile.THROUGHPUT
    with trio.fail_after(PATIENCE):
        async with two_processes(profile) as engines:
            pairs = [
                (await answer(prompt, profile, engines), await answer(prompt, profile, engines, Fault("word", 20)))
                for prompt in PROMPTS
            ]
    record_property("identical", sum(whole == resumed for whole, resumed in pairs))
    for whole, resumed in pairs:
        assert resumed[:40] == whole[:40]
    assert any(whole == resumed for whole, resumed in pairs)
