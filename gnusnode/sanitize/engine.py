"""Which of many patterns occur in a text, in time linear in the text.

Patterns are written in a dialect that three engines read alike, on bytes: no look-around, no back-reference, no
unbounded repeat but of a negated class. An engine only says *which* patterns occur; :meth:`Matcher.find` then asks the
standard library *where*, for those few alone. So all engines give the same findings, and the usual text, in which
nothing occurs, costs one pass of the fastest engine there is.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol


@dataclass(frozen=True, slots=True)
class Need:
    """Of these one must be there for a pattern to occur: a word between spaces, or a part of one."""

    words: frozenset[bytes] = frozenset()
    parts: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Pattern:
    """One expression, and what an engine may look at first."""

    body: str
    """In the shared dialect; case matters."""
    tail: str = ""
    """What must follow, without being part of the match."""
    needs: tuple[Need, ...] = ()
    loose: str = ""
    """Another expression that occurs wherever this one does, and that a large automaton takes in its stride."""

    @property
    def whole(self) -> bytes:
        return (self.body + self.tail).encode()

    def locator(self) -> re.Pattern[bytes]:
        return re.compile((self.body + (f"(?={self.tail})" if self.tail else "")).encode())


class Searcher(Protocol):
    def search(self, string: bytes, /) -> object: ...


class Engine(Protocol):
    """Compiled patterns; ``occurring`` may be called from any thread."""

    def occurring(self, data: bytes) -> list[int]:
        """Indexes of the patterns that may occur in ``data``, ascending; all that do are among them."""
        ...


class Hyperscan:
    """All patterns in one automaton, at gigabytes a second."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        module: Any = importlib.import_module("hyperscan")
        self._lock = threading.Lock()  # a database owns one scratch space
        self._database: Any = module.Database(mode=module.HS_MODE_BLOCK)
        self._database.compile(
            expressions=[pattern.loose.encode() or pattern.whole for pattern in patterns],
            ids=list(range(len(patterns))),
            elements=len(patterns),
            flags=[module.HS_FLAG_SINGLEMATCH] * len(patterns),
        )

    def occurring(self, data: bytes) -> list[int]:
        found: list[int] = []

        def note(index: int, _start: int, _end: int, _flags: int, _context: object) -> None:
            found.append(index)

        with self._lock:
            self._database.scan(data, match_event_handler=note)
        return sorted(found)


class Plain:
    """The standard library, one pattern after the other, and only those whose needed words are all there."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = patterns
        self._compiled: dict[int, Searcher] = {}

    def compile(self, pattern: bytes) -> Searcher:
        return re.compile(pattern)

    def occurring(self, data: bytes) -> list[int]:
        words = frozenset(data.split(b" "))
        parts: dict[bytes, bool] = {}

        def met(need: Need) -> bool:
            if not need.words.isdisjoint(words):
                return True
            for part in need.parts:
                if part not in parts:
                    parts[part] = part in data
                if parts[part]:
                    return True
            return False

        return [
            index
            for index, pattern in enumerate(self._patterns)
            if all(map(met, pattern.needs)) and self._searcher(index).search(data)
        ]

    def _searcher(self, index: int) -> Searcher:
        if index not in self._compiled:
            self._compiled[index] = self.compile(self._patterns[index].whole)
        return self._compiled[index]


class Re2(Plain):
    """As ``Plain``, each search linear whatever the pattern."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        super().__init__(patterns)
        self._module: Any = importlib.import_module("re2")
        self._options: Any = self._module.Options()
        self._options.encoding = self._module.Options.Encoding.LATIN1  # bytes are bytes

    def compile(self, pattern: bytes) -> Searcher:
        return self._module.compile(pattern, self._options)


ENGINES: Final[dict[str, type[Hyperscan | Plain]]] = {"hyperscan": Hyperscan, "re2": Re2, "plain": Plain}
"""Fastest first."""


def best() -> str:
    """The name of the fastest engine that is installed."""
    for name in ("hyperscan", "re2"):
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        return name
    return "plain"


class Matcher:
    """Patterns compiled once, at first use, for one engine.

    Args:
        patterns: in the shared dialect.
        engine: a name of ``ENGINES``; None takes the best that is installed.
    """

    def __init__(self, patterns: Sequence[Pattern], engine: str | None = None) -> None:
        self.engine_name: Final = engine or best()
        self._engine: Engine = ENGINES[self.engine_name](patterns)
        self._patterns = patterns
        self._locators: dict[int, re.Pattern[bytes]] = {}

    def find(self, data: bytes) -> Iterator[tuple[int, int, int]]:
        """``(pattern index, start, end)`` of every match, in bytes; matches of one pattern do not overlap."""
        for index in self._engine.occurring(data):
            locator = self._locators.get(index)
            if locator is None:
                locator = self._locators[index] = self._patterns[index].locator()
            for match in locator.finditer(data):
                yield index, match.start(), match.end()
