"""``web.fetch`` and ``http.request``: predicted without a socket, refused with the reason, run through one guard."""

from __future__ import annotations

import ast
import socket
from collections.abc import Iterable
from pathlib import Path

import httpx2
import pytest
import trio
from pydantic import TypeAdapter, ValidationError

from gnusnode.contracts import ids
from gnusnode.contracts.memory import MemoryEvent
from gnusnode.errors import ToolBlocked
from gnusnode.inference.grammar import compile_schema
from gnusnode.sanitize import secrets
from gnusnode.web.client import open_client
from gnusnode.web.exchange import Limits
from gnusnode.web.refusals import Reason, WebFailed, WebRefused
from gnusnode.web.transport import GuardedTransport
from roles.intermediary.tools.base import Scope, Tool, reason_of
from roles.intermediary.tools.beneath import Roots
from roles.intermediary.tools.fs_read import FsRead
from roles.intermediary.tools.fs_write import FsWrite
from roles.intermediary.tools.http_request import HttpRequest
from roles.intermediary.tools.web_fetch import WebFetch
from roles.intermediary.tools.web_search import WebSearch
from tests.unit.intermediary.proposals import proposal
from tests.unit.web.server import answer, client_for, get, site

ROOT = Path(__file__).resolve().parents[3]
DOCS = Scope(domains=("docs.gnus.ai",))
INTERNAL = (
    "http://[2002:a9fe:a9fe::]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://2852039166/",
    "http://0xa9fea9fe/",
    "http://[::ffff:169.254.169.254]/",
)


def no_leaks(url: str, headers: Iterable[tuple[str, str]], body: bytes) -> list[str]:
    return []


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a dry-run opened a socket or asked for a name")

    monkeypatch.setattr(trio.socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


# --- dry-runs ---------------------------------------------------------------------------------------------------------


async def test_a_fetch_is_predicted_to_the_request_and_nothing_is_sent(no_sockets: None) -> None:
    async with open_client(leaks=no_leaks) as web:
        result = await WebFetch(web).dry_run(
            proposal("web.fetch", url="https://Docs.gnus.ai/a b?c".replace(" ", "%20")), DOCS
        )

    assert result.dry_run_ok
    assert result.simulated_effects.network_requests == (
        "GET https://docs.gnus.ai/robots.txt",
        "GET https://docs.gnus.ai/a%20b?c",
    )
    assert not result.human_approval_required


@pytest.mark.parametrize("url", INTERNAL)
@pytest.mark.parametrize("domains", [("docs.gnus.ai",), ("169.254.169.254", "[2002:a9fe:a9fe::]", "2852039166")])
async def test_internal_addresses_in_any_spelling_are_denied_in_the_dry_run(
    url: str, domains: tuple[str, ...], no_sockets: None
) -> None:
    # pydantic-ai CVE-2026-25580 and CVE-2026-46678
    async with open_client(leaks=no_leaks) as web:
        for tool, arguments in (
            (WebFetch(web), {"url": url}),
            (HttpRequest(web), {"url": url, "method": "POST"}),
        ):
            result = await tool.dry_run(proposal(tool.manifest.name, **arguments), Scope(domains=domains))
            assert not result.dry_run_ok
            assert reason_of(result) == "SSRF_ADDRESS"
            assert result.risk_flags == ("ssrf_address",)
            assert result.simulated_effects.network_requests == ()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://docs.gnus.ai.evil.example/", "DOMAIN_NOT_ALLOWED"),
        ("docs.gnus.ai.evil.example", "DOMAIN_NOT_ALLOWED"),
        ("https://docs.gnus.ai@evil.example/", "URL_USERINFO"),
        ("https://docs.gnus.ai\\@evil.example", "URL_MALFORMED"),
        ("file:///etc/passwd", "URL_SCHEME"),
        ("https://docs.gnus.ai:8443/", "URL_PORT"),
        ("", "ARGUMENTS_INVALID"),
        (7, "ARGUMENTS_INVALID"),
        ("x" * 5000, "ARGUMENTS_INVALID"),
    ],
)
async def test_a_url_that_only_looks_like_an_allowed_one_is_denied_with_the_reason(url: object, reason: str) -> None:
    # LangChain CVE-2024-0243
    async with open_client(leaks=no_leaks) as web:
        denied = await WebFetch(web).dry_run(proposal("web.fetch", url=url), DOCS)
        allowed = await WebFetch(web).dry_run(proposal("web.fetch", url="docs.gnus.ai/x"), DOCS)

    assert (denied.dry_run_ok, reason_of(denied)) == (False, reason)
    assert reason_of(allowed) == "OK"


async def test_an_empty_scope_allows_nothing() -> None:
    async with open_client(leaks=no_leaks) as web:
        result = await WebFetch(web).dry_run(proposal("web.fetch", url="https://docs.gnus.ai/"), Scope())

    assert reason_of(result) == "DOMAIN_NOT_ALLOWED"


async def test_a_scope_without_a_list_allows_every_public_host_and_no_other() -> None:
    async with open_client(leaks=no_leaks) as web:
        tool, scope = WebFetch(web), Scope(domains=None)
        assert reason_of(await tool.dry_run(proposal("web.fetch", url="https://pub.example/"), scope)) == "OK"
        assert reason_of(await tool.dry_run(proposal("web.fetch", url="http://10.0.0.1/"), scope)) == "SSRF_ADDRESS"


async def test_arguments_that_nobody_declared_are_denied() -> None:
    async with open_client(leaks=no_leaks) as web:
        call = proposal("web.fetch", url="https://docs.gnus.ai/", proxy="http://evil.example")
        result = await WebFetch(web).dry_run(call, DOCS)

    assert reason_of(result) == "ARGUMENTS_INVALID"
    assert "proxy" in result.mock_output.preview


@pytest.mark.requirement("A-TOOL-2")
async def test_a_credential_in_any_part_of_a_request_is_denied_before_anything_is_sent() -> None:
    def leaks(url: str, headers: Iterable[tuple[str, str]], body: bytes) -> list[str]:
        return ["key"] if "KEY" in url or "KEY" in str(list(headers)) or b"KEY" in body else []

    tries = (
        {"url": "https://docs.gnus.ai/?k=KEY"},
        {"url": "https://docs.gnus.ai/", "body": "KEY"},
        {"url": "https://docs.gnus.ai/", "headers": [{"name": "x-a", "value": "KEY"}]},
    )
    async with open_client(leaks=leaks) as web:
        for arguments in tries:
            call = proposal("http.request", method="POST", **arguments)
            assert reason_of(await HttpRequest(web).dry_run(call, DOCS)) == "CREDENTIAL_LEAK"
            with pytest.raises(ToolBlocked, match="CREDENTIAL_LEAK"):
                await HttpRequest(web).run(call, DOCS, await HttpRequest(web).dry_run(call, DOCS))
        fetch = proposal("web.fetch", url="https://docs.gnus.ai/KEY")
        assert reason_of(await WebFetch(web).dry_run(fetch, DOCS)) == "CREDENTIAL_LEAK"


async def test_the_rules_of_the_sanitiser_stop_a_real_looking_key() -> None:
    key = "AKIA" + "J7QK4WZ2MXB5TR6L"
    async with open_client(leaks=secrets.leaks) as web:
        carrying = await WebFetch(web).dry_run(proposal("web.fetch", url=f"https://docs.gnus.ai/?q={key}"), DOCS)
        plain = await WebFetch(web).dry_run(proposal("web.fetch", url="https://docs.gnus.ai/?q=trio"), DOCS)

    assert reason_of(carrying) == "CREDENTIAL_LEAK"
    assert key not in carrying.mock_output.preview
    assert reason_of(plain) == "OK"


async def test_a_request_that_changes_something_always_asks_and_shows_all_of_itself() -> None:
    call = proposal(
        "http.request",
        method="PUT",
        url="https://docs.gnus.ai/x",
        headers=[{"name": "X-B", "value": "2"}, {"name": "X-A", "value": "1"}],
        body="the body",
    )
    async with open_client(leaks=no_leaks) as web:
        result = await HttpRequest(web).dry_run(call, DOCS)

    assert result.human_approval_required
    assert result.risk_flags == ("external_mutation",)
    assert result.simulated_effects.network_requests == ("PUT https://docs.gnus.ai/x",)
    assert result.mock_output.preview == "PUT https://docs.gnus.ai/x\nX-A: 1\nX-B: 2\n\nthe body"


@pytest.mark.parametrize(
    "headers",
    [
        [{"name": "Host", "value": "evil.example"}],
        [{"name": "a", "value": "1"}, {"name": "A", "value": "2"}],
        [{"name": "a", "value": "1\r\nb: 2"}],
    ],
)
async def test_headers_that_would_change_where_a_request_goes_are_denied(headers: list[dict[str, str]]) -> None:
    async with open_client(leaks=no_leaks) as web:
        call = proposal("http.request", method="POST", url="https://docs.gnus.ai/", headers=headers)
        result = await HttpRequest(web).dry_run(call, DOCS)

    assert reason_of(result) == "HEADER_NOT_ALLOWED"


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("A-TOOL-2")
async def test_a_page_is_fetched_with_its_rules_honoured() -> None:
    replies = {
        "/robots.txt": answer(b"User-agent: *\nDisallow: /closed"),
        "/open": answer(b"<p>hi", kind="text/html; charset=utf-8"),
        "/moved": answer(b"", "Location: http://169.254.169.254/", status=302),
    }
    async with site(replies) as server, client_for(server) as web:
        tool, scope = WebFetch(web), Scope(domains=("site.test",))

        async def run(path: str, **more: object) -> object:
            call = proposal("web.fetch", url=server.url(path), **more)
            return await tool.run(call, scope, await tool.dry_run(call, scope))

        output = await run("/open", max_characters=500)
        with pytest.raises(ToolBlocked, match="ROBOTS_DISALLOWED"):
            await run("/closed")
        with pytest.raises(ToolBlocked, match="SSRF_ADDRESS"):
            await run("/moved")
        with pytest.raises(WebFailed) as missing:
            await run("/missing")

    assert (output.data, output.media_type, output.charset) == (b"<p>hi", "text/html", "utf-8")
    assert (output.source, output.longest) == (server.url("/open"), 500)
    assert missing.value.reason is Reason.HTTP_STATUS
    assert server.paths() == ["/robots.txt", "/open", "/moved", "/missing"]


async def test_a_mutation_is_sent_once_to_the_place_that_was_approved() -> None:
    replies = {"/x": answer(b'{"id": 1}', "Location: /y", status=307, kind="application/json"), "/y": answer(b"no")}
    async with site(replies) as server, client_for(server) as web:
        tool, scope = HttpRequest(web), Scope(domains=("site.test",))
        call = proposal("http.request", method="POST", url=server.url("/x"), body="a")
        output = await tool.run(call, scope, await tool.dry_run(call, scope))

    assert server.paths() == ["/x"]
    assert output.note == "HTTP status 307"
    assert output.data == b'{"id": 1}'


# --- one guard on every way -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", [*INTERNAL, "http://127.0.0.1:8000/", "file:///etc/passwd", "http://a@127.0.0.1/"])
async def test_every_way_to_the_web_refuses_the_same_for_the_same_reason(url: str) -> None:
    # modelcontextprotocol/servers #4143 and #4838: the tool was guarded, the preview was not
    reasons: set[str] = set()
    async with open_client(leaks=no_leaks) as web:
        tool, call = WebFetch(web), proposal("web.fetch", url=url)
        preview = await tool.dry_run(call, DOCS)
        reasons.add(reason_of(preview))
        with pytest.raises((ToolBlocked, WebRefused)) as run:
            await tool.run(call, DOCS, preview)
        reasons.add(run.value.reason)
        with pytest.raises(WebRefused) as grounding:
            await web.fetch(get(url, robots=True))
        reasons.add(grounding.value.reason.value)
    async with httpx2.AsyncClient(transport=GuardedTransport(), trust_env=False) as models:
        if url.startswith("http"):
            with pytest.raises(WebRefused) as download:
                await models.get(url)
            reasons.add(download.value.reason.value)

    assert len(reasons) == 1, reasons


def test_nothing_else_in_the_house_can_open_an_http_connection() -> None:
    openers = {"httpx2", "httpx", "httpcore2", "httpcore", "requests", "urllib3", "aiohttp", "urllib", "http"}
    harmless = {"urllib.parse", "http.HTTPStatus"}
    guarded = {f"gnusnode/web/{name}.py" for name in ("answer", "backend", "client", "transport")}
    # Servers and files that the operator names on the command line or in the configuration, and our own socket.
    named = {
        "gnusnode/cli/client.py",
        "gnusnode/inference/remote.py",
        "gnusnode/inference/artifacts/fetch.py",
        "gnusnode/inference/artifacts/pull.py",
    }
    found: set[str] = set()
    for package in ("gnusnode", "roles", "crdt", "sandbox"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.Import):
                    names = {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    names = {f"{node.module}.{alias.name}" for alias in node.names}
                else:
                    continue
                risky = {name for name in names if name.split(".")[0] in openers}
                if not all(any(name.startswith(known) for known in harmless) for name in risky):
                    found.add(file.relative_to(ROOT).as_posix())

    assert found <= guarded | named


@pytest.mark.parametrize(
    "place", ["file:///etc/passwd", "http://169.254.169.254/", "https://docs.gnus.ai/", "cid://x", ""]
)
def test_memory_points_to_content_addresses_only(place: str) -> None:
    # mem0/embedchain #3823
    payload_ref = TypeAdapter(MemoryEvent.model_fields["payload_ref"].rebuild_annotation())

    with pytest.raises(ValidationError):
        payload_ref.validate_python(place)
    assert payload_ref.validate_python(ids.cid(b"x", raw=True))


# --- manifests --------------------------------------------------------------------------------------------------------


async def test_every_tool_declares_each_argument_and_its_schema_can_constrain_a_model(tmp_path: Path) -> None:
    roots = Roots([tmp_path])
    async with open_client(leaks=no_leaks, limits=Limits()) as web:
        tools: list[Tool] = [WebFetch(web), HttpRequest(web), WebSearch(web, []), FsRead(roots), FsWrite(roots)]
    for tool in tools:
        manifest = tool.manifest
        declared = {sink.argument for sink in manifest.description.sinks} | set(manifest.description.harmless)
        assert declared == set(manifest.schema()["properties"]), manifest.name
        assert compile_schema(manifest.schema())
        assert manifest.spec().name == manifest.name
        assert manifest.mutates == (not manifest.description.capability.endswith(".readonly"))
