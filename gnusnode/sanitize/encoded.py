"""Text that is written so that a filter cannot read it and a model can.

:func:`decode` finds stretches in a transfer encoding and says what they hold; ``ciphers`` does the rest.
"""

from __future__ import annotations

import base64
import binascii
import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from gnusnode.sanitize.fold import Words


class Reading(NamedTuple):
    """What the stretch ``start:end`` of a text says once it is decoded."""

    rule: str
    start: int
    end: int
    text: str


_LETTERS_AND_SPACE: Final = 0.75
_MORSE_SIGNS: Final = (
    ".- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- -. --- .--. --.- .-. ... - ..- ...- .-- -..- -.-- --.. "
    "----- .---- ..--- ...-- ....- ..... -.... --... ---.. ----. .-.-.- --..-- ..--.. .--.-. -....- -..-. ---..."
)
_MORSE: Final[dict[str, str]] = dict(
    zip(_MORSE_SIGNS.split(), "abcdefghijklmnopqrstuvwxyz0123456789.,?@-/:", strict=True)
)
_MAX_PUNYCODE: Final = 600
"""Its decoder is quadratic."""


def is_natural(text: str) -> bool:
    """Whether ``text`` reads like language: letters and spaces, in words. Invisible characters do not hide it."""
    if len(text) < 8 or any(char < " " and char not in "\n\t\r\x1b" for char in text):
        return False
    kinds = Counter(map(unicodedata.category, text))
    letters = sum(count for kind, count in kinds.items() if kind[0] in "LMZ" or kind in ("Cf", "Cc"))
    return letters >= _LETTERS_AND_SPACE * len(text) and (kinds["Zs"] > 0 or "\n" in text or not text.isascii())


def is_prose(text: str) -> bool:
    """Whether ``text`` is a sentence rather than a name: five words or more."""
    return len(re.findall(r"[^\W\d_]{2,}", text)) >= 5 or (not text.isascii() and len(text) >= 12)


def _utf8(data: bytes) -> str:
    return data.decode("utf-8")


def _unpack64(blob: str) -> bytes:
    packed = "".join(blob.split()).rstrip("=").replace("-", "+").replace("_", "/")
    return base64.b64decode(packed + "=" * (-len(packed) % 4))


def _base64(blob: str) -> str:
    return _utf8(_unpack64(blob))


def _base32(blob: str) -> str:
    packed = blob.rstrip("=")
    return _utf8(base64.b32decode(packed + "=" * (-len(packed) % 8)))


def _hex(blob: str) -> str:
    return _utf8(bytes.fromhex(re.sub(r"0x|[^0-9a-fA-F]", "", blob)))


def _base85(blob: str) -> str:
    return _utf8(base64.b85decode(blob))


def _ascii85(blob: str) -> str:
    return _utf8(base64.a85decode(blob.removeprefix("<~").removesuffix("~>")))


def _binary(blob: str) -> str:
    return _utf8(bytes(int(digits, 2) for digits in re.findall("[01]{8}", blob)))


def _decimal(blob: str) -> str:
    return _utf8(bytes(int(digits) for digits in re.findall(r"\d+", blob)))


def _morse(blob: str) -> str:
    words = re.split(r"\s*[/|]\s*|\s{2,}", blob.strip())
    text = " ".join("".join(_MORSE[sign] for sign in word.split()) for word in words)
    return text if len(set(text)) >= 8 else ""


def _punycode(blob: str) -> str:
    return blob.removeprefix("xn--")[:_MAX_PUNYCODE].encode().decode("punycode")


LONG_WORD: Final = 20
"""Nothing shorter, in one piece, is worth decoding."""
_PUNCTUATION: Final = frozenset("!#$%&()*+;<=>?@^_`{|}~")
_FEW: Final = 6
_MANY_MARKS: Final = 4


class Blob(NamedTuple):
    """An encoding that is told by its alphabet."""

    name: str
    pattern: re.Pattern[str]
    decoder: Callable[[str], str]


_BASE64: Final = Blob("base64", re.compile(r"[A-Za-z0-9+/_-]{20,}={0,2}"), _base64)
_WRAPPED: Final = Blob(
    "base64",
    re.compile(r"(?<!\S)[A-Za-z0-9+/]{60,76}\n(?:[A-Za-z0-9+/]{60,76}\n){0,400}[A-Za-z0-9+/]{1,76}={0,2}"),
    _base64,
)
_BASE32: Final = Blob("base32", re.compile(r"(?<![A-Za-z0-9])[A-Z2-7]{24,}={0,6}"), _base32)
_HEX: Final = Blob("hex", re.compile(r"(?<![A-Za-z0-9])(?:(?:0x)?[0-9a-fA-F]{2}[:,]?){12,}(?![A-Za-z0-9])"), _hex)
_BASE85: Final = (
    Blob("base85", re.compile(r"[!-~]{30,}"), _base85),
    Blob("ascii85", re.compile(r"[!-~]{30,}"), _ascii85),
)
_HEX_DIGITS: Final = re.compile(r"(?:[0-9a-fA-F]{2}){8,}")
_NUMBERS: Final = (
    Blob(
        "hex",
        re.compile(r"(?<![A-Za-z0-9])(?:(?:0x)?[0-9a-fA-F]{2}[ :,]{1,2}){11,}(?:0x)?[0-9a-fA-F]{2}(?![A-Za-z0-9])"),
        _hex,
    ),
    Blob("binary", re.compile(r"(?<!\d)(?:[01]{8}[ ,]{0,2}){6,}"), _binary),
    Blob("decimal", re.compile(r"(?<![\d.])(?:\d{2,3}[ ,]{1,2}){11,}\d{2,3}(?![\d.])"), _decimal),
)
"""Encodings in numbers apart."""
_NUMBER_RUN: Final = re.compile(rb"(?: (?:0x)?[0-9a-f]{2,3}| [01]{8}){6} ")
_MORSE_RUN: Final = Blob("morse", re.compile(r"(?:[.-]{1,6}[ /|]{1,3}){11,}[.-]{1,6}"), _morse)

_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}|U([0-9a-fA-F]{8}))")
_ENTITY: Final = re.compile(r"&#(?:x[0-9a-fA-F]{1,6}|[0-9]{1,7});?")
_PERCENT: Final = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_QUOTED: Final = re.compile(r"(?:=[0-9A-F]{2})+")
MANY_ESCAPES: Final = 6


def _unescape(line: str) -> str:
    def char(match: re.Match[str]) -> str:
        code = int(next(group for group in match.groups() if group), 16)
        return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"

    return _ESCAPE.sub(char, line)


def _unquote(prefix: str, pattern: re.Pattern[str]) -> Callable[[str], str]:
    def decode_line(line: str) -> str:
        return pattern.sub(
            lambda run: bytes.fromhex(run[0].replace(prefix, "")).decode("utf-8", "replace"), line.replace("+", " ")
        )

    return decode_line


_LINES: Final[tuple[tuple[str, str, re.Pattern[str], Callable[[str], str]], ...]] = (
    ("escapes", "\\", _ESCAPE, _unescape),
    ("entities", "&#", _ENTITY, html.unescape),
    ("percent", "%", _PERCENT, _unquote("%", _PERCENT)),
    ("quoted_printable", "=", _QUOTED, _unquote("=", _QUOTED)),
)
"""Encodings that replace characters one by one; a line that uses one often is read as a whole."""


def decode(words: Words) -> Iterator[Reading]:
    """The stretches of a text that hold language in an encoding. Linear; never raises."""
    text = words.text
    at = 0
    for word in text.split():
        if len(word) >= LONG_WORD:
            at = text.index(word, at)
            for blob in _likely(word):
                yield from _try(blob, text, at, at + len(word))
            at += len(word)
    if at:
        yield from _try(_WRAPPED, text)
    if _NUMBER_RUN.search(words.data):
        for blob in _NUMBERS:
            yield from _try(blob, text)
    if text.count(".-") + text.count("-.") >= MANY_ESCAPES:
        yield from _try(_MORSE_RUN, text)
    at = text.find("xn--")
    while at >= 0:
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        yield from _reading("punycode", at, end, _punycode, text)
        at = text.find("xn--", end)
    for name, mark, pattern, decoder in _LINES:
        if text.count(mark) >= MANY_ESCAPES:
            yield from _lines(name, mark, pattern, decoder, text)


def _likely(word: str) -> Iterator[Blob]:
    """A cheap look before the dear one: base64 mixes cases, base85 is full of punctuation, hexadecimal has none."""
    characters = set(word)
    if len(characters) < _FEW:
        return
    if not word.islower() and not word.isupper():
        yield _BASE64
    if word.isupper() or any(map(str.isdigit, characters)):
        yield _BASE32
    marks = len(_PUNCTUATION & characters)
    if marks == 0:
        yield _HEX
    elif marks >= _MANY_MARKS:
        yield from _BASE85


def _try(blob: Blob, text: str, start: int = 0, end: int | None = None) -> Iterator[Reading]:
    for match in blob.pattern.finditer(text, start, len(text) if end is None else end):
        yield from _reading(blob.name, match.start(), match.end(), blob.decoder, text)


def _reading(name: str, start: int, end: int, decoder: Callable[[str], str], text: str) -> Iterator[Reading]:
    try:
        decoded = decoder(text[start:end])
    except (ValueError, binascii.Error, KeyError, UnicodeError, OverflowError):
        return
    if is_natural(decoded):
        yield Reading(name, start, end, decoded)


def raw_blobs(text: str) -> Iterator[str]:
    """What the base64 and hexadecimal stretches of ``text`` hold, language or not; undecodable bytes are dropped."""
    for pattern, undo in ((_BASE64.pattern, _unpack64), (_HEX_DIGITS, bytes.fromhex)):
        for match in pattern.finditer(text):
            try:
                yield undo(match[0]).decode("utf-8", "ignore")
            except ValueError:
                continue


def _lines(
    name: str, mark: str, pattern: re.Pattern[str], decoder: Callable[[str], str], text: str
) -> Iterator[Reading]:
    start = 0
    for line in text.split("\n"):
        if line.count(mark) >= MANY_ESCAPES and sum(map(_weight, pattern.finditer(line))) >= MANY_ESCAPES:
            yield from _reading(name, start, start + len(line), decoder, text)
        start += len(line) + 1


def _weight(match: re.Match[str]) -> int:
    """How many characters an escape stands for; one that stands for a blank counts nothing (``%20`` is common)."""
    return 0 if match[0] in ("%20", "%0A", "=20", "=3D") else 1 + match[0].count("%", 1) + match[0].count("=", 1)
