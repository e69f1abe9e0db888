"""Texts prepared for comparison, in two ways that must never be mixed up.

*Strict* comparison decides that something are the user's own words. It allows nothing but the case of ASCII letters to
differ, and it respects the borders of what the user wrote: ``john@x.org`` is not said by ``dr.john@x.org``. *Loose*
comparison only ever finds more taint: it undoes encodings, look-alike letters, invisible characters and spacing.
"""

from __future__ import annotations

import base64
import binascii
import html
import re
import unicodedata
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Final
from urllib.parse import unquote_plus

_ASCII_LOWER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_OPENERS: Final = "\"'`([{<«‘“„*_$€£"
_CLOSERS: Final = "\"'`)]}>»’”*_.,;:!?…"
_WORD: Final = re.compile(r"\w+")
_ATOM: Final = re.compile(r"\S+")
_NUMBER: Final = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?|\d+(\.\d+)?", re.ASCII)
MAX_HITS: Final = 64
"""Places at which a value is looked at before it counts as not found: a bound for texts that repeat themselves."""


def fold(text: str) -> str:
    """``text`` with ASCII letters in lower case. Nothing else: other mappings make different letters equal."""
    return text.translate(_ASCII_LOWER)


class Said:
    """What a person wrote, ready for strict comparison. Building it takes time in proportion to the text."""

    def __init__(self, text: str) -> None:
        self._exact = text
        self._folded = fold(text)
        self._starts: set[int] = set()
        self._ends: set[int] = set()
        self.atoms: list[str] = []
        """The words between spaces without the punctuation around them."""
        for match in _ATOM.finditer(text):
            self._mark(match[0], match.start())
        self.numbers = {number for atom in self.atoms if (number := number_of(atom)) is not None}

    def holds_in_order(self, value: str) -> bool:
        """Whether ``value`` is made of words that stand there, in their order, with one space between them."""
        spoken = iter([fold(atom) for atom in self.atoms])
        wanted = fold(value).split(" ")
        return all(any(word == said for said in spoken) for word in wanted)

    def _mark(self, atom: str, at: int) -> None:
        inner = atom.lstrip(_OPENERS)
        start = at + len(atom) - len(inner)
        bare = inner.rstrip(_CLOSERS)
        self._starts |= set(range(at, start + 1))
        self._ends |= set(range(start + len(bare), at + len(atom) + 1))
        if bare[-2:] in ("'s", "’s"):
            self._ends.add(start + len(bare) - 2)
        if bare:
            self.atoms.append(bare)

    def holds(self, value: str, *, exact: bool = False) -> bool:
        """Whether ``value`` stands there as a whole, from the start of a word to the end of one."""
        text, wanted = (self._exact, value) if exact else (self._folded, fold(value))
        if not wanted.strip():
            return False
        at = text.find(wanted)
        for _ in range(MAX_HITS):
            if at < 0:
                return False
            if at in self._starts and at + len(wanted) in self._ends:
                return True
            at = text.find(wanted, at + 1)
        return False


def number_of(text: str) -> Decimal | None:
    """The number that ``text`` is as a whole; None: it is none, or one that people would read in two ways."""
    bare = text.removeprefix("-").strip(_OPENERS)
    if not _NUMBER.fullmatch(bare):
        return None
    try:
        number = Decimal(bare.replace(",", ""))
    except InvalidOperation:
        return None
    return -number if text.startswith("-") else number


def words(text: str) -> list[str]:
    """The words of ``text`` in order, ASCII letters in lower case."""
    return _WORD.findall(fold(text))


# --- loose ------------------------------------------------------------------------------------------------------------

_LOOK_ALIKES: Final = str.maketrans(
    "аеорсухіјѕԁһӏқвнкмтгабαβεικνορτυχηγωΑΒΕΖΗΙΚΜΝΟΡΤΥΧɑɡıⅼ0135",
    "aeopcyxijsdhlkbhkmtrababeiknoptuxnywabezhikmnoptyxagiloles",
)
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{8,}={0,2}")
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2}){4,}")
_ESCAPE: Final = re.compile(r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})")
DEPTH: Final = 3
MAX_LAYERS: Final = 24


def skeleton(text: str) -> str:
    """The letters and digits that a reader sees, look-alikes made one, without case, spacing and marks."""
    if text.isascii():
        return re.sub(r"[^a-z0-9]+", "", fold(text).translate(_LOOK_ALIKES))
    plain = unicodedata.normalize("NFKD", text).casefold().translate(_LOOK_ALIKES)
    plain = unicodedata.normalize("NFKD", plain)
    return "".join(char for char in plain if char.isalnum())


def layers(text: str) -> Iterator[str]:
    """``text`` and what it decodes to, again and again to a fixed depth; at most ``MAX_LAYERS`` different texts."""
    seen = {text}
    level = [text]
    yield text
    for _ in range(DEPTH):
        below: list[str] = []
        for outer in level:
            for inner in _decoded(outer):
                if inner in seen or len(seen) >= MAX_LAYERS:
                    continue
                seen.add(inner)
                below.append(inner)
                yield inner
        level = below


def _decoded(text: str) -> Iterator[str]:
    if "%" in text or "+" in text:
        yield unquote_plus(text)
    if "&" in text:
        yield html.unescape(text)
    if "\\" in text:
        yield _ESCAPE.sub(lambda match: chr(int(match[1] or match[2], 16)), text)
    for match in _BASE64.finditer(text):
        yield from _text_of(_base64, match[0])
    for match in _HEX.finditer(text):
        yield from _text_of(bytes.fromhex, match[0])


def _base64(text: str) -> bytes:
    body = text.rstrip("=").replace("-", "+").replace("_", "/")
    return base64.b64decode(body + "=" * (-len(body) % 4), validate=True)


def _text_of(decode: Callable[[str], bytes], text: str) -> Iterator[str]:
    try:
        plain = decode(text).decode("utf-8")
    except (binascii.Error, ValueError):
        return
    if plain.isprintable() or "\n" in plain:
        yield plain


_LINK: Final = re.compile(
    r"""(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^\s<>"')\]]+
      | (?<![\w.+-])[\w.+-]+@[\w.-]+\w
      | (?<![\w.-])(?:[\w-]+\.)+[^\W\d_]{2,}(?:[/?\#:][^\s<>"')\]]*)?
      | (?<![\w.])\d{1,3}(?:\.\d{1,3}){3}""",
    re.IGNORECASE | re.VERBOSE,
)
"""Schemes, mail addresses, host names, IPv4. Each starts where a word starts, so no part of a text is read twice."""
_NO_LETTERS: Final = frozenset({"Cf", "Cs"})
_DOTS: Final = str.maketrans("。｡", "..")


def links(text: str) -> list[str]:
    """Everything in ``text``, or in what it decodes to, that a reader or a program may take for an address."""
    found: dict[str, None] = {}
    for layer in layers(text):
        plain = "".join(char for char in layer if unicodedata.category(char) not in _NO_LETTERS)
        for match in _LINK.finditer(unicodedata.normalize("NFKC", plain).translate(_DOTS)):
            found[match[0].rstrip(".,;:!?")] = None
    return list(found)
