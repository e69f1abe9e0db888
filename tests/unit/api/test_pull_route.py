"""``POST /gnus/v1/models/pull``: progress, errors, leaving. The pull itself is a script."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from fastapi import FastAPI
from trio.testing import wait_all_tasks_blocked

from gnusnode.api.envelope import error_response
from gnusnode.api.options import ApiOptions
from gnusnode.api.pull import pull_routes
from gnusnode.errors import GnusError, NotFound, Unavailable
from gnusnode.inference.artifacts.filework import Progress
from gnusnode.net.blobs import Pulled
from tests.fakes.blobworld import DATA, HOLDERS, ME, SHA256, world

PEER = HOLDERS[0].peer_id
Script = Callable[[Progress], Awaitable[Pulled]]


class ScriptedPuller:
    def __init__(self, script: Script) -> None:
        self._script = script
        self.orders: list[tuple[str, str | None, Sequence[str], bool]] = []
        self.cancelled = trio.Event()

    async def pull(
        self,
        address: str,
        *,
        name: str | None = None,
        peers: Sequence[str] = (),
        replace: bool = False,
        progress: Progress | None = None,
    ) -> Pulled:
        self.orders.append((address, name, peers, replace))
        assert progress is not None
        try:
            return await self._script(progress)
        except trio.Cancelled:
            self.cancelled.set()
            raise


@asynccontextmanager
async def client_of(puller: object, stopping: trio.Event) -> AsyncGenerator[httpx2.AsyncClient]:
    async def expected(request: object, error: Exception) -> Any:
        await trio.lowlevel.checkpoint()
        assert isinstance(error, GnusError)
        return error_response(error)

    app = FastAPI(exception_handlers={GnusError: expected})
    app.include_router(pull_routes(lambda: puller, stopping, ApiOptions()))  # type: ignore[arg-type] # a script
    transport = httpx2.ASGITransport(app=app)  # pyright: ignore[reportArgumentType]
    async with httpx2.AsyncClient(transport=transport, base_url="http://node") as client:
        yield client


def events(text: str) -> list[Any]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def test_a_pull_tells_its_progress_and_what_came(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.holder(HOLDERS[0])
        async with client_of(w.puller, trio.Event()) as client:
            order = {"source": SHA256, "name": "mine", "peers": [PEER]}
            answer = await client.post("/gnus/v1/models/pull", json=order)
    found = events(answer.text)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert found[-1] == "[DONE]"
    assert found[-2]["pulled"]["received"] == {PEER: len(DATA)}
    assert (found[-2]["pulled"]["model"]["name"], found[-2]["pulled"]["model"]["sha256"]) == ("mine", SHA256)
    assert found[:-2]
    assert all(event["total"] == len(DATA) for event in found[:-2])


async def test_what_fails_at_once_has_its_status(tmp_path: Path) -> None:
    async def fail(progress: Progress) -> Pulled:
        await trio.lowlevel.checkpoint()
        raise NotFound("no peer is known to hold it", where=SHA256, hint="name one")

    async with client_of(ScriptedPuller(fail), trio.Event()) as client:
        answer = await client.post("/gnus/v1/models/pull", json={"source": SHA256})
    assert answer.status_code == 404
    assert answer.json()["error"]["gnus"]["hint"] == "name one"


@pytest.mark.parametrize(
    "body", [{}, {"source": ""}, {"source": SHA256, "peers": ["me"]}, {"source": SHA256, "extra": 1}]
)
async def test_an_order_of_another_shape_is_refused(body: dict[str, Any]) -> None:
    async with client_of(None, trio.Event()) as client:
        assert (await client.post("/gnus/v1/models/pull", json=body)).status_code == 422


async def test_a_node_without_a_network_says_how_to_get_one() -> None:
    async with client_of(None, trio.Event()) as client:
        answer = await client.post("/gnus/v1/models/pull", json={"source": SHA256})
    assert answer.status_code == 503
    assert "swarm join" in answer.json()["error"]["gnus"]["hint"]


async def test_a_later_failure_is_an_error_event() -> None:
    async def fail(progress: Progress) -> Pulled:
        progress(1, 2)
        await wait_all_tasks_blocked()
        raise Unavailable("no holder of the file is left", hint="try again later")

    async with client_of(ScriptedPuller(fail), trio.Event()) as client:
        answer = await client.post("/gnus/v1/models/pull", json={"source": SHA256})
    assert answer.status_code == 200
    assert [next(iter(event)) for event in events(answer.text)] == ["done", "error"]


async def test_a_stopping_node_ends_the_pull_and_says_so() -> None:
    stopping = trio.Event()

    async def wait(progress: Progress) -> Pulled:
        progress(1, 2)
        stopping.set()
        await trio.sleep_forever()
        raise AssertionError

    puller = ScriptedPuller(wait)
    async with client_of(puller, stopping) as client:
        answer = await client.post("/gnus/v1/models/pull", json={"source": SHA256})
    assert puller.cancelled.is_set()
    assert "shutting down" in events(answer.text)[-1]["error"]["message"]


async def test_a_client_that_leaves_ends_the_pull() -> None:
    begun = trio.Event()

    async def wait(progress: Progress) -> Pulled:
        progress(1, 2)
        begun.set()
        await trio.sleep_forever()
        raise AssertionError

    puller = ScriptedPuller(wait)
    body = json.dumps({"source": SHA256, "peers": [ME.peer_id]}).encode()
    left = trio.Event()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            await trio.lowlevel.checkpoint()
            return messages.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        await trio.lowlevel.checkpoint()

    app = FastAPI()
    app.include_router(pull_routes(lambda: puller, trio.Event(), ApiOptions()))
    scope = {
        "type": "http", "method": "POST", "path": "/gnus/v1/models/pull", "headers": [], "query_string": b"",
        "http_version": "1.1", "scheme": "http", "server": ("node", 80), "client": ("c", 1), "root_path": "",
    }  # fmt: skip
    async with trio.open_nursery() as nursery:
        nursery.start_soon(app, scope, receive, send)
        await begun.wait()
        left.set()
        await puller.cancelled.wait()
    assert puller.orders == [(SHA256, None, (ME.peer_id,), False)]
