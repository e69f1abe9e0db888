"""Rules about wording: read from data, compiled for the engine, run over the words of a text.

A rule's ``match`` is a sequence of words in any language, written as people say them:

==============  ========================================================================
``word``        this word
``word*``       a word that begins so; ``*word`` ends so; ``*word*`` holds it
``a|b_c|<d>``   one of these; ``_`` stands for a space
``<class>``     one of the phrases of ``[classes]``
``..3``         up to three words, all in one sentence
``^``           a sentence begins here, or what a colon announces
``.``           a sentence ends here; ``:`` a colon
``element?``    may be missing
==============  ========================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from gnusnode.sanitize.engine import Matcher, Need, Pattern
from gnusnode.sanitize.findings import Finding, Kind, Severity
from gnusnode.sanitize.fold import Words, fold_phrase, word_index
from gnusnode.sanitize.rules import rule_file

_GAP: Final = r"(?: [^ \n][^ ]*)"
_ANYTHING: Final = r"[^\n]*"
"""In the loose reading a gap, or what may be missing, is any stretch of the sentence."""
_SEVERITIES: Final = {"flag": Severity.FLAG, "remove": Severity.REMOVE}


class BadRule(ValueError):
    """A rule file that does not say what it means; the text names the rule."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a match of one of its patterns means."""

    id: str
    kind: Kind
    severity: Severity


def read_rule(table: Mapping[str, Any], where: str) -> Rule:
    """The rule that a table of a rule file describes.

    Raises:
        BadRule: an unknown kind or weight.
    """
    name = f"{table['id']}"
    try:
        return Rule(name, Kind(table["kind"]), _SEVERITIES[table.get("at", "flag")])
    except (KeyError, ValueError) as error:
        raise BadRule(f"{where}: rule {name}: {error}") from error


class Phrasebook:
    """Compiled rules of one or more files. Finding is pure; the automaton is built at first use."""

    def __init__(self, files: Iterable[str], engine: str | None = None) -> None:
        self._rules: list[Rule] = []
        patterns: list[Pattern] = []
        for file in files:
            document = rule_file(file)
            classes = {name: [fold_phrase(word) for word in words] for name, words in document["classes"].items()}
            for table in document["rule"]:
                rule = read_rule(table, file)
                for match in table["match"]:
                    patterns.append(compile_match(match, classes, f"{file}: rule {rule.id}"))
                    self._rules.append(rule)
        self._matcher = Matcher(patterns, engine)

    def search(self, data: bytes) -> list[tuple[int, int, Rule]]:
        """``(first word, last word + 1, rule)`` of every match in packed words, in order of place."""
        found = [(start, end, self._rules[index]) for index, start, end in self._matcher.find(data)]
        if not found:
            return []
        offsets = sorted({offset for start, end, _ in found for offset in (start, end)})
        index = dict(zip(offsets, word_index(data, offsets), strict=True))
        return sorted({(index[start], index[end], rule) for start, end, rule in found}, key=lambda hit: hit[:2])

    def find(self, words: Words, data: bytes | None = None) -> list[Finding]:
        """Findings in ``words``, with spans in their text; ``data`` is another reading of the same words."""
        hits = self.search(words.data if data is None else data)
        if not hits:
            return []
        return [Finding(*_stretch(words, first, last), rule.kind, rule.id, rule.severity) for first, last, rule in hits]


def _stretch(words: Words, first: int, last: int) -> tuple[int, int]:
    """The characters of the words ``first:last``, without the stops that they begin or end with."""
    spans = words.spans
    if not spans:
        return 0, len(words.text)
    first, last = max(first, 0), min(last, len(spans))
    while first < last - 1 and not words.tokens[first][0].isalnum():
        first += 1
    while last > first + 1 and not words.tokens[last - 1][0].isalnum():
        last -= 1
    first = min(first, len(spans) - 1)
    return spans[first][0], spans[max(last - 1, first)][1]


# --- the language of rules --------------------------------------------------------------------------------------------


def compile_match(match: str, classes: Mapping[str, list[str]], where: str) -> Pattern:
    """The pattern of one line of a rule.

    Raises:
        BadRule: an unknown class, or a match that begins or ends with something that may be missing.
    """
    elements = match.split(" ")
    needs: list[Need] = []
    parts = [_element(element, classes, needs, where) for element in elements]
    for edge in (elements[0], elements[-1]):
        if edge.endswith("?") or edge.startswith(".."):
            raise BadRule(f"{where}: {match!r} begins or ends with {edge!r}, which may be missing")
    exact, loose = ("".join(part) for part in zip(*parts, strict=True))
    return Pattern(exact, tail=" ", needs=tuple(needs), loose=loose + " ")


def _element(element: str, classes: Mapping[str, list[str]], needs: list[Need], where: str) -> tuple[str, str]:
    """An element as it is matched, and as a loose reading looks for it."""
    if element.startswith("..") and element[2:].isdigit():
        return f"{_GAP}{{0,{int(element[2:])}}}", _ANYTHING
    if element in ("^", ".", ":"):
        mark = {"^": r" [\n:]", ".": r" \n", ":": " :"}[element]
        return mark, mark
    optional = element.endswith("?")
    words: list[str] = []
    for choice in element.removesuffix("?").split("|"):
        if not choice.startswith("<"):
            words.append(fold_phrase(choice.replace("_", " ")))
        elif choice[1:-1] in classes:
            words += classes[choice[1:-1]]
        else:
            raise BadRule(f"{where}: no class {choice}")
    if optional:
        return f"(?: (?:{_alternatives(words)}))?", _ANYTHING
    needs.append(_need(words))
    part = f" (?:{_alternatives(words)})"
    return part, part


def _alternatives(words: list[str]) -> str:
    return "|".join(re.escape(word).replace(r"\*", "[^ ]*").replace(r"\ ", " ") for word in words)


def _need(words: list[str]) -> Need:
    whole = frozenset(word.split(" ")[0].encode() for word in words if "*" not in word.split(" ")[0])
    parts = (max(word.split(" ")[0].split("*"), key=len) for word in words if "*" in word.split(" ")[0])
    return Need(whole, tuple(part.encode() for part in parts))


@cache
def phrasebook(engine: str | None = None) -> Phrasebook:
    """The rules that come with the package, for one engine."""
    return Phrasebook(PHRASE_FILES, engine)


PHRASE_FILES: Final = ("english.toml", "languages.toml")
