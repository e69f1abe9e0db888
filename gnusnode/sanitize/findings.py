"""What every sanitiser finds and gives back: findings with spans, two operating points, the cleaned text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from operator import attrgetter
from typing import ClassVar, Final

from gnusnode.contracts.tools import StripReport


class Point(StrEnum):
    """The two operating points of one sanitiser."""

    REMOVE = "remove"
    """So sure that what was found is taken out of the text."""
    FLAG = "flag"
    """Suspect: the text stays, but a person reviews it and it may not be memorised."""


class Severity(IntEnum):
    """How much a finding weighs; each level includes the ones below it."""

    NOTICE = 0
    """Cleaned as a matter of routine (a stray zero-width space). It makes nothing suspect."""
    FLAG = 1
    REMOVE = 2

    def counts_at(self, point: Point) -> bool:
        return self >= (Severity.REMOVE if point is Point.REMOVE else Severity.FLAG)


class Kind(StrEnum):
    """What was found. The values are risk flags of the tool records."""

    INVISIBLE_UNICODE = "invisible_unicode"
    BIDI_CONTROL = "bidi_control"
    CONFUSABLE = "confusable"
    CONTROL_SEQUENCE = "control_sequence"
    ENCODED_CONTENT = "encoded_content"
    OVERRIDE = "instruction_override"
    ROLE_SPOOF = "role_spoof"
    INDIRECT = "indirect_instruction"
    EXTRACTION = "prompt_extraction"
    MEMORY_POISONING = "memory_poisoning"
    TOOL_POISONING = "tool_poisoning"
    EXFIL_MARKUP = "exfil_markup"
    ACTIVE_CONTENT = "active_content"
    HIDDEN_TEXT = "hidden_text"
    LOWER_TRUST_TEXT = "lower_trust_text"
    """Text that is legitimate but not seen by a reader, such as the text layer of a scanned page."""
    SECRET = "secret"  # noqa: S105 - the name of a finding
    PDF_ACTIVE = "pdf_active"
    PDF_EMBEDDED = "pdf_embedded"
    XML_ENTITY = "xml_entity"
    METADATA = "metadata"
    TRAILING_DATA = "trailing_data"
    TYPE_MISMATCH = "type_mismatch"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing found.

    ``start`` and ``end`` are offsets into what the function was given: characters of a ``str``, bytes of ``bytes``.
    Where a finding has no place (an action in a PDF's catalogue), both are 0.
    """

    start: int
    end: int
    kind: Kind
    rule: str
    """Name of the rule, stable across versions: what a person looks up and a test names."""
    severity: Severity


_BY_PLACE: Final = attrgetter("start", "end", "kind", "rule", "severity")


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Findings in order of place."""
    return sorted(findings, key=_BY_PLACE)


class Tally:
    """Findings as they are met. Of a rule that is met very often, the last finding stands for all that follow."""

    LIMIT: ClassVar[int] = 1000

    def __init__(self) -> None:
        self._of: dict[str, list[Finding]] = {}

    def add(self, start: int, end: int, kind: Kind, rule: str, severity: Severity) -> None:
        """A finding; places of one rule come in ascending order."""
        of_rule = self._of.setdefault(rule, [])
        if len(of_rule) < self.LIMIT:
            of_rule.append(Finding(start, end, kind, rule, severity))
        else:
            last = of_rule[-1]
            of_rule[-1] = Finding(last.start, end, kind, rule, max(last.severity, severity))

    def findings(self) -> list[Finding]:
        """All findings in order of place."""
        return in_order(finding for of_rule in self._of.values() for finding in of_rule)


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """Clean text, what was found on the way, and the summary that goes into ``SanitizedData``."""

    text: str
    findings: tuple[Finding, ...]
    """In order of place. Some name what was removed, some what was only marked: see ``Finding.severity``."""
    report: StripReport

    def at(self, point: Point) -> tuple[Finding, ...]:
        """The findings that count at an operating point."""
        return tuple(finding for finding in self.findings if finding.severity.counts_at(point))

    @property
    def suspect(self) -> bool:
        """Whether a person should look before this is memorised or acted on."""
        return any(finding.severity.counts_at(Point.FLAG) for finding in self.findings)


def strip_report(findings: Iterable[Finding], *, zero_width: int = 0) -> StripReport:
    """The contract's summary of ``findings``; ``zero_width`` counts the invisible characters that were taken out."""
    removed = {finding.kind for finding in findings if finding.severity is Severity.REMOVE}
    return StripReport(
        removed_zero_width_chars=zero_width,
        removed_active_content=bool(removed & ACTIVE),
        instruction_scrub_applied=bool(removed & INSTRUCTIONS),
    )


ACTIVE = frozenset({Kind.ACTIVE_CONTENT, Kind.EXFIL_MARKUP, Kind.PDF_ACTIVE, Kind.PDF_EMBEDDED, Kind.CONTROL_SEQUENCE})
"""Kinds that do something by themselves when shown."""
INSTRUCTIONS = frozenset(
    {
        Kind.OVERRIDE,
        Kind.ROLE_SPOOF,
        Kind.INDIRECT,
        Kind.EXTRACTION,
        Kind.MEMORY_POISONING,
        Kind.TOOL_POISONING,
        Kind.ENCODED_CONTENT,
        Kind.HIDDEN_TEXT,
    }
)
"""Kinds that speak to the model."""
