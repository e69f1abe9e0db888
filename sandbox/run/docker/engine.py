"""The calls of the Docker Engine API that a sandbox needs, and nothing else of it."""

from __future__ import annotations

import json
import select
from collections.abc import Iterable
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final
from urllib.parse import quote, urlencode

import trio

from gnusnode.errors import Conflict, NotFound, ProtocolViolation, Unavailable, UnsupportedProtocol
from sandbox.run.docker import wire
from sandbox.run.docker.frames import Demultiplexer

_OLDEST: Final = (1, 41)
_NEWEST: Final = (1, 51)
"""Versions of the API whose meaning of our calls is known."""
_QUICK: Final = 10.0
_CREATE: Final = 30.0
_TRANSFER: Final = 600.0
_READ: Final = 64 * 1024


class Attached:
    """The standard streams of a container: raw bytes in, (stream, payload) out."""

    def __init__(self, socket: str, stream: trio.SocketStream, early: bytes, stack: AsyncExitStack) -> None:
        self._socket = socket
        self._stream = stream
        self._early = early
        self._stack = stack
        self._demultiplexer = Demultiplexer()

    async def send(self, data: bytes) -> None:
        """Writes to standard input and closes it; a program that does not read is no error."""
        try:
            await self._stream.send_all(data)
            await self._stream.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def receive(self) -> list[tuple[int, memoryview]] | None:
        """What was written since, perhaps nothing; None: both streams have ended.

        Raises:
            Unavailable: the connection broke.
        """
        data, self._early = self._early, b""
        if not data:
            with wire.plainly(self._socket):
                data = await self._stream.receive_some(_READ)
        return list(self._demultiplexer.feed(data)) if data else None

    def ended(self) -> bool:
        """Without waiting: whether a container that has been silent so far has ended, or has begun to speak."""
        poll = select.poll()
        poll.register(self._stream.socket.fileno(), select.POLLIN)
        return bool(self._early or poll.poll(0))

    async def aclose(self) -> None:
        await self._stack.aclose()


class Engine:
    """A Docker Engine behind a Unix socket.

    Every call raises ``Unavailable`` (or ``NotFound``, ``Conflict``, ``DeadlineExceeded``, ``ProtocolViolation``) with
    the engine's own words when it fails. Connections are not kept: a call costs one.
    """

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self._prefix: str | None = None

    async def version(self) -> dict[str, Any]:
        """What the engine is; settles the version of the API that the other calls use.

        Raises:
            UnsupportedProtocol: it speaks only older or only newer versions than we know.
        """
        found = await wire.call(self.socket, "GET", "/version", timeout=_QUICK)
        newest, oldest = (_numbers(found.get(key, "")) for key in ("ApiVersion", "MinAPIVersion"))
        chosen = min(newest, _NEWEST)
        if chosen < max(oldest, _OLDEST):
            raise UnsupportedProtocol(
                f"the container engine speaks the API {found.get('MinAPIVersion')} to {found.get('ApiVersion')}",
                where=self.socket,
                hint=f"use one that speaks a version from {_OLDEST[0]}.{_OLDEST[1]} to {_NEWEST[0]}.{_NEWEST[1]}",
            )
        self._prefix = f"/v{chosen[0]}.{chosen[1]}"
        return found

    async def info(self) -> dict[str, Any]:
        return await self._call("GET", "/info")

    # --- containers -------------------------------------------------------------------------------------------------

    async def create(self, name: str, body: dict[str, Any]) -> str:
        """Makes a container and returns its id.

        Raises:
            Unavailable: also when the engine made it with a warning, which means that it left out a limit.
        """
        made = await self._call("POST", f"/containers/create?name={quote(name)}", body, timeout=_CREATE)
        if warnings := made.get("Warnings"):
            raise Unavailable(f"the container engine cannot do what was asked: {'; '.join(warnings)[:500]}")
        return made["Id"]

    async def inspect(self, container: str) -> dict[str, Any]:
        return await self._call("GET", f"/containers/{container}/json")

    async def start(self, container: str) -> None:
        await self._call("POST", f"/containers/{container}/start", timeout=_CREATE)

    async def kill(self, container: str) -> None:
        await self._call("POST", f"/containers/{container}/kill")

    async def remove(self, container: str) -> None:
        """Ends and removes a container with all that it wrote; one that is gone, or on its way, is no error."""
        try:
            await self._call("DELETE", f"/containers/{container}?force=1&v=1", timeout=_CREATE)
        except (NotFound, Conflict):
            return

    async def wait(self, container: str) -> None:
        """Returns when the container no longer runs, however long that takes."""
        await self._call("POST", f"/containers/{container}/wait?condition=not-running", timeout=float("inf"))

    async def with_label(self, label: str) -> list[dict[str, Any]]:
        """All containers, running or not, with the label ``name=value``."""
        query = urlencode({"all": "1", "filters": json.dumps({"label": [label]})})
        return await self._call("GET", f"/containers/json?{query}")

    async def attach(self, container: str) -> Attached:
        """The standard streams of a container. Whoever calls this must close what it returns."""
        target = f"{await self._version_prefix()}/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1"
        async with AsyncExitStack() as stack:
            exchange = await stack.enter_async_context(wire.opened(self.socket))
            with wire.within(_QUICK, f"attach to {container[:12]}"):
                status = await exchange.ask("POST", target, upgrade=True)
                if status != 101:
                    raise wire.refusal(status, await exchange.read(), f"attach to {container[:12]}")
            return Attached(self.socket, exchange.stream, exchange.early(), stack.pop_all())

    # --- images -----------------------------------------------------------------------------------------------------

    async def image(self, name: str) -> dict[str, Any] | None:
        """The description of an image, None when the engine does not have it."""
        try:
            return await self._call("GET", f"/images/{quote(name, safe=':/@')}/json")
        except NotFound:
            return None

    async def load(self, archive: Iterable[bytes]) -> None:
        """Loads an archive as ``docker save`` writes it; reads ``archive`` between awaits.

        Raises:
            Unavailable: the engine did not take it.
        """
        await self._progress("POST", "/images/load?quiet=1", archive)

    async def pull(self, repository: str, digest: str) -> None:
        """Fetches an image by digest from the registry that its name says.

        Raises:
            Unavailable: the engine could not fetch it.
        """
        query = urlencode({"fromImage": repository, "tag": digest})
        await self._progress("POST", f"/images/create?{query}")

    async def _progress(self, method: str, target: str, body: bytes | Iterable[bytes] = b"") -> None:
        """A call whose answer is a long row of JSON objects, one of which may be an error."""
        with wire.within(_TRANSFER, target.partition("?")[0]):
            async with wire.opened(self.socket) as exchange:
                status = await exchange.ask(method, await self._version_prefix() + target, body)
                if status >= 400:
                    raise wire.refusal(status, await exchange.read(), target.partition("?")[0])
                rest = b""
                async with aclosing(exchange.pieces()) as pieces:
                    async for piece in pieces:
                        *lines, rest = (rest + piece).split(b"\n")
                        if len(rest) > wire.MAX_ANSWER:
                            raise ProtocolViolation("an endless line from the container engine")
                        _raise_error(lines)
                _raise_error([rest])

    # --- all --------------------------------------------------------------------------------------------------------

    async def _version_prefix(self) -> str:
        if self._prefix is None:
            await self.version()
        assert self._prefix is not None
        return self._prefix

    async def _call(self, method: str, target: str, body: Any = None, *, timeout: float = _QUICK) -> Any:
        return await wire.call(self.socket, method, await self._version_prefix() + target, body, timeout=timeout)


def _raise_error(lines: Iterable[bytes]) -> None:
    for line in lines:
        if line.strip() and (error := wire.parse(line).get("error")):
            raise Unavailable(f"the container engine refused: {str(error)[:500]}")


def _numbers(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)
