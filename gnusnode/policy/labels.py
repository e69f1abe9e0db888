"""What is known of a piece of data: who chose it, and who may see it. Labels only ever get stricter.

Integrity says whose choice a value is, confidentiality how far it may travel. Whatever is made of two pieces of data
has the stricter of both labels in every respect, so nothing that a model does to data can make it look safer.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints, ValidationInfo, field_validator

from gnusnode.contracts.fields import Part

SourceId = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Party = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class Integrity(StrEnum):
    """Whose choice a value is, best first."""

    QUERY = "query"
    """The user's own words."""
    TRUSTED = "trusted"
    """Memory of higher trust, or what a first-party store itself assigned."""
    MODEL = "model"
    """Nothing that we know of: a model wrote it."""
    TAINTED = "tainted"
    """Tool output, the web, memory of lower trust: somebody else may have chosen it."""


class Confidentiality(StrEnum):
    """How far data may travel, freest first."""

    PUBLIC = "public"
    INTERNAL = "internal"
    """The members of the user's organisation."""
    PRIVATE = "private"
    """The user."""
    SECRET = "secret"  # noqa: S105 - the name of a level, not a credential
    """Nobody through a tool's argument: credentials, keys."""


class Width(StrEnum):
    """Who sees what is put into a sink, narrowest first."""

    OWN = "own"
    """The user: own calendar, own files, own machine."""
    MEMBERS = "members"
    """People of the user's organisation or workspace."""
    THIRD_PARTY = "third_party"
    """Particular other people."""
    PUBLIC = "public"
    """Anybody: the web, a public repository."""


_INTEGRITY: Final = tuple(Integrity)
_CONFIDENTIALITY: Final = tuple(Confidentiality)
_WIDTH: Final = tuple(Width)
_WIDEST: Final = {
    Confidentiality.PUBLIC: Width.PUBLIC,
    Confidentiality.INTERNAL: Width.MEMBERS,
    Confidentiality.PRIVATE: Width.OWN,
}


def worse(a: Integrity, b: Integrity) -> Integrity:
    return max(a, b, key=_INTEGRITY.index)


def stricter(a: Confidentiality, b: Confidentiality) -> Confidentiality:
    return max(a, b, key=_CONFIDENTIALITY.index)


def wider(a: Width, b: Width) -> Width:
    return max(a, b, key=_WIDTH.index)


def is_wider(a: Width, b: Width) -> bool:
    """Whether more people are in ``a`` than in ``b``."""
    return _WIDTH.index(a) > _WIDTH.index(b)


class Label(Part):
    """Integrity with the sources of taint, confidentiality with the parties that may see the data besides."""

    integrity: Integrity
    sources: Annotated[tuple[SourceId, ...], Field(max_length=4096)] = ()
    """Where tainted data came from, sorted."""
    confidentiality: Confidentiality = Confidentiality.PUBLIC
    readers: Annotated[tuple[Party, ...], Field(max_length=256)] = ()
    """Parties that may see the data although its level is narrower than they are; sorted. Of public data and of secrets
    there are none, for these are everybody's and nobody's."""

    @field_validator("sources")
    @classmethod
    def _as_a_set(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(set(value)))

    @field_validator("readers")
    @classmethod
    def _where_they_count(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        named = info.data.get("confidentiality") in (Confidentiality.INTERNAL, Confidentiality.PRIVATE)
        return tuple(sorted(set(value))) if named else ()

    def join(self, other: Label) -> Label:
        """The label of what is made of both."""
        return Label(
            integrity=worse(self.integrity, other.integrity),
            sources=self.sources + other.sources,
            confidentiality=stricter(self.confidentiality, other.confidentiality),
            readers=_common_readers(self, other),
        )

    def may_be_seen_by(self, party: str) -> bool:
        """Whether one outside party may see the data."""
        return self.confidentiality is Confidentiality.PUBLIC or party in self.readers

    def may_flow_to(self, width: Width, parties: Iterable[str] = ()) -> bool:
        """Whether the data may be put where people of ``width`` see it, who are ``parties`` where these are known."""
        if self.confidentiality is Confidentiality.SECRET:
            return False
        if not is_wider(width, _WIDEST[self.confidentiality]):
            return True
        known = tuple(parties)
        return bool(known) and width is not Width.PUBLIC and all(self.may_be_seen_by(party) for party in known)


def _common_readers(a: Label, b: Label) -> tuple[str, ...]:
    """Parties that both labels name; a public one excludes nobody."""
    if a.confidentiality is Confidentiality.PUBLIC:
        return b.readers
    if b.confidentiality is Confidentiality.PUBLIC:
        return a.readers
    return tuple(set(a.readers) & set(b.readers))


def join(labels: Iterable[Label]) -> Label:
    """The label of what is made of all of them; of nothing: the user's own, public."""
    joined = Label(integrity=Integrity.QUERY)
    for label in labels:
        joined = joined.join(label)
    return joined
