"""``/gnus/v1/swarm``: the desk of a node's swarm over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from gnusnode.api.auth import needed_scopes
from gnusnode.api.envelope import error_response
from gnusnode.api.keys import Scope
from gnusnode.api.swarm import swarm_routes
from gnusnode.contracts.invite import Invite
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.swarm import Role, Tier
from gnusnode.errors import GnusError
from gnusnode.net.swarmdesk import JoinSwarm, SwarmDesk, own_operator
from tests.fakes.belonging import EXPERTS, Village, key


@pytest.fixture
def village(tmp_path: Path) -> Village:
    return Village(tmp_path)


@asynccontextmanager
async def api_of(desk: SwarmDesk) -> AsyncGenerator[httpx2.AsyncClient]:
    async def refuse(_request: Request, error: Exception) -> Response:
        assert isinstance(error, GnusError)
        return error_response(error)

    app = FastAPI(exception_handlers={GnusError: refuse})
    app.include_router(swarm_routes(desk))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://node/gnus/v1/swarm") as it:
        yield it


def test_all_of_it_needs_an_admin() -> None:
    for path in ("", "/members", "/invites", "/join", "/admins/x"):
        assert needed_scopes(f"/gnus/v1/swarm{path}") == {Scope.ADMIN}


async def test_a_swarm_is_founded_and_left(village: Village) -> None:
    node = await village.node(1)
    async with api_of(node.desk(fits=False)) as api:
        alone = (await api.get("http://node/gnus/v1/swarm")).json()
        founded = await api.post("/init", json={"name": "our lab", "operator": "alice"})
        again = await api.post("/init", json={"name": "our lab"})
        left = (await api.post("/leave")).json()
        after = (await api.get("http://node/gnus/v1/swarm")).json()
    assert (alone["state"], after["state"]) == ("alone", "alone")
    body = founded.json()
    assert founded.status_code == 201
    assert (body["state"], body["founder"], body["admin"], body["restart"]) == ("member", True, True, True)
    assert body["members"] == 1
    assert again.status_code == 409
    assert left["left"] == "our lab"
    assert Path(left["root_key"]).exists()


async def test_a_member_is_invited_changed_and_revoked(village: Village) -> None:
    founder = await village.founder()
    async with api_of(founder.desk()) as api:
        made = await api.post("/invites", json={"roles": ["core", "elm"], "operator": "bob", "hours": 2})
        token = made.json()["token"]
        listed = (await api.get("/invites")).json()["data"]
        member = await village.node(2)
        await founder.invites.redeem(Invite.from_token(token).secret or "", member.peer, "x")
        rows = (await api.get("/members")).json()["data"]
        roles = (await api.post("/roles", json={"peer": member.peer, "roles": ["elm"]})).json()
        used = (await api.get("/invites")).json()["data"]
        revoked = await api.post("/revoke", json={"target": member.peer, "reason": "gone"})
        end = (await api.get("/members")).json()["data"]
    assert made.status_code == 201
    assert Invite.from_token(token).inviters == {founder.peer: founder.addresses()}
    assert [(one["state"], one["used"]) for one in listed] == [("open", "0/1")]
    assert "token" not in listed[0]
    assert [(one["state"], one["by"]) for one in used] == [("used", [member.peer])]
    row = next(row for row in rows if row["peer_id"] == member.peer)
    assert (row["operator"], row["tier"], row["roles"], row["state"]) == ("bob", "C", ["core", "elm"], "member")
    assert roles["roles"] == ["elm"]
    assert revoked.json() == {"kind": "peer", "target": member.peer, "reason": "gone"} | {
        "digest": revoked.json()["digest"]
    }
    assert [(row["peer_id"], row["state"]) for row in end] == [(founder.peer, "member"), (member.peer, "revoked")]


async def test_one_certificate_is_revoked_by_its_serial_or_digest(village: Village) -> None:
    founder = await village.founder()
    first = await founder.membership.grant(key(2).peer_id, EXPERTS, operator="x")
    second = await founder.membership.grant(key(3).peer_id, EXPERTS, operator="x")
    async with api_of(founder.desk()) as api:
        by_serial = await api.post("/revoke", json={"target": str(first.serial)})
        by_digest = await api.post("/revoke", json={"target": second.digest})
        unknown = await api.post("/revoke", json={"target": "99"})
        nothing = await api.post("/revoke", json={"target": "bob"})
    assert by_serial.json()["target"] == first.digest
    assert by_digest.json()["target"] == second.digest
    assert (unknown.status_code, nothing.status_code) == (404, 404)
    assert founder.membership.standing(key(2).peer_id).outcome is Outcome.REVOKED


async def test_a_member_is_meant_by_the_end_of_its_peer_id(village: Village) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)
    async with api_of(founder.desk()) as api:
        changed = await api.post("/roles", json={"peer": member.peer[-6:], "roles": ["core"]})
        made = await api.post("/admins", json={"peer": member.peer[-6:], "roles": ["core"], "tier": "C"})
        removed = await api.delete(f"/admins/{member.peer[-6:]}")
        too_short = await api.post("/revoke", json={"target": member.peer[-3:]})
        everybody = await api.post("/revoke", json={"target": "nobody"})
        revoked = await api.post("/revoke", json={"target": member.peer[-6:]})
    assert (changed.json()["peer_id"], changed.json()["roles"]) == (member.peer, ["core"])
    assert (made.json()["peer_id"], removed.json()["target"]) == (member.peer, member.peer)
    assert (too_short.status_code, everybody.status_code) == (404, 404)
    assert revoked.json()["target"] == member.peer


def test_nodes_of_which_nobody_says_who_runs_them_have_operators_of_their_own() -> None:
    one, other = (own_operator(name, key(number).peer_id) for number, name in ((2, ""), (3, "")))
    assert one != other
    assert own_operator("gpu", key(2).peer_id).startswith("gpu-")


async def test_a_serial_that_two_admins_gave_is_not_guessed_at(village: Village) -> None:
    founder = await village.founder()
    admin = await village.member(founder, 2)
    await admin.membership.add([await founder.membership.delegate(admin.peer, EXPERTS, Tier.C)])
    made = await admin.membership.grant(key(3).peer_id, EXPERTS, operator="x")
    await founder.membership.add([made])
    async with api_of(founder.desk()) as api:
        answer = await api.post("/revoke", json={"target": "1"})
    assert made.serial == 1
    assert answer.status_code == 400
    assert made.digest[:23] in answer.json()["error"]["gnus"]["hint"]


async def test_admins_are_made_listed_and_removed(village: Village) -> None:
    founder = await village.founder()
    member = await village.member(founder, 2)
    async with api_of(founder.desk()) as api:
        made = await api.post("/admins", json={"peer": member.peer, "roles": ["core"], "tier": "C"})
        listed = (await api.get("/admins")).json()["data"]
        removed = await api.delete(f"/admins/{member.peer}")
        after = (await api.get("/admins")).json()["data"]
    assert made.status_code == 201
    assert {row["peer_id"]: row["roles"] for row in listed}[member.peer] == ["core"]
    assert removed.json()["kind"] == "delegation"
    assert [row["peer_id"] for row in after] == [founder.peer]


async def test_a_running_node_redeems_a_token_where_its_network_fits(village: Village) -> None:
    founder, joiner = await village.founder(open_to_all=True), await village.node(2)
    async with village.running(founder), village.running(joiner):
        token = (await founder.invite()).to_token()
        async with api_of(joiner.desk()) as api:
            joined = (await api.post("/join", json={"token": token, "operator": "bob"})).json()
    assert (joined["state"], joined["restart"], joined["roles"]) == ("member", False, ["core", "elm"])


async def test_a_token_for_another_network_waits_for_the_next_start(village: Village) -> None:
    founder, joiner = await village.founder(), await village.node(2)
    token = (await founder.invite()).to_token()
    answer = await joiner.desk(fits=False).swarm_join(JoinSwarm(token=token))
    assert (answer["state"], answer["restart"]) == ("joining", True)
    swarm = (await village.node(2)).membership.swarm
    assert swarm is not None
    assert swarm.pending == token


async def test_an_open_swarm_is_joined_without_a_certificate(village: Village) -> None:
    founder, joiner = await village.founder(open_to_all=True), await village.node(2)
    async with api_of(founder.desk()) as api:
        made = (await api.post("/invites", json={"roles": ["core"], "tier": "D"})).json()
    answer = await joiner.desk().swarm_join(JoinSwarm(token=made["token"]))
    assert (made["id"], made["uses"]) == ("", None)
    assert (answer["state"], answer["tier"], set(answer["roles"])) == ("member", "D", set(EXPERTS))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/init", {}),
        ("/init", {"name": ""}),
        ("/init", {"name": "x" * 65}),
        ("/init", {"name": "a\nb"}),
        ("/invites", {"roles": []}),
        ("/invites", {"roles": ["king"]}),
        ("/invites", {"roles": ["core"], "tier": "E"}),
        ("/invites", {"roles": ["core"], "hours": 0}),
        ("/invites", {"roles": ["core"], "uses": 65}),
        ("/invites", {"roles": ["core"], "more": 1}),
        ("/join", {"token": ""}),
        ("/roles", {"peer": "", "roles": ["core"]}),
        ("/revoke", {"target": ""}),
        ("/admins", {"peer": ""}),
    ],
)
async def test_a_wrong_body_is_refused_by_name(village: Village, path: str, body: dict[str, Any]) -> None:
    founder = await village.founder()
    async with api_of(founder.desk()) as api:
        answer = await api.post(path, json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["param"]


async def test_a_node_that_nobody_can_dial_invites_nobody(village: Village) -> None:
    founder = await village.founder()
    desk = SwarmDesk(founder.membership, founder.invites, addresses=tuple, operator="x", fits=lambda: True)
    async with api_of(desk) as api:
        answer = await api.post("/invites", json={"roles": ["core"]})
    assert answer.status_code == 400
    assert "net.announce" in answer.json()["error"]["gnus"]["hint"]
    assert await founder.invites.list() == []


async def test_members_who_were_refused_or_ended_say_so(village: Village) -> None:
    founder = await village.founder()
    await founder.membership.grant(key(2).peer_id, (Role.CORE,), operator="bob", days=1)
    village.clock.ms += 2 * 24 * 3600 * 1000
    rows = founder.desk().swarm_members()
    assert [(row["operator"], row["state"]) for row in rows] == [("alice", "member"), ("bob", "certificate_expired")]
