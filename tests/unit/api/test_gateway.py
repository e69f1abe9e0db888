"""What every request meets: who may call what, from where, and how refusals look."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from gnusnode.api.auth import needed_scopes
from gnusnode.api.keys import MemoryKeyStore, NewKey, Scope
from gnusnode.errors import EngineFailed
from gnusnode.identity import NodeIdentity
from tests.unit.api.scripted import Script, ScriptedNode
from tests.unit.api.serving import CHAT, client_of, make_key


def assert_envelope(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "gnus"}
    assert error["message"]
    assert error["code"] == code
    return error


# --- the envelope -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "kwargs", "status", "code"),
    [
        ("GET", "/nothing", {}, 404, "not_found"),
        ("GET", "/v1/nothing", {}, 404, "not_found"),
        ("GET", "/v1/models/nobody", {}, 404, "model_not_found"),
        ("POST", "/v1/chat/completions", {"json": {**CHAT, "model": "nobody"}}, 404, "model_not_found"),
        ("GET", "/gnus/v1/plans/nobody", {}, 404, "not_found"),
        ("GET", "/v1/chat/completions", {}, 405, "method_not_allowed"),
        ("PUT", "/healthz", {}, 405, "method_not_allowed"),
        ("POST", "/gnus/v1/stop", {}, 403, "permission_denied"),
        ("GET", "/gnus/v1/unknown", {}, 403, "permission_denied"),
        ("GET", "/gnus/v1/events?after=x", {}, 422, "unprocessable"),
        ("POST", "/v1/chat/completions", {"json": []}, 400, "invalid_request"),
        ("POST", "/v1/chat/completions", {"json": {}}, 400, "invalid_request"),
        ("POST", "/v1/chat/completions", {"content": b"{"}, 400, "invalid_request"),
        ("POST", "/v1/chat/completions", {"json": {**CHAT, "audio": {}}}, 400, "unsupported_parameter"),
        ("POST", "/v1/chat/completions", {"content": b"x" * 3000}, 413, "request_too_large"),
        ("GET", "/healthz", {"headers": {"host": "evil.example"}}, 421, "misdirected_request"),
    ],
)
async def test_every_refusal_is_openais_envelope(
    node: ScriptedNode, method: str, path: str, kwargs: dict[str, Any], status: int, code: str
) -> None:
    kwargs["headers"] = {"content-type": "application/json", **kwargs.get("headers", {})}
    async with client_of(node, max_body_bytes=2000) as client:
        assert_envelope(await client.request(method, path, **kwargs), status, code)


async def test_our_own_surface_answers_422_to_json_of_the_wrong_shape(node: ScriptedNode) -> None:
    keys = MemoryKeyStore()
    async with client_of(node, keys, token=make_key(keys, Scope.ADMIN)) as client:
        error = assert_envelope(await client.post("/gnus/v1/keys", json={"name": 1}), 422, "unprocessable")
    assert error["param"] == "name"


async def test_a_failing_engine_answers_502_with_what_to_do(node: ScriptedNode) -> None:
    node.script = Script(fail_after=(1, EngineFailed("it died", hint="try again", retry_after=2)))
    async with client_of(node) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)
    error = assert_envelope(answer, 502, "engine_failed")
    assert error["gnus"] == {"what": "it died", "hint": "try again", "retry_after": 2.0}
    assert answer.headers["retry-after"] == "2"
    assert answer.headers["retry-after-ms"] == "2000"


async def test_a_bug_answers_500_without_telling_what_it_was(node: ScriptedNode) -> None:
    node.script = Script(fail_after=(1, ZeroDivisionError("secret")))
    async with client_of(node) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)
    assert_envelope(answer, 500, "internal_error")
    assert "secret" not in answer.text


async def test_a_full_node_answers_503_and_says_when_to_come_back(node: ScriptedNode) -> None:
    async with client_of(node, max_in_flight=0) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)
    assert_envelope(answer, 503, "overloaded")
    assert answer.headers["retry-after"] == "1"


async def test_a_stopping_node_answers_503(node: ScriptedNode) -> None:
    node.stopping.set()
    async with client_of(node) as client:
        assert_envelope(await client.post("/v1/chat/completions", json=CHAT), 503, "unavailable")


# --- headers ----------------------------------------------------------------------------------------------------------


async def test_the_answer_names_the_node_that_gave_it_from_its_first_byte_on(node: ScriptedNode) -> None:
    worker = NodeIdentity(bytes([5] * 32)).peer_id
    node.script = Script(worker=worker)
    async with client_of(node) as client:
        for path, body in (("chat/completions", CHAT), ("completions", {"model": "gnus", "prompt": "Hi"})):
            for stream in (False, True):
                answer = await client.post(f"/v1/{path}", json={**body, "stream": stream})
                assert answer.status_code == 200
                assert answer.headers["x-gnus-node"] == worker


async def test_every_answer_names_request_and_node_and_lets_no_page_frame_it(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        for path in ("/healthz", "/nothing", "/v1/models"):
            headers = (await client.get(path)).headers
            assert headers["x-gnus-node"] == node.peer_id
            assert headers["openai-processing-ms"].isdecimal()
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert "access-control-allow-origin" not in headers


async def test_the_request_id_of_an_answer_finds_its_plan(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)
        request_id = answer.headers["x-request-id"]
        assert answer.headers["x-gnus-task"] == request_id
        assert answer.json()["gnus"]["request_id"] == request_id
        assert (await client.get(f"/gnus/v1/plans/{request_id}")).json()["request_id"] == request_id


async def test_head_answers_like_get_without_a_body(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        whole, head = await client.get("/v1/models"), await client.head("/v1/models")
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == str(len(whole.content))


async def test_options_lists_the_methods(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        answer = await client.options("/v1/models")
    assert answer.status_code == 204
    assert answer.headers["allow"] == "GET, OPTIONS, HEAD"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-01", False),
        ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", False),
        ("noise", False),
    ],
)
async def test_only_a_well_formed_trace_context_is_passed_on(node: ScriptedNode, given: str, kept: bool) -> None:
    async with client_of(node) as client:
        await client.post("/v1/chat/completions", json=CHAT, headers={"traceparent": given})
    assert node.traceparents == [given if kept else None]


# --- who may call -----------------------------------------------------------------------------------------------------


async def test_without_any_key_this_machine_may_read_and_chat_but_not_administer(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert (await client.get("/gnus/v1/status")).status_code == 200
        assert (await client.get("/gnus/v1/keys")).status_code == 403
        assert (await client.post("/gnus/v1/stop")).status_code == 403
    assert node.stop_requests == 0


async def test_a_made_up_key_does_no_harm_while_the_node_is_open(node: ScriptedNode) -> None:
    async with client_of(node, token="sk-made-up") as client:
        assert (await client.get("/v1/models")).status_code == 200


async def test_another_machine_needs_a_key_even_while_none_exists(node: ScriptedNode) -> None:
    async with client_of(node, peer="10.0.0.7") as client:
        assert_envelope(await client.get("/v1/models"), 401, "invalid_api_key")


async def test_loopback_can_be_closed(node: ScriptedNode) -> None:
    async with client_of(node, open_loopback=False) as client:
        answer = await client.get("/v1/models")
    assert_envelope(answer, 401, "invalid_api_key")
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.requirement("G-ROLE-2")
async def test_once_a_key_exists_everyone_needs_one(node: ScriptedNode) -> None:
    keys = MemoryKeyStore()
    token = make_key(keys)
    async with client_of(node, keys) as client:
        assert_envelope(await client.get("/v1/models"), 401, "invalid_api_key")
        for wrong in ("Bearer", "Bearer x", f"Basic {token}", token):
            answer = await client.get("/v1/models", headers={"authorization": wrong})
            assert_envelope(answer, 401, "invalid_api_key")
        assert (await client.get("/v1/models", headers={"authorization": f"bearer {token}"})).status_code == 200


async def test_revoking_the_last_key_does_not_open_the_node(node: ScriptedNode) -> None:
    keys = MemoryKeyStore()
    token = make_key(keys)
    keys.revoke(keys.list()[0].id)
    async with client_of(node, keys) as client:
        for headers in ({}, {"authorization": f"Bearer {token}"}):
            assert_envelope(await client.get("/v1/models", headers=headers), 401, "invalid_api_key")


async def test_an_expired_key_is_refused(node: ScriptedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = MemoryKeyStore()
    key, token = keys.create(NewKey(name="brief", expires_in_seconds=5))
    monkeypatch.setattr("time.time", lambda: key.created + 6.0)
    async with client_of(node, keys, token=token) as client:
        assert "expired" in assert_envelope(await client.get("/v1/models"), 401, "invalid_api_key")["message"]


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        (Scope.READ, {"models", "status", "metrics"}),
        (Scope.CHAT, {"models", "chat"}),
        (Scope.APPROVE, set[str]()),
        (Scope.ADMIN, {"models", "chat", "status", "metrics", "keys"}),
    ],
)
async def test_a_key_may_do_what_its_scope_says_and_nothing_else(
    node: ScriptedNode, scope: Scope, allowed: set[str]
) -> None:
    keys = MemoryKeyStore()
    calls = {
        "models": ("GET", "/v1/models"),
        "chat": ("POST", "/v1/chat/completions"),
        "status": ("GET", "/gnus/v1/status"),
        "metrics": ("GET", "/metrics"),
        "keys": ("GET", "/gnus/v1/keys"),
    }
    async with client_of(node, keys, token=make_key(keys, scope), peer="10.0.0.7") as client:
        for name, (method, path) in calls.items():
            answer = await client.request(method, path, json=CHAT if method == "POST" else None)
            assert answer.status_code == (200 if name in allowed else 403), name


async def test_health_needs_no_key_and_metrics_none_on_this_machine(node: ScriptedNode) -> None:
    keys = MemoryKeyStore()
    make_key(keys)
    async with client_of(node, keys, peer="10.0.0.7") as away:
        assert (await away.get("/healthz")).status_code == 200
        assert (await away.get("/readyz")).status_code == 200
        assert (await away.get("/metrics")).status_code == 401
    async with client_of(ScriptedNode(), keys) as here:
        assert (await here.get("/metrics")).status_code == 200


async def test_every_route_has_an_access_rule(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    assert "/v1/chat/completions" in paths
    assert [path for path in paths if needed_scopes(path) is None] == []


@pytest.mark.requirement("G-ROLE-2")
async def test_a_key_beyond_its_rate_gets_429_with_the_headers_of_its_limits(node: ScriptedNode) -> None:
    keys = MemoryKeyStore()
    async with client_of(node, keys, token=make_key(keys, requests_per_minute=1)) as client:
        first = await client.post("/v1/chat/completions", json=CHAT)
        second = await client.post("/v1/chat/completions", json=CHAT)
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    assert_envelope(second, 429, "rate_limit_exceeded")
    assert int(second.headers["retry-after"]) <= 60
    assert second.headers["x-ratelimit-limit-requests"] == "1"


async def test_the_tokens_of_an_answer_are_charged_to_its_key(node: ScriptedNode) -> None:
    keys = MemoryKeyStore()
    async with client_of(node, keys, token=make_key(keys, tokens_per_minute=8)) as client:
        assert (await client.post("/v1/chat/completions", json={**CHAT, "stream": True})).status_code == 200
        answer = await client.post("/v1/chat/completions", json=CHAT)
    assert_envelope(answer, 429, "rate_limit_exceeded")


async def test_the_work_of_a_key_belongs_to_its_tenant(node: ScriptedNode) -> None:
    keys = MemoryKeyStore()
    async with client_of(node, keys, token=make_key(keys, tenant="acme")) as client:
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        answer = await client.post("/v1/chat/completions", json={**CHAT, "gnus": {"tenant": "rival"}})
    assert_envelope(answer, 403, "permission_denied")
    (task,) = node.tasks
    assert (task.policy.tenant, task.generation.tenant) == ("acme", "acme")


async def test_refusals_are_counted(node: ScriptedNode) -> None:
    async with client_of(node, open_loopback=False) as client:
        await client.get("/v1/models")
        text = (await client.get("/metrics")).text
    assert 'gnusnode_refused_total{code="invalid_api_key"} 1.0' in text


# --- where a call comes from ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:99", "127.0.0.1:1", "[::1]:8477", "192.168.1.2", "node.example."]
)
async def test_hosts_that_are_ours_are_answered(node: ScriptedNode, host: str) -> None:
    async with client_of(node, allowed_hosts=("node.example",)) as client:
        assert (await client.get("/healthz", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "[", "a b"])
async def test_a_rebound_name_is_not_answered(node: ScriptedNode, host: str) -> None:
    async with client_of(node) as client:
        assert_envelope(await client.get("/healthz", headers={"host": host}), 421, "misdirected_request")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://["},
        {"origin": ""},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example", "sec-fetch-site": "same-origin"},
    ],
)
async def test_a_foreign_page_cannot_post(node: ScriptedNode, headers: dict[str, str]) -> None:
    async with client_of(node) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert_envelope(answer, 403, "permission_denied")
    assert not node.tasks


@pytest.mark.parametrize(
    "headers", [{"origin": "http://127.0.0.1:8477"}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {}]
)
async def test_our_own_page_and_programs_can_post(node: ScriptedNode, headers: dict[str, str]) -> None:
    async with client_of(node) as client:
        assert (await client.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code == 200


async def test_a_listed_origin_may_post_and_read(node: ScriptedNode) -> None:
    origin = "https://app.example"
    keys = MemoryKeyStore()
    key = {"authorization": f"Bearer {make_key(keys)}"}
    async with client_of(node, keys, cors_origins=(origin,)) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT, headers={"origin": origin, **key})
        preflight = await client.options("/v1/chat/completions", headers={"origin": origin})
        other = await client.get("/healthz", headers={"origin": "https://evil.example"})
    assert answer.headers["access-control-allow-origin"] == origin
    assert answer.status_code == 200
    assert preflight.status_code == 204
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_form_cannot_pass_for_json(node: ScriptedNode, media: str) -> None:
    async with client_of(node) as client:
        answer = await client.post("/v1/chat/completions", content=b"{}", headers={"content-type": media})
    assert_envelope(answer, 400, "invalid_request")
