"""What a document parser gives to the scrubber: the text that a reader sees, and apart from it what no reader sees.

Only ``Extract.text`` may go on, after it was scrubbed. Everything else is looked at, reported and dropped.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from gnusnode.sanitize.findings import ACTIVE, Finding, Kind, Scrubbed, Severity

MAX_SCANNED: Final = 64 * 1024
"""Characters of metadata, and of scripts, that are looked at. They go nowhere; reading all of them would only cost."""
_MAX_PIECES: Final = 512
_SAYS_SOMETHING: Final = 4


class Refusal(StrEnum):
    """Why a document is not turned into text. The values are reason codes."""

    UNKNOWN_TYPE = "unknown_type"
    TYPE_MISMATCH = "type_mismatch"
    UNSUPPORTED_TYPE = "unsupported_type"
    TOO_LARGE = "too_large"
    TOO_COMPLEX = "too_complex"
    MALFORMED = "malformed"
    ENCRYPTED = "encrypted"
    XML_ENTITY = "xml_entity"
    PARSER_MISSING = "parser_missing"
    PARSER_FAILED = "parser_failed"
    PARSER_TIMEOUT = "parser_timeout"
    NOT_CONFINED = "not_confined"


class Refused(Exception):
    """The document is not usable: nothing of it may reach a prompt or a memory.

    Args:
        reason: stable code.
        detail: one sentence for people, without any of the document's text.
        findings: what was found before.
    """

    def __init__(self, reason: Refusal, detail: str, findings: tuple[Finding, ...] = ()) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.findings = findings


@dataclass(frozen=True, slots=True)
class Hidden:
    """Text that the document holds and a reader does not see."""

    reason: str
    """How it is hidden: ``display``, ``colour``, ``comment``, ``pdf_clipped`` …"""
    text: str
    suspect: bool = False
    """Hidden in a way that honest documents have no use for, and long enough to say something."""

    @property
    def digest(self) -> str:
        """``sha256:<hex>`` of the text: what a report may keep of it."""
        return f"sha256:{hashlib.sha256(self.text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def hidden_ink(reason: str, text: str) -> Hidden:
    """Text that was made unreadable though it takes part in the page; a stray sign is nobody's message."""
    return Hidden(reason, text, suspect=sum(map(str.isalnum, text)) >= _SAYS_SOMETHING)


@dataclass(frozen=True, slots=True)
class Extract:
    """A document taken apart."""

    text: str = ""
    """What a reader sees, in reading order; not yet scrubbed."""
    hidden: tuple[Hidden, ...] = ()
    metadata: tuple[str, ...] = ()
    """Descriptions, tags and alternative texts: scanned, never passed on."""
    scripts: tuple[str, ...] = ()
    """Programs and data for programs: scanned, never passed on."""
    findings: tuple[Finding, ...] = ()
    lower_trust: str = ""
    """Text of a kind that is honest but that no reader checks, such as the text layer under a scanned page."""


Scan = Callable[[str], Scrubbed]
"""The text scrubber."""


def finding(kind: Kind, rule: str, severity: Severity = Severity.NOTICE) -> Finding:
    """A finding without a place."""
    return Finding(0, 0, kind, rule, severity)


def scrub_extract(extract: Extract, scrub: Scan) -> Scrubbed:
    """The scrubbed visible text, with the findings of everything around it.

    Hidden text is dropped in any case. It counts against the document when it speaks to a model, or when it is hidden
    in a way that honest documents have no use for.
    """
    clean = scrub(extract.text)
    found = [*extract.findings, *_hidden(extract.hidden, scrub), *_metadata(extract.metadata, scrub)]
    found += _scripts(extract.scripts, scrub)
    if extract.lower_trust:
        found.append(finding(Kind.LOWER_TRUST_TEXT, "text.lower_trust"))
        found += [replace(f, start=0, end=0) for f in scrub(extract.lower_trust).findings if f.severity]
    unique = tuple(dict.fromkeys([*found, *clean.findings]))
    active = clean.report.removed_active_content or any(item.kind in ACTIVE for item in found)
    scrubbed = clean.report.instruction_scrub_applied or any(
        item.kind is Kind.HIDDEN_TEXT and item.severity is Severity.REMOVE for item in found
    )
    report = clean.report.model_copy(update={"removed_active_content": active, "instruction_scrub_applied": scrubbed})
    return Scrubbed(clean.text, unique, report)


def _hidden(pieces: tuple[Hidden, ...], scrub: Scan) -> list[Finding]:
    """One finding for each way of hiding, as severe as its worst piece."""
    worst: dict[str, Severity] = {}
    for piece in pieces:
        severity = Severity.FLAG if piece.suspect else Severity.NOTICE
        worst[piece.reason] = max(worst.get(piece.reason, severity), severity)
    starts, joined = _joined([piece.text for piece in pieces])
    for item in _serious(scrub(joined).findings):
        piece = pieces[max(0, bisect_right(starts, item.start) - 1)]
        worst[piece.reason] = Severity.REMOVE
    return [finding(Kind.HIDDEN_TEXT, f"hidden.{reason}", severity) for reason, severity in worst.items()]


def _joined(texts: list[str]) -> tuple[list[int], str]:
    starts: list[int] = []
    place = 0
    for text in texts:
        starts.append(place)
        place += len(text) + 2
    return starts, "\n\n".join(texts)


def _metadata(texts: tuple[str, ...], scrub: Scan) -> list[Finding]:
    if not texts:
        return []
    joined = "\n\n".join(texts[:_MAX_PIECES])[:MAX_SCANNED]
    return [replace(item, start=0, end=0, rule=f"metadata.{item.rule}") for item in _serious(scrub(joined).findings)]


def _scripts(texts: tuple[str, ...], scrub: Scan) -> list[Finding]:
    if not texts:
        return []
    hit = _serious(scrub("\n\n".join(texts[:_MAX_PIECES])[:MAX_SCANNED]).findings)
    severity = Severity.REMOVE if hit else Severity.NOTICE
    return [finding(Kind.ACTIVE_CONTENT, "active.script", severity)]


def _serious(findings: Iterable[Finding]) -> list[Finding]:
    return [item for item in findings if item.severity >= Severity.FLAG]
