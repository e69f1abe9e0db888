"""The node's API over its unix socket, with the standard library alone: a command should answer before you notice."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from gnusnode.errors import GnusError, InternalError, NotRunning


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def run_file(home: Path) -> dict[str, Any] | None:
    """What the running node wrote about itself: pid, addresses, socket. None when there is none."""
    try:
        data = json.loads((home / "run.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None  # pyright: ignore[reportUnknownVariableType]


class NodeClient:
    """Calls to the node that runs on a home.

    Raises:
        NotRunning: no node listens there (exit code 7).
        GnusError: what the API answered, as the same class that the node raised.
    """

    def __init__(self, socket_path: str, home: Path, *, timeout: float | None = 60.0) -> None:
        self._path = socket_path
        self._home = home
        self._timeout = timeout

    @classmethod
    def of(cls, home: Path, *, timeout: float | None = 60.0) -> Self:
        run = run_file(home)
        if run is None or not isinstance(run.get("socket"), str):
            raise _not_running(home)
        return cls(run["socket"], home, timeout=timeout)

    def get(self, path: str) -> Any:
        return self._json("GET", path, None)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._json("POST", path, body or {})

    def delete(self, path: str) -> Any:
        return self._json("DELETE", path, None)

    def raw(self, path: str) -> tuple[int, Any]:
        """Status and JSON body, without turning an error status into an exception."""
        with self._open("GET", path, None) as (response, _):
            return response.status, _parse(response.read())

    def events(self, path: str, body: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """The data of a server-sent event stream, until ``[DONE]`` or its end.

        Raises:
            GnusError: an error event, or a stream that ended without ``[DONE]`` although one was due.
        """
        with self._open("POST" if body is not None else "GET", path, body) as (response, _):
            if response.status >= 400:
                raise _error(response.status, _parse(response.read()))
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                event = _parse(data)
                if "error" in event:
                    raise _error(500, event)
                yield event
            if body is not None:
                raise InternalError("the node ended the stream in the middle of an answer", where=path)

    def _json(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        with self._open(method, path, body) as (response, _):
            data = _parse(response.read())
            if response.status >= 400:
                raise _error(response.status, data)
            return data

    def _open(self, method: str, path: str, body: dict[str, Any] | None) -> _Exchange:
        return _Exchange(self._path, self._home, self._timeout, method, path, body)


class _Exchange:
    def __init__(
        self, socket_path: str, home: Path, timeout: float | None, method: str, path: str, body: dict[str, Any] | None
    ) -> None:
        self._connection = _UnixConnection(socket_path, timeout)
        self._home, self._method, self._target, self._body = home, method, path, body

    def __enter__(self) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
        payload = None if self._body is None else json.dumps(self._body).encode()
        headers = {"Accept": "application/json"} | ({"Content-Type": "application/json"} if payload else {})
        try:
            self._connection.request(self._method, self._target, payload, headers)
            return self._connection.getresponse(), self._connection
        except TimeoutError as error:
            self._connection.close()
            raise NotRunning(
                "the node does not answer", where=str(self._home), hint="look at its log, or stop it and start it again"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise _not_running(self._home) from error

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _not_running(home: Path) -> NotRunning:
    return NotRunning("no node is running here", where=str(home), hint="start one with: gnusnode start")


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise InternalError(f"the node answered something that is not JSON: {data[:80]!r}") from error


def _error(status: int, body: Any) -> GnusError:
    """The error of an OpenAI envelope, with our own detail where the node gave it."""
    error = body.get("error") if isinstance(body, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if not isinstance(error, dict):
        return InternalError(f"the node answered HTTP {status} without saying why")
    detail = error.get("gnus") or body.get("gnus") or {}  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    merged = {"code": error.get("code"), "what": error.get("message"), "param": error.get("param")}  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if isinstance(detail, dict):
        merged |= {key: detail.get(key) for key in ("where", "hint", "retry_after")}  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        merged["what"] = detail.get("what") or merged["what"]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return GnusError.from_wire(merged)  # pyright: ignore[reportUnknownArgumentType]
