"""Wikipedia's search interface."""

from __future__ import annotations

import json
from typing import Annotated, Final
from urllib.parse import quote, urlencode

from pydantic import BaseModel, Field, ValidationError

from gnusnode.contracts.base import describe
from gnusnode.web.exchange import Page, WebRequest
from gnusnode.web.urls import parse
from roles.intermediary.tools.search.provider import Hit, UnreadableAnswer, hit

_TYPES: Final = frozenset({"application/json"})


class _Found(BaseModel):
    title: Annotated[str, Field(max_length=1024)]
    snippet: Annotated[str, Field(max_length=16_384)] = ""


class _Results(BaseModel):
    search: Annotated[list[_Found], Field(max_length=100)]


class _Answer(BaseModel):
    query: _Results


class Wikipedia:
    """See ``Provider``.

    Args:
        language: of the edition that is asked: the first part of its host name.
    """

    name = "wikipedia"

    def __init__(self, language: str = "en") -> None:
        self.domain = f"{language}.wikipedia.org"

    def request(self, query: str, count: int) -> WebRequest:
        words = {
            "action": "query",
            "format": "json",
            "formatversion": 2,
            "list": "search",
            "srlimit": count,
            "srprop": "snippet",
            "srsearch": query,
        }
        # Made for programs: robots.txt keeps crawlers of pages away from it.
        url = parse(f"https://{self.domain}/w/api.php?{urlencode(words)}")
        return WebRequest(url, domains=(self.domain,), types=_TYPES, robots=False)

    def read(self, page: Page, count: int) -> tuple[Hit, ...]:
        try:
            answer = _Answer.model_validate(json.loads(page.body))
        except ValidationError as error:
            raise UnreadableAnswer(describe(error)) from error
        except (ValueError, RecursionError) as error:
            raise UnreadableAnswer("not JSON") from error
        found = [
            hit(page.url, entry.title, f"/wiki/{quote(entry.title.replace(' ', '_'), safe='')}", entry.snippet)
            for entry in answer.query.search[:count]
        ]
        return tuple(entry for entry in found if entry is not None)
