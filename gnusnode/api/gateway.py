"""What happens to every request before and after its handler: identity, checks, limits, headers, the last fence."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gnusnode.api.auth import Principal, authenticate, is_loopback, needed_scopes
from gnusnode.api.browser import SECURITY_HEADERS, check_host, check_media_type, check_site, cors_headers
from gnusnode.api.envelope import error_response
from gnusnode.api.facade import NodeFacade
from gnusnode.api.keys import KeyStore
from gnusnode.api.limits import KeyUsage, Limits
from gnusnode.api.options import ApiOptions
from gnusnode.errors import GnusError, InternalError, TooLarge, Unavailable
from gnusnode.observe.events import RequestRefused
from gnusnode.observe.observer import Observer

log = logging.getLogger(__name__)

_INFERENCE: Final = "/v1/"
_LOCAL_ADDRESS: Final = "/metrics"
"""Readable from this machine without a key: it holds counts, and a scraper is often a program of another user."""
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass
class RequestInfo:
    """What is known of a request besides what HTTP says; handlers find it in ``scope["state"]["info"]``."""

    request_id: str
    started: float
    principal: Principal
    usage: KeyUsage | None = None
    traceparent: str | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """More headers for the answer."""

    def charge(self, tokens: int) -> None:
        """Counts tokens against the caller's key."""
        if self.usage is not None:
            self.usage.charge(tokens, time.monotonic())


def info_of(scope: Any) -> RequestInfo:
    """The record that the gateway put into an ASGI scope."""
    found = scope["state"]["info"]
    assert isinstance(found, RequestInfo)
    return found


class Gateway:
    """The outermost ASGI application. Never raises: whatever goes wrong becomes an envelope or ends the stream."""

    def __init__(self, app: ASGIApp, node: NodeFacade, options: ApiOptions, keys: KeyStore, observer: Observer) -> None:
        self._app = app
        self._node = node
        self._options = options
        self._keys = keys
        self._limits = Limits(options.max_in_flight)
        self._hosts = {name.lower() for name in (*options.allowed_hosts, options.host)}
        self._origins = frozenset(options.cors_origins)
        self._bus = observer.bus

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        answer = _Answer(send, self._node.peer_id, head_only=scope["method"] == "HEAD")
        answer.extra.extend(cors_headers(headers.get("origin"), self._origins))
        try:
            await self._admit(scope, headers, receive, answer)
        except GnusError as error:
            # Handlers answer their own errors; what arrives here was turned away before.
            self._bus.publish(RequestRefused(code=error.code))
            await answer.fail(error, scope, receive)
        except Exception:
            # The last fence: a bug answers 500 and never ends the daemon.
            log.exception("request %s failed", answer.request_id)
            await answer.fail(InternalError("the node made a mistake", hint="see its log"), scope, receive)

    async def _admit(self, scope: Scope, headers: Headers, receive: Receive, answer: _Answer) -> None:
        state: dict[str, Any] = scope.setdefault("state", {})
        unix = bool(state.get("unix"))
        method, path = scope["method"], scope["path"]
        if not unix:
            check_host(headers.get("host"), self._hosts)
            check_site(method, headers, self._origins)
        check_media_type(method, headers)
        principal = self._authenticate(scope, headers, path, unix=unix)
        info = RequestInfo(answer.request_id, answer.started, principal, traceparent=_traceparent(headers))
        state["info"] = info
        answer.info = info
        if self._node.stopping.is_set() and path.startswith(_INFERENCE):
            raise Unavailable("the node is shutting down", hint="ask another node", retry_after=5)
        if method == "HEAD":
            scope = {**scope, "method": "GET"}
        limited = _limited(receive, self._options.max_body_bytes, headers)
        if method == "POST" and path.startswith(_INFERENCE):
            await self._infer(scope, limited, answer, info)
        else:
            await self._app(scope, limited, answer.send)

    def _authenticate(self, scope: Scope, headers: Headers, path: str, *, unix: bool) -> Principal:
        needed = needed_scopes(path)
        client = scope.get("client")
        # OPTIONS is answered by the router alone; a browser's preflight carries no key.
        if not needed or scope["method"] == "OPTIONS" or (path == _LOCAL_ADDRESS and is_loopback(client)):
            return Principal("anyone", frozenset())
        principal = authenticate(
            self._keys,
            authorization=headers.get("authorization"),
            client=client,
            unix=unix,
            open_loopback=self._options.open_loopback,
        )
        principal.require_any(needed, path)
        return principal

    async def _infer(self, scope: Scope, receive: Receive, answer: _Answer, info: RequestInfo) -> None:
        key = info.principal.key
        if key is None:
            with self._limits.slot():
                await self._app(scope, receive, answer.send)
            return
        now = time.monotonic()
        info.usage = usage = self._limits.usage(key, now)
        try:
            usage.admit(now)
        finally:
            info.headers.update(usage.headers(now))
        with self._limits.slot(), usage.under_way():
            await self._app(scope, receive, answer.send)


class _Answer:
    """Adds our headers to the answer, and knows how far it has come."""

    def __init__(self, send: Send, node: str, *, head_only: bool) -> None:
        self._send = send
        self._node = node
        self._head_only = head_only
        self.request_id = str(uuid.uuid4())
        self.started = time.perf_counter()
        self.info: RequestInfo | None = None
        self.extra: list[tuple[bytes, bytes]] = []
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self._headers()]
        elif self._head_only and message["type"] == "http.response.body":
            message["body"] = b""
        await self._send(message)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        milliseconds = int((time.perf_counter() - self.started) * 1000)
        ours = {
            "x-request-id": self.request_id,
            "x-gnus-node": self._node,
            "openai-processing-ms": str(milliseconds),
            **(self.info.headers if self.info else {}),
        }
        return [
            *((name.encode("latin-1"), value.encode("latin-1")) for name, value in ours.items()),
            *SECURITY_HEADERS,
            *self.extra,
        ]

    async def fail(self, error: GnusError, scope: Scope, receive: Receive) -> None:
        """Answers with the envelope, unless an answer has begun: that one then ends so that it reads as broken."""
        if self.status == 0:
            await error_response(error)(scope, receive, self.send)


def _limited(receive: Receive, limit: int, headers: Headers) -> Receive:
    """``receive``, but with at most ``limit`` bytes of body.

    Raises:
        TooLarge: at once where the length is declared, else while reading.
    """
    refusal: Callable[[], TooLarge] = lambda: TooLarge(  # noqa: E731 - one sentence, needed twice
        f"the body is larger than {limit} bytes", where="api.max_body_bytes", hint="send less"
    )
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise refusal()
    seen = 0

    async def read() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise refusal()
        return message

    return read


def _traceparent(headers: Headers) -> str | None:
    """A caller's W3C trace context, if it is well formed."""
    given = headers.get("traceparent", "")
    return given if _TRACEPARENT.fullmatch(given) else None
