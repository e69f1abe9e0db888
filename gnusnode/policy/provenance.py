"""Where the value of an argument comes from. Deterministic; time in proportion to sources and to each value.

A value is the user's own only where it stands in the user's own words as it is. Every other comparison can make it
worse and never better, so no way of writing a tainted value in another way can pass for what the user said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from itertools import islice
from typing import Annotated, Any, Final, cast

from pydantic import Field, StringConstraints

from gnusnode.contracts.fields import Part
from gnusnode.policy import urls
from gnusnode.policy.composition import Vocabulary
from gnusnode.policy.labels import Confidentiality, Integrity, Label, Width, join
from gnusnode.policy.secrecy import Secrets
from gnusnode.policy.sinks import Authors, SinkKind, ToolDescription
from gnusnode.policy.sources import Entry, Source, SourceKind, entries_of, was_asked_for
from gnusnode.policy.wording import Said, fold, layers, links, number_of, skeleton, words

MAX_LEAVES: Final = 256
"""Values of one call that are traced; a call with more of them is refused."""
MAX_LINKS: Final = 64
COPIED_WORDS: Final = 8
"""So many words in a row are a copy, not a coincidence."""
MAX_SCANNED: Final = 256 * 1024 * 1024
"""Characters of sources that are scanned for one call. What is not found by then counts as the model's own, which is
treated no better."""
_SHORTEST_READ: Final = 3


class How(StrEnum):
    """By which way a value got here, most trustworthy first."""

    SAID = "said"
    REMEMBERED = "remembered"
    """Stands in memory of higher trust."""
    NAMED = "named"
    """Belongs to an entry that the user spoke of, and the store vouches for it."""
    COMPOSED = "composed"
    """The user's words with names that a store vouches for."""
    PICKED = "picked"
    """A store vouches for it, but which one it is was chosen by the model."""
    POINTED = "pointed"
    """Stands as it is in a message of a known person that the user asked to read."""
    READ = "read"
    """Stands in tool output, openly or in another spelling."""
    WRITTEN = "written"
    """Nobody but the model has it."""


class Trace(Part):
    """One value of a call: what can be done with it, and where it comes from."""

    path: Annotated[str, StringConstraints(max_length=2048)]
    """``recipients[0]``"""
    kind: SinkKind
    width: Width
    value: str
    how: How
    label: Label
    source: str | None = None
    """The source in which it was found."""
    strange_links: Annotated[tuple[str, ...], Field(max_length=MAX_LINKS)] = ()
    """Addresses inside a body that the user never gave."""
    copied: bool = False
    """A body that repeats what anyone may have written."""


class TooManyValues(ValueError):
    """A call with more values than can be traced."""


class Tracer:
    """Everything that a model may have seen, ready to be asked where a value comes from."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)
        query = "\n".join(source.text for source in self._sources if source.kind is SourceKind.QUERY)
        self.said = Said(query)
        """The user's own words."""
        self._memory = [(s, Said(s.everything)) for s in self._sources if s.kind is SourceKind.HIGHER_TRUST]
        self._entries = entries_of(self._sources, self.said)
        self._named = _ByValue(entry for entry in self._entries if entry.named)
        self._listed = _ByValue(self._entries)
        self._vocabulary = Vocabulary(query, (value for e in self._entries for _, value in e.stamped))
        self._addresses = _addresses_in(self.said)
        self._foreign = [s for s in self._sources if s.label.integrity is Integrity.TAINTED]
        self._left_to_scan = 0
        self._secrets = Secrets(source.everything for source in self._sources if _is_secret(source))
        self._messages = [(source, Said(source.everything)) for source in self._foreign if self._is_asked_for(source)]
        self.context = join(source.label for source in self._sources if source.kind is not SourceKind.QUERY)
        """The label of whatever a model makes of all that it saw."""

    def trace(self, tool: ToolDescription, arguments: dict[str, Any]) -> tuple[Trace, ...]:
        """Every value in every sink of a call, in the order of the arguments.

        Raises:
            TooManyValues: more than ``MAX_LEAVES`` of them.
        """
        leaves = [
            (path, sink.kind, sink.width_in(arguments), value)
            for argument, held in sorted(arguments.items())
            if (sink := tool.sink_of(argument)) is not None
            for path, value in _leaves(argument, held, frozenset(sink.keys))
        ]
        leaves += [
            (f"{name}(name)", SinkKind.BODY, Width.PUBLIC, name)
            for name in sorted(arguments.keys() - tool.described_arguments)
        ]
        if len(leaves) > MAX_LEAVES:
            raise TooManyValues(f"{len(leaves)} values in one call are more than the {MAX_LEAVES} that are traced")
        self._left_to_scan = MAX_SCANNED
        return tuple(self._traced(*leaf) for leaf in leaves)

    def _traced(self, path: str, kind: SinkKind, width: Width, value: Any) -> Trace:
        text = value if isinstance(value, str) else repr(value)
        how, source = self._way(kind, text)
        label = self._label(how, source)
        body = kind is SinkKind.BODY
        if self._secrets.are_in(text):
            label = label.join(Label(integrity=label.integrity, confidentiality=Confidentiality.SECRET))
        return Trace(
            path=path[:2048],
            kind=kind,
            width=width,
            value=text,
            how=how,
            label=label,
            source=source.id if source else None,
            strange_links=tuple(islice(self._strange(text), MAX_LINKS)) if body and how is not How.SAID else (),
            copied=body and how in (How.READ, How.WRITTEN) and self._copies(text),
        )

    def _way(self, kind: SinkKind, text: str) -> tuple[How, Source | None]:
        if self._is_said(self.said, kind, text) or (kind is SinkKind.URL and self._is_said_address(text)):
            return How.SAID, None
        vouched = self._vouched(kind, text) if kind is not SinkKind.COMMAND else None
        if vouched is not None:
            return vouched
        source = self._read_in(text)
        return (How.READ, source) if source else (How.WRITTEN, None)

    def _vouched(self, kind: SinkKind, text: str) -> tuple[How, Source | None] | None:
        """By which way somebody other than the user answers for a value. For a command nobody else can."""
        for source, memory in self._memory:
            if self._is_said(memory, kind, text):
                return How.REMEMBERED, source
        if entry := self._named.find(kind, text):
            return How.NAMED, entry.source
        if kind is SinkKind.URL and (pointed := self._pointed_at(text)):
            return How.POINTED, pointed
        if kind is not SinkKind.URL and (entry := self._listed.find(kind, text)):
            return How.PICKED, entry.source
        if kind in (SinkKind.ID, SinkKind.BODY) and self._vocabulary.composes(text):
            return How.COMPOSED, None
        return None

    @staticmethod
    def _is_said(said: Said, kind: SinkKind, text: str) -> bool:
        if kind is SinkKind.AMOUNT:
            return (number := number_of(text)) is not None and number in said.numbers
        exact = kind in (SinkKind.PATH, SinkKind.COMMAND, SinkKind.URL)
        return said.holds(text, exact=exact)

    def _is_said_address(self, text: str) -> bool:
        address = urls.parse(text)
        return isinstance(address, urls.Address) and any(urls.same(address, known) for known in self._addresses)

    def _is_asked_for(self, source: Source) -> bool:
        """Whether a source holds messages of known persons that the user asked to read."""
        return source.output.authors is Authors.MEMBERS and was_asked_for(source, self.said)

    def _pointed_at(self, text: str) -> Source | None:
        return next((source for source, message in self._messages if message.holds(text, exact=True)), None)

    def _label(self, how: How, source: Source | None) -> Label:
        if how is How.SAID:
            return Label(integrity=Integrity.QUERY)
        if how in (How.REMEMBERED, How.NAMED, How.PICKED):
            assert source is not None
            return _made_by(Integrity.TRUSTED, source.label)
        if how is How.COMPOSED:
            return _made_by(Integrity.TRUSTED, join(entry.source.label for entry in self._entries))
        if source is not None:
            return self.context.join(source.label)
        return _made_by(Integrity.MODEL, self.context)

    def _read_in(self, text: str) -> Source | None:
        """The first source that holds ``text`` in any spelling, as far as scanning is affordable."""
        found = {shape for layer in layers(text) if len(shape := skeleton(layer)) >= _SHORTEST_READ}
        shapes = sorted(found | {shape[::-1] for shape in found})
        for source in self._foreign:
            for shape in shapes:
                self._left_to_scan -= len(source.shape)
                if self._left_to_scan >= 0 and shape in source.shape:
                    return source
        return None

    def _strange(self, text: str) -> Iterator[str]:
        for link in links(text):
            if not self.said.holds(link) and not any(memory.holds(link) for _, memory in self._memory):
                yield link

    def _copies(self, text: str) -> bool:
        return not self._runs.isdisjoint(_runs_of(text))

    @cached_property
    def _runs(self) -> frozenset[str]:
        """Every run of words that anyone may have written."""
        foreign = (source for source in self._foreign if source.output.authors is Authors.ANYONE)
        return frozenset(run for source in foreign for run in _runs_of(source.everything))


def _runs_of(text: str) -> Iterator[str]:
    spoken = words(text)
    return (" ".join(spoken[at : at + COPIED_WORDS]) for at in range(len(spoken) - COPIED_WORDS + 1))


def _made_by(integrity: Integrity, of: Label) -> Label:
    """The label of a value that somebody else chose out of data with another label: its readers stay the same."""
    return Label(integrity=integrity, confidentiality=of.confidentiality, readers=of.readers)


def _is_secret(source: Source) -> bool:
    return source.output.confidentiality is Confidentiality.SECRET


class _ByValue:
    """Entries by what the store vouches for in them; the first one wins."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._texts: dict[str, Entry] = {}
        self._numbers: dict[Decimal, Entry] = {}
        for entry in entries:
            for name, value in entry.stamped:
                self._texts.setdefault(fold(value), entry)
                if name in entry.source.output.amounts and (number := number_of(value)) is not None:
                    self._numbers.setdefault(number, entry)

    def find(self, kind: SinkKind, text: str) -> Entry | None:
        """The entry with this value: an amount is compared as a number, everything else as a text."""
        if kind is SinkKind.AMOUNT:
            return self._numbers.get(number) if (number := number_of(text)) is not None else None
        return self._texts.get(fold(text))


def _addresses_in(said: Said) -> list[urls.Address]:
    addresses = (urls.parse(atom) for atom in said.atoms if "." in atom)
    return [address for address in addresses if isinstance(address, urls.Address)]


def _leaves(path: str, value: Any, keys: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Every value inside an argument with its path; keys that the schema does not know count as values."""
    pending: list[tuple[str, Any]] = [(path, value)]
    while pending:
        at, item = pending.pop()
        if isinstance(item, dict):
            held = cast("dict[str, Any]", item)
            for key, child in sorted(held.items(), reverse=True):
                pending.append((f"{at}.{key}", child))
                if key not in keys:
                    pending.append((f"{at}.{key}(key)", key))
        elif isinstance(item, list):
            pending.extend((f"{at}[{n}]", child) for n, child in reversed(list(enumerate(cast("list[Any]", item)))))
        elif item is not None and item != "":
            yield at, item
