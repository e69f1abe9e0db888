"""Router and experts over the swarm's own rpc on the in-memory network: connections break, fall silent, are slow."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import pytest
import trio
import trio.testing

from gnusnode.contracts.services import INGRESS_CHAT, METHODS, ChoiceDelta, ChoiceDone, TaskDone
from gnusnode.contracts.swarm import Tier
from gnusnode.errors import GnusError, PeerUnreachable
from gnusnode.identity import NodeIdentity
from gnusnode.inference.scripted import Rule, ScriptedEngine
from gnusnode.net.rpc import CallContext, Rpc
from roles.router.facts import PeerFacts
from tests.fakes.swarm import Swarm, swarm_of
from tests.fakes.workers import Net, Worker, net
from tests.fakes.world import Event, of_kind, task, text_of

STORY = " ".join(f"word{number}" for number in range(60))


def worker(reputation: float) -> Worker:
    engine = ScriptedEngine("story", [Rule(answer=STORY, token_delay=0.05)], fixture=True)
    return Worker(engine, facts=PeerFacts(Tier.C, reputation))


@dataclass
class Lab:
    swarm: Swarm
    net: Net
    workers: list[Worker]

    async def ask(self, cut_at: int | None = None, *, silent: bool = False) -> tuple[list[Event], GnusError | None]:
        """Asks, and cuts the first worker off after so many tokens."""
        request = task()
        seen: list[Event] = []
        context = CallContext(request.generation.request_id, time.monotonic() + 600)
        try:
            async with self.net.rpc.stream(INGRESS_CHAT, request, context) as items:
                async for item in items:
                    seen.append(item)
                    tokens = sum(len(delta.delta.tokens) for delta in of_kind(seen, ChoiceDelta))
                    if isinstance(item, ChoiceDelta) and tokens == cut_at:
                        self.swarm.network.cut(self.workers[0].peer, silent=silent)
        except GnusError as error:
            return seen, error
        return seen, None


@asynccontextmanager
async def lab(count: int) -> AsyncGenerator[Lab, None]:
    workers = [worker(0.9 - 0.1 * number) for number in range(count)]
    router = NodeIdentity.generate()
    async with AsyncExitStack() as stack:
        peers = (router.peer_id, *(one.peer for one in workers))
        swarm = await stack.enter_async_context(swarm_of(*peers, methods=METHODS))

        def over(identity: NodeIdentity) -> Rpc:
            assert identity is router
            return swarm[router.peer_id].rpc

        node = await stack.enter_async_context(net(workers, identity=router, over=over))
        for one in workers:
            assert one.service is not None
            await stack.enter_async_context(swarm[one.peer].rpc.serve(one.service))
            await swarm.connect(router.peer_id, one.peer)
        yield Lab(swarm, node, workers)


@pytest.mark.requirement("G-FL-1")
async def test_a_remote_worker_answers_and_the_whole_answer_comes(autojump_clock: trio.testing.MockClock):
    async with lab(1) as swarm:
        seen, error = await swarm.ask()
    assert error is None
    assert text_of(seen) == STORY
    assert of_kind(seen, TaskDone)[0].node == swarm.workers[0].peer


@pytest.mark.requirement("G-RL-1")
@pytest.mark.parametrize("silent", [False, True], ids=["reset", "mute"])
async def test_a_connection_that_breaks_at_token_20_costs_no_word(silent: bool, autojump_clock: trio.testing.MockClock):
    async with lab(2) as swarm:
        begin = trio.current_time()
        seen, error = await swarm.ask(20, silent=silent)
        took = trio.current_time() - begin
    assert error is None
    assert text_of(seen) == STORY
    [done] = of_kind(seen, ChoiceDone)
    assert (done.resumed, done.output.signer) == (True, swarm.workers[1].peer)
    assert took < (40 if silent else 5)


@pytest.mark.parametrize("silent", [False, True], ids=["reset", "mute"])
async def test_without_a_second_holder_the_stream_ends_with_a_typed_error(
    silent: bool, autojump_clock: trio.testing.MockClock
):
    async with lab(1) as swarm:
        begin = trio.current_time()
        seen, error = await swarm.ask(20, silent=silent)
        took = trio.current_time() - begin
    assert isinstance(error, PeerUnreachable)
    assert not of_kind(seen, ChoiceDone)
    assert STORY.startswith(text_of(seen))
    assert took < (40 if silent else 2)


async def test_a_way_of_300_ms_is_no_reason_to_give_up(autojump_clock: trio.testing.MockClock):
    async with lab(2) as swarm:
        swarm.swarm.network.delay(0.15)
        for one in swarm.workers:
            one.facts = replace(one.facts, rtt_seconds=0.3)
        seen, error = await swarm.ask()
    assert error is None
    assert text_of(seen) == STORY
    [end] = of_kind(seen, TaskDone)
    assert (end.node, end.rerouted) == (swarm.workers[0].peer, 0)


async def test_a_worker_stops_when_the_router_is_gone(autojump_clock: trio.testing.MockClock):
    async with lab(1) as swarm, trio.open_nursery() as nursery:
        nursery.start_soon(swarm.ask)
        await trio.sleep(1)
        [one] = swarm.workers
        assert one.experts is not None
        assert one.experts.drafts == 1
        swarm.swarm.network.cut(one.peer)
        await trio.sleep(0.2)
        assert one.experts.drafts == 0
        nursery.cancel_scope.cancel()
