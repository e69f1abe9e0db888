"""Experts that work for other nodes: whom they serve, how they show that they live, and how they go on for another."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from gnusnode.contracts.generation import EmbedRequest
from gnusnode.contracts.roster import Roster
from gnusnode.contracts.services import ChoiceResume, DraftBeat, DraftRequest, ModelCall, TaskRequest
from gnusnode.contracts.verify import verify
from gnusnode.errors import Forbidden, Overloaded, RateLimited, RecordRefused, RequestError
from gnusnode.identity import NodeIdentity
from gnusnode.net.local import LocalRpc
from gnusnode.net.rpc import CallContext
from gnusnode.observe.observer import Observer
from roles.experts.hosting import Host
from roles.experts.service import ExpertService
from roles.ports import RoleContext
from tests.fakes.world import FakeEngine, FakeEngines, expert, task
from tests.unit.test_experts_draft import NOW, TIME, Bench, bench


class FromPeer:
    """The handlers of an expert service as a peer reaches them: the transport says who calls."""

    def __init__(self, engine: FakeEngine, caller: str, **options: Any) -> None:
        self.identity = NodeIdentity(bytes(range(32)))
        self.router = NodeIdentity(bytes([9] * 32))
        self.caller = caller or self.router.peer_id
        everyone = Roster.solo(self.identity.peer_id)
        grant = everyone.grants[self.identity.peer_id]
        self.roster = replace(everyone, grants={self.identity.peer_id: grant, self.router.peer_id: grant})
        node = RoleContext(
            self.identity,
            self.roster.swarm_id,
            lambda record: verify(record, NOW, self.roster),
            lambda: NOW,
            Observer.create(),
        )
        host = Host("core", [expert(engine.model)], FakeEngines({engine.model: engine}))
        self.service = ExpertService(host, node, **options).service()

    def context(self) -> CallContext:
        return CallContext("r", time.monotonic() + 600, caller=self.caller)

    async def draft(self, request: TaskRequest, **changes: Any) -> list[Any]:
        signs = Bench(LocalRpc("x"), self.router, self.roster, Observer.create())
        asked = DraftRequest(
            plan=signs.plan(request),
            expert_id="fake",
            expert_role="semantic_core",
            model="fake",
            generation=request.generation,
            choices=request.choices,
            **changes,
        )
        said: list[Any] = []

        async def send(item: Any) -> None:
            said.append(item)

        await self.service.streams["draft"](asked, self.context(), send)
        return said


async def test_a_draft_is_claimed_at_once_with_the_whole_sampler_chain():
    engine = FakeEngine()
    first, *rest = await FromPeer(engine, "").draft(task(), open_sampling=("temperature",))
    assert isinstance(first, DraftBeat)
    assert first.sampling == engine.requests[0].sampling
    assert not [item for item in rest if isinstance(item, DraftBeat)]


async def test_an_expert_that_is_at_work_says_so_while_it_has_nothing_to_tell(autojump_clock: trio.testing.MockClock):
    engine = FakeEngine(hold=trio.Event())
    peer = FromPeer(engine, "", beat_seconds=3.0)
    said: list[Any] = []

    async def ask() -> None:
        said.extend(await peer.draft(task()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(10)
        assert engine.hold is not None
        engine.hold.set()
    assert [type(item).__name__ for item in said[:5]] == ["DraftBeat", "ChoiceDelta"] + ["DraftBeat"] * 3
    assert len([item for item in said if isinstance(item, DraftBeat)]) == 4


async def test_a_plan_serves_the_router_that_signed_it_and_nobody_who_got_hold_of_it():
    engine = FakeEngine()
    with pytest.raises(RecordRefused, match="another node than the one that asks"):
        await FromPeer(engine, NodeIdentity(bytes([8] * 32)).peer_id).draft(task())
    assert engine.requests == []


async def test_whatever_a_peer_asks_for_counts_as_one_tenant_and_our_own_stay_who_they_are():
    engine = FakeEngine()
    for tenant in ("a", "b"):
        await FromPeer(engine, "").draft(task(tenant=tenant))
    assert {request.tenant for request in engine.requests} == {f"peer:{NodeIdentity(bytes([9] * 32)).peer_id}"}
    engine = FakeEngine()
    async with bench(engine) as node:
        await node.draft(task(tenant="a"))
    assert engine.requests[0].tenant == "a"


async def test_too_much_of_one_peer_is_no_fault_of_its_users():
    engine = FakeEngine(fails=RateLimited("64 requests of peer:x are waiting already", retry_after=4.0))
    with pytest.raises(Overloaded) as caught:
        await FromPeer(engine, "").draft(task())
    assert caught.value.retry_after == 4.0


async def test_without_a_plan_only_peers_of_a_trusted_tier_are_served():
    call = ModelCall(embed=EmbedRequest(request_id=task().generation.request_id, texts=("a",)))
    stranger = FromPeer(FakeEngine(embeds=True), "")
    with pytest.raises(Forbidden):
        await stranger.service.unary["embed"](call, stranger.context())
    friend = FromPeer(FakeEngine(embeds=True), "", trusts=lambda peer: peer == stranger.router.peer_id)
    assert await friend.service.unary["embed"](call, friend.context())


async def test_only_the_choices_that_are_missing_are_made_and_only_the_rest_is_signed():
    engine = FakeEngine()
    async with bench(engine) as node:
        resume = (ChoiceResume(index=2, tokens=(0, 1)),)
        items = await node.draft(task(choices=3, tools=[TIME]), resume=resume, tools=(TIME,))
    assert {item.index for item in items} == {2}
    [asked] = engine.requests
    assert (asked.resume_tokens, asked.sampling.seed) == ((0, 1), 3)
    assert engine.classified == [], "words were shown already: no tool call can follow"


@pytest.mark.parametrize(
    "resume",
    [
        (ChoiceResume(index=1), ChoiceResume(index=1)),
        (ChoiceResume(index=2),),
        (ChoiceResume(index=0, tokens=tuple(range(51))),),
    ],
)
async def test_what_cannot_be_resumed_is_refused(resume: tuple[ChoiceResume, ...]):
    engine = FakeEngine()
    async with bench(engine) as node:
        with pytest.raises(RequestError, match=r"resume|delivered"):
            await node.draft(task(choices=2), resume=resume)
    assert engine.requests == []
