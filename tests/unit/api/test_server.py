"""The server on real sockets: addresses, TLS, the unix socket, limits of a body."""

from __future__ import annotations

import json
import os
import socket
import ssl
import stat
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
import trustme

from gnusnode.api import sockets
from gnusnode.api.keys import MemoryKeyStore
from gnusnode.api.options import ApiOptions
from gnusnode.api.server import serve_api
from gnusnode.errors import CannotBind, ConfigError, GnusError
from tests.unit.api.scripted import Script, ScriptedNode
from tests.unit.api.serving import CHAT, dial, make_key, raw_request, read_all, read_until, serving


@pytest.fixture
def short_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s") / "api.sock"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def tls(authority: trustme.CA, folder: Path) -> dict[str, Any]:
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    return {"tls_cert": folder / "cert.pem", "tls_key": folder / "key.pem"}


def cli_of(path: Path) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=str(path)), base_url="http://anything")


async def refused(node: ScriptedNode, options: ApiOptions, keys: MemoryKeyStore | None = None) -> GnusError:
    """Why the API does not start."""
    with pytest.raises(GnusError) as error:
        await serve_api(node, options, keys or MemoryKeyStore(), node.observer)
    return error.value


# --- addresses --------------------------------------------------------------------------------------------------------


async def test_port_0_takes_a_free_port_and_tells_which(node: ScriptedNode) -> None:
    async with serving(node, host="localhost") as bound:
        ((host, port),) = bound.tcp
        assert port > 0
        assert bound.url == f"http://{f'[{host}]' if ':' in host else host}:{port}"
        async with httpx2.AsyncClient() as client:
            assert (await client.get(f"{bound.url}/healthz")).status_code == 200


async def test_a_busy_port_is_an_error_that_says_how_to_find_out_who_holds_it(node: ScriptedNode) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        error = await refused(node, ApiOptions(port=port))
    assert isinstance(error, CannotBind)
    assert error.exit_code == 3
    assert "in use" in error.what
    assert str(port) in (error.hint or "")


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid", "::ffff:999"])
async def test_an_address_that_is_not_ours_is_an_error(
    node: ScriptedNode, authority: trustme.CA, tmp_path: Path, host: str
) -> None:
    keys = MemoryKeyStore()
    make_key(keys)
    error = await refused(node, ApiOptions(host=host, port=0, **tls(authority, tmp_path)), keys)
    assert isinstance(error, CannotBind)
    assert error.hint


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "node.example"])
@pytest.mark.parametrize("missing", ["key", "tls", "both"])
async def test_the_network_is_not_served_without_a_key_and_tls(
    node: ScriptedNode, authority: trustme.CA, tmp_path: Path, host: str, missing: str
) -> None:
    keys = MemoryKeyStore()
    if missing == "tls":
        make_key(keys)
    files = tls(authority, tmp_path) if missing == "key" else {}
    error = await refused(node, ApiOptions(host=host, port=0, **files), keys)
    assert isinstance(error, ConfigError)
    assert ("an API key" in error.what) == (missing != "tls")
    assert ("TLS" in error.what) == (missing != "key")


async def test_with_a_key_and_tls_the_network_is_served(
    node: ScriptedNode, authority: trustme.CA, tmp_path: Path
) -> None:
    keys = MemoryKeyStore()
    token = make_key(keys)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    headers = {"authorization": f"Bearer {token}"}
    async with (
        serving(node, keys, host="0.0.0.0", **tls(authority, tmp_path)) as bound,
        httpx2.AsyncClient(verify=trust, base_url=f"https://localhost:{bound.tcp[0][1]}") as client,
    ):
        assert bound.secure
        assert (await client.get("/v1/models")).status_code == 401
        answer = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello, world"
    assert answer.http_version == "HTTP/1.1"


@pytest.mark.parametrize("damage", ["missing", "no-pem", "other-key"])
async def test_an_unusable_certificate_is_a_configuration_error(
    node: ScriptedNode, authority: trustme.CA, tmp_path: Path, damage: str
) -> None:
    files = tls(authority, tmp_path)
    match damage:
        case "missing":
            files["tls_cert"].unlink()
        case "no-pem":
            files["tls_cert"].write_text("nothing")
        case _:
            authority.issue_cert("other").private_key_pem.write_to_path(files["tls_key"])
    error = await refused(node, ApiOptions(port=0, **files))
    assert isinstance(error, ConfigError)
    assert "tls_cert" in str(error)


# --- the unix socket --------------------------------------------------------------------------------------------------


async def test_the_unix_socket_is_private_and_its_callers_are_administrators(
    node: ScriptedNode, short_path: Path
) -> None:
    keys = MemoryKeyStore()
    make_key(keys)
    async with serving(node, keys, unix_socket=short_path) as bound, cli_of(short_path) as cli:
        assert bound.unix == short_path
        assert stat.S_IMODE(short_path.stat().st_mode) == 0o600
        assert (await cli.get("/gnus/v1/keys")).status_code == 200
        assert (await cli.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert (await cli.get("/gnus/v1/bugreport")).json() == {"version": "test"}
    assert not short_path.exists()


async def test_stopping_over_the_unix_socket_is_answered_before_the_node_goes(
    node: ScriptedNode, short_path: Path
) -> None:
    with trio.fail_after(10):
        async with serving(node, unix_socket=short_path), cli_of(short_path) as cli:
            answer = await cli.post("/gnus/v1/stop")
    assert answer.status_code == 202
    assert node.stop_requests == 1


async def test_another_user_is_turned_away_from_the_unix_socket(
    node: ScriptedNode, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 123456)
    monkeypatch.setattr(sockets, "_UCRED", _Claims(uid=654321))
    async with serving(node, unix_socket=short_path), await trio.open_unix_socket(str(short_path)) as stream:
        await stream.send_all(raw_request("GET", "/healthz"))
        assert await read_all(stream) == b""
    assert _metric(node, "gnusnode_http_connections_refused_total", reason="foreign") == 1


class _Claims:
    """Stands in for the layout of the kernel's answer about a peer."""

    size = 12

    def __init__(self, uid: int) -> None:
        self._uid = uid

    def unpack(self, _data: bytes) -> tuple[int, int, int]:
        return 1, self._uid, 1


def _metric(node: ScriptedNode, name: str, **labels: str) -> float | None:
    return node.metrics.get_sample_value(name, labels)


async def test_a_socket_left_behind_by_a_crash_is_replaced(node: ScriptedNode, short_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(short_path))
    async with serving(node, unix_socket=short_path), cli_of(short_path) as cli:
        assert (await cli.get("/healthz")).status_code == 200


async def test_a_socket_that_another_node_serves_is_left_alone(node: ScriptedNode, short_path: Path) -> None:
    async with serving(node, unix_socket=short_path), cli_of(short_path) as cli:
        other = ScriptedNode()
        error = await refused(other, ApiOptions(port=0, unix_socket=short_path))
        assert isinstance(error, CannotBind)
        assert (await cli.get("/healthz")).status_code == 200


async def test_a_file_in_the_place_of_the_socket_is_not_removed(node: ScriptedNode, short_path: Path) -> None:
    short_path.write_text("precious")
    error = await refused(node, ApiOptions(port=0, unix_socket=short_path))
    assert isinstance(error, CannotBind)
    assert short_path.read_text() == "precious"


async def test_a_path_too_long_for_a_socket_is_an_error_that_says_so(node: ScriptedNode, tmp_path: Path) -> None:
    error = await refused(node, ApiOptions(port=0, unix_socket=tmp_path / ("ü" * 60) / "api.sock"))
    assert isinstance(error, CannotBind)
    assert "longer than" in error.what


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_many_requests_share_one_connection(node: ScriptedNode) -> None:
    async with serving(node) as bound, await dial(bound) as stream:
        for _ in range(3):
            await stream.send_all(raw_request("GET", "/healthz"))
            assert b"HTTP/1.1 200" in await read_until(stream, b'{"status":"ok"}')


async def test_a_refused_body_does_not_keep_the_client_from_reading_why(node: ScriptedNode) -> None:
    async with serving(node, max_body_bytes=1000) as bound, await dial(bound) as stream:
        body = b"x" * 300_000
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, raw_request("POST", "/v1/chat/completions", body))
                answer = await read_until(stream, b"max_body_bytes")
    assert answer.startswith(b"HTTP/1.1 413")


async def test_a_body_that_grows_too_large_while_it_arrives_is_refused(node: ScriptedNode) -> None:
    head = raw_request(
        "POST", "/v1/chat/completions", headers=("Content-Type: application/json", "Transfer-Encoding: chunked")
    )
    chunk = b"3e8\r\n" + b" " * 1000 + b"\r\n"
    async with serving(node, max_body_bytes=2500) as bound, await dial(bound) as stream:
        await stream.send_all(head + chunk * 5)
        with trio.fail_after(10):
            assert (await read_until(stream, b"max_body_bytes")).startswith(b"HTTP/1.1 413")


async def test_cancelling_the_server_ends_everything_at_once(node: ScriptedNode) -> None:
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            options = ApiOptions(port=0, grace_seconds=600)
            bound = await nursery.start(partial(serve_api, node, options, MemoryKeyStore(), node.observer))
            stream = await dial(bound)
            await stream.send_all(b"GET")
            nursery.cancel_scope.cancel()
        assert await read_all(stream) == b""
        await stream.aclose()


async def test_a_protocol_switch_is_ignored_and_the_request_answered(node: ScriptedNode) -> None:
    async with serving(node) as bound, await dial(bound) as stream:
        headers = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMA")
        await stream.send_all(raw_request("GET", "/healthz", headers=headers))
        assert b"HTTP/1.1 200" in await read_until(stream, b'{"status":"ok"}')


@pytest.mark.requirement("G-ROLE-2")
async def test_events_of_the_node_arrive_with_ids_and_can_be_resumed(node: ScriptedNode) -> None:
    async with serving(node) as bound, await dial(bound) as stream:
        await stream.send_all(raw_request("GET", "/gnus/v1/events"))
        await read_until(stream, b": keep-alive")
        async with httpx2.AsyncClient(base_url=bound.url) as client:
            await client.get("/gnus/v1/keys")
        text = await read_until(stream, b"permission_denied")
        place = next(line for line in text.splitlines() if line.startswith(b"id: "))
        before = int(place.removeprefix(b"id: ")) - 1
        async with await dial(bound) as late:
            await late.send_all(raw_request("GET", "/gnus/v1/events", headers=(f"Last-Event-ID: {before}",)))
            assert place in await read_until(late, b"permission_denied")
        node.stopping.set()
        rest = await read_all(stream)
    assert b'"code":"unavailable"' in rest
    data = next(line for line in text.splitlines() if line.startswith(b"data: "))
    assert json.loads(data.removeprefix(b"data: "))["name"] == "request.refused"


async def test_whoever_leaves_before_the_end_has_used_its_tokens_all_the_same(node: ScriptedNode) -> None:
    keys = MemoryKeyStore()
    key = f"Authorization: Bearer {make_key(keys, tokens_per_minute=10)}"
    node.script = Script(endless=True, interval=0.001)
    ask = raw_request("POST", "/v1/chat/completions", json.dumps({**CHAT, "stream": True}).encode(), [key])
    async with serving(node, keys) as bound:
        async with await dial(bound) as stream:
            await stream.send_all(ask)
            seen = b""
            while seen.count(b"world") < 20:
                seen += await stream.receive_some()
        await node.settled()
        async with await dial(bound) as stream:
            await stream.send_all(ask)
            assert b"rate_limit_exceeded" in await read_until(stream, b"}}}")


async def test_a_stopping_node_ends_a_stream_over_tls_with_an_error_event(
    node: ScriptedNode, authority: trustme.CA, tmp_path: Path
) -> None:
    node.script = Script(endless=True, interval=0.001)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    body = json.dumps({**CHAT, "stream": True}).encode()
    with trio.fail_after(10):
        async with serving(node, grace_seconds=5.0, **tls(authority, tmp_path)) as bound, await dial(bound) as raw:
            stream = trio.SSLStream(raw, trust, server_hostname="127.0.0.1", https_compatible=True)
            await stream.send_all(raw_request("POST", "/v1/chat/completions", body))
            await read_until(stream, b"world")
            node.stopping.set()
            rest = await read_all(stream)
    assert b'"code":"unavailable"' in rest
    assert rest.endswith(b"0\r\n\r\n")
