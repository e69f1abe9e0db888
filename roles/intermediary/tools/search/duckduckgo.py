"""DuckDuckGo's result page without scripts."""

from __future__ import annotations

import html
import re
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from gnusnode.web.exchange import Page, WebRequest
from gnusnode.web.urls import parse
from roles.intermediary.tools.search.provider import Hit, UnreadableAnswer, hit

_TYPES: Final = frozenset({"text/html"})
_HREF: Final = re.compile(r"\bhref=\"([^\"]{1,4096})\"")
_TITLE: Final = "result__a"
_SNIPPET: Final = "result__snippet"
_NO_RESULTS: Final = ("no-results", "No results.")
_ADVERTISEMENT: Final = "/y.js"


class DuckDuckGo:
    """See ``Provider``.

    Args:
        robots: whether its robots.txt is honoured.
    """

    name = "duckduckgo"
    domain = "html.duckduckgo.com"

    def __init__(self, *, robots: bool = True) -> None:
        self._robots = robots

    def request(self, query: str, count: int) -> WebRequest:
        url = parse(f"https://{self.domain}/html/?{urlencode({'q': query})}")
        return WebRequest(url, domains=(self.domain,), types=_TYPES, robots=self._robots)

    def read(self, page: Page, count: int) -> tuple[Hit, ...]:
        text = page.body.decode("utf-8", "replace")
        found: list[Hit] = []
        at = 0
        while len(found) < count and (title := _anchor(text, _TITLE, at)) is not None:
            following = text.find(_TITLE, title.end)
            snippet = _anchor(text, _SNIPPET, title.end, following if following >= 0 else len(text))
            said = snippet.inner if snippet else ""
            at = title.end
            if (target := _target(title.tag)) is not None:
                entry = hit(page.url, title.inner, target, said)
                if entry is not None:
                    found.append(entry)
        if not found and not any(mark in text for mark in (*_NO_RESULTS, _TITLE)):
            raise UnreadableAnswer("neither results nor the words that there are none")
        return tuple(found)


class _Anchor(NamedTuple):
    tag: str
    inner: str
    end: int


def _anchor(text: str, name: str, at: int, end: int | None = None) -> _Anchor | None:
    """The next link of the class ``name`` between two places. No part is looked through twice: linear in the page."""
    mark = text.find(name, at, end)
    if mark < 0:
        return None
    opened = text.rfind("<a", max(at, mark - 4096), mark)
    tag_end = text.find(">", mark)
    closed = text.find("</a>", tag_end) if tag_end >= 0 else -1
    if opened < 0 or closed < 0:
        return None
    return _Anchor(text[opened:tag_end], text[tag_end + 1 : min(closed, tag_end + 4096)], closed)


def _target(tag: str) -> str | None:
    """Where a result leads: links go through a counter that carries the address. None: an advertisement."""
    found = _HREF.search(tag)
    if found is None:
        return None
    link = html.unescape(found[1])
    parts = urlsplit(link)
    if parts.path == _ADVERTISEMENT:
        return None
    carried = parse_qs(parts.query, max_num_fields=32).get("uddg")
    return carried[0] if carried else link
