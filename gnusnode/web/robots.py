"""What sites say in robots.txt, fetched through the same guard as everything else; cached and bounded (RFC 9309).

A site without the file allows everything. One that cannot be asked allows nothing for now.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Final

import trio
from protego import Protego

from gnusnode.web.answer import Answer
from gnusnode.web.exchange import AGENT, WebRequest
from gnusnode.web.refusals import Reason, WebFailed, WebRefused
from gnusnode.web.urls import Url, join

_MAX_BYTES: Final = 512 * 1024
"""What lies behind is not read."""
_LIFETIME: Final = 3600.0
_SITES: Final = 64
_MAX_RULES: Final = 2000
"""Lines that concern us; one takes about a kilobyte of memory."""
_LONGEST_PAUSE: Final = 30.0
"""Seconds between two requests that a site may ask for."""
_OK: Final = 200
_REDIRECT: Final = 300
_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500
_TOO_MANY: Final = 429
_SAME_FOR_THE_PAGE: Final = (Reason.DNS_FAILED, Reason.CONNECT_FAILED, Reason.RATE_LIMITED)
_AGENT_LINE: Final = re.compile(r"user[- ]?agent\s*[:\s](.*)", re.IGNORECASE)
_SITE_WIDE: Final = re.compile(r"(site-?maps?|host)\b", re.IGNORECASE)

Stream = Callable[[WebRequest], AbstractAsyncContextManager[Answer]]


@dataclass(frozen=True)
class _Entry:
    rules: Protego | None
    """None: everything is allowed."""
    until: float


class Robots:
    """The rules of the sites that were asked last. One owner, no lock.

    Args:
        stream: fetches, with all checks but this one.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._known: OrderedDict[str, _Entry] = OrderedDict()

    async def require(self, url: Url, domains: Collection[str] | None) -> float:
        """Seconds that the site wants between two requests; 0 if it does not say.

        Args:
            domains: as in ``WebRequest``: where the site's robots.txt may redirect to.

        Raises:
            WebRefused: ROBOTS_DISALLOWED, or a rule forbids to fetch the file.
            WebFailed: ROBOTS_UNAVAILABLE, the site cannot say for now.
        """
        entry = self._known.get(url.origin)
        if entry is None or entry.until <= trio.current_time():
            entry = _Entry(await self._ask(url, domains), trio.current_time() + _LIFETIME)
            self._known[url.origin] = entry
            while len(self._known) > _SITES:
                self._known.popitem(last=False)
        self._known.move_to_end(url.origin)
        await trio.lowlevel.checkpoint()
        if entry.rules is None:
            return 0.0
        if not entry.rules.can_fetch(str(url), AGENT):
            raise WebRefused(Reason.ROBOTS_DISALLOWED, "the site does not want programs to read this", where=str(url))
        return min(entry.rules.crawl_delay(AGENT) or 0.0, _LONGEST_PAUSE)

    async def _ask(self, url: Url, domains: Collection[str] | None) -> Protego | None:
        where = join(url, "/robots.txt")
        text = bytearray()
        try:
            async with self._stream(WebRequest(where, domains=domains, types=None, robots=False)) as answer:
                status = answer.status
                if status == _OK:
                    async for piece in answer:
                        text += piece
                        if len(text) > _MAX_BYTES:
                            break
        except WebFailed as error:
            if error.reason in _SAME_FOR_THE_PAGE:
                raise
            raise WebFailed(
                Reason.ROBOTS_UNAVAILABLE, f"robots.txt cannot be had: {error.what}", where=str(where)
            ) from error
        if _CLIENT_ERROR <= status < _SERVER_ERROR and status != _TOO_MANY:
            return None
        if not _OK <= status < _REDIRECT:
            raise WebFailed(Reason.ROBOTS_UNAVAILABLE, f"robots.txt: HTTP status {status}", where=str(where))
        return await trio.to_thread.run_sync(parse_rules, bytes(text[:_MAX_BYTES]))


def parse_rules(text: bytes) -> Protego:
    """The rules that concern us. Linear in ``text``, and bounded in memory, whatever a hostile site writes.

    Raises:
        WebFailed: ROBOTS_UNAVAILABLE, there are more of them than we can keep to.
    """
    ours = list(islice(_our_groups(text.decode("utf-8-sig", "replace")), _MAX_RULES + 1))
    if len(ours) > _MAX_RULES:
        raise WebFailed(Reason.ROBOTS_UNAVAILABLE, f"robots.txt has more than {_MAX_RULES} rules for us")
    return Protego.parse("\n".join(ours))


def _our_groups(text: str) -> Iterator[str]:
    """The lines of the groups that name us or everybody: each other agent would get its own copy of its group."""
    listening = among_agents = False
    for line in text.splitlines():
        bare = line.partition("#")[0].strip()
        if not bare or _SITE_WIDE.match(bare):
            continue
        agent = _AGENT_LINE.fullmatch(bare)
        if agent is None:
            among_agents = False
            if listening:
                yield bare
            continue
        listening = listening and among_agents
        among_agents = True
        name = agent[1].strip().lower()
        if name in ("*", AGENT):
            listening = True
            yield f"User-agent: {name}"
