"""``/gnus/v1``, health and metrics."""

from __future__ import annotations

import json
import re

from gnusnode.api.facade import Readiness
from gnusnode.api.keys import MemoryKeyStore, Scope
from tests.unit.api.scripted import ScriptedNode
from tests.unit.api.serving import CHAT, client_of, make_key


async def test_a_plan_comes_with_the_verdict_on_each_of_its_records(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        request_id = (await client.post("/v1/chat/completions", json=CHAT)).headers["x-request-id"]
        honest = (await client.get(f"/gnus/v1/plans/{request_id}")).json()
        view = node.plans[request_id]
        forged = view.outputs[0].model_copy(update={"answer": "something else"})
        node.plans[request_id] = view.model_copy(update={"outputs": (forged,)})
        changed = (await client.get(f"/gnus/v1/plans/{request_id}")).json()
    assert honest["state"] == "done"
    assert honest["verification"]["plan"]["outcome"] == "ok"
    assert honest["verification"]["plan"]["signer"] == node.peer_id
    assert [output["outcome"] for output in honest["verification"]["outputs"]] == ["ok"]
    assert [output["outcome"] for output in changed["verification"]["outputs"]] == ["bad_signature"]


async def test_readiness_says_what_is_missing(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        ready = await client.get("/readyz")
        node.ready = Readiness(False, {"elm": "the model is being loaded"})
        waiting = await client.get("/readyz")
        node.ready = Readiness(True)
        node.stopping.set()
        stopping = await client.get("/readyz")
        alive = await client.get("/healthz")
    assert (ready.status_code, ready.json()) == (200, {"ready": True, "reasons": {}})
    assert waiting.status_code == 503
    assert waiting.json() == {"ready": False, "reasons": {"elm": "the model is being loaded"}}
    assert (stopping.status_code, stopping.json()["reasons"]) == (503, {"node": "shutting down"})
    assert alive.status_code == 200


async def test_metrics_are_those_of_this_node(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "gnusnode_loop_lag_seconds" in answer.text


async def test_status_is_what_the_node_says(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        assert (await client.get("/gnus/v1/status")).json() == node.status()


async def test_keys_are_made_listed_and_revoked_and_shown_once(node: ScriptedNode) -> None:
    keys = MemoryKeyStore()
    async with client_of(node, keys, token=make_key(keys, Scope.ADMIN)) as admin:
        body = {"name": "ann", "scopes": ["chat"], "requests_per_minute": 5, "expires_in_seconds": 60}
        made = await admin.post("/gnus/v1/keys", json=body)
        listed = (await admin.get("/gnus/v1/keys")).json()["data"]
        token, key_id = made.json()["key"], made.json()["id"]
        assert made.status_code == 201
        assert keys.find(token) is not None
        assert next(key for key in listed if key["id"] == key_id)["limits"] == {"requests_per_minute": 5}
        assert token not in str(listed)
        assert "sha256" not in str(listed)
        assert (await admin.delete(f"/gnus/v1/keys/{key_id}")).json()["deleted"] is True
        assert (await admin.delete(f"/gnus/v1/keys/{key_id}")).status_code == 404
    assert keys.find(token) is None


async def test_the_document_describes_every_body(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        document = (await client.get("/openapi.json")).json()
        assert (await client.get("/docs")).status_code == 404
    assert set(document["components"]["schemas"]["ChatRequest"]["required"]) == {"model", "messages"}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert "default" in operation["responses"], path
            assert method != "post" or "requestBody" in operation or path == "/gnus/v1/stop", path
    names = re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document))
    assert set(names) <= set(document["components"]["schemas"])


async def test_the_audit_chain_is_shown_to_administrators_only(node: ScriptedNode) -> None:
    keys = MemoryKeyStore()
    async with client_of(node, keys, token=make_key(keys, Scope.ADMIN)) as admin:
        some = (await admin.get("/gnus/v1/audit/events?first=1&count=1")).json()
        assert some == {"object": "list", "data": [{"number": 1}]}
        assert (await admin.get("/gnus/v1/audit/head")).json() == {"length": 3}
        assert (await admin.get("/gnus/v1/audit/verify")).json()["broken"] is None
        assert (await admin.get("/gnus/v1/audit/events?count=501")).status_code == 422
    async with client_of(ScriptedNode(), keys, token=make_key(keys, Scope.READ, Scope.CHAT, Scope.APPROVE)) as other:
        assert (await other.get("/gnus/v1/audit/events")).status_code == 403


async def test_a_key_sees_the_plans_of_its_own_tenant_only(node: ScriptedNode) -> None:
    keys = MemoryKeyStore()
    async with client_of(node, keys, token=make_key(keys, tenant="acme")) as client:
        request_id = (await client.post("/v1/chat/completions", json=CHAT)).headers["x-request-id"]
        assert (await client.get(f"/gnus/v1/plans/{request_id}")).status_code == 200
    async with client_of(node, keys, token=make_key(keys, tenant="rival")) as client:
        assert (await client.get(f"/gnus/v1/plans/{request_id}")).status_code == 404
    async with client_of(node, keys, token=make_key(keys, Scope.ADMIN)) as client:
        assert (await client.get(f"/gnus/v1/plans/{request_id}")).status_code == 200
