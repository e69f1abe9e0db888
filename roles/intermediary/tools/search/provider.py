"""What a source of search results is to ``web.search``. Pure: sources build requests and read answers, others send."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Final, Protocol

from gnusnode.web.exchange import Page, WebRequest
from gnusnode.web.refusals import WebRefused
from gnusnode.web.urls import MAX_URL, Url, join

_TAG: Final = re.compile(r"<[^<>]{0,512}>")
_TITLE: Final = 300
_SNIPPET: Final = 600


class UnreadableAnswer(Exception):
    """An answer that is not what the source's interface promises; the text says what is missing."""


@dataclass(frozen=True)
class Hit:
    title: str
    url: str
    snippet: str


class Provider(Protocol):
    """A source on the web."""

    @property
    def name(self) -> str: ...

    @property
    def domain(self) -> str:
        """The host that is asked."""
        ...

    def request(self, query: str, count: int) -> WebRequest:
        """What to send for at most ``count`` hits."""
        ...

    def read(self, page: Page, count: int) -> tuple[Hit, ...]:
        """The hits of an answer, best first.

        Raises:
            UnreadableAnswer: it is not an answer of this source.
        """
        ...


def hit(base: Url, title: str, link: str, snippet: str) -> Hit | None:
    """A hit out of what a source says; None where its link leads to no web page."""
    try:
        url = str(join(base, link.strip()[: MAX_URL + 1]))
    except WebRefused:
        return None
    return Hit(title=plain(title)[:_TITLE], url=url, snippet=plain(snippet)[:_SNIPPET])


def plain(text: str) -> str:
    """``text`` without markup, on one line. It is still untrusted."""
    return " ".join(html.unescape(_TAG.sub("", text)).split())
