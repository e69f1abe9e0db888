"""A member of the swarm that sends whatever it likes on its rpc streams: the other stays up, bounded and of service."""

from __future__ import annotations

import time
from typing import ClassVar

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gnusnode.contracts.base import Record
from gnusnode.contracts.methods import StreamMethod, UnaryMethod
from gnusnode.errors import Forbidden, GnusError, PeerUnreachable
from gnusnode.net import frames
from gnusnode.net.link import PROTOCOL, RpcOptions
from gnusnode.net.port import MessageStream
from gnusnode.net.rpc import CallContext, Service
from tests.fakes.swarm import Swarm, swarm_of

A, B = "12D3KooWHostile", "12D3KooWSound"
ID = "11111111-1111-4111-8111-111111111111"


class Note(Record):
    record_name: ClassVar[str] = "note"
    max_bytes: ClassVar[int] = 1000

    text: str


ECHO = UnaryMethod("test", "echo", Note, Note)
REPEAT = StreamMethod[Note, Note]("test", "repeat", Note, TypeAdapter(Note))
METHODS = (ECHO, REPEAT)


async def echo(note: Note, _: CallContext) -> Note:
    return note


async def repeat(note: Note, _: CallContext, send: object) -> None:
    assert callable(send)
    for _number in range(50):
        await send(note)


SERVICE = Service("test", {"echo": echo}, {"repeat": repeat})
CALLS = st.integers(1, 5)
BODIES = st.sampled_from([Note(text="x").to_bytes(), Note(text="x" * 900).to_bytes(), b"\xff", b"x" * 2000])
REQUESTS = st.builds(
    frames.Request,
    call=CALLS,
    service=st.sampled_from(["test", "test", "test", "other"]),
    method=st.sampled_from(["echo", "repeat", "other"]),
    version=st.sampled_from([1, 1, 1, 2]),
    request_id=st.just(ID),
    remaining_ms=st.sampled_from([1, 60_000]),
    window=st.sampled_from([512, 4096]),
    body=BODIES,
    more=st.booleans(),
)
FRAMES = st.one_of(
    REQUESTS.map(frames.request),
    REQUESTS.map(frames.request),
    st.builds(
        lambda kind, call, body, more: frames.body_frame(kind, call, body, more=more),
        st.sampled_from(["part", "res", "item"]),
        CALLS,
        BODIES,
        st.booleans(),
    ),
    CALLS.map(frames.end),
    CALLS.map(frames.cancel),
    st.builds(frames.credit, CALLS, st.sampled_from([1, 600, 4096])),
    st.lists(CALLS, max_size=4).map(frames.alive),
    CALLS.map(lambda call: frames.error(call, PeerUnreachable("no"))),
)
MESSAGES = st.lists(st.lists(FRAMES, min_size=1, max_size=4).map(frames.join) | st.binary(max_size=20), max_size=8)


def context() -> CallContext:
    return CallContext(ID, time.monotonic() + 60)


async def drain(stream: MessageStream) -> None:
    try:
        while await stream.receive() is not None:
            pass
    except GnusError:
        pass


async def still_serves(swarm: Swarm) -> None:
    assert (await swarm[A].rpc.call(ECHO, Note(text="sound"), context(), peer=B)).text == "sound"
    await trio.testing.wait_all_tasks_blocked()
    assert set(swarm[B].rpc.statistics().running) <= {A}


@settings(max_examples=150, deadline=None)
@given(MESSAGES, st.booleans())
def test_a_hostile_caller_ends_nothing_but_its_own_stream(messages: list[bytes], reads: bool):
    async def play() -> None:
        async with (
            swarm_of(A, B, methods=METHODS, options=RpcOptions(window=4096)) as swarm,
            swarm[B].rpc.serve(SERVICE),
            trio.open_nursery() as nursery,
        ):
            await swarm.connect(A, B)
            stream = await swarm[A].net.open_stream(B, PROTOCOL)
            if reads:
                nursery.start_soon(drain, stream)
            for message in messages:
                try:
                    await stream.send(message)
                except PeerUnreachable:
                    break
            await still_serves(swarm)
            await stream.reset()
            await trio.testing.wait_all_tasks_blocked()
            assert swarm[B].rpc.statistics().running == {}
            nursery.cancel_scope.cancel()

    trio.run(play)


@settings(max_examples=150, deadline=None)
@given(MESSAGES)
def test_a_hostile_callee_fails_the_calls_to_it_and_nothing_else(messages: list[bytes]):
    async def handle(stream: MessageStream) -> None:
        await stream.receive()
        for message in messages:
            await stream.send(message)

    async def play() -> None:
        async with swarm_of(A, methods=METHODS) as swarm, swarm.network.join(B) as b, b.serve(PROTOCOL, handle):
            await swarm[A].net.connect(B, b.addresses())
            outcomes: list[object] = []

            async def call() -> None:
                try:
                    outcomes.append(await swarm[A].rpc.call(ECHO, Note(text=""), context(), peer=B))
                except GnusError as error:
                    outcomes.append(error)

            async def read() -> None:
                try:
                    async with swarm[A].rpc.stream(REPEAT, Note(text=""), context(), peer=B) as items:
                        outcomes.append([item async for item in items])
                except GnusError as error:
                    outcomes.append(error)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                nursery.start_soon(read)
            assert len(outcomes) == 2
            async with swarm[A].rpc.serve(SERVICE):
                assert (await swarm[A].rpc.call(ECHO, Note(text="own"), context())).text == "own"

    trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_a_peer_that_may_not_call_has_one_stream_here_whatever_it_opens() -> None:
    async with swarm_of(A, B, methods=METHODS) as swarm:
        swarm[B].refused[A] = Forbidden("not a member")
        await swarm.connect(A, B)
        opened = [await swarm[A].net.open_stream(B, PROTOCOL) for _ in range(4)]
        await trio.testing.wait_all_tasks_blocked()
        ended = 0
        for stream in opened:
            try:
                await stream.send(b"x")
                await trio.testing.wait_all_tasks_blocked()
                await stream.send(b"x")
            except PeerUnreachable:
                ended += 1
        assert ended >= 3
