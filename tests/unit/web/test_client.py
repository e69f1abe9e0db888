"""The guarded client against a server that answers as it pleases."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading

import httpx2
import pytest
import trio
import trustme

from gnusnode.errors import Forbidden, Unavailable
from gnusnode.web.exchange import Limits
from gnusnode.web.pacing import Pacer
from gnusnode.web.refusals import Reason, WebFailed, WebRefused
from gnusnode.web.transport import GuardedTransport
from tests.unit.web.server import Endless, answer, client_for, get, names, site


def reason(caught: pytest.ExceptionInfo[WebRefused] | pytest.ExceptionInfo[WebFailed]) -> Reason:
    return caught.value.reason


async def test_a_page_arrives_with_its_type_and_where_it_came_from() -> None:
    async with site({"/a": answer(b"hello", kind="text/plain; charset=UTF-8")}) as server, client_for(server) as client:
        page = await client.fetch(get(server.url("/a#part")))

    assert (page.body, page.status, page.media_type, page.charset) == (b"hello", 200, "text/plain", "utf-8")
    assert page.hops == (server.url("/a"),)
    assert ("content-length", "5") in page.headers


async def test_a_request_says_who_asks_and_carries_nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with site({"/": answer(b"x", "Set-Cookie: a=b")}) as server, client_for(server) as client:
        await client.fetch(get(server.url("/"), headers={"X-Own": "1"}))
        await client.fetch(get(server.url("/")))

    first, second = server.asked
    assert f"Host: site.test:{server.port}" in first
    assert "x-own: 1" in first
    assert "user-agent: gnusnode/" in first
    assert "cookie" not in second.lower()
    assert "x-own" not in second


async def test_a_redirect_is_followed_and_every_hop_is_told() -> None:
    replies = {"/a": answer(b"", "Location: b?x=1", status=302), "/b?x=1": answer(b"end")}
    async with site(replies) as server, client_for(server) as client:
        page = await client.fetch(get(server.url("/a")))

    assert page.body == b"end"
    assert page.hops == (server.url("/a"), server.url("/b?x=1"))


async def test_an_allowed_host_cannot_redirect_to_the_loopback_or_out_of_the_list() -> None:
    # crewAI #6520: a 302 of an allowed host to 127.0.0.1:8000
    replies = {
        "/in": answer(b"", "Location: http://127.0.0.1:8000/", status=302),
        "/out": answer(b"", "Location: http://pub.example/", status=302),
        "/other": answer(b"", "Location: http://other.test:1/", status=307),
    }
    async with site(replies) as server, client_for(server) as client:
        with pytest.raises(WebRefused) as loopback:
            await client.fetch(get(server.url("/in")))
        for path in ("/out", "/other"):
            with pytest.raises(WebRefused) as outside:
                await client.fetch(get(server.url(path), domains=("site.test",)))
            assert reason(outside) in (Reason.DOMAIN_NOT_ALLOWED, Reason.URL_PORT)

    assert reason(loopback) is Reason.SSRF_ADDRESS
    assert len(server.asked) == 3


async def test_headers_of_the_caller_stay_with_the_origin_they_were_meant_for() -> None:
    async with site({"/b": answer(b"end")}) as second:
        replies = {"/a": answer(b"", f"Location: {second.url('/b', host='other.test')}", status=302)}
        async with site(replies) as first, client_for(first, second) as client:
            await client.fetch(get(first.url("/a"), headers={"Authorization": "Bearer x", "Accept-Language": "de"}))

    assert "authorization: Bearer x" in first.asked[0]
    assert "authorization" not in second.asked[0]
    assert "accept-language: de" in second.asked[0]


async def test_a_request_that_changes_something_follows_no_redirect() -> None:
    async with site({"/a": answer(b"moved", "Location: /b", status=307)}) as server, client_for(server) as client:
        page = await client.fetch(get(server.url("/a"), method="POST", body=b"{}"))

    assert page.status == 307
    assert server.paths() == ["/a"]


async def test_circles_of_redirects_end() -> None:
    async with site({"/a": answer(b"", "Location: /a", status=301)}) as server, client_for(server) as client:
        with pytest.raises(WebRefused) as caught:
            await client.fetch(get(server.url("/a")))

    assert reason(caught) is Reason.REDIRECT_LIMIT
    assert len(server.asked) == 6


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (answer(b"x" * 2000), Reason.BODY_TOO_LARGE),
        (b"HTTP/1.1 200 X\r\nContent-Type: text/plain\r\n\r\n" + b"x" * 2000, Reason.BODY_TOO_LARGE),
        (answer(b"x" * 2000, kind="text/html", status=500), Reason.BODY_TOO_LARGE),
        (answer(gzip.compress(bytes(100_000)), "Content-Encoding: gzip"), Reason.BODY_TOO_LARGE),
        (answer(gzip.compress(b"x")[:-4], "Content-Encoding: gzip"), Reason.CONTENT_ENCODING),
        (answer(gzip.compress(b"x") + b"tail", "Content-Encoding: gzip"), Reason.CONTENT_ENCODING),
        (answer(b"plain", "Content-Encoding: gzip"), Reason.CONTENT_ENCODING),
        (answer(b"x", "Content-Encoding: br"), Reason.CONTENT_ENCODING),
        (answer(b"x", "Content-Encoding: gzip, gzip"), Reason.CONTENT_ENCODING),
        (answer(b"x", "X-Long: " + "y" * 3000), Reason.HEADERS_TOO_LARGE),
        (answer(b"MZ\0\0", kind="application/octet-stream"), Reason.CONTENT_TYPE),
        (answer(b"\x7fELF\0\0", kind="text/plain"), Reason.CONTENT_TYPE),
        (answer(b"%PDF-1.7", kind="text/html"), Reason.CONTENT_TYPE),
        (answer(b"<html>", kind="application/pdf"), Reason.CONTENT_TYPE),
        (answer(b"x", kind=""), Reason.CONTENT_TYPE),
    ],
)
async def test_an_answer_that_is_too_much_or_not_what_it_says_is_refused(reply: bytes, expected: Reason) -> None:
    limits = Limits(body_bytes=1000, header_bytes=2000)
    async with site({"/": reply}) as server, client_for(server, limits=limits) as client:
        with pytest.raises(WebRefused) as caught:
            await client.fetch(get(server.url("/")))

    assert reason(caught) is expected


async def test_a_body_up_to_the_limit_arrives_compressed_or_not() -> None:
    text = b"a" * 1000
    replies = {"/plain": answer(text), "/gzip": answer(gzip.compress(text), "Content-Encoding: gzip")}
    async with site(replies) as server, client_for(server, limits=Limits(body_bytes=1000)) as client:
        assert (await client.fetch(get(server.url("/plain")))).body == text
        assert (await client.fetch(get(server.url("/gzip")))).body == text


async def test_markup_declared_as_text_is_treated_as_markup() -> None:
    async with site({"/": answer(b"<html><body>x", kind="text/plain")}) as server, client_for(server) as client:
        page = await client.fetch(get(server.url("/")))

    assert page.media_type == "text/html"


@pytest.mark.parametrize(
    ("reply", "hold", "expected"),
    [
        (b"", True, Reason.DEADLINE),
        (b"HTTP/1.1 200 X\r\nContent-Type: text/plain\r\n\r\nbegin", True, Reason.DEADLINE),
        (b"no HTTP at all\r\n\r\n", False, Reason.PROTOCOL_ERROR),
        (
            b"HTTP/1.1 200 X\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
            False,
            Reason.PROTOCOL_ERROR,
        ),
        (b"HTTP/1.1 200 X\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", False, Reason.PROTOCOL_ERROR),
    ],
)
async def test_a_server_that_stops_or_talks_nonsense_fails_the_request(
    reply: bytes, hold: bool, expected: Reason
) -> None:
    limits = Limits(total=0.3 if expected is Reason.DEADLINE else 60)
    async with site({"/": reply}, hold=hold) as server, client_for(server, limits=limits) as client:
        with pytest.raises(WebFailed) as caught:
            await client.fetch(get(server.url("/")))

    assert reason(caught) is expected
    assert isinstance(caught.value, Unavailable)


CHUNKED = b"HTTP/1.1 200 X\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Endless(b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"), Reason.DEADLINE),
        (Endless(CHUNKED, b"1;" + b"e" * 1000 + b"\r\nx\r\n"), Reason.BODY_TOO_LARGE),
        (Endless(CHUNKED, b"1\r\nx\r\n"), Reason.BODY_TOO_LARGE),
        (Endless(b"HTTP/1.1 200 X\r\n", b"X-A: b\r\n"), Reason.PROTOCOL_ERROR),
        (Endless(b"HTTP/1.1 200 X\r\nX-A: ", b"b"), Reason.PROTOCOL_ERROR),
        (Endless(CHUNKED + b"0\r\n", b"X-A: b\r\n"), Reason.PROTOCOL_ERROR),
    ],
)
async def test_an_answer_without_end_is_left(reply: Endless, expected: Reason) -> None:
    limits = Limits(total=0.5 if expected is Reason.DEADLINE else 60, body_bytes=100_000)
    async with site({"/": reply}) as server, client_for(server, limits=limits) as client:
        with pytest.raises((WebRefused, WebFailed)) as caught:
            await client.fetch(get(server.url("/")))

    assert caught.value.reason is expected


async def test_many_tasks_share_a_client() -> None:
    bodies: dict[str, bytes] = {}
    replies = {f"/{number}": answer(b"%d" % number) for number in range(60)}

    async with site(replies) as server, client_for(server) as client:

        async def fetch(path: str) -> None:
            bodies[path] = (await client.fetch(get(server.url(path)))).body

        async with trio.open_nursery() as nursery:
            for path in replies:
                nursery.start_soon(fetch, path)

    assert bodies == {path: path[1:].encode() for path in replies}


async def test_nobody_listening_and_no_such_name_are_told_apart() -> None:
    async with site({}) as server:
        pass
    async with client_for(server, hosts=("site.test",)) as client:
        with pytest.raises(WebFailed) as refused:
            await client.fetch(get(server.url("/")))
        with pytest.raises(WebFailed) as unknown:
            await client.fetch(get("http://unknown.test/"))

    assert (reason(refused), reason(unknown)) == (Reason.CONNECT_FAILED, Reason.DNS_FAILED)


async def test_who_leaves_a_stream_early_leaves_nothing_open() -> None:
    body = b"x" * 500_000
    async with site({"/": answer(body)}) as server, client_for(server) as client:
        async with client.stream(get(server.url("/"))) as arriving:
            first = await anext(arriving)
        with trio.move_on_after(0.05):
            async with client.stream(get(server.url("/"))) as arriving:
                await trio.sleep_forever()
        whole = await client.fetch(get(server.url("/")))

    assert 0 < len(first) < len(body)
    assert whole.body == body


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Connection": "keep-alive"},
        {"Transfer-Encoding": "chunked"},
        {"Content-Length": "3"},
        {"Cookie": "a=b"},
        {"Proxy-Authorization": "x"},
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-A": "b\r\nHost: evil.example"},
        {"X A": "b"},
        {"X-A": "b", "x-a": "c"},
        {f"X-{number}": "1" for number in range(40)},
    ],
)
async def test_headers_that_frame_the_exchange_cannot_be_set(headers: dict[str, str]) -> None:
    async with site({}) as server, client_for(server) as client:
        with pytest.raises(WebRefused) as caught:
            await client.fetch(get(server.url("/"), headers=headers))

    assert reason(caught) is Reason.HEADER_NOT_ALLOWED
    assert server.asked == []


@pytest.mark.parametrize(("method", "body"), [("CONNECT", b""), ("TRACE", b""), ("get", b""), ("GET", b"x")])
async def test_methods_that_are_not_ours_are_refused(method: str, body: bytes) -> None:
    async with site({}) as server, client_for(server) as client:
        with pytest.raises(WebRefused) as caught:
            await client.fetch(get(server.url("/"), method=method, body=body))

    assert reason(caught) is Reason.METHOD_NOT_ALLOWED


async def test_a_credential_is_not_carried_out_by_any_hop() -> None:
    seen: list[tuple[str, bytes]] = []

    def leaks(url: str, headers: object, body: bytes) -> list[str]:
        seen.append((url, body))
        return ["key"] if "SECRET" in url or b"SECRET" in body else []

    replies = {"/a": answer(b"", "Location: /b?k=SECRET", status=302)}
    async with site(replies) as server, client_for(server, leaks=leaks) as client:
        for request in (get(server.url("/a")), get(server.url("/x"), method="POST", body=b"SECRET")):
            with pytest.raises(WebRefused) as caught:
                await client.fetch(request)
            assert reason(caught) is Reason.CREDENTIAL_LEAK
            assert "SECRET" not in str(caught.value)

    assert server.paths() == ["/a"]
    assert seen[0] == (server.url("/a"), b"")


async def test_a_host_is_asked_at_its_rate_only() -> None:
    async with site({"/": answer(b"x")}) as server:
        pacer = Pacer(interval=1000, burst=2)
        async with client_for(server, pacer=pacer, limits=Limits(wait=0.0)) as client:
            for _ in range(2):
                await client.fetch(get(server.url("/")))
            with pytest.raises(WebFailed) as caught:
                await client.fetch(get(server.url("/")))

    assert reason(caught) is Reason.RATE_LIMITED
    assert caught.value.retry_after
    assert len(server.asked) == 2


async def test_tls_and_the_host_header_keep_the_name_while_the_checked_address_is_dialled() -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("site.test").configure_cert(context)
    shown: list[str] = []
    context.sni_callback = lambda _socket, name, _context: shown.append(name)  # type: ignore[func-returns-value]
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(trusted)
    async with site({"/": answer(b"x")}, ssl_context=context) as server:
        async with client_for(server, ssl_context=trusted) as client:
            assert (await client.fetch(get(f"https://site.test:{server.port}/"))).body == b"x"
            with pytest.raises(WebFailed) as wrong_name:
                await client.fetch(get(f"https://other.test:{server.port}/"))
        async with client_for(server) as client:
            with pytest.raises(WebFailed) as unknown_authority:
                await client.fetch(get(f"https://site.test:{server.port}/"))

    assert shown[0] == "site.test"
    assert server.asked[0].split("\r\n")[1] == f"Host: site.test:{server.port}"
    assert reason(wrong_name) is reason(unknown_authority) is Reason.CONNECT_FAILED


async def test_a_redirect_from_https_to_http_is_refused() -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("site.test").configure_cert(context)
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(trusted)
    reply = answer(b"", "Location: http://site.test/", status=302)
    async with site({"/": reply}, ssl_context=context) as server, client_for(server, ssl_context=trusted) as client:
        with pytest.raises(WebRefused) as caught:
            await client.fetch(get(f"https://site.test:{server.port}/"))

    assert reason(caught) is Reason.REDIRECT_DOWNGRADE


async def test_a_name_that_changes_its_answer_is_connected_to_the_address_that_was_checked() -> None:
    answers = [["127.0.0.1"], ["169.254.169.254"]]
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        asked.append(host)
        return answers[min(len(asked) - 1, 1)]

    async with site({"/": answer(b"x")}) as server, client_for(server, resolve=resolve) as client:
        for _ in range(2):
            assert (await client.fetch(get(server.url("/")))).body == b"x"

    assert asked == ["site.test"]


async def test_all_answers_of_a_name_must_pass() -> None:
    resolve = names(mixed_test_=["93.184.216.34", "127.0.0.1"], none_test_=[], junk_test_=["x"])
    async with client_for(resolve=resolve) as client:
        for host, expected in (("mixed", Reason.SSRF_ADDRESS), ("junk", Reason.SSRF_ADDRESS)):
            with pytest.raises(WebRefused) as caught:
                await client.fetch(get(f"http://{host}.test/"))
            assert reason(caught) is expected
            assert isinstance(caught.value, Forbidden)
        with pytest.raises(WebFailed) as empty:
            await client.fetch(get("http://none.test/"))

    assert reason(empty) is Reason.DNS_FAILED


async def test_the_transport_serves_a_stock_client_and_its_own_checks_cannot_be_talked_out_of_it() -> None:
    async with site({"/": answer(b"x")}) as server:
        transport = GuardedTransport(allowed=[("127.0.0.1", server.port)])
        async with httpx2.AsyncClient(transport=transport, trust_env=False) as stock:
            base = f"http://127.0.0.1:{server.port}"
            assert (await stock.get(f"{base}/", headers={"Host": "evil.example"})).text == "x"
            for extension in ({"sni_hostname": "evil.example"}, {"target": b"/other"}):
                with pytest.raises(WebRefused) as caught:
                    await stock.get(f"{base}/", extensions=extension)
                assert reason(caught) is Reason.HEADER_NOT_ALLOWED
            with pytest.raises(WebRefused) as elsewhere:
                await stock.get(f"http://127.0.0.1:{server.port + 1}/")

    assert f"Host: 127.0.0.1:{server.port}" in server.asked[0]
    assert "evil" not in server.asked[0]
    assert reason(elsewhere) is Reason.SSRF_ADDRESS


async def test_there_is_no_way_over_a_unix_socket() -> None:
    from gnusnode.web.backend import GuardedBackend

    with pytest.raises(WebRefused) as caught:
        await GuardedBackend().connect_unix_socket("/run/docker.sock")

    assert reason(caught) is Reason.SSRF_ADDRESS


async def test_names_that_take_long_to_fail_hold_up_no_other_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(*args: object, **kwargs: object) -> list[object]:
        release.wait(20)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    try:
        async with client_for(resolve=None, limits=Limits(connect=0.2)) as client:

            async def ask(host: str) -> None:
                with pytest.raises(WebFailed):
                    await client.fetch(get(f"http://{host}/"))

            for turn in range(2):
                async with trio.open_nursery() as nursery:
                    for number in range(30):
                        nursery.start_soon(ask, f"slow{number}.turn{turn}.test")
            with trio.fail_after(5):
                assert await trio.to_thread.run_sync(lambda: "free") == "free"
    finally:
        release.set()
