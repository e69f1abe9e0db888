"""What a model may have seen when it proposed a call, and what in it speaks for itself.

Kind and output of a source are set by whoever fetched it, from how it was fetched and never from what it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Final, cast

from pydantic import StringConstraints

from gnusnode.contracts.fields import JsonObject, Part
from gnusnode.policy.labels import Integrity, Label, SourceId
from gnusnode.policy.sinks import EVERY_FIELD, LISTED, Output
from gnusnode.policy.wording import Said, fold, number_of, skeleton

SourceText = Annotated[str, StringConstraints(max_length=500_000)]


class SourceKind(StrEnum):
    QUERY = "query"
    """The user's own words in this conversation."""
    HIGHER_TRUST = "higher_trust"
    """Memory of higher trust."""
    LOWER_TRUST = "lower_trust"
    """Memory of lower trust."""
    TOOL = "tool"


_SHORTEST_NAME: Final = 3
_INTEGRITY: Final = {SourceKind.QUERY: Integrity.QUERY, SourceKind.HIGHER_TRUST: Integrity.TRUSTED}


class Source(Part):
    """One piece of text or data in the context of a request."""

    id: SourceId
    kind: SourceKind
    text: SourceText = ""
    fields: JsonObject = {}
    """Structured content; a plain list stands under the empty key."""
    arguments: JsonObject = {}
    """Those of the call that returned it."""
    output: Output = Output()

    @property
    def label(self) -> Label:
        """That of anything made of this source."""
        integrity = _INTEGRITY.get(self.kind, Integrity.TAINTED)
        return Label(
            integrity=integrity,
            sources=(self.id,) if integrity is Integrity.TAINTED else (),
            confidentiality=self.output.confidentiality,
            readers=self.output.readers,
        )

    @cached_property
    def everything(self) -> str:
        """All the text of the source, one value a line."""
        return "\n".join([self.text, *map(str, leaves_of(self.fields))])

    @cached_property
    def shape(self) -> str:
        """``everything`` for loose comparison."""
        return skeleton(self.everything)


@dataclass(frozen=True)
class Entry:
    """One thing that a store knows: what the store vouches for, and the names by which people speak of it."""

    source: Source
    stamped: tuple[tuple[str, str], ...]
    """Field and value, as texts."""
    named: bool = False
    """Whether the user spoke of this very entry."""

    def with_name(self, said: Said) -> Iterator[tuple[str, str]]:
        """Fields and values by which the user may have spoken of it."""
        output = self.source.output
        for name, value in self.stamped:
            if name not in output.names:
                continue
            if name in output.amounts:
                if (number := number_of(value)) in said.numbers:
                    yield name, str(number)
            elif len(value) >= _SHORTEST_NAME and said.holds(value):
                yield name, fold(value)


def entries_of(sources: Iterable[Source], said: Said) -> list[Entry]:
    """The entries of all sources; those that the user spoke of are marked.

    An entry is spoken of when one of its names is said that no other entry has, or when it is the only answer to a
    question that was asked in the user's words. Two entries are one where all that the store vouches for is equal.
    """
    entries: list[Entry] = []
    for source in sources:
        if source.kind is SourceKind.TOOL:
            found = list(dict.fromkeys(_stamped_in(source)))
            only = len(found) == 1 and was_asked_for(source, said)
            entries.extend(Entry(source, stamped, named=only) for stamped in found)
    holders: dict[tuple[str, str], set[tuple[tuple[str, str], ...]]] = {}
    for entry in entries:
        for name in entry.with_name(said):
            holders.setdefault(name, set()).add(entry.stamped)
    spoken_of = {stamped for group in holders.values() if len(group) == 1 for stamped in group}
    return [replace(entry, named=entry.named or entry.stamped in spoken_of) for entry in entries]


def was_asked_for(source: Source, said: Said) -> bool:
    """Whether the call that returned ``source`` was made of nothing but the user's own words."""
    values = [value for value in leaves_of(source.arguments) if value not in (None, "", True, False)]
    texts = [value for value in values if isinstance(value, str) and number_of(value) is None]
    return bool(texts) and all(said.holds(str(value)) for value in values)


def _stamped_in(source: Source) -> Iterator[tuple[tuple[str, str], ...]]:
    vouches = source.output.vouches_for
    if vouches(LISTED):
        for line in source.text.splitlines():
            for value in (line, line.partition(": ")[2]):
                if value.strip():
                    yield ((LISTED, value.strip()),)
    for key, value in _objects(source.fields):
        if isinstance(value, dict):
            stamped = tuple(
                (name, _text(item))
                for name, held in sorted(cast("dict[str, Any]", value).items())
                if vouches(name)
                for item in leaves_of(held)
                if item is not None and not isinstance(item, bool)
            )
            if stamped:
                yield stamped
        elif vouches(LISTED) and key == LISTED:
            yield ((LISTED, _text(value)),)
    if EVERY_FIELD in source.output.stamped and vouches(EVERY_FIELD):
        for key in sorted(source.fields):
            if key:
                yield ((LISTED, key),)


def _objects(value: Any, key: str = "-") -> Iterator[tuple[str, Any]]:
    """Every object in ``value`` with the key it stands under, and the items of lists that are no objects."""
    pending: list[tuple[str, Any]] = [(key, value)]
    while pending:
        name, item = pending.pop()
        if isinstance(item, dict):
            yield name, item
            pending.extend(sorted(cast("dict[str, Any]", item).items(), reverse=True))
        elif isinstance(item, list):
            pending.extend((name, child) for child in reversed(cast("list[Any]", item)))
        elif name == LISTED and item is not None:
            yield name, item


def leaves_of(value: Any) -> Iterator[Any]:
    """Everything in JSON data that is no list or object, objects in the order of their keys: as they were written down
    and read again they may have another one."""
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(value for _, value in sorted(cast("dict[str, Any]", item).items(), reverse=True))
        elif isinstance(item, list):
            pending.extend(reversed(cast("list[Any]", item)))
        else:
            yield item


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
