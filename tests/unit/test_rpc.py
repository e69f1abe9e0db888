"""What every implementation of the rpc port promises: within one process, and between two members of a swarm."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Protocol

import pytest
import trio
import trio.testing
from pydantic import TypeAdapter

from gnusnode.contracts.base import Record
from gnusnode.contracts.methods import StreamMethod, UnaryMethod
from gnusnode.errors import (
    Conflict,
    DeadlineExceeded,
    InternalError,
    NoExpert,
    Overloaded,
    PeerUnreachable,
    RequestError,
    Unavailable,
)
from gnusnode.net.link import RpcOptions
from gnusnode.net.local import LocalRpc
from gnusnode.net.rpc import CallContext, Service
from gnusnode.net.swarmrpc import SwarmRpc
from tests.fakes.swarm import swarm_of

NODE = "12D3KooWTestNode"
OTHER = "12D3KooWOtherNode"
BUFFER = 1000
PLAN = "sha256:" + "1" * 64


class Ask(Record):
    record_name: ClassVar[str] = "ask"
    max_bytes: ClassVar[int] = 10_000

    text: str
    numbers: tuple[int, ...] = ()


class Reply(Record):
    record_name: ClassVar[str] = "reply"

    text: str


ECHO = UnaryMethod("test", "echo", Ask, Reply)
COUNT = StreamMethod[Ask, Reply]("test", "count", Ask, TypeAdapter(Reply))


class Subject(Protocol):
    """An rpc under test: served and called through the same object, wherever the handlers run."""

    serve: Any
    offers: Callable[[str], bool]
    call: Any
    stream: Any
    statistics: Callable[[], dict[str, int]]

    async def settle(self) -> None:
        """Returns when what the caller did last has reached the handler."""


class Local(LocalRpc):
    async def settle(self) -> None:
        """The caller has waited for its handler already."""


class Pair:
    """Called on one member of a swarm, served by another."""

    def __init__(self, near: SwarmRpc, far: SwarmRpc, far_local: LocalRpc) -> None:
        self.call, self.stream, self.offers = near.call, near.stream, near.offers
        self.serve = far.serve
        self.statistics = far_local.statistics

    async def settle(self) -> None:
        await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def a_pair() -> AsyncGenerator[Pair, None]:
    async with swarm_of(NODE, OTHER, methods=(ECHO, COUNT), options=RpcOptions(window=BUFFER)) as swarm:
        await swarm.connect(NODE, OTHER)
        yield Pair(swarm[NODE].rpc, swarm[OTHER].rpc, swarm[OTHER].local)


@pytest.fixture(params=["local", "swarm"])
async def rpc(request: pytest.FixtureRequest) -> AsyncGenerator[Subject, None]:
    if request.param == "local":
        yield Local(NODE, buffer_bytes=BUFFER)
    else:
        async with a_pair() as pair:
            yield pair


def context(seconds: float = 60.0) -> CallContext:
    return CallContext(request_id="11111111-1111-4111-8111-111111111111", deadline=time.monotonic() + seconds)


def service(
    echo: Callable[[Any, CallContext], Awaitable[Record]] | None = None,
    count: Callable[[Any, CallContext, Callable[[Any], Awaitable[None]]], Awaitable[None]] | None = None,
) -> Service:
    return Service("test", {"echo": echo} if echo else {}, {"count": count} if count else {})


async def read(rpc: Subject, into: list[str]) -> None:
    async with rpc.stream(COUNT, Ask(text=""), context()) as items:
        async for item in items:
            into.append(item.text)


async def answer(ask: Ask, _: CallContext) -> Reply:
    return Reply(text=ask.text.upper())


async def test_a_call_reaches_the_handler_and_its_response_comes_back(rpc: Subject):
    async with rpc.serve(service(answer)):
        assert await rpc.call(ECHO, Ask(text="hi"), context()) == Reply(text="HI")


async def test_the_handler_gets_an_equal_copy_and_the_transport_names_the_caller(rpc: Subject):
    seen: list[tuple[Ask, CallContext]] = []

    async def handler(ask: Ask, ctx: CallContext) -> Reply:
        seen.append((ask, ctx))
        return Reply(text="")

    asked = Ask(text="hi", numbers=(1, 2))
    async with rpc.serve(service(handler)):
        await rpc.call(ECHO, asked, CallContext("r", time.monotonic() + 9, caller="forged", plan_digest=PLAN))
    [(got, ctx)] = seen
    assert got == asked
    assert got is not asked
    assert (ctx.caller, ctx.request_id, ctx.plan_digest) == (NODE, "r", PLAN)


async def test_stream_items_come_in_order_and_then_the_stream_ends(rpc: Subject):
    async def handler(ask: Ask, _: CallContext, send: Any) -> None:
        for number in ask.numbers:
            await send(Reply(text=str(number)))

    async with (
        rpc.serve(service(count=handler)),
        rpc.stream(COUNT, Ask(text="", numbers=tuple(range(200))), context()) as items,
    ):
        assert [item.text async for item in items] == [str(number) for number in range(200)]


async def test_a_slow_reader_holds_the_handler_at_the_buffer_limit(rpc: Subject):
    sent: list[int] = []

    async def handler(_: Ask, __: CallContext, send: Any) -> None:
        for number in range(50):
            await send(Reply(text="x" * 100))
            sent.append(number)

    async with rpc.serve(service(count=handler)), rpc.stream(COUNT, Ask(text=""), context()) as items:
        await trio.testing.wait_all_tasks_blocked()
        held = len(sent)
        assert 0 < held * 100 <= BUFFER
        assert len([item async for item in items]) == 50


async def test_several_tasks_of_a_handler_may_send_and_nothing_is_lost(rpc: Subject):
    async def handler(_: Ask, __: CallContext, send: Any) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(send, Reply(text=str(number) * 300))

    got: list[str] = []
    async with rpc.serve(service(count=handler)):
        await read(rpc, got)
    assert sorted(got) == sorted(str(number) * 300 for number in range(20))


async def test_an_item_larger_than_the_buffer_still_passes(rpc: Subject):
    async def handler(_: Ask, __: CallContext, send: Any) -> None:
        await send(Reply(text="x" * 5 * BUFFER))
        await send(Reply(text="end"))

    async with rpc.serve(service(count=handler)), rpc.stream(COUNT, Ask(text=""), context()) as items:
        assert [len(item.text) async for item in items] == [5 * BUFFER, 3]


async def test_an_expected_error_comes_as_its_class_with_its_fields(rpc: Subject):
    async def handler(_: Ask, __: CallContext) -> Reply:
        raise Overloaded("full", where="core", hint="wait", retry_after=2.5)

    async with rpc.serve(service(handler)):
        with pytest.raises(Overloaded) as caught:
            await rpc.call(ECHO, Ask(text=""), context())
    assert caught.value.to_wire() == Overloaded("full", where="core", hint="wait", retry_after=2.5).to_wire()


async def test_a_stream_error_comes_after_the_items_before_it(rpc: Subject):
    async def handler(_: Ask, __: CallContext, send: Any) -> None:
        await send(Reply(text="one"))
        raise Overloaded("full")

    got: list[str] = []
    async with rpc.serve(service(count=handler)):
        with pytest.raises(Overloaded):
            await read(rpc, got)
    assert got == ["one"]


async def test_a_handler_bug_is_an_internal_error_and_its_text_stays_out_of_log_and_answer(
    rpc: Subject, caplog: pytest.LogCaptureFixture
):
    async def handler(_: Ask, __: CallContext) -> Reply:
        raise ValueError("the secret prompt")

    async with rpc.serve(service(handler)):
        with caplog.at_level(logging.DEBUG), pytest.raises(InternalError) as caught:
            await rpc.call(ECHO, Ask(text=""), context())
        assert "secret" not in str(caught.value.to_wire())
        assert "secret" not in caplog.text
        assert "ValueError" in caplog.text
        with pytest.raises(InternalError):
            await rpc.call(ECHO, Ask(text=""), context())


async def test_a_wrong_response_type_is_an_internal_error(rpc: Subject):
    async def handler(_: Ask, __: CallContext) -> Record:
        return Ask(text="not a reply")

    async def counter(_: Ask, __: CallContext, send: Any) -> None:
        await send(Ask(text="not a reply"))

    async with rpc.serve(service(handler, counter)):
        with pytest.raises(InternalError):
            await rpc.call(ECHO, Ask(text=""), context())
        with pytest.raises(InternalError):
            async with rpc.stream(COUNT, Ask(text=""), context()) as items:
                await anext(aiter(items))


async def test_an_oversize_request_is_refused_before_the_handler(rpc: Subject):
    async def handler(_: Ask, __: CallContext) -> Reply:
        raise AssertionError("must not be reached")

    async with rpc.serve(service(handler)):
        with pytest.raises(RequestError, match="10000 allowed"):
            await rpc.call(ECHO, Ask(text="x" * 19_990), context())


async def test_an_unknown_service_method_or_peer_is_no_expert(rpc: Subject):
    assert not rpc.offers("test")
    with pytest.raises(NoExpert, match="test"):
        await rpc.call(ECHO, Ask(text=""), context())
    async with rpc.serve(service(answer)):
        assert rpc.offers("test")
        with pytest.raises(NoExpert, match="count"):
            await read(rpc, [])
        with pytest.raises((NoExpert, PeerUnreachable), match="elsewhere"):
            await rpc.call(ECHO, Ask(text=""), context(), peer="elsewhere")
    assert not rpc.offers("test")


async def test_a_service_name_is_served_once_at_a_time(rpc: Subject):
    async with rpc.serve(service(answer)):
        with pytest.raises(Conflict):
            async with rpc.serve(service(answer)):
                pass
        assert await rpc.call(ECHO, Ask(text="still"), context()) == Reply(text="STILL")
    async with rpc.serve(service(answer)):
        pass


class Watched:
    """A handler that never ends by itself and tells whether it runs."""

    def __init__(self) -> None:
        self.started = trio.Event()
        self.cancelled = False

    async def _wait(self) -> None:
        self.started.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            self.cancelled = True
            raise

    async def echo(self, _: Ask, __: CallContext) -> Reply:
        await self._wait()
        raise AssertionError

    async def count(self, _: Ask, __: CallContext, send: Any) -> None:
        await send(Reply(text="first"))
        await self._wait()


async def test_cancelling_the_caller_ends_the_handler(rpc: Subject):
    watched = Watched()
    async with rpc.serve(service(watched.echo)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rpc.call, ECHO, Ask(text=""), context())
            await watched.started.wait()
            nursery.cancel_scope.cancel()
        await rpc.settle()
        assert watched.cancelled


async def test_leaving_a_stream_ends_its_handler(rpc: Subject):
    watched = Watched()
    async with rpc.serve(service(count=watched.count)):
        async with rpc.stream(COUNT, Ask(text=""), context()) as items:
            assert (await anext(aiter(items))).text == "first"
            await watched.started.wait()
            assert not watched.cancelled
        await rpc.settle()
        assert watched.cancelled


async def test_an_error_of_the_reader_leaves_the_stream_as_itself(rpc: Subject):
    watched = Watched()
    async with rpc.serve(service(count=watched.count)):
        with pytest.raises(KeyError, match="mine"):
            async with rpc.stream(COUNT, Ask(text=""), context()):
                raise KeyError("mine")
    with pytest.raises(KeyError, match="mine"):
        async with rpc.serve(service(count=watched.count)):
            raise KeyError("mine")


async def test_the_deadline_ends_handler_and_caller(rpc: Subject, autojump_clock: trio.testing.MockClock):
    watched = Watched()
    async with rpc.serve(service(watched.echo, watched.count)):
        with pytest.raises(DeadlineExceeded, match=r"test\.echo"):
            await rpc.call(ECHO, Ask(text=""), context(5))
        assert watched.cancelled
        async with rpc.stream(COUNT, Ask(text=""), context(5)) as items:
            assert (await anext(aiter(items))).text == "first"
            with pytest.raises(DeadlineExceeded):
                await anext(aiter(items))


async def test_a_closing_service_fails_its_running_calls_as_unavailable(rpc: Subject):
    watched = Watched()
    closing = trio.Event()
    outcomes: list[Exception] = []

    async def serve(task_status: trio.TaskStatus[None]) -> None:
        async with rpc.serve(service(watched.echo, watched.count)):
            task_status.started()
            await closing.wait()

    async def call() -> None:
        with pytest.raises(Unavailable) as caught:
            await rpc.call(ECHO, Ask(text=""), context())
        outcomes.append(caught.value)

    async def stream() -> None:
        with pytest.raises(Unavailable) as caught:
            await read(rpc, [])
        outcomes.append(caught.value)

    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        nursery.start_soon(call)
        nursery.start_soon(stream)
        await trio.testing.wait_all_tasks_blocked()
        closing.set()
    assert ["stopped" in outcome.args[0] for outcome in outcomes] == [True, True]


async def test_cancelling_the_serving_task_fails_its_callers_too(rpc: Subject):
    watched = Watched()
    scope = trio.CancelScope()

    async def serve(task_status: trio.TaskStatus[None]) -> None:
        with scope:
            async with rpc.serve(service(watched.echo)):
                task_status.started()
                await trio.sleep_forever()

    async def stop() -> None:
        await watched.started.wait()
        scope.cancel()

    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        nursery.start_soon(stop)
        with pytest.raises(Unavailable, match="stopped"):
            await rpc.call(ECHO, Ask(text=""), context())
    assert not rpc.offers("test")


async def test_many_calls_run_at_once_and_are_counted(rpc: Subject):
    release = trio.Event()

    async def handler(ask: Ask, _: CallContext) -> Reply:
        await release.wait()
        return Reply(text=ask.text)

    replies: list[str] = []

    async def call(number: int) -> None:
        replies.append((await rpc.call(ECHO, Ask(text=str(number)), context())).text)

    async with rpc.serve(service(handler)), trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(call, number)
        await trio.testing.wait_all_tasks_blocked()
        assert rpc.statistics() == {"test": 20}
        release.set()
    assert sorted(replies, key=int) == [str(number) for number in range(20)]
