"""Credentials: found in text by their shapes, and kept from leaving in a request."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final
from urllib.parse import unquote_plus

from gnusnode.sanitize.encoded import raw_blobs
from gnusnode.sanitize.expressions import Expressions
from gnusnode.sanitize.findings import Finding
from gnusnode.sanitize.rules import rule_file

_FILE: Final = "secrets.toml"
_VALUE: Final = re.compile(r"[^\s\"'=:@/]+")
_MIN_SECRET: Final = 8
"""Shorter values are not looked for: they would occur by chance."""


@dataclass(frozen=True, slots=True)
class Leak:
    """A credential in an outgoing request. It never holds the credential."""

    where: str
    """``url``, ``body``, or ``header NAME``."""
    rule: str


def find(text: str, *, engine: str | None = None) -> list[Finding]:
    """Credentials in ``text``: known shapes, with enough entropy not to be an example."""
    least = _entropies()
    return [one for one in _expressions(engine).find(text) if _randomness(text[one.start : one.end]) >= least[one.rule]]


def _randomness(found: str) -> float:
    """Entropy of the longest value in what was found: names and punctuation around it say nothing."""
    return entropy(max(_VALUE.findall(found), key=len, default=""))


def leaks(
    url: str,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes | str = b"",
    *,
    known: Iterable[str] = (),
    allowed_headers: frozenset[str] = frozenset(),
    engine: str | None = None,
) -> list[Leak]:
    """The credentials that a request would carry out. Empty: it may go, as far as this is concerned.

    Args:
        url: as it would be sent; looked at also percent-decoded.
        headers: names and values.
        body: as it would be sent; looked at also decoded (percent, base64, hexadecimal).
        known: values of this node's own secrets, which must not leave in any of these spellings.
        allowed_headers: lower-case names of headers in which this very request is meant to carry a credential.
    """
    secrets = [value for value in known if len(value) >= _MIN_SECRET]
    text = body if isinstance(body, str) else body.decode("utf-8", "replace")
    places = [("url", url), ("body", text)]
    places += [(f"header {name.lower()}", value) for name, value in headers if name.lower() not in allowed_headers]
    found: dict[Leak, None] = {}
    for where, content in places:
        for spelling in _spellings(content):
            for one in find(spelling, engine=engine):
                found[Leak(where, one.rule)] = None
            if any(value in spelling for value in secrets):
                found[Leak(where, "secret.known_value")] = None
    return list(found)


def _spellings(content: str) -> Iterator[str]:
    """``content`` as it stands and as whoever receives it would decode it."""
    yield content
    plain = unquote_plus(content)
    if plain != content:
        yield plain
    yield from raw_blobs(plain)


def entropy(text: str) -> float:
    """Shannon entropy of the characters of ``text``, in bits a character."""
    size = len(text)
    return -sum(count / size * math.log2(count / size) for count in Counter(text).values()) if size else 0.0


@cache
def _expressions(engine: str | None) -> Expressions:
    return Expressions(_FILE, engine, fold_case=False)


@cache
def _entropies() -> dict[str, float]:
    return {rule["id"]: float(rule["entropy"]) for rule in rule_file(_FILE)["rule"]}
