"""HTTP response headers: a known few survive, in the form that their standard gives them. All others are scanned."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote

from gnusnode.sanitize.extract import MAX_SCANNED, Scan
from gnusnode.sanitize.findings import Finding, Severity

MAX_HEADERS: Final = 256
_DATE: Final = re.compile(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \d{4}"
    r" \d\d:\d\d:\d\d GMT"
)
_LANGUAGE: Final = r"[a-zA-Z]{2,3}(?:-[a-zA-Z0-9]{2,8}){0,3}"
_NUMBER: Final = re.compile(r"\d{1,15}")
_TYPE: Final = re.compile(
    r"[a-z0-9!#$&^_.+-]{1,60}/[a-z0-9!#$&^_.+-]{1,60}(?:\s*;\s*charset=\"?[a-z0-9_:.-]{1,40}\"?)?", re.IGNORECASE
)
KEPT: Final[dict[str, re.Pattern[str]]] = {
    "content-type": _TYPE,
    "content-length": _NUMBER,
    "content-language": re.compile(rf"{_LANGUAGE}(?:\s*,\s*{_LANGUAGE}){{0,8}}"),
    "date": _DATE,
    "last-modified": _DATE,
    "expires": _DATE,
    "age": _NUMBER,
    "retry-after": re.compile(rf"{_NUMBER.pattern}|{_DATE.pattern}"),
}
"""Header -> the only form in which it is kept."""


@dataclass(frozen=True, slots=True)
class Headers:
    """What is left of the headers of a response, and what was found in the others."""

    kept: dict[str, str]
    """Lower-case name -> value; one value each, the first."""
    findings: tuple[Finding, ...]


def clean_headers(headers: Iterable[tuple[str, str]], scrub: Scan) -> Headers:
    """The headers that may be shown or remembered. Total, linear, and never larger than what came in."""
    kept: dict[str, str] = {}
    others: list[str] = []
    for count, (name, value) in enumerate(headers):
        pattern = KEPT.get(name.lower())
        if (
            count < MAX_HEADERS
            and pattern is not None
            and name.lower() not in kept
            and pattern.fullmatch(value.strip())
        ):
            kept[name.lower()] = value.strip()
        else:
            others.append(f"{_words(name)}: {value}")
            if "%" in value:
                others.append(unquote(value))
    if not others:
        return Headers(kept, ())
    found = scrub("\n".join(others)[:MAX_SCANNED]).findings
    serious = [
        replace(item, start=0, end=0, rule=f"header.{item.rule}") for item in found if item.severity >= Severity.FLAG
    ]
    return Headers(kept, tuple(dict.fromkeys(serious)))


def _words(name: str) -> str:
    """``X-Note-To-Agent`` as words, since a name can carry a message too."""
    return name.replace("-", " ")
