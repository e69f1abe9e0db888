"""Downloads one large file over HTTP, goes on where an earlier attempt stopped, and trusts the server with nothing.

Space and size are checked before the first byte of the body. A redirect never leaves https. A server that sends less
than a minimum in a while is left. What arrives counts only by its hash: of each chunk for resuming, of the whole file
in the end.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import httpx2
import trio

from gnusnode import __version__
from gnusnode.errors import (
    Forbidden,
    GnusError,
    ModelInvalid,
    NotFound,
    TooLarge,
    Unavailable,
)
from gnusnode.inference.artifacts.filework import Hashed, Progress, mib, require_space
from gnusnode.inference.artifacts.modelrecord import require_digest
from gnusnode.inference.artifacts.partial import Entity, Partial

_WRITE_BYTES: Final = 1024 * 1024
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_TRY_LATER: Final = (408, 425, 429, 500, 502, 503, 504)
_MAX_RETRY_AFTER: Final = 60.0
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


@dataclass(frozen=True)
class FetchLimits:
    """How a download behaves. Sizes in bytes, times in seconds, rates in bytes per second."""

    max_bytes: int = 64 * 1024**3
    chunk: int = 8 * 1024**2
    """What is hashed, and lost by a crash, together."""
    reserve: int = 64 * 1024**2
    """Disk space that must stay free."""
    bandwidth: int = 0
    """Most bytes per second; 0: no limit."""
    min_rate: int = 4 * 1024
    window: float = 30.0
    """The server must send at least ``min_rate * window`` bytes in this time."""
    attempts: int = 5
    """Failures in a row, without a complete chunk between them, after which we give up."""
    backoff: float = 1.0
    """Pause after the first failure; doubles with each further one."""
    max_redirects: int = 5


def new_client() -> httpx2.AsyncClient:
    """The client that downloads use: certificates checked, no redirect on its own, proxies from the environment."""
    return httpx2.AsyncClient(follow_redirects=False, headers={"User-Agent": f"gnusnode/{__version__}"})


async def fetch(
    client: httpx2.AsyncClient,
    url: str,
    part: Partial,
    *,
    sha256: str | None,
    magic: bytes,
    limits: FetchLimits,
    progress: Progress | None = None,
) -> Hashed:
    """Completes ``part`` with the bytes of ``url``. Cancelled or failed, it can go on later with the same ``part``.

    Args:
        sha256: digest that the file must have; also what makes a resume safe where the server gives no validator.
        magic: how the file must begin, so that a login page is noticed at once.

    Raises:
        NotFound, Forbidden, Unavailable: the server does not give the file.
        TooLarge, DiskFull: it is too large for the limits or the disk.
        ModelInvalid: the bytes are not what was promised; ``part`` has been discarded.
    """
    download = _Download(client, url, part, pinned=sha256 is not None, magic=magic, limits=limits, progress=progress)
    await trio.to_thread.run_sync(part.recover)
    try:
        await download.run()
        hashed = await trio.to_thread.run_sync(part.finish)
        require_digest(hashed.sha256, sha256, where=url)
    except (ModelInvalid, TooLarge):
        part.discard()
        raise
    return hashed


class _TryAgain(Exception):
    """This attempt failed in a way that the next one may not."""

    def __init__(self, reason: str, *, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


class _Download:
    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: str,
        part: Partial,
        *,
        pinned: bool,
        magic: bytes,
        limits: FetchLimits,
        progress: Progress | None,
    ) -> None:
        self._client = client
        self._url = url
        self._part = part
        self._pinned = pinned
        self._magic = magic
        self._limits = limits
        self._progress = progress
        self._timeout = httpx2.Timeout(limits.window)

    async def run(self) -> None:
        """Attempts until the file is complete or too many failed in a row."""
        failures = 0
        while True:
            chunks = self._part.chunks
            try:
                await self._attempt()
            except (_TryAgain, httpx2.TransportError) as error:
                failures = 1 if self._part.chunks > chunks else failures + 1
                if failures >= self._limits.attempts:
                    raise Unavailable(
                        f"the download failed {failures} times in a row: {error or type(error).__name__}",
                        where=self._url,
                        hint="try again later: it goes on where it stopped",
                    ) from error
                after = error.after if isinstance(error, _TryAgain) else 0.0
                await trio.sleep(max(after, self._limits.backoff * 2 ** (failures - 1)))
            else:
                return

    async def _attempt(self) -> None:
        url = self._url
        for _ in range(self._limits.max_redirects + 1):
            async with self._client.stream(
                "GET", url, headers=self._headers(), timeout=self._timeout, follow_redirects=False
            ) as response:
                if response.status_code == 416 and 0 < self._part.at == self._part.entity.length:
                    return  # an earlier attempt ended between its last byte and the registration
                if response.status_code not in _REDIRECTS:
                    await self._take(response)
                    return
                url = _redirected(url, response.headers.get("location", ""))
        raise Unavailable(
            f"more than {self._limits.max_redirects} redirects", where=self._url, hint="check the address"
        )

    def _headers(self) -> dict[str, str]:
        # Compressed bytes would make lengths and ranges mean something else.
        headers = {"Accept-Encoding": "identity"}
        validator = self._part.entity.validator
        if self._part.at and (validator or self._pinned):
            headers["Range"] = f"bytes={self._part.at}-"
            if validator:
                headers["If-Range"] = validator
        return headers

    async def _take(self, response: httpx2.Response) -> None:
        status, part = response.status_code, self._part
        if status == 416 and part.at:
            await trio.to_thread.run_sync(part.restart)
            raise _TryAgain("the server's file is shorter than what is here")
        if status not in (200, 206):
            raise _refusal(response, self._url)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise Unavailable("the server compresses the file", where=self._url, hint="use another address")
        found = _entity(response)
        if status == 206 and not self._continues(response, found):
            await trio.to_thread.run_sync(part.restart)
            raise _TryAgain("the server's file has changed, or the range is not the one that was asked for")
        if status == 200 and part.at:
            await trio.to_thread.run_sync(part.restart)  # no ranges there, or the file has changed
        self._check_size(found.length)
        if status == 200:
            part.entity = found
        await self._body(response, found.length)

    def _continues(self, response: httpx2.Response, found: Entity) -> bool:
        """Whether a 206 is the rest of the very file whose beginning is here."""
        span = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        if not span or not self._part.at:
            return False
        first, last, total = (int(number) for number in span.groups())
        length = response.headers.get("content-length")
        known = self._part.entity
        return (
            first == self._part.at
            and last == total - 1
            and (length is None or length == str(last - first + 1))
            and known.length in (None, total)
            and (known.etag is None or found.etag in (None, known.etag))
        )

    def _check_size(self, length: int | None) -> None:
        limits = self._limits
        if (length or 0) > limits.max_bytes:
            raise TooLarge(
                f"the file has {mib(length or 0)}, {mib(limits.max_bytes)} are allowed",
                where=self._url,
                hint="raise models.pull_max_bytes",
            )
        require_space(self._part.path.parent, max(0, (length or 0) - self._part.at), limits.reserve)

    async def _body(self, response: httpx2.Response, length: int | None) -> None:
        buffer = bytearray()
        failure: httpx2.TransportError | None = None
        patience = trio.CancelScope(deadline=trio.current_time() + self._limits.window)
        try:
            with patience:
                await self._receive(response, buffer, length, patience)
        except httpx2.TransportError as error:
            failure = error
        await self._store(buffer, length)  # what came before a failure is kept too
        if failure is not None:
            raise failure
        if patience.cancelled_caught:
            raise _TryAgain(f"the server sent less than {self._min_rate} bytes per second")
        if length is not None and self._part.at < length:
            raise _TryAgain(f"the server stopped after {self._part.at} of {length} bytes")

    async def _receive(
        self, response: httpx2.Response, buffer: bytearray, length: int | None, patience: trio.CancelScope
    ) -> None:
        """Stores the body piece by piece; what is left in ``buffer`` is the caller's. Moves the deadline."""
        limits, started = self._limits, trio.current_time()
        quota = min(self._min_rate * limits.window, _WRITE_BYTES)
        arrived = since = 0
        async with _pieces(response) as pieces:
            async for data in pieces:
                buffer += data
                arrived += len(data)
                since += len(data)
                if len(buffer) >= _WRITE_BYTES:
                    await self._store(buffer, length)
                    if limits.bandwidth:
                        await trio.sleep_until(started + arrived / limits.bandwidth)
                if since >= quota:
                    # Set after the disk and our own pause had their time: only the server's delay counts.
                    since, patience.deadline = 0, trio.current_time() + limits.window

    @property
    def _min_rate(self) -> int:
        limits = self._limits
        return min(limits.min_rate, limits.bandwidth // 2) if limits.bandwidth else limits.min_rate

    async def _store(self, buffer: bytearray, length: int | None) -> None:
        part, limits = self._part, self._limits
        end = part.at + len(buffer)
        if part.at == 0 and buffer and not buffer.startswith(self._magic[: len(buffer)]):
            raise ModelInvalid("what the server sends is not a model file", where=self._url, hint="check the address")
        if length is not None and end > length:
            raise ModelInvalid(f"the server sends more than the {length} bytes it announced", where=self._url)
        if end > limits.max_bytes:
            raise TooLarge(f"the file has more than the {mib(limits.max_bytes)} allowed", where=self._url)
        if length is None:
            require_space(part.path.parent, len(buffer), limits.reserve)
        await trio.to_thread.run_sync(part.append, bytes(buffer))
        buffer.clear()
        if self._progress:
            self._progress(part.at, length)


@asynccontextmanager
async def _pieces(response: httpx2.Response) -> AsyncGenerator[AsyncIterator[bytes]]:
    """The body as it comes. Leaving early ends the client's generators, which it nests and does not close itself."""
    pieces = response.aiter_raw()
    try:
        yield pieces
    finally:
        # A read that is cancelled at once raises through all of them.
        with trio.move_on_after(0, shield=True):
            await _exhaust(pieces)


async def _exhaust(pieces: AsyncIterator[bytes]) -> None:
    async for _ in pieces:
        pass


def _entity(response: httpx2.Response) -> Entity:
    headers = response.headers
    etag = headers.get("etag", "")
    span = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
    length = span[3] if span else headers.get("content-length", "")
    return Entity(
        etag=etag if etag.startswith('"') and len(etag) <= 1024 else None,
        last_modified=headers.get("last-modified", "")[:1024] or None,
        length=int(length) if re.fullmatch(r"\d{1,18}", length) else None,
    )


def _redirected(url: str, location: str) -> str:
    try:
        target = httpx2.URL(url).join(location).copy_with(fragment=None)
    except (httpx2.InvalidURL, ValueError) as error:
        raise Unavailable("the server redirects to what is no address", where=url, hint="check the address") from error
    if not location or target.scheme not in ("http", "https") or not target.host:
        raise Unavailable("the server redirects to what is no web address", where=url, hint="check the address")
    if urlsplit(url).scheme == "https" and target.scheme != "https":
        raise Forbidden("the server redirects from https to plain http", where=url, hint="use another address")
    return str(target)


def _refusal(response: httpx2.Response, url: str) -> GnusError | _TryAgain:
    status = response.status_code
    if status in _TRY_LATER:
        after = response.headers.get("retry-after", "")
        return _TryAgain(f"HTTP status {status}", after=min(float(after), _MAX_RETRY_AFTER) if after.isdecimal() else 0)
    if status in (404, 410):
        return NotFound(f"the server has no such file (HTTP status {status})", where=url, hint="check the address")
    if status in (401, 403):
        return Forbidden(f"the server refuses (HTTP status {status})", where=url, hint="get the file by other means")
    return Unavailable(f"unexpected HTTP status {status}", where=url, hint="check the address")
