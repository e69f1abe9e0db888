"""Attacks on the HTTP surface of a real node: smuggling, spoofing, guessing, climbing, crowding."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.swarm.attacks import chat, eventually, is_envelope, metric, post
from tests.swarm.harness import NodeProcess, gnusnode, running

BODY = json.dumps(chat()).encode()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    home = tmp_path_factory.mktemp("http") / "home"
    with running(home, "--no-model", env={"GNUSNODE_API__HEADER_SECONDS": "1"}) as node:
        yield node


def exchange(node: NodeProcess, data: bytes) -> bytes:
    """Everything that comes back, up to the end of the connection."""
    with socket.create_connection(node.address, timeout=30) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        received = b""
        try:
            while more := client.recv(65536):
                received += more
        except ConnectionResetError:
            pass
        return received


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("latin-1")


LOCAL = "Host: 127.0.0.1"
SMUGGLED = head("GET", "/metrics", LOCAL)
SMUGGLERS = {
    "length and chunks": head("POST", "/v1/models", LOCAL, "Content-Length: 4", "Transfer-Encoding: chunked"),
    "chunks and length": head("POST", "/v1/models", LOCAL, "Transfer-Encoding: chunked", "Content-Length: 40"),
    "two lengths": head("POST", "/v1/models", LOCAL, "Content-Length: 0", "Content-Length: 40"),
    "a list of lengths": head("POST", "/v1/models", LOCAL, "Content-Length: 0, 40"),
    "a signed length": head("POST", "/v1/models", LOCAL, "Content-Length: +0"),
    "an underscored length": head("POST", "/v1/models", LOCAL, "Content-Length: 1_0"),
    "a hexadecimal length": head("POST", "/v1/models", LOCAL, "Content-Length: 0x4"),
    "identity": head("POST", "/v1/models", LOCAL, "Transfer-Encoding: identity", "Content-Length: 0"),
    "chunks twice": head("POST", "/v1/models", LOCAL, "Transfer-Encoding: chunked, chunked"),
    "a space before the colon": head("POST", "/v1/models", LOCAL, "Transfer-Encoding : chunked"),
    "a tab in the encoding": head("POST", "/v1/models", LOCAL, "Transfer-Encoding:\tchunked\x0b"),
    "an unknown encoding": head("POST", "/v1/models", LOCAL, "Transfer-Encoding: xchunked"),
    "two encodings": head("POST", "/v1/models", LOCAL, "Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
    "one encoding twice": head("POST", "/v1/models", LOCAL, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
    "a folded encoding beside a length": head(
        "POST", "/v1/models", LOCAL, "Content-Length: 4", "Transfer-Encoding:", " chunked"
    ),
    "a length behind bare line feeds": b"POST /v1/models HTTP/1.1\nHost: 127.0.0.1\nContent-Length: 4\n"
    b"Transfer-Encoding: chunked\n\n",
    "a zero in the name": head("POST", "/v1/models", LOCAL, "Content-\0Length: 0"),
    "a zero in the length": head("POST", "/v1/models", LOCAL, "Content-Length: 0\0"),
    "a return within a line": head("POST", "/v1/models", LOCAL, "X: a\rTransfer-Encoding: chunked"),
    "chunks in HTTP/1.0": head("POST", "/v1/models", LOCAL, "Transfer-Encoding: chunked").replace(b"1.1", b"1.0", 1),
    "a signed chunk": head("POST", "/v1/models", LOCAL, "Transfer-Encoding: chunked") + b"+0\r\n\r\n",
    "a chunk behind a bare line feed": head("POST", "/v1/models", LOCAL, "Transfer-Encoding: chunked") + b"0\n\n",
}


@pytest.mark.parametrize("name", SMUGGLERS)
def test_a_request_of_two_lengths_never_becomes_two_requests(node: NodeProcess, name: str) -> None:
    received = exchange(node, SMUGGLERS[name] + b"0\r\n\r\n" + SMUGGLED)
    # One answer to what came first; what is ambiguous ends the connection, whatever stands behind it.
    answers = re.findall(rb"HTTP/1\.1 (\d+)", received)
    assert answers in ([b"400"], [b"501"]), received[:500]
    assert b"connection: close" in received.lower()


@pytest.mark.parametrize(
    "lines",
    [
        ["Host: evil.example"],
        ["Host: 127.0.0.1.evil.example"],
        ["Host: localhost.evil.example:80"],
        ["Host: evil.example#@127.0.0.1"],
        ["Host: 127.0.0.1@evil.example"],
        ["Host: "],
        [LOCAL, "Host: evil.example"],
        [LOCAL, "Origin: http://evil.example"],
        [LOCAL, "Origin: null"],
        [LOCAL, "Origin: http://127.0.0.1.evil.example"],
        [LOCAL, "Origin: http://127.0.0.1"],
        [LOCAL, "Sec-Fetch-Site: cross-site"],
        [LOCAL, "Sec-Fetch-Site: same-site"],
    ],
    ids=str,
)
def test_a_page_of_another_site_gets_nothing_done(node: NodeProcess, lines: list[str]) -> None:
    address = f"127.0.0.1:{node.address[1]}"
    given = [line.replace("127.0.0.1", address, 1) if line == LOCAL else line for line in lines]
    data = head(
        "POST", "/v1/chat/completions", *given, "Content-Type: application/json", f"Content-Length: {len(BODY)}"
    )
    received = exchange(node, data + BODY)
    assert received.split(b" ", 2)[1] in (b"400", b"403", b"421"), received[:300]
    assert b"access-control-allow-origin" not in received.lower()


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_form_can_send_is_no_request(node: NodeProcess, kind: str) -> None:
    data = head("POST", "/v1/chat/completions", LOCAL, f"Content-Type: {kind}", f"Content-Length: {len(BODY)}")
    assert exchange(node, data + BODY).startswith(b"HTTP/1.1 400")


def test_methods_and_encodings_that_we_do_not_speak_are_refused(node: NodeProcess) -> None:
    for method in ("TRACE", "CONNECT", "PATCH", "PUT", "DELETE"):
        received = exchange(node, head(method, "/v1/models", LOCAL, "Connection: close"))
        assert received.split(b" ", 2)[1] in (b"400", b"404", b"405"), (method, received[:200])
    answered = exchange(node, head("OPTIONS", "/v1/models", LOCAL, "Connection: close"))
    assert answered.startswith(b"HTTP/1.1 204")
    packed = gzip.compress(b'{"a":' + b" " * 2**24 + b"1}")
    status, answer = post(node, packed, **{"Content-Encoding": "gzip"})
    assert status in (400, 415)
    assert is_envelope(answer)


def test_a_head_request_has_the_headers_of_a_get_and_no_body(node: NodeProcess) -> None:
    received = exchange(node, head("HEAD", "/v1/models", LOCAL, "Connection: close"))
    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(b"\r\n\r\n")


def test_pipelined_requests_are_answered_in_order(node: NodeProcess) -> None:
    received = exchange(node, head("GET", "/healthz", LOCAL) * 20 + head("GET", "/nowhere", LOCAL, "Connection: close"))
    assert received.count(b"HTTP/1.1 200") == 20
    assert received.rindex(b"HTTP/1.1 404") > received.rindex(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "path", ["..", "../keys", "..%2fkeys", "%2e%2e/keys", "x/../../keys", "%00", "a" * 20_000, "' or 1=1 --"]
)
def test_a_plan_cannot_be_asked_for_by_anything_but_an_id(node: NodeProcess, path: str) -> None:
    received = exchange(node, head("GET", f"/gnus/v1/plans/{path.replace(' ', '%20')}", LOCAL, "Connection: close"))
    assert received.split(b" ", 2)[1] in (b"400", b"401", b"403", b"404"), received[:200]


def test_a_query_of_thirty_thousand_characters_is_read_or_refused(node: NodeProcess) -> None:
    received = exchange(node, head("GET", f"/v1/models?{'a=b&' * 7500}", LOCAL, "Connection: close"))
    assert received.split(b" ", 2)[1] in (b"200", b"400", b"414", b"431")


def test_heads_that_flood_are_cut_off(node: NodeProcess) -> None:
    for lines in (["X: " + "a" * 200_000], [f"X{i}: y" for i in range(20_000)]):
        received = exchange(node, head("GET", "/healthz", LOCAL, *lines))
        assert not received or received.split(b" ", 2)[1] in (b"400", b"431"), received[:200]


def test_three_hundred_half_requests_do_not_keep_others_out_for_long(node: NodeProcess) -> None:
    with ExitStack() as stack:
        for _ in range(300):
            client = stack.enter_context(socket.create_connection(node.address, timeout=30))
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        assert gnusnode("status", "--home", str(node.home), "--json").returncode == 0  # has connections of its own
        eventually(lambda: served(node), "the slow ones were hung up on")
    eventually(lambda: metric(node, "gnusnode_http_connections") <= 2, "their connections are gone")


def served(node: NodeProcess) -> bool:
    try:
        return node.get("/healthz")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def test_another_user_cannot_use_the_socket_or_read_the_home(node: NodeProcess) -> None:
    if os.getuid() != 0:
        pytest.skip("becoming another user needs root")
    code = (
        "import os, socket, sys\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "for what in sys.argv[2:]:\n"
        "    try: open(what, 'rb').read(); print('read', what)\n"
        "    except (PermissionError, FileNotFoundError): pass\n"
        "try: socket.socket(socket.AF_UNIX).connect(sys.argv[1]); print('connected')\n"
        "except OSError: pass\n"
    )
    home = node.home
    for folder in (home.parent, *home.parents):  # so that only the home itself is in the way
        if str(folder).startswith("/tmp/") and folder.stat().st_uid == 0:
            folder.chmod(folder.stat().st_mode | 0o055)
    files = [str(path) for path in home.rglob("*") if path.is_file()]
    socket_path = node.run_info()["socket"]
    done = subprocess.run(
        [sys.executable, "-c", code, socket_path, *files], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_keys_open_what_their_scopes_say_and_guesses_open_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "home", "--no-model") as node:
        made = gnusnode("keys", "create", "reader", "--scopes", "read", "--home", str(node.home), "--json")
        reader = json.loads(made.stdout)["key"]
        guesses = [
            "",
            "x",
            "gnus-",
            "gnus-000000000000-",
            reader[:-1],
            reader + "x",
            reader.upper(),
            "ü",
            reader[:18] + "-x",
        ]
        for guess in guesses:
            assert status_with(node, "GET", "/v1/models", guess) == 401, guess
        assert status_with(node, "GET", "/v1/models", reader) == 200
        assert status_with(node, "GET", "/gnus/v1/status", reader) == 200
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("POST", "/v1/embeddings"),
            ("GET", "/gnus/v1/keys"),
            ("POST", "/gnus/v1/keys"),
            ("POST", "/gnus/v1/stop"),
            ("GET", "/gnus/v1/audit/verify"),
            ("GET", "/gnus/v1/bugreport"),
            ("POST", "//gnus/v1/stop"),
            ("POST", "/gnus/v1/./stop"),
            ("POST", "/gnus/v1/status/../stop"),
            ("POST", "/healthz/../gnus/v1/stop"),
            ("POST", "/healthz%2f..%2fgnus/v1/stop"),
        ):
            assert status_with(node, method, path, reader) in (403, 404, 405), path
        assert node.get("/healthz")[0] == 200
        assert reader not in (node.home / "keys.json").read_text()
        assert reader not in node.log.read_text()


def status_with(node: NodeProcess, method: str, path: str, key: str) -> int:
    authorization = f"Authorization: Bearer {key}".encode().decode("latin-1")
    body = ["Content-Type: application/json", "Content-Length: 2"] if method == "POST" else []
    data = head(method, path, LOCAL, authorization, "Connection: close", *body) + (b"{}" if body else b"")
    return int(exchange(node, data).split(b" ", 2)[1])
