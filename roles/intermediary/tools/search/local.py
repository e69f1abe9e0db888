"""An index of the operator's own documents: nothing leaves the node. For tests, and for networks without the web."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gnusnode.contracts.base import describe
from gnusnode.errors import DataError, storage_error
from roles.intermediary.tools.search.provider import Hit

_WORD: Final = re.compile(r"\w+")
_SATURATION: Final = 1.2
_LENGTH_WEIGHT: Final = 0.75
_SNIPPET: Final = 600
_MAX_FILE: Final = 64 * 1024**2


class Document(BaseModel):
    """One entry of the index."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: Annotated[str, Field(max_length=300)]
    url: Annotated[str, Field(min_length=1, max_length=4000)]
    text: Annotated[str, Field(max_length=1_000_000)] = ""


class LocalIndex:
    """Documents ranked by Okapi BM25; equal scores keep the order of the documents."""

    name = "local"

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents = tuple(documents)
        self._counts = [Counter(_words(f"{entry.title} {entry.text}")) for entry in self._documents]
        self._lengths = [max(1, counts.total()) for counts in self._counts]
        self._mean = sum(self._lengths) / len(self._lengths) if self._lengths else 1.0
        self._spread = Counter(word for counts in self._counts for word in counts)

    def search(self, query: str, count: int) -> tuple[Hit, ...]:
        """The best ``count`` documents that hold a word of ``query``."""
        words = sorted(set(_words(query)))
        scores = [(self._score(place, words), -place) for place in range(len(self._documents))]
        best = sorted((score for score in scores if score[0] > 0), reverse=True)[:count]
        return tuple(self._hit(-place, words) for _, place in best)

    def _score(self, place: int, words: list[str]) -> float:
        counts, total = self._counts[place], len(self._documents)
        penalty = _SATURATION * (1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * self._lengths[place] / self._mean)
        return sum(
            math.log(1 + (total - self._spread[word] + 0.5) / (self._spread[word] + 0.5))
            * (counts[word] * (_SATURATION + 1) / (counts[word] + penalty))
            for word in words
            if counts[word]
        )

    def _hit(self, place: int, words: list[str]) -> Hit:
        entry = self._documents[place]
        lowered = entry.text.lower()
        first = min((at for word in words if (at := lowered.find(word)) >= 0), default=0)
        start = max(0, first - _SNIPPET // 4)
        return Hit(entry.title, entry.url, " ".join(entry.text[start : start + _SNIPPET].split()))


def load_index(path: Path) -> LocalIndex:
    """The index of a file with one JSON object ``{title, url, text}`` in each line.

    Raises:
        DataError: it cannot be read, is larger than 64 MiB, or a line is not a document.
    """
    try:
        if path.stat().st_size > _MAX_FILE:
            raise DataError("the index is larger than 64 MiB", where=str(path), hint="split it")
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise storage_error(error, path, "the search index cannot be read") from error
    documents: list[Document] = []
    for number, line in enumerate(lines, 1):
        try:
            documents.append(Document.model_validate(json.loads(line)))
        except ValidationError as error:
            raise DataError(describe(error), where=f"{path}:{number}", hint="correct this line") from error
        except ValueError as error:
            raise DataError("not JSON", where=f"{path}:{number}", hint="correct this line") from error
    return LocalIndex(documents)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
