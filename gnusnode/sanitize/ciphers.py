"""Text in a simple cipher that a model undoes by itself: the same words, spelled otherwise.

Leetspeak, Caesar shifts and atbash, backwards, scrambled letters, letters set apart. A respelling is only tried where
several common words show themselves in it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from gnusnode.sanitize.encoded import Reading, is_natural
from gnusnode.sanitize.fold import Words, pack
from gnusnode.sanitize.rules import rule_file


class Respelling(NamedTuple):
    """Another reading of a text."""

    rule: str
    words: Words
    """Words that stand where the text's characters stand, or, ``mirrored``, as far from the end."""
    data: bytes | None = None
    """What the engine reads, if not ``words.data``."""
    mirrored: bool = False
    suspect: bool = True
    """Whether to be written so is suspect by itself."""


_LEET: Final = str.maketrans("01345789@$!|", "oieastbgasii")
TELLING_SHARE: Final = 0.02
"""In a long text two scrambled words are misprints."""
_CHAINED: Final = re.compile(r"(?:ignore|disregard|forget|reveal|override|bypass)(?:[-_+.][a-z]+){2,}")
_UNCHAIN: Final = str.maketrans("-_+.", "    ")
_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz"


@cache
def common_words() -> frozenset[str]:
    return frozenset(rule_file("vocabulary.toml")["common"])


@cache
def _ciphers() -> tuple[dict[str, list[str]], dict[str, dict[int, str]]]:
    """Ciphered common words with the ciphers that make them, and each cipher's way back."""
    tables: dict[str, dict[int, int]] = {}
    for shift in range(1, 26):
        tables[f"caesar_{shift}"] = str.maketrans(_ALPHABET, _ALPHABET[shift:] + _ALPHABET[:shift])
    tables["atbash"] = str.maketrans(_ALPHABET, _ALPHABET[::-1])
    words: dict[str, list[str]] = defaultdict(list)
    for name, table in tables.items():
        for word in common_words():
            shape = word.translate(table)
            if len(word) >= (3 if name == "caesar_13" else 4) and shape not in common_words():
                words[shape].append(name)
    back = {name: {new: chr(old) for old, new in table.items()} for name, table in tables.items()}
    return words, back


@cache
def _backwards() -> frozenset[str]:
    return frozenset(word[::-1] for word in common_words() if len(word) >= 3) - common_words()


@cache
def _scrambles() -> dict[tuple[str, str, int], dict[str, str]]:
    """Common words by first letter, last letter and length, then by their letters in order."""
    table: dict[tuple[str, str, int], dict[str, str]] = defaultdict(dict)
    for word in common_words():
        if len(word) >= 5:
            table[word[0], word[-1], len(word)]["".join(sorted(word))] = word
    return table


def respell(words: Words) -> Iterator[Respelling]:
    """Readings of ``words`` under the simple ciphers that a model undoes by itself; only those that make sense."""
    distinct = words.distinct
    mixed = {word.translate(_LEET) for word in distinct if not word.isalpha() and word.isalnum() and not word.isdigit()}
    if _telling((mixed & common_words()) - distinct, 3, 10):
        yield Respelling("leet", Words(words.text.translate(_LEET)))
    if any(_CHAINED.fullmatch(word) for word in distinct if len(word) > 12):
        yield Respelling("chained", Words(words.text.translate(_UNCHAIN)), suspect=False)
    ciphered, back = _ciphers()
    votes: dict[str, set[str]] = defaultdict(set)
    for word in distinct & ciphered.keys():
        for cipher in ciphered[word]:
            votes[cipher].add(word)
    for cipher, seen in votes.items():
        if _telling(seen, 3, 12):
            yield Respelling(cipher, words, words.data.decode().translate(back[cipher]).encode())
    if _telling(distinct & _backwards(), 3, 12):
        yield Respelling("reversed", Words(words.text[::-1]), mirrored=True)
        yield Respelling("reversed_words", words, pack([token[::-1] for token in words.tokens]))
    shapes = _scrambles().keys()
    near = [word for word in distinct if len(word) > 4 and (word[0], word[-1], len(word)) in shapes]
    scrambled = {word: plain for word in near if (plain := _unscramble(word))}
    if _telling(scrambled, 2, 10) and len(scrambled) >= TELLING_SHARE * len(distinct):
        tokens = [scrambled.get(token, token) for token in (token.lower() for token in words.tokens)]
        yield Respelling("scrambled", words, pack(tokens))


def _telling(words: set[str] | frozenset[str] | dict[str, str], count: int, letters: int) -> bool:
    return len(words) >= count and sum(map(len, words)) >= letters


def _unscramble(word: str) -> str | None:
    plain = _scrambles()[word[0], word[-1], len(word)].get("".join(sorted(word)))
    return plain if plain != word else None


_SINGLES: Final = re.compile(rb"(?: (?:[a-z0-9]|[\xc3-\xd4][\x80-\xbf])){6} ")
_APART: Final = frozenset(".-_*|")


def spaced(words: Words) -> Iterator[Reading]:
    """Lines whose letters are set apart: ``i g n o r e   t h i s`` and ``i.g.n.o.r.e t.h.i.s``."""
    text = words.text
    singles = sum(map((1).__eq__, map(len, words.tokens)))
    in_a_row = singles >= 8 and _SINGLES.search(words.data)
    if not in_a_row and not any(
        word[1:2] in _APART and word[3:4] in _APART and len(word) > 6 for word in words.distinct
    ):
        return
    start = 0
    for line in text.split("\n"):
        if len(line) >= 12:
            yield from _close_up(line, start)
        start += len(line) + 1


def _close_up(line: str, start: int) -> Iterator[Reading]:
    letters = len(line) - line.count(" ")
    for mark in _APART:
        if line.count(mark) * 2.6 >= letters:
            closed = re.sub(rf"(?<=\w){re.escape(mark)}(?=\w)", "", line)
            if is_natural(closed):
                yield Reading("spaced", start, start + len(line), closed)
                return
    if (line.count(" ") + 2) * 2 >= len(line.strip()):
        singles = [len(word) == 1 and word.isalnum() for word in line.split()]
        if len(singles) >= 8 and sum(singles) >= 0.8 * len(singles):
            closed = re.sub(r"(?<=\S) (?=\S)", "", line)
            yield Reading("spaced", start, start + len(line), re.sub(r" {2,}", " ", closed))
