"""Characters that a reader does not see, or takes for others.

Invisible characters are taken out, and what they spell (tag characters, variation selectors, zero-width bits) is read.
Joiners stay where a script needs them: ZWJ and VS16 in emoji, ZWNJ and ZWJ in Arabic and Indic words. Look-alikes stay
in the text; :func:`skeleton` gives the reading that an attacker hopes for.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Final, NamedTuple

from gnusnode.sanitize.edits import Trimmed, trim
from gnusnode.sanitize.findings import Finding, Kind, Severity, Tally
from gnusnode.sanitize.rules import rule_file

_ZERO_WIDTH: Final = "\u200b-\u200d\u2060-\u2064\ufeff"
_BIDI_MARKS: Final = "\u061c\u200e\u200f"
_BIDI_CONTROLS: Final = "\u202a-\u202e\u2066-\u2069"
_TAGS: Final = "\U000e0000-\U000e007f"
_SELECTORS: Final = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_FILLERS: Final = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u206a-\u206f\u3164\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
)
_SUSPECT: Final = re.compile(f"[{_ZERO_WIDTH}{_BIDI_MARKS}{_BIDI_CONTROLS}{_TAGS}{_SELECTORS}{_FILLERS}]+")
_BITS: Final = re.compile(f"[{_ZERO_WIDTH}{_BIDI_MARKS}]")
_OVERRIDES: Final = re.compile("[\u202d\u202e]")
_RTL: Final = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")
_FLAG_BASE: Final = "\U0001f3f4"
_FLAG_TAGS: Final = re.compile("[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,6}\U000e007f")

LONG_RUN: Final = 8
"""So many zero-width characters in a row are a message, not typography."""
MANY_SPLITS: Final = 3
"""So many words that are split by invisible characters are no accident."""


class Hidden(NamedTuple):
    """A message spelled in invisible characters, and where it stood."""

    start: int
    end: int
    text: str


class Visible(NamedTuple):
    """What is left once invisible characters are out."""

    trimmed: Trimmed
    findings: list[Finding]
    hidden: list[Hidden]
    removed: int


def clean(text: str) -> Visible:
    """``text`` without invisible characters, but for those that emoji and scripts need. Cleaning twice is once."""
    if text.isascii() or not _SUSPECT.search("".join(set(text))):
        return Visible(Trimmed(text), [], [], 0)
    removals: list[tuple[int, int]] = []
    tally = Tally()
    hidden: list[Hidden] = []
    splits = 0
    before = ""  # the last character that is kept
    at = 0
    for match in _SUSPECT.finditer(text):
        start, end = match.span()
        before = text[start - 1] if start > at else before
        after = text[end : end + 1]
        gone, before = _removals(text, start, end, before, after)
        at = end
        if not gone:
            continue
        removals += gone
        run = "".join(text[first:last] for first, last in gone)
        splits += before.isascii() and before.isalpha() and after.isascii() and after.isalpha()
        tally.add(start, end, *_judge(run, start, end, text))
        message = _message(run)
        if message:
            hidden.append(Hidden(start, end, message))
    if splits >= MANY_SPLITS:
        span = removals[0][0], removals[-1][1]
        tally.add(*span, Kind.INVISIBLE_UNICODE, "unicode.split_words", Severity.FLAG)
    trimmed = trim(text, removals)
    return Visible(trimmed, tally.findings(), hidden, len(text) - len(trimmed.text))


def _removals(text: str, start: int, end: int, before: str, after: str) -> tuple[list[tuple[int, int]], str]:
    """What goes of the run ``start:end``, and the last character that is kept up to its end."""
    at = start
    if before == _FLAG_BASE and (flag := _FLAG_TAGS.match(text, start, end)):
        at = flag.end()  # the flag of England, say
        before = text[at - 1]
    elif at < end and _belongs(text[at], before, text[at + 1 : at + 2] if at + 1 < end else after):
        before = text[at]
        at += 1
        if at < end and before in "\ufe0e\ufe0f" and at + 1 == end and _belongs(text[at], before, after):
            before = text[at]  # VS16 and ZWJ: a heart on fire
            at += 1
    return ([(at, end)] if at < end else []), before


def _belongs(char: str, before: str, after: str) -> bool:
    """Whether a joiner or selector between these two is part of how they are written."""
    if not before:
        return False
    if char in "\u200c\u200d" and _joins(before) and _joins(after):
        return True
    if char == "\u200d":
        return _pictorial(before) and _pictorial(after)
    if char in ("\ufe0e", "\ufe0f"):
        return _pictorial(before) or before in "0123456789#*"
    if "\U000e0100" <= char <= "\U000e01ef" or "\ufe00" <= char <= "\ufe02":
        return "\u3400" <= before <= "\u9fff" or "\U00020000" <= before <= "\U0003ffff"
    return "\u180b" <= char <= "\u180f" and "\u1820" <= before <= "\u18aa"


def _joins(char: str) -> bool:
    """A letter or sign of Arabic, Syriac or an Indic script."""
    return bool(char) and ("\u0620" <= char <= "\u08ff" or "\u0900" <= char <= "\u0dff" or "\ufb50" <= char <= "\ufdff")


def _pictorial(char: str) -> bool:
    return bool(char) and (
        char in "\u00a9\u00ae\ufe0f"
        or (char >= "\u203c" and unicodedata.category(char) in ("So", "Sm", "Po", "Sk", "Pd"))
    )


def _judge(run: str, start: int, end: int, text: str) -> tuple[Kind, str, Severity]:
    """What a removed run of invisible characters means."""
    if any("\U000e0000" <= char <= "\U000e007f" for char in run):
        return Kind.INVISIBLE_UNICODE, "unicode.tags", Severity.REMOVE
    selectors = sum("\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef" for char in run)
    if selectors >= 3:
        return Kind.INVISIBLE_UNICODE, "unicode.selectors", Severity.REMOVE
    if _OVERRIDES.search(run):
        level = Severity.FLAG if _RTL.search(text, max(0, start - 200), end + 200) else Severity.REMOVE
        return Kind.BIDI_CONTROL, "unicode.bidi_override", level
    if len(run) >= LONG_RUN:
        return Kind.INVISIBLE_UNICODE, "unicode.zero_width_run", Severity.REMOVE
    kind = Kind.BIDI_CONTROL if re.search(f"[{_BIDI_CONTROLS}]", run) else Kind.INVISIBLE_UNICODE
    return kind, "unicode.invisible", Severity.NOTICE


def _message(run: str) -> str:
    """What a run spells; empty where it spells nothing."""
    tags = "".join(chr(ord(char) - 0xE0000) for char in run if "\U000e0020" <= char <= "\U000e007e")
    if len(tags) >= 2:
        return tags
    selected = bytes(
        ord(char) - 0xFE00 if char <= "\ufe0f" else ord(char) - 0xE0100 + 16
        for char in run
        if "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"
    )
    if len(selected) >= 3:
        return selected.decode("utf-8", "replace")
    bits = _BITS.findall(run)
    symbols = sorted(set(bits))
    if len(bits) < 2 * LONG_RUN or len(symbols) < 2:
        return ""
    for zero, one in (symbols[:2], symbols[1::-1]):
        digits = "".join("0" if char == zero else "1" for char in bits if char in (zero, one))
        text = bytes(int(digits[at : at + 8], 2) for at in range(0, len(digits) - 7, 8)).decode("utf-8", "replace")
        if text.isascii() and text.isprintable():
            return text
    return ""


# --- look-alikes ------------------------------------------------------------------------------------------------------

_NAMED: Final = re.compile(
    r"(?:LATIN (?:SMALL|CAPITAL) LETTER|LATIN LETTER SMALL CAPITAL|REGIONAL INDICATOR SYMBOL LETTER"
    r"|NEGATIVE (?:SQUARED|CIRCLED) LATIN CAPITAL LETTER|SQUARED LATIN CAPITAL LETTER"
    r"|LATIN SMALL LETTER TURNED) (DOTLESS )?([A-Z])(?: WITH .*)?"
)
_ALPHABETS: Final = re.compile("[\u0370-\u052f\u0531-\u058f\u13a0-\u13f5\ua4d0-\ua4ff]")


class _Skeleton(dict[int, str]):
    def __missing__(self, code: int) -> str:
        name = _NAMED.fullmatch(unicodedata.name(chr(code), ""))
        shape = name[2].lower() if name else chr(code)
        if len(self) < 50_000:
            self[code] = shape
        return shape


@cache
def _skeletons() -> _Skeleton:
    ascii_itself = {code: chr(code) for code in range(128)}
    return _Skeleton(ascii_itself | {ord(char): latin for char, latin in _look_alikes().items()})


@cache
def _look_alikes() -> dict[str, str]:
    """Letters of other alphabets, with the Latin letter that each is drawn like."""
    return {char: latin for latin, chars in rule_file("confusables.toml")["look_alikes"].items() for char in chars}


def skeleton(text: str) -> str:
    """``text`` with every letter that looks like a Latin one as that; character by character, so spans hold."""
    if text.isascii():
        return text
    letters = "".join(set(text))
    return text if letters.translate(_skeletons()) == letters else text.translate(_skeletons())


_MIXED_WORD: Final = re.compile(r"[^\W\d_]{3,64}")
_WIDE_OR_STYLED: Final = re.compile(
    "(?:[\uff21-\uff3a\uff41-\uff5a]{2,}[\\s\u3000]*){2,}|(?:[\U0001d400-\U0001d7ff]{2,}\\s*){2,}"
    "|(?:[\u24b6-\u24e9]\\s*){6,}|(?:[\U0001f130-\U0001f189]\\s*){6,}|(?:[\U0001f1e6-\U0001f1ff]\\s*){6,}"
)
_COMBINING: Final = re.compile("(?:[A-Za-z][\u0300-\u036f\u20d0-\u20ff]+){4,}")
_SMALL_CAPITALS: Final = re.compile("[\u1d00-\u1d22\u0262\u026a\u0274\u0280\u028f\u0299\u029c\u029f\ua730\ua731]{3,}")


_DISGUISE: Final = re.compile(
    "[\u0300-\u058f\u13a0-\u13f5\u1d00-\u1d22\u20d0-\u20ff\u24b6-\u24e9\u0262-\u029f\ua4d0-\ua4ff\ua730\ua731"
    "\uff21-\uff5a\U0001d400-\U0001d7ff\U0001f130-\U0001f189\U0001f1e6-\U0001f1ff]"
)


def disguises(text: str) -> list[Finding]:
    """Findings for words written in letters that only look like their own."""
    letters = "" if text.isascii() else "".join(set(text))
    if not _DISGUISE.search(letters):
        return []
    findings: list[Finding] = []
    for rule, pattern in (
        ("unicode.styled_letters", _WIDE_OR_STYLED),
        ("unicode.combining_marks", _COMBINING),
        ("unicode.small_capitals", _SMALL_CAPITALS),
    ):
        if match := pattern.search(text):
            findings.append(Finding(*match.span(), Kind.CONFUSABLE, rule, Severity.FLAG))
    if _ALPHABETS.search(letters):
        mixed = [match.span() for match in _MIXED_WORD.finditer(text) if _is_mixed(match[0])]
        if len(mixed) >= 2 or (mixed and mixed[0][1] - mixed[0][0] >= 5):
            span = mixed[0][0], mixed[-1][1]
            findings.append(Finding(*span, Kind.CONFUSABLE, "unicode.mixed_alphabets", Severity.FLAG))
    return findings


def _is_mixed(word: str) -> bool:
    """Latin letters and, inside the same word, look-alikes of another alphabet."""
    foreign = sum(bool(_ALPHABETS.match(char)) and char in _look_alikes() for char in word)
    latin = sum(char.isascii() for char in word)
    return foreign > 0 and latin > 0 and foreign + latin == len(word)
