"""Requests that no honest client sends. Each is bytes; the name says what is wrong with them.

The seven that ended a bare hypercorn and the three that ended a bare anycorn are among them (h2c and websocket ones).
"""

from __future__ import annotations

import base64
import json
import random
from typing import Final

_random = random.Random(20261130)


def _noise(size: int) -> bytes:
    return _random.randbytes(size)


def _get(*headers: str, path: str = "/healthz", version: str = "1.1", host: bool = True) -> bytes:
    lines = [f"GET {path} HTTP/{version}", *(["Host: 127.0.0.1"] if host else []), *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _post(body: bytes, *headers: str, length: int | None = None, path: str = "/v1/chat/completions") -> bytes:
    size = len(body) if length is None else length
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {size}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + body


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS: Final = _frame(4, 0, 0)
_UPGRADE_H2C: Final = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")
_UPGRADE_WS: Final = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
_WS_KEY: Final = f"Sec-WebSocket-Key: {base64.b64encode(b'0123456789abcdef').decode()}"

_HTTP2: Final = {
    "h2-preface-then-noise": _PREFACE + _noise(200),
    "h2-settings-then-noise": _PREFACE + _SETTINGS + _noise(100),
    "h2-window-update-on-unknown-stream": _PREFACE + _SETTINGS + _frame(8, 0, 5, b"\0\0\0\1"),
    "h2-headers-on-stream-zero": _PREFACE + _SETTINGS + _frame(1, 5, 0, b"\x82"),
    "h2-reset-of-unknown-stream": _PREFACE + _SETTINGS + _frame(3, 0, 7, b"\0\0\0\1"),
    "h2-priority-on-itself": _PREFACE + _SETTINGS + _frame(2, 0, 1, b"\0\0\0\1\x10"),
    "h2-priority-cycle": _PREFACE + _SETTINGS + _frame(2, 0, 3, b"\0\0\0\7\x10") + _frame(2, 0, 7, b"\0\0\0\3\x10"),
    "h2-request-without-path": _PREFACE + _SETTINGS + _frame(1, 5, 1, b"\x82"),
    "h2-honest-get": _PREFACE + _SETTINGS + _frame(1, 5, 1, b"\x82\x84\x86"),
    "h2-stream-used-twice": _PREFACE + _SETTINGS + 2 * _frame(1, 5, 1, b"\x82\x84\x86"),
    "h2-data-before-headers": _PREFACE + _SETTINGS + _frame(0, 0, 1, b"abc"),
    "h2-goaway": _PREFACE + _SETTINGS + _frame(7, 0, 0, bytes(8)),
    "h2-frame-larger-than-allowed": _PREFACE + _SETTINGS + b"\xff\xff\xff\0\0\0\0\0\1",
    "h2c-upgrade": _get(*_UPGRADE_H2C, "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"),
    "h2c-settings-no-base64": _get(*_UPGRADE_H2C, "HTTP2-Settings: !!!!"),
    "h2c-settings-too-short": _get(*_UPGRADE_H2C, "HTTP2-Settings: AAMA"),
    "h2c-settings-missing": _get("Connection: Upgrade", "Upgrade: h2c"),
    "h2c-settings-not-ascii": _get(*_UPGRADE_H2C, "HTTP2-Settings: \xff\xfe"),
    "h2c-upgrade-with-body": _post(b"{}", *_UPGRADE_H2C, "HTTP2-Settings: AAMA"),
}

_WEBSOCKET: Final = {
    "ws-without-key": _get(*_UPGRADE_WS),
    "ws-wrong-version": _get("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 9", _WS_KEY),
    "ws-by-post": _post(b"", *_UPGRADE_WS, _WS_KEY),
    "ws-then-noise": _get(*_UPGRADE_WS, _WS_KEY) + _noise(50),
    "ws-unmasked-frame": _get(*_UPGRADE_WS, _WS_KEY) + b"\x81\x05hello",
    "ws-bad-utf8": _get(*_UPGRADE_WS, _WS_KEY) + b"\x81\x82\0\0\0\0\xff\xff",
    "ws-close-at-once": _get(*_UPGRADE_WS, _WS_KEY) + b"\x88\x80\0\0\0\0",
    "ws-impossible-window": _get(
        *_UPGRADE_WS, _WS_KEY, "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=99"
    ),
    "ws-bad-deflate": _get(*_UPGRADE_WS, _WS_KEY, "Sec-WebSocket-Extensions: permessage-deflate")
    + b"\xc1\x85\0\0\0\0\xff\xff\xff\xff\xff",
    "ws-key-not-ascii": _get(*_UPGRADE_WS, "Sec-WebSocket-Key: \xff\xfe"),
    "ws-protocol-not-ascii": _get(*_UPGRADE_WS, _WS_KEY, "Sec-WebSocket-Protocol: \xff\xfe"),
    "ws-path-percent": _get(*_UPGRADE_WS, _WS_KEY, path="/%ff%fe%00"),
}

_HEADS: Final = {
    "noise": b"\x00\x01\x02noise\r\n\r\n",
    "tls-hello-to-plain-port": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + _noise(200),
    "path-not-ascii": b"GET /\xff\xfe HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "path-percent-not-utf8": _get(path="/%ff%fe%00"),
    "path-of-dots": _get(path="/v1/../gnus/v1/keys"),
    "path-encoded-slash": _get(path="/gnus%2fv1%2fkeys"),
    "path-very-long": _get(path="/" + "a" * 20_000),
    "header-not-ascii": b"GET /healthz HTTP/1.1\r\nHost: \xff\r\nX: \xff\r\n\r\n",
    "connection-not-ascii": _get("Connection: \xff", "Upgrade: \xff"),
    "header-with-null": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
    "header-folded": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    "header-without-name": b"GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n",
    "host-missing": _get(host=False),
    "host-twice": _get("Host: other"),
    "host-with-brackets": b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
    "host-with-port-noise": b"GET / HTTP/1.1\r\nHost: 127.0.0.1:abc\r\n\r\n",
    "absolute-target": _get(path="http://other/healthz"),
    "connect": b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "options-star": b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "method-unknown": b"BREW /pot HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "method-very-long": b"A" * 5000 + b" / HTTP/1.1\r\nHost: a\r\n\r\n",
    "http-1.0": _get(version="1.0", host=False),
    "http-0.9": b"GET /\r\n\r\n",
    "http-9.9": _get(version="9.9"),
    "line-feeds-only": b"GET / HTTP/1.1\nHost: a\n\n",
    "head-too-large": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 100_000,
    "headers-too-many": _get(*(f"X-{n}: {n}" for n in range(5000))),
    "no-line-end": b"a" * 100_000,
    "origin-not-a-url": _post(b"{}", "Origin: http://[", "Sec-Fetch-Site: \xff"),
    "authorization-not-ascii": _get("Authorization: Bearer \xff\xfe", path="/gnus/v1/status"),
    "traceparent-noise": _post(b"{}", "traceparent: \xff"),
    "last-event-id-noise": _get("Last-Event-ID: \xb2", path="/gnus/v1/status"),
}

_BODIES: Final = {
    "expect-continue": _post(b"{}", "Expect: 100-continue"),
    "expect-nonsense": _post(b"{}", "Expect: 200-ok"),
    "chunk-size-not-hex": _get("Transfer-Encoding: chunked").replace(b"GET", b"POST") + b"zz\r\n",
    "chunk-size-huge": _get("Transfer-Encoding: chunked").replace(b"GET", b"POST") + b"ffffffffffffffffff\r\nabc",
    "chunk-cut": _get("Transfer-Encoding: chunked").replace(b"GET", b"POST") + b"5\r\nab",
    "encoding-unknown": _post(b"{}", "Transfer-Encoding: gzip"),
    "length-negative": _post(b"", length=-3),
    "length-huge": _post(b"{}", length=10**18),
    "length-not-a-number": _post(b"{}").replace(b"Content-Length: 2", b"Content-Length: two"),
    "lengths-that-differ": _post(b"{}", "Content-Length: 4"),
    "length-and-chunked": _post(b"0\r\n\r\n", "Transfer-Encoding: chunked"),
    "body-shorter-than-said": _post(b"abc", length=300),
    "body-behind-get": _get() + b"XXXXX",
    "pipeline": _get() * 20,
    "pipeline-then-noise": _get() * 5 + b"\0\0\0",
    "json-deep": _post(b"[" * 50_000),
    "json-deep-object": _post(b'{"messages":' + b'{"a":' * 20_000),
    "json-not-utf8": _post(b'{"model":"\xff"}'),
    "json-null-bytes": _post(b"\0" * 500),
    "json-nan": _post(b'{"model":"gnus","temperature":NaN,"messages":[{"role":"user","content":"x"}]}'),
    "json-huge-number": _post(b'{"model":"gnus","seed":' + b"9" * 5000 + b',"messages":[]}'),
    "json-lone-surrogate": _post(b'{"model":"gnus","messages":[{"role":"user","content":"\\ud800"}]}'),
    "json-a-list": _post(b"[]"),
    "json-twice-the-key": _post(b'{"model":"a","model":"b"}'),
    "body-empty": _post(b""),
    "body-two-documents": _post(b"{}{}"),
    "schema-recursive": _post(
        json.dumps(
            {
                "model": "gnus",
                "messages": [{"role": "user", "content": "x"}],
                "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#"}}},
            }
        ).encode()
    ),
}

HOSTILE: Final[dict[str, bytes]] = {**_HTTP2, **_WEBSOCKET, **_HEADS, **_BODIES}
