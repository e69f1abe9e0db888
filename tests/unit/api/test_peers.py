"""``/gnus/v1/peers`` over a scripted table."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from gnusnode.api.auth import needed_scopes
from gnusnode.api.envelope import error_response
from gnusnode.api.facade import PeersFacade
from gnusnode.api.keys import Scope
from gnusnode.api.peers import peer_routes
from gnusnode.errors import Forbidden, GnusError, NotFound
from gnusnode.net.alone import Alone

PEER = "12D3KooWabc"


class ScriptedPeers:
    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def overview(self) -> dict[str, Any]:
        return {"counts": {"usable": 1}, "data": [{"peer": PEER}]}

    def show(self, name: str) -> dict[str, Any]:
        if name != PEER:
            raise NotFound("this peer is not known here", where=name)
        return {"peer": PEER, "state": "usable"}

    async def connect(self, address: str) -> dict[str, Any]:
        if "banned" in address:
            raise Forbidden("this peer is banned here")
        return self._note("connect", address)

    async def ping(self, name: str) -> dict[str, Any]:
        return self._note("ping", name)

    async def ban(self, name: str, reason: str = "") -> dict[str, Any]:
        return self._note("ban", name, reason)

    async def unban(self, name: str) -> dict[str, Any]:
        return self._note("unban", name)

    def _note(self, *what: str) -> dict[str, Any]:
        self.asked.append(what)
        return {"did": what[0]}


def client_of(peers: PeersFacade) -> httpx2.AsyncClient:
    async def expected(_request: Any, error: Exception) -> Any:
        assert isinstance(error, GnusError)
        return error_response(error)

    app = FastAPI(exception_handlers={GnusError: expected})
    app.include_router(peer_routes(peers))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://node")


@pytest.fixture
def peers() -> ScriptedPeers:
    return ScriptedPeers()


async def test_the_list_has_counts_and_peers(peers: ScriptedPeers) -> None:
    async with client_of(peers) as client:
        answer = (await client.get("/gnus/v1/peers")).json()
    assert answer == {"object": "list", "counts": {"usable": 1}, "data": [{"peer": PEER}]}


async def test_one_peer_is_shown_or_not_found(peers: ScriptedPeers) -> None:
    async with client_of(peers) as client:
        found, missing = await client.get(f"/gnus/v1/peers/{PEER}"), await client.get("/gnus/v1/peers/nobody")
    assert (found.status_code, found.json()["state"]) == (200, "usable")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


async def test_orders_reach_the_node_with_what_was_said(peers: ScriptedPeers) -> None:
    async with client_of(peers) as client:
        for path, body in (
            ("connect", {"address": "/ip4/10.0.0.1/tcp/1/p2p/x"}),
            (f"{PEER}/ping", {}),
            (f"{PEER}/ban", {"reason": "spam"}),
            (f"{PEER}/unban", {}),
        ):
            assert (await client.post(f"/gnus/v1/peers/{path}", json=body)).status_code == 200, path
    assert peers.asked == [
        ("connect", "/ip4/10.0.0.1/tcp/1/p2p/x"),
        ("ping", PEER),
        ("ban", PEER, "spam"),
        ("unban", PEER),
    ]


async def test_a_wrong_body_and_a_refusal_are_told_as_such(peers: ScriptedPeers) -> None:
    async with client_of(peers) as client:
        for body in ({}, {"address": ""}, {"address": "x" * 300}, {"address": "/x", "more": 1}):
            assert (await client.post("/gnus/v1/peers/connect", json=body)).status_code == 422, body
        refused = await client.post("/gnus/v1/peers/connect", json={"address": "/banned"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
    assert peers.asked == []


async def test_a_node_without_a_network_says_so_and_how_to_change_that() -> None:
    async with client_of(Alone()) as client:
        empty = (await client.get("/gnus/v1/peers")).json()
        off = await client.post(f"/gnus/v1/peers/{PEER}/ping")
    assert (empty["data"], empty["counts"]["discovered"]) == ([], 0)
    assert off.status_code == 503
    assert "swarm join" in off.json()["error"]["gnus"]["hint"]


@pytest.mark.parametrize("path", ["/gnus/v1/peers", "/gnus/v1/peers/x", "/gnus/v1/peers/x/ban"])
def test_peers_are_for_admins(path: str) -> None:
    assert needed_scopes(path) == {Scope.ADMIN}
