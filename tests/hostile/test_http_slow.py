"""Clients that take their time, read nothing or leave: they cost little, and nobody else notices."""

from __future__ import annotations

import json

import httpx2
import pytest
import trio

from tests.unit.api.scripted import Script, ScriptedNode
from tests.unit.api.serving import CHAT, dial, raw_request, read_all, read_until, serving

STREAM = json.dumps({**CHAT, "stream": True}).encode()
WHOLE = json.dumps(CHAT).encode()
ASK_STREAM = raw_request("POST", "/v1/chat/completions", STREAM)
ASK_WHOLE = raw_request("POST", "/v1/chat/completions", WHOLE)


@pytest.fixture
def node() -> ScriptedNode:
    return ScriptedNode()


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: 1\r\n", ASK_STREAM[:-5]],
    ids=["nothing", "request-line", "headers", "body"],
)
async def test_a_request_that_never_ends_is_hung_up_on(node: ScriptedNode, begun: bytes) -> None:
    async with serving(node, header_seconds=0.2, body_seconds=0.2) as bound:
        with trio.fail_after(10):
            async with await dial(bound) as stream:
                await stream.send_all(begun)
                await read_all(stream)
        assert not node.tasks


async def test_a_head_that_trickles_in_is_hung_up_on(node: ScriptedNode) -> None:
    async with serving(node, header_seconds=0.3) as bound:
        with trio.fail_after(10):
            async with await dial(bound) as stream:
                await stream.send_all(b"GET /healthz HTTP/1.1\r\n")
                with pytest.raises(trio.BrokenResourceError):
                    await _trickle(stream)


async def test_an_idle_connection_is_closed_after_a_while(node: ScriptedNode) -> None:
    async with serving(node, keep_alive_seconds=0.2) as bound:
        with trio.fail_after(10):
            async with await dial(bound) as stream:
                await stream.send_all(raw_request("GET", "/healthz"))
                assert b"200" in await read_until(stream, b'{"status":"ok"}')
                assert await stream.receive_some() == b""


async def test_a_second_head_has_to_arrive_in_time_too(node: ScriptedNode) -> None:
    async with serving(node, keep_alive_seconds=60, header_seconds=0.2) as bound:
        with trio.fail_after(10):
            async with await dial(bound) as stream:
                await stream.send_all(raw_request("GET", "/healthz"))
                await read_until(stream, b'{"status":"ok"}')
                await stream.send_all(b"GET /healthz HT")
                assert await stream.receive_some() == b""


async def test_streams_that_are_never_read_stop_generating_and_disturb_nobody(node: ScriptedNode) -> None:
    node.script = Script(pieces=("x" * 20_000,), endless=True)
    async with serving(node, stalled_write_seconds=1.0) as bound, trio.open_nursery() as nursery:
        stuck = [await dial(bound) for _ in range(50)]
        for stream in stuck:
            nursery.start_soon(stream.send_all, ASK_STREAM)
        with trio.fail_after(30):
            await node.begun(50)
            async with httpx2.AsyncClient(base_url=bound.url) as other:
                assert (await other.get("/healthz")).status_code == 200
            await node.settled()
        # What the sockets' buffers hold, and the events that a task may be ahead: far from endless.
        assert node.sent < 50 * 800
        for stream in stuck:
            await trio.aclose_forcefully(stream)


async def test_generation_stops_when_the_client_of_a_stream_leaves(node: ScriptedNode) -> None:
    node.script = Script(endless=True, interval=0.001)
    async with serving(node) as bound:
        with trio.fail_after(10):
            async with await dial(bound) as stream:
                await stream.send_all(ASK_STREAM)
                await read_until(stream, b"world")
            await node.settled()


async def test_generation_stops_when_the_client_of_a_quiet_stream_leaves(node: ScriptedNode) -> None:
    never = trio.Event()
    node.script = Script(pause=lambda at: never if at == 1 else None)
    async with serving(node) as bound:
        with trio.fail_after(10):
            async with await dial(bound) as stream:
                await stream.send_all(ASK_STREAM)
                await read_until(stream, b"Hello")
            await node.settled()


async def test_generation_stops_when_the_client_of_a_whole_answer_leaves(node: ScriptedNode) -> None:
    node.script = Script(endless=True, interval=0.001)
    async with serving(node) as bound:
        with trio.fail_after(10):
            async with await dial(bound) as stream:
                await stream.send_all(ASK_WHOLE)
                await node.begun()
            await node.settled()


async def test_a_stopping_node_ends_an_open_stream_with_an_error_event(node: ScriptedNode) -> None:
    node.script = Script(endless=True, interval=0.001)
    with trio.fail_after(10):
        async with serving(node) as bound, await dial(bound) as stream:
            await stream.send_all(ASK_STREAM)
            await read_until(stream, b"world")
            node.stopping.set()
            rest = await read_all(stream)
    assert b'"code":"unavailable"' in rest
    assert b"[DONE]" not in rest
    assert rest.endswith(b"0\r\n\r\n")


async def test_a_stopping_node_does_not_wait_for_a_stuck_reader(node: ScriptedNode) -> None:
    node.script = Script(pieces=("x" * 100_000,), endless=True)
    with trio.fail_after(20):
        async with serving(node, grace_seconds=0.3, stalled_write_seconds=600) as bound, await dial(bound) as stream:
            await stream.send_all(ASK_STREAM)
            await node.begun(50)
            node.stopping.set()
            await node.settled()


async def test_a_stopping_node_refuses_a_whole_answer_with_503(node: ScriptedNode) -> None:
    node.script = Script(endless=True, interval=0.001)
    with trio.fail_after(10):
        async with serving(node) as bound, await dial(bound) as stream:
            await stream.send_all(ASK_WHOLE)
            await node.begun()
            node.stopping.set()
            assert (await read_all(stream)).startswith(b"HTTP/1.1 503")


async def test_a_stopping_node_lets_idle_connections_go_at_once(node: ScriptedNode) -> None:
    with trio.fail_after(10):
        async with serving(node, grace_seconds=600) as bound, await dial(bound) as stream:
            await stream.send_all(raw_request("GET", "/healthz"))
            await read_until(stream, b'{"status":"ok"}')
            node.stopping.set()
            assert await read_all(stream) == b""


async def test_connections_beyond_the_limit_are_told_so_and_the_cli_still_gets_in(
    node: ScriptedNode, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("s") / "api.sock"
    async with serving(node, max_connections=2, unix_socket=path) as bound:
        with trio.fail_after(10):
            held = [await dial(bound) for _ in range(2)]
            for stream in held:
                await stream.send_all(raw_request("GET", "/healthz"))
                await read_until(stream, b'{"status":"ok"}')
            async with await dial(bound) as stream:
                answer = await read_all(stream)
            assert answer.startswith(b"HTTP/1.1 503")
            assert b'"code":"overloaded"' in answer
            async with httpx2.AsyncClient(
                transport=httpx2.AsyncHTTPTransport(uds=str(path)), base_url="http://node"
            ) as cli:
                assert (await cli.get("/gnus/v1/keys")).status_code == 200
            for stream in held:
                await stream.aclose()


async def test_hundreds_of_connections_that_come_and_go_leave_nothing_behind(node: ScriptedNode) -> None:
    async with serving(node) as bound:
        with trio.fail_after(20):
            for _ in range(10):
                async with trio.open_nursery() as nursery:
                    for _ in range(30):
                        nursery.start_soon(_come_and_go, bound)
            async with httpx2.AsyncClient(base_url=bound.url) as other:
                text = (await other.get("/metrics")).text
    assert "gnusnode_http_connections 1.0" in text


async def _trickle(stream: trio.SocketStream) -> None:
    while True:
        await stream.send_all(b"X: 1\r\n")
        await trio.sleep(0.02)


async def _come_and_go(bound: object) -> None:
    async with await dial(bound):  # pyright: ignore[reportArgumentType]
        pass
