"""What the swarm's rpc promises beyond the port: peers that die, fall silent, are refused, or break the protocol."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import trio
import trio.testing
from pydantic import TypeAdapter

from gnusnode.contracts import services
from gnusnode.contracts.base import Record
from gnusnode.contracts.methods import StreamMethod, UnaryMethod
from gnusnode.errors import (
    Conflict,
    DeadlineExceeded,
    Forbidden,
    GnusError,
    NoExpert,
    Overloaded,
    PeerUnreachable,
    ProtocolViolation,
    RequestError,
    Unavailable,
)
from gnusnode.net import frames
from gnusnode.net.link import PROTOCOL, RpcOptions
from gnusnode.net.port import MessageStream
from gnusnode.net.rpc import CallContext, Service
from tests.fakes.swarm import Member, Swarm, swarm_of

A, B, C = "12D3KooWPeerA", "12D3KooWPeerB", "12D3KooWPeerC"
ID = "11111111-1111-4111-8111-111111111111"
WINDOW = 4096


class Ask(Record):
    record_name: ClassVar[str] = "ask"
    max_bytes: ClassVar[int] = 8 * 1024 * 1024

    text: str = ""


class Reply(Record):
    record_name: ClassVar[str] = "reply"

    text: str


ECHO = UnaryMethod("test", "echo", Ask, Reply)
COUNT = StreamMethod[Ask, Reply]("test", "count", Ask, TypeAdapter(Reply))


def context(seconds: float = 600.0, **more: Any) -> CallContext:
    return CallContext(request_id=ID, deadline=time.monotonic() + seconds, **more)


class Handlers:
    """``echo`` answers at once unless held; ``count`` sends the parts of the text and then waits if held."""

    def __init__(self, *, held: bool = False) -> None:
        self.seen: list[CallContext] = []
        self.running = 0
        self.release = trio.Event()
        if not held:
            self.release.set()

    def service(self) -> Service:
        return Service("test", {"echo": self.echo}, {"count": self.count})

    async def echo(self, ask: Ask, ctx: CallContext) -> Reply:
        await self._hold(ctx)
        return Reply(text=ask.text)

    async def count(self, ask: Ask, ctx: CallContext, send: Callable[[Reply], Any]) -> None:
        for part in ask.text.split():
            await send(Reply(text=part))
        await self._hold(ctx)

    async def _hold(self, ctx: CallContext) -> None:
        self.seen.append(ctx)
        self.running += 1
        try:
            await self.release.wait()
        finally:
            self.running -= 1


@asynccontextmanager
async def three(**options: Any) -> AsyncGenerator[Swarm, None]:
    """A is connected to B and C."""
    async with swarm_of(A, B, C, methods=(ECHO, COUNT), options=RpcOptions(window=WINDOW, **options)) as swarm:
        await swarm.connect(A, B)
        await swarm.connect(A, C)
        yield swarm


async def echo(member: Member, text: str = "hi", **more: Any) -> str:
    return (await member.rpc.call(ECHO, Ask(text=text), context(), **more)).text


async def outcome(work: Callable[[], Any]) -> GnusError | None:
    try:
        await work()
    except GnusError as error:
        return error
    return None


# --- where a call goes ------------------------------------------------------------------------------------------------


async def test_what_this_node_serves_never_touches_the_wire():
    async with three() as swarm, swarm[A].rpc.serve(Handlers().service()), swarm[B].rpc.serve(Handlers().service()):
        assert await echo(swarm[A]) == "hi"
        assert await echo(swarm[A], peer=A) == "hi"
        async with swarm[A].rpc.stream(COUNT, Ask(text="a b"), context()) as items:
            assert [item.text async for item in items] == ["a", "b"]
        assert swarm[A].net.statistics().bytes_out == 0


async def test_a_service_is_offered_while_anybody_serves_it():
    async with three() as swarm:
        assert not swarm[A].rpc.offers("test")
        with pytest.raises(NoExpert, match="test"):
            await echo(swarm[A])
        async with swarm[C].rpc.serve(Handlers().service()):
            assert swarm[A].rpc.offers("test")
            assert await echo(swarm[A]) == "hi"


async def test_a_named_peer_is_asked_and_no_other():
    async with three() as swarm:
        b, c = Handlers(), Handlers()
        async with swarm[B].rpc.serve(b.service()), swarm[C].rpc.serve(c.service()):
            await echo(swarm[A], peer=C)
            assert (len(b.seen), len(c.seen)) == (0, 1)
            swarm.network.cut(A, C)
            with pytest.raises(PeerUnreachable):
                await echo(swarm[A], peer=C)
            assert (len(b.seen), len(c.seen)) == (0, 1)


@pytest.mark.parametrize("lost", ["before", "during"])
async def test_a_peer_that_is_lost_before_it_answers_is_replaced_by_the_next_best_once(lost: str):
    async with three() as swarm:
        b, c = Handlers(held=True), Handlers()
        async with swarm[B].rpc.serve(b.service()), swarm[C].rpc.serve(c.service()), trio.open_nursery() as nursery:
            texts: list[str] = []

            async def call() -> None:
                texts.append(await echo(swarm[A]))

            async def stream() -> None:
                async with swarm[A].rpc.stream(COUNT, Ask(text="x y"), context()) as items:
                    texts.extend([item.text async for item in items])

            if lost == "before":
                swarm.network.cut(A, B)
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            assert len(b.seen) == (1 if lost == "during" else 0)
            swarm.network.cut(A, B)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(stream)
        assert sorted(texts) == ["hi", "x", "y"]
        assert len(c.seen) == 2


async def test_a_peer_that_is_lost_after_an_item_is_not_replaced():
    async with three() as swarm:
        b, c = Handlers(held=True), Handlers()
        async with swarm[B].rpc.serve(b.service()), swarm[C].rpc.serve(c.service()):
            async with swarm[A].rpc.stream(COUNT, Ask(text="first"), context()) as items:
                assert (await anext(aiter(items))).text == "first"
                swarm.network.cut(A, B)
                with pytest.raises(PeerUnreachable):
                    await anext(aiter(items))
            assert c.seen == []


async def test_one_stream_to_a_peer_is_opened_for_all_who_wait_for_it_and_again_after_it_broke():
    async with three() as swarm, swarm[B].rpc.serve(Handlers().service()):
        opened: list[str] = []
        real = swarm[A].net.open_stream

        async def counted(peer: str, protocol: str) -> MessageStream:
            opened.append(peer)
            return await real(peer, protocol)

        swarm[A].net.open_stream = counted  # type: ignore[method-assign] - to count
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(echo, swarm[A], str(number))
        assert opened == [B]
        assert swarm[A].rpc.statistics().links == 1
        swarm.network.cut(A, B)
        swarm.network.heal(A, B)
        await trio.testing.wait_all_tasks_blocked()
        assert swarm[A].rpc.statistics().links == 0
        await swarm.connect(A, B)
        assert await echo(swarm[A]) == "hi"
        assert opened == [B, B]


async def test_every_declared_method_may_be_named_by_peers():
    declared = [value for value in vars(services).values() if isinstance(value, UnaryMethod | StreamMethod)]
    assert sorted(map(id, services.METHODS)) == sorted(map(id, declared))


# --- what travels -----------------------------------------------------------------------------------------------------


async def test_caller_deadline_trace_and_plan_travel_and_a_false_trace_does_not():
    plan, trace = "sha256:" + "a" * 64, "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    handlers = Handlers()
    async with three() as swarm, swarm[B].rpc.serve(handlers.service()):
        await swarm[A].rpc.call(ECHO, Ask(), context(20, caller="forged", traceparent=trace, plan_digest=plan))
        await swarm[A].rpc.call(ECHO, Ask(), context(20, traceparent="00-not-a-trace"))
    first, second = handlers.seen
    assert (first.caller, first.request_id, first.plan_digest, first.traceparent) == (A, ID, plan, trace)
    assert 15 < first.remaining() <= 20
    assert (second.caller, second.plan_digest, second.traceparent) == (A, None, None)


async def test_an_id_that_cannot_travel_is_the_callers_fault_and_leaves_the_link_whole():
    async with three() as swarm, swarm[B].rpc.serve(Handlers().service()):
        for wrong in ({"request_id": "x" * 500}, {"plan_digest": "no digest"}, {"traceparent": "\ud800"}):
            with pytest.raises(RequestError, match="cannot travel"):
                await swarm[A].rpc.call(ECHO, Ask(), replace(context(), **wrong))
        assert await echo(swarm[A]) == "hi"


async def test_bodies_of_many_parts_arrive_whole_both_ways():
    async with three() as swarm, swarm[B].rpc.serve(Handlers().service()):
        text = "".join(map(str, range(50_000)))
        with pytest.raises(RequestError, match="allowed"):
            await echo(swarm[A], "x" * Ask.max_bytes)
        assert await echo(swarm[A], text[:200_000]) == text[:200_000]
        async with swarm[A].rpc.stream(COUNT, Ask(text=text), context()) as items:
            assert [item.text async for item in items] == [text]


async def test_a_reader_that_takes_nothing_slows_only_its_own_handler():
    async with three() as swarm, swarm[B].rpc.serve(Handlers().service()):
        many = " ".join(["x" * 100] * 500)
        async with swarm[A].rpc.stream(COUNT, Ask(text=many), context()) as slow:
            await trio.testing.wait_all_tasks_blocked()
            assert await echo(swarm[A]) == "hi"
            async with swarm[A].rpc.stream(COUNT, Ask(text="a b"), context()) as quick:
                assert [item.text async for item in quick] == ["a", "b"]
            assert swarm[A].net.statistics().bytes_in < 3 * WINDOW
            assert len([item async for item in slow]) == 500


# --- the end of a call ------------------------------------------------------------------------------------------------


async def test_the_death_of_a_peer_fails_its_calls_at_once_and_ends_what_runs_for_it():
    handlers = Handlers(held=True)
    async with three() as swarm, swarm[B].rpc.serve(handlers.service()):
        outcomes: list[GnusError | None] = []

        async def call(**more: Any) -> None:
            outcomes.append(await outcome(lambda: echo(swarm[A], peer=B)))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            assert handlers.running == 3
            swarm.network.cut(A, B)
            await trio.testing.wait_all_tasks_blocked()
            assert [type(error) for error in outcomes] == [PeerUnreachable] * 3
            assert handlers.running == 0
            assert swarm[B].rpc.statistics().running == {}


async def test_a_cable_that_is_cut_fails_what_runs_over_it(autojump_clock: trio.testing.MockClock):
    handlers = Handlers(held=True)
    async with three() as swarm, swarm[B].rpc.serve(handlers.service()), trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(PeerUnreachable):
                await echo(swarm[A], peer=B)

        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        start = trio.current_time()
        swarm.network.cut(A, B, silent=True)
        with pytest.raises(PeerUnreachable):
            await echo(swarm[A], peer=B)
        assert trio.current_time() - start <= 30
        await trio.sleep(1)
        assert handlers.running == 0


async def test_a_network_that_stops_fails_what_runs_and_refuses_what_comes():
    handlers = Handlers(held=True)
    async with swarm_of(A, B, methods=(ECHO, COUNT)) as swarm, swarm[B].rpc.serve(handlers.service()):
        await swarm.connect(A, B)
        outcomes: list[GnusError | None] = []
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                outcomes.append(await outcome(lambda: echo(swarm[A], peer=B)))

            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            swarm[A].stop()
        assert [type(error) for error in outcomes] == [Unavailable]
        with pytest.raises(Unavailable, match="no network"):
            await echo(swarm[A], peer=B)
        await trio.testing.wait_all_tasks_blocked()
        assert handlers.running == 0


async def test_a_handler_that_says_nothing_for_long_is_no_silent_peer(autojump_clock: trio.testing.MockClock):
    handlers = Handlers(held=True)
    async with three() as swarm, swarm[B].rpc.serve(handlers.service()), trio.open_nursery() as nursery:
        texts: list[str] = []

        async def call() -> None:
            texts.append(await echo(swarm[A]))

        nursery.start_soon(call)
        await trio.sleep(300)
        assert handlers.running == 1
        handlers.release.set()
    assert texts == ["hi"]


# --- who may call -----------------------------------------------------------------------------------------------------


async def test_a_refused_peer_gets_the_reason_and_nothing_else_is_answered_to_it():
    handlers = Handlers()
    async with three() as swarm, swarm[B].rpc.serve(handlers.service()):
        swarm[B].refused[A] = Forbidden("no certificate of this swarm", where=A)
        for _ in range(2):
            with pytest.raises(Forbidden, match="no certificate"):
                await echo(swarm[A], peer=B)
        assert handlers.seen == []
        del swarm[B].refused[A]
        await trio.testing.wait_all_tasks_blocked()
        assert await echo(swarm[A], peer=B) == "hi"


async def test_a_stream_that_is_refused_is_kept_for_a_moment_and_no_longer(autojump_clock: trio.testing.MockClock):
    async with three() as swarm, swarm[B].rpc.serve(Handlers().service()):
        swarm[B].refused[A] = Forbidden("not yet")
        admitted = await swarm[A].net.open_stream(B, PROTOCOL)
        await trio.sleep(4)
        del swarm[B].refused[A]
        await trio.sleep(60)
        await send(admitted, ask(1))
        assert isinstance((await answers(admitted))[0], frames.Response)
        swarm[B].refused[A] = Forbidden("no more")
        with pytest.raises(PeerUnreachable):
            await answers(admitted)


@pytest.mark.parametrize("noticed", ["by the next request", "while its calls run"])
async def test_a_revoked_peer_is_cut_off(noticed: str, autojump_clock: trio.testing.MockClock):
    handlers = Handlers(held=True)
    async with three() as swarm, swarm[B].rpc.serve(handlers.service()), trio.open_nursery() as nursery:
        outcomes: list[GnusError | None] = []

        async def call() -> None:
            outcomes.append(await outcome(lambda: echo(swarm[A], peer=B)))

        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        swarm[B].refused[A] = Forbidden("revoked")
        if noticed == "by the next request":
            nursery.start_soon(call)
            await trio.sleep(1)
        else:
            await trio.sleep(15)
        assert handlers.running == 0
        assert {type(error) for error in outcomes} == {Forbidden}


async def test_a_method_that_a_peer_may_not_call_is_refused_and_others_go_on():
    handlers = Handlers()
    async with three() as swarm, swarm[B].rpc.serve(handlers.service()):
        swarm[B].forbidden["test.echo"] = Forbidden("not with tier D")
        with pytest.raises(Forbidden, match="tier D"):
            await echo(swarm[A], peer=B)
        async with swarm[A].rpc.stream(COUNT, Ask(text="a"), context(), peer=B) as items:
            assert [item.text async for item in items] == ["a"]
        assert swarm[B].rpc.statistics().refused == 1


@pytest.mark.parametrize(("asked", "older"), [(2, B), (0, A)])
async def test_another_version_of_a_method_is_refused_with_the_older_node_named(asked: int, older: str):
    served = replace(ECHO, version=asked or 2)
    known = ECHO if asked else replace(ECHO, version=2)
    async with swarm_of(A, B, methods=(known,)) as swarm, swarm[B].rpc.serve(Handlers().service()):
        await swarm.connect(A, B)
        with pytest.raises(NoExpert, match=f"update the node {older}"):
            await swarm[A].rpc.call(served if asked else ECHO, Ask(), context(), peer=B)


async def test_a_method_that_nobody_declared_cannot_be_named():
    async with three() as swarm, swarm[B].rpc.serve(Handlers().service()):
        with pytest.raises(NoExpert, match="does not know the method"):
            await swarm[A].rpc.call(replace(ECHO, name="secret"), Ask(), context(), peer=B)


async def test_a_peer_has_so_many_calls_and_no_more_while_others_go_on():
    handlers = Handlers(held=True)
    async with three(max_calls=3) as swarm, swarm[B].rpc.serve(handlers.service()):
        await swarm.connect(C, B)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(echo, swarm[A])
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(Overloaded) as caught:
                await echo(swarm[A], peer=B)
            assert caught.value.retry_after is not None
            nursery.start_soon(echo, swarm[C])
            await trio.testing.wait_all_tasks_blocked()
            assert swarm[B].rpc.statistics().running == {A: 3, C: 1}
            handlers.release.set()
        assert await echo(swarm[A], peer=B) == "hi"


async def test_a_service_name_is_served_once_at_a_time():
    async with three() as swarm, swarm[B].rpc.serve(Handlers().service()):
        with pytest.raises(Conflict):
            async with swarm[B].rpc.serve(Handlers().service()):
                pass


# --- peers that break the protocol ------------------------------------------------------------------------------------


def ask(call: int = 1, *, more: bool = False, method: str = "echo", **changes: Any) -> bytes:
    head = frames.Request(call, "test", method, 1, ID, 60_000, WINDOW, Ask(text="a b").to_bytes(), more)
    return frames.request(replace(head, **changes))


async def send(stream: MessageStream, *encoded: bytes) -> None:
    await stream.send(frames.join(encoded))


async def answers(stream: MessageStream, count: int = 1) -> list[frames.Frame]:
    """The next ``count`` frames that are no signs of life."""
    found: list[frames.Frame] = []
    while len(found) < count:
        message = await stream.receive()
        assert message is not None
        found += [frame for frame in frames.decode(message) if not isinstance(frame, frames.Alive)]
    return found


HOSTILE: dict[str, Sequence[bytes]] = {
    "garbage": [b"\x81\xff\x00"],
    "no frames": [b"\x80"],
    "another spelling": [b"\x9f" + frames.end(1) + b"\xff"],
    "an unknown kind": [frames.join([b"\xa2dkindfsecret" + b"dcall\x01"])],
    "too large": [b"\x00" * (frames.MAX_MESSAGE + 1)],
    "an answer": [frames.join([frames.end(1)])],
    "an invented call": [frames.join([frames.cancel(7)])],
    "a part of an invented call": [frames.join([frames.body_frame("part", 3, b"x", more=False)])],
    "a call that begins twice": [frames.join([ask(5)]), frames.join([ask(5)])],
    "ids that fall": [frames.join([ask(5)]), frames.join([ask(4)])],
    "more of a whole request": [frames.join([ask(1), frames.body_frame("part", 1, b"x", more=False)])],
    "credit that was not used": [frames.join([ask(1), frames.credit(1, WINDOW)])],
}


@pytest.mark.parametrize("messages", HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_caller_that_breaks_the_protocol_loses_its_stream_and_its_calls_and_is_counted(
    messages: Sequence[bytes],
):
    handlers = Handlers(held=True)
    async with three() as swarm, swarm[B].rpc.serve(handlers.service()):
        stream = await swarm[A].net.open_stream(B, PROTOCOL)
        for message in messages:
            await stream.send(message)
        with pytest.raises(PeerUnreachable):
            await answers(stream, 100)
        await trio.testing.wait_all_tasks_blocked()
        assert swarm[B].rpc.statistics().violations == 1
        assert swarm[B].rpc.statistics().running == {}
        assert handlers.running == 0
        handlers.release.set()
        assert await echo(swarm[A], peer=B) == "hi"


@asynccontextmanager
async def answered_by(script: Callable[[MessageStream, frames.Request], Any]) -> AsyncGenerator[Member, None]:
    """A member whose peer B answers each request by ``script`` in place of a sound rpc."""
    async with swarm_of(A, methods=(ECHO, COUNT), options=RpcOptions(window=WINDOW)) as swarm:

        async def handle(stream: MessageStream) -> None:
            while (message := await stream.receive()) is not None:
                for frame in frames.decode(message):
                    if isinstance(frame, frames.Request):
                        await script(stream, frame)

        async with swarm.network.join(B) as b, b.serve(PROTOCOL, handle):
            await swarm[A].net.connect(B, b.addresses())
            yield swarm[A]


REPLY = Reply(text="x").to_bytes()
BROKEN: dict[str, Callable[[int], Sequence[bytes]]] = {
    "a request": lambda call: [ask(call)],
    "an answer to no call": lambda call: [frames.end(call + 1)],
    "an item of a unary call": lambda call: [frames.body_frame("item", call, REPLY, more=False)],
    "an end of a unary call": lambda call: [frames.end(call)],
    "a part of nothing": lambda call: [frames.body_frame("part", call, REPLY, more=False)],
    "a response too long": lambda call: frames.body_frames("res", call, b"x" * (Reply.max_bytes + 1)),
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN.keys())
async def test_a_callee_that_breaks_the_protocol_loses_its_stream_and_is_counted(answer: Callable[[int], Any]):
    async def script(stream: MessageStream, request: frames.Request) -> None:
        for frame in answer(request.call):
            await send(stream, frame)

    async with answered_by(script) as member:
        with pytest.raises(ProtocolViolation):
            await echo(member, peer=B)
        assert member.rpc.statistics().violations == 1
        assert member.rpc.statistics().links == 0


async def test_a_callee_that_sends_more_than_it_has_credit_for_loses_its_stream():
    async def script(stream: MessageStream, request: frames.Request) -> None:
        for _ in range(10):
            await send(stream, frames.body_frame("item", request.call, Reply(text="x" * 1000).to_bytes(), more=False))

    async with answered_by(script) as member:
        async with member.rpc.stream(COUNT, Ask(), context(), peer=B) as items:
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(ProtocolViolation, match="credit"):
                assert len([item async for item in items]) > 4
        assert member.rpc.statistics().violations == 1


@pytest.mark.parametrize("body", [b"\xff", Reply(text="x").to_bytes() + b"\x00", Ask(text="x").to_bytes()[:-1]])
async def test_an_answer_that_is_no_such_record_is_a_violation_of_its_call_only(body: bytes):
    async def script(stream: MessageStream, request: frames.Request) -> None:
        kind = "res" if request.method == "echo" else "item"
        await send(stream, frames.body_frame(kind, request.call, body, more=False))

    async with answered_by(script) as member:
        with pytest.raises(ProtocolViolation, match="wrong answer"):
            await echo(member, peer=B)
        with pytest.raises(ProtocolViolation, match="wrong answer"):
            async with member.rpc.stream(COUNT, Ask(), context(), peer=B) as items:
                await anext(aiter(items))
        assert member.rpc.statistics().violations == 2
        assert member.rpc.statistics().links == 1


async def test_answers_that_cross_with_a_cancel_are_ignored():
    requests: list[frames.Request] = []
    streams: list[MessageStream] = []

    async def script(stream: MessageStream, request: frames.Request) -> None:
        requests.append(request)
        streams.append(stream)
        if len(requests) == 2:
            await send(
                stream,
                frames.body_frame("item", requests[0].call, REPLY, more=False),
                frames.end(requests[0].call),
                frames.body_frame("res", request.call, REPLY, more=False),
            )

    async with answered_by(script) as member:
        async with member.rpc.stream(COUNT, Ask(), context(), peer=B):
            await trio.testing.wait_all_tasks_blocked()
        assert await echo(member, peer=B) == "x"
        assert member.rpc.statistics().violations == 0


async def test_a_call_that_is_cancelled_before_it_was_written_leaves_no_trace():
    reading = trio.Event()
    seen: list[frames.Frame] = []

    async def handle(stream: MessageStream) -> None:
        await reading.wait()
        while (message := await stream.receive()) is not None:
            seen.extend(frames.decode(message))

    async def call(member: Member, text: str, scope: trio.CancelScope) -> None:
        with scope:
            await echo(member, text, peer=B)

    async with swarm_of(A, methods=(ECHO,)) as swarm, swarm.network.join(B) as b, b.serve(PROTOCOL, handle):
        await swarm[A].net.connect(B, b.addresses())
        long, short = trio.CancelScope(), trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, swarm[A], "x" * 600_000, long)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(call, swarm[A], "short", short)
            await trio.testing.wait_all_tasks_blocked()
            short.cancel()
            await trio.testing.wait_all_tasks_blocked()
            reading.set()
            await trio.testing.wait_all_tasks_blocked()
            long.cancel()
        await trio.testing.wait_all_tasks_blocked()
    assert {frame.call for frame in seen if not isinstance(frame, frames.Alive)} == {1}
    assert isinstance(seen[-1], frames.Cancel)


async def test_a_peer_that_falls_silent_fails_its_calls_at_the_idle_limit(autojump_clock: trio.testing.MockClock):
    async def script(stream: MessageStream, request: frames.Request) -> None:
        pass

    async with answered_by(script) as member:
        start = trio.current_time()
        with pytest.raises(PeerUnreachable, match="silent"):
            await echo(member, peer=B)
        assert 29 < trio.current_time() - start < 31
        assert member.rpc.statistics().links == 0


async def test_a_peer_that_loses_one_call_fails_that_one_and_no_other(autojump_clock: trio.testing.MockClock):
    calls: list[int] = []

    async def script(stream: MessageStream, request: frames.Request) -> None:
        calls.append(request.call)
        if len(calls) == 2:
            for _ in range(10):
                await trio.sleep(8)
                await send(stream, frames.alive([calls[1]]))
            await send(stream, frames.body_frame("res", calls[1], REPLY, more=False))

    async with answered_by(script) as member, trio.open_nursery() as nursery:

        async def lost() -> None:
            with pytest.raises(PeerUnreachable, match="lost the call"):
                await echo(member, peer=B)
            assert 29 < trio.current_time() - start < 31

        start = trio.current_time()
        nursery.start_soon(lost)
        await trio.testing.wait_all_tasks_blocked()
        assert await echo(member, peer=B) == "x"
        assert trio.current_time() - start > 75


async def test_the_deadline_holds_on_each_side_without_the_other(autojump_clock: trio.testing.MockClock):
    async def script(stream: MessageStream, request: frames.Request) -> None:
        pass

    async with answered_by(script) as member:
        with pytest.raises(DeadlineExceeded):
            await member.rpc.call(ECHO, Ask(), context(5), peer=B)
        with pytest.raises(DeadlineExceeded):
            await member.rpc.call(ECHO, Ask(), context(0), peer=B)
    handlers = Handlers(held=True)
    async with three() as swarm, swarm[B].rpc.serve(handlers.service()):
        stream = await swarm[A].net.open_stream(B, PROTOCOL)
        await send(stream, ask(1, remaining_ms=5000))
        [answer] = await answers(stream)
        assert isinstance(answer, frames.Error)
        assert answer.error["code"] == DeadlineExceeded.code
        assert handlers.running == 0


async def test_a_caller_that_falls_silent_loses_what_runs_for_it(autojump_clock: trio.testing.MockClock):
    handlers = Handlers(held=True)
    async with three() as swarm, swarm[B].rpc.serve(handlers.service()):
        stream = await swarm[A].net.open_stream(B, PROTOCOL)
        await send(stream, ask(1))
        with pytest.raises(PeerUnreachable):
            await answers(stream)
        await trio.testing.wait_all_tasks_blocked()
        assert handlers.running == 0


async def test_unfinished_requests_of_a_peer_are_bounded_in_bytes():
    async with three() as swarm, swarm[B].rpc.serve(Handlers().service()):
        stream = await swarm[A].net.open_stream(B, PROTOCOL)
        part = b"x" * frames.MAX_PART
        refused: list[frames.Frame] = []
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                refused.extend(await answers(stream))
                nursery.cancel_scope.cancel()

            nursery.start_soon(read)
            for call in range(1, 9):
                await send(stream, ask(call, body=part, more=True))
                for _ in range(100):
                    await send(stream, frames.body_frame("part", call, part, more=True))
        [error] = refused
        assert isinstance(error, frames.Error)
        assert error.error["code"] == Overloaded.code


async def test_a_request_longer_than_its_kind_may_be_is_refused_and_its_rest_ignored():
    async with three() as swarm, swarm[B].rpc.serve(Handlers().service()):
        stream = await swarm[A].net.open_stream(B, PROTOCOL)
        part = b"x" * frames.MAX_PART
        await send(stream, ask(1, body=part, more=True))
        for _ in range(Ask.max_bytes // frames.MAX_PART + 5):
            await send(stream, frames.body_frame("part", 1, part, more=True))
        [error] = await answers(stream)
        assert isinstance(error, frames.Error)
        assert error.error["code"] == RequestError.code
        await send(stream, ask(2))
        assert isinstance((await answers(stream))[0], frames.Response)


async def test_of_many_streams_of_one_peer_the_oldest_is_closed():
    async with three() as swarm, swarm[B].rpc.serve(Handlers().service()):
        streams = [await swarm[A].net.open_stream(B, PROTOCOL) for _ in range(5)]
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(PeerUnreachable):
            await streams[0].receive()
        await send(streams[4], ask(1))
        assert isinstance((await answers(streams[4]))[0], frames.Response)


async def test_responses_that_a_peer_does_not_read_hold_up_its_own_handlers():
    async with three() as swarm, swarm[B].rpc.serve(Handlers().service()):
        stream = await swarm[A].net.open_stream(B, PROTOCOL)
        long = Ask(text="x" * 3 * frames.MAX_PART).to_bytes()
        first, *rest = (long[at : at + frames.MAX_PART] for at in range(0, len(long), frames.MAX_PART))
        for call in range(1, 101):
            await send(stream, ask(call, body=first, more=True))
            for number, body in enumerate(rest, 1):
                await send(stream, frames.body_frame("part", call, body, more=number < len(rest)))
        await trio.testing.wait_all_tasks_blocked()
        assert swarm[B].rpc.statistics().running[A] > 60


async def test_a_caller_that_reads_no_answers_loses_its_stream_and_holds_no_memory(
    autojump_clock: trio.testing.MockClock,
):
    async with three() as swarm, swarm[B].rpc.serve(Handlers().service()):
        stream = await swarm[A].net.open_stream(B, PROTOCOL)

        async def flood() -> None:
            for call in range(1, 100_000):
                await send(stream, ask(call, service="nobody"))

        with pytest.raises(PeerUnreachable):
            await flood()
        await trio.testing.wait_all_tasks_blocked()
        assert swarm[B].rpc.statistics().served < 20_000
        assert swarm[B].rpc.statistics().running == {}
