"""Texts put together from what the user said and from names that a store vouches for, as one fills in a form.

``Dinner at {restaurant}`` with a restaurant from the directory says nothing of the model's own. Single words would:
from enough of them anything can be written. So a piece of the user's words has at least two words, but for one, and
within a piece every sign stands as in its original; between pieces stands what joins words, and little of it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from gnusnode.policy.wording import fold

MAX_PIECES: Final = 8
MAX_SINGLE_WORDS: Final = 1
MAX_PLACES: Final = 32
"""Places in the query at which a piece is tried: a bound for queries that repeat themselves."""
_WORD: Final = re.compile(r"(\W*)(\w+)")
_JOINT: Final = re.compile(r"[ ,.:;()'\"\n-]{0,2}")


class _Word(NamedTuple):
    gap: str
    """What stands between the word before and this one."""
    text: str


def _words(text: str) -> list[_Word]:
    return [_Word(*match.groups()) for match in _WORD.finditer(fold(text))]


class Vocabulary:
    """What texts may be composed of. Building it takes time in proportion to query and names."""

    def __init__(self, query: str, names: Iterable[str]) -> None:
        self._query = _words(query)
        self._places: defaultdict[str, list[int]] = defaultdict(list)
        for place, word in enumerate(self._query):
            if len(places := self._places[word.text]) < MAX_PLACES:
                places.append(place)
        spoken_names = [spoken for name in names if (spoken := _words(name))]
        self._names = {_shape(spoken) for spoken in spoken_names}
        self._lengths = sorted({len(spoken) for spoken in spoken_names}, reverse=True)

    def composes(self, text: str) -> bool:
        """Whether ``text`` is such a composition: at least one name, at most ``MAX_PIECES`` pieces, nothing else."""
        spoken = _words(text)
        rest = fold(text)[sum(len(word.gap) + len(word.text) for word in spoken) :]
        at = pieces = singles = names = 0
        while at < len(spoken) and pieces <= MAX_PIECES:
            name, quoted = self._name_at(spoken, at), self._quote_at(spoken, at)
            if not (name or quoted) or not _JOINT.fullmatch(spoken[at].gap):
                return False
            names += name >= quoted
            singles += name < quoted == 1
            pieces += 1
            at += max(name, quoted)
        return names > 0 and pieces <= MAX_PIECES and singles <= MAX_SINGLE_WORDS and bool(_JOINT.fullmatch(rest))

    def _name_at(self, spoken: list[_Word], at: int) -> int:
        """Words of the longest whole name that stands at ``at``."""
        return next((length for length in self._lengths if _shape(spoken[at : at + length]) in self._names), 0)

    def _quote_at(self, spoken: list[_Word], at: int) -> int:
        """Words of the longest piece of the query that stands at ``at``."""
        longest = 0
        for place in self._places.get(spoken[at].text, ()):
            length = 1
            while (
                at + length < len(spoken)
                and place + length < len(self._query)
                and spoken[at + length] == self._query[place + length]
            ):
                length += 1
            longest = max(longest, length)
        return longest


def _shape(words: list[_Word]) -> tuple[str, ...]:
    """Words and what stands between them, without what stands before the first."""
    return tuple(part for word in words for part in word)[1:]
