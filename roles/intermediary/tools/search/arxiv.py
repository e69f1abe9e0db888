"""arXiv's search interface: an Atom feed."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlencode
from xml.etree import ElementTree

from gnusnode.web.exchange import Page, WebRequest
from gnusnode.web.urls import parse
from roles.intermediary.tools.search.provider import Hit, UnreadableAnswer, hit

_ATOM: Final = "{http://www.w3.org/2005/Atom}"
_TYPES: Final = frozenset({"application/atom+xml", "application/xml", "text/xml"})
_NOT_A_WORD: Final = re.compile(r"[^\w.-]+")


class Arxiv:
    """See ``Provider``."""

    name = "arxiv"
    domain = "export.arxiv.org"

    def request(self, query: str, count: int) -> WebRequest:
        # Operators of its query language are not for others to use: words only.
        words = [word for word in _NOT_A_WORD.sub(" ", query).split() if word not in ("AND", "OR", "ANDNOT")]
        asked = {
            "search_query": " AND ".join(f"all:{word}" for word in words) or "all:none",
            "start": 0,
            "max_results": count,
        }
        url = parse(f"https://{self.domain}/api/query?{urlencode(asked)}")
        # Made for programs: robots.txt is for crawlers of pages.
        return WebRequest(url, domains=(self.domain,), types=_TYPES, robots=False)

    def read(self, page: Page, count: int) -> tuple[Hit, ...]:
        try:
            text = page.body.decode("utf-8")
            if "<!" in text:
                raise UnreadableAnswer("declarations, comments and raw sections have no place in such a feed")
            # As text: so no declared encoding can make other characters of the bytes that were just looked at.
            feed = ElementTree.fromstring(text)  # noqa: S314 - without declarations there are no entities
        except (UnicodeDecodeError, ElementTree.ParseError) as error:
            raise UnreadableAnswer("not XML") from error
        if feed.tag != f"{_ATOM}feed":
            raise UnreadableAnswer("not an Atom feed")
        found = [
            hit(page.url, _text(entry, "title"), _text(entry, "id"), _text(entry, "summary"))
            for entry in feed.findall(f"{_ATOM}entry")[:count]
        ]
        return tuple(entry for entry in found if entry is not None)


def _text(entry: ElementTree.Element, name: str) -> str:
    return (entry.findtext(f"{_ATOM}{name}") or "").strip()
