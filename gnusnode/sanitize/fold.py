"""A text as the words that a reader hears: lower case, without accents, markup or line ends, one space apart.

Rules are written on this form, so that ``**Ignore**\\nall`` and ``ignore ALL`` are the same words. Only what ends a
sentence stays, as a word of its own, and what announces one, as ``:``.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cached_property
from itertools import accumulate
from typing import Final


def _tokens(letter: str, single: str = "") -> re.Pattern[str]:
    """Words of ``letter``, joined inside by marks that spellings use; sentence ends; colons."""
    word = rf"{letter}+(?:(?:['@+_-]+|\.(?=[a-z0-9])){letter}+)*"
    return re.compile(rf"{single}{word}|:|[.!?]+|\n[ \t]*\n")


_IDEOGRAPH: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
"""Scripts that put no spaces between words: each character is a word."""
_ASCII_TOKEN: Final = _tokens("[A-Za-z0-9]")
_TOKEN: Final = _tokens(rf"[^\W_{_IDEOGRAPH}]", rf"[{_IDEOGRAPH}]|")
_MAX_CACHED: Final = 50_000

_ENDS: Final = "。．！？؟।॥…｡"
_APOSTROPHES: Final = "’‘ʼ´＇"


class _Folding(dict[int, str]):
    """What each character is folded to; filled as characters are met."""

    def __missing__(self, code: int) -> str:
        folded = _fold_character(chr(code))
        if len(self) < _MAX_CACHED:
            self[code] = folded
        return folded


def _fold_character(char: str) -> str:
    if char in _ENDS:
        return "."
    if char in _APOSTROPHES:
        return "'"
    if char == "：":
        return ":"
    if char == "ı":
        return "i"
    parts = unicodedata.normalize("NFKD", char)
    kept = "".join(part for part in parts if unicodedata.category(part) not in ("Mn", "Mc", "Me"))
    return unicodedata.normalize("NFC", kept)


_FOLDING: Final = _Folding({code: chr(code) for code in range(128)})


def fold_characters(text: str) -> str:
    """``text`` without accents, ligatures, widths and vowel signs. A character may become none or several."""
    return text if text.isascii() else text.translate(_FOLDING)


class Words:
    """The words of a text and where they stand in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._ascii = text.isascii()
        self._folded = fold_characters(text)
        self._token = _ASCII_TOKEN if self._folded.isascii() else _TOKEN
        self.tokens: list[str] = self._token.findall(self._folded)

    @cached_property
    def data(self) -> bytes:
        """``" \\n word word \\n "``: what the engine reads."""
        return pack(self.tokens)

    @cached_property
    def distinct(self) -> frozenset[str]:
        return frozenset(" ".join(self.tokens).lower().split(" "))

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Of each word, in characters of ``text``."""
        spans = [match.span() for match in self._token.finditer(self._folded)]
        if self._ascii:
            return spans
        # origin[i]: the index in `text` of the i-th folded character
        origin = [at for at, char in enumerate(self.text) for _ in _FOLDING[ord(char)]]
        return [(origin[start], origin[end - 1] + 1) for start, end in spans]


def pack(tokens: list[str]) -> bytes:
    """Words as the engine reads them."""
    joined = " ".join(tokens).lower()
    return f" {STOP} {_ENDINGS.sub(STOP, joined)} {STOP} ".encode()


_ENDINGS: Final = re.compile(r"[.!?]+(?= |$)|\n[ \t]*\n")
STOP: Final = "\n"


def word_index(data: bytes, offsets: list[int]) -> list[int]:
    """Of ascending byte ``offsets`` of spaces in packed words: the index of the word that follows each."""
    steps = [data.count(b" ", start, end) for start, end in zip([0, *offsets], offsets, strict=False)]
    return [count - 1 for count in accumulate(steps)]


def fold_phrase(phrase: str) -> str:
    """A phrase of a rule in the form in which a text's words are compared."""
    folded = fold_characters(phrase).lower()
    return re.sub(rf"(?<=[{_IDEOGRAPH}])(?=[{_IDEOGRAPH}])", " ", folded)
