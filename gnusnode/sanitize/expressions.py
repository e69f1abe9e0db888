"""Rules about characters rather than words: markup, addresses, keys. Read from data, run by the same engines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Final

from gnusnode.sanitize.engine import Matcher, Need, Pattern
from gnusnode.sanitize.findings import Finding
from gnusnode.sanitize.phrases import BadRule, Rule, read_rule
from gnusnode.sanitize.rules import rule_file

_UNBOUNDED: Final = re.compile(r"(?<!\\)(?:[^\]\\]|\\.)[*+]|\{\d+,\}|\{(?:\d+,)?\d{4,}\}|\(\?(?!:)")
"""What would cost more than linear time in one of the engines, or is not read alike by all."""


class Expressions:
    """The compiled expressions of one rule file.

    Args:
        file: name of the rule file.
        engine: see :class:`Matcher`.
        fold_case: read ASCII letters in lower case; the expressions are then written so.
    """

    def __init__(self, file: str, engine: str | None = None, *, fold_case: bool = True) -> None:
        self._fold_case = fold_case
        self._rules: list[Rule] = []
        patterns: list[Pattern] = []
        for table in rule_file(file)["rule"]:
            rule = read_rule(table, file)
            needs = tuple(Need(parts=tuple(word.encode() for word in need)) for need in table.get("needs", ()))
            for regex in table["regex"]:
                if _UNBOUNDED.search(re.sub(r"\[[^\]]*\]", "[]", regex)):
                    raise BadRule(
                        f"{file}: rule {rule.id}: {regex!r} has an unbounded repeat, one beyond 999, or a look-around"
                    )
                patterns.append(Pattern(regex, needs=needs))
                self._rules.append(rule)
        self._matcher = Matcher(patterns, engine)

    def find(self, text: str) -> list[Finding]:
        """Findings in ``text``, in order of place. A line end counts as standing before and after the text."""
        return [Finding(start, end, rule.kind, rule.id, rule.severity) for start, end, rule in self.matches(text)]

    def matches(self, text: str) -> Iterator[tuple[int, int, Rule]]:
        """``(start, end, rule)`` in characters, in order of place."""
        data = b"\n" + text.encode("utf-8", "replace") + b"\n"
        found = [
            (start, end, index) for index, start, end in self._matcher.find(data.lower() if self._fold_case else data)
        ]
        if not found:
            return
        found.sort()
        place = _characters(data, sorted({offset for start, end, _ in found for offset in (start, end)}))
        for start, end, index in found:
            yield max(0, place[start] - 1), min(len(text), place[end] - 1), self._rules[index]


def _characters(data: bytes, offsets: list[int]) -> dict[int, int]:
    """Of ascending byte offsets into UTF-8, the character offsets."""
    if data.isascii():
        return {offset: offset for offset in offsets}
    place: dict[int, int] = {}
    count = 0
    for before, offset in pairwise([0, *offsets]):
        count += len(data[before:offset].decode("utf-8", "ignore"))
        place[offset] = count
    return place


@cache
def markup(engine: str | None = None) -> Expressions:
    """Role markers of chat templates, active content, markup that carries data away."""
    return Expressions("markup.toml", engine)
