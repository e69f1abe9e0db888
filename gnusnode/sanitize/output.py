"""From a tool's raw output to the record that prompts and memory may see."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

from pydantic import ValidationError

from gnusnode.contracts import ids
from gnusnode.contracts.tools import SanitizedContentType, SanitizedData, StripReport
from gnusnode.errors import Unprocessable
from gnusnode.sanitize import document, kinds
from gnusnode.sanitize.extract import Extract, Refused, scrub_extract
from gnusnode.sanitize.findings import Finding, Kind, Severity
from gnusnode.sanitize.markdown import inert
from gnusnode.sanitize.rules import rules_version
from gnusnode.sanitize.text import as_text, scrub

MAX_TEXT: Final = 500_000
"""Characters that are looked at; the rest of a longer output is cut off, and said to be."""
MAX_FIELDS_TEXT: Final = 100_000
"""A longer JSON document is given as text only."""
MAX_JSON_DEPTH: Final = 12
MAX_ROUNDS: Final = 4
SANITIZER_VERSION: Final = f"gnusnode-1.{rules_version()}"
"""Of code and rules; what an attestation names."""

_CHARSET: Final = re.compile(r";\s{0,8}charset\s{0,8}=\s{0,8}\"?([a-z0-9._-]{1,40})", re.IGNORECASE)
_CHARSETS: Final = {
    "utf-8": "utf-8",
    "us-ascii": "ascii",
    "ascii": "ascii",
    "iso-8859-1": "cp1252",
    "latin-1": "cp1252",
    "windows-1252": "cp1252",
    "utf-16": "utf-16",
    "utf-16le": "utf-16-le",
    "utf-16be": "utf-16-be",
}


@dataclass(frozen=True, slots=True)
class Clean:
    """What one content type's sanitiser makes of an output."""

    content_type: SanitizedContentType
    text: str
    findings: tuple[Finding, ...]
    report: StripReport
    fields: dict[str, Any] = field(default_factory=dict[str, Any])


def sanitize(raw: bytes, content_type: str) -> Clean:
    """``raw`` cleaned as its ``content_type`` asks, with all findings.

    Args:
        content_type: a media type, with or without a charset.

    Raises:
        Unprocessable: no sanitiser for this type. What cannot be cleaned is not shown.
    """
    essence = content_type.partition(";")[0].strip().lower()
    handler = HANDLERS.get("application/json" if essence.endswith("+json") else essence)
    if handler is None and essence in DOCUMENTS:
        return _document(raw, content_type)
    if handler is None:
        raise Unprocessable(
            "no sanitiser for this type of content",
            where=essence[:100] or "a tool output without a type",
            hint=f"ask the tool for one of: {', '.join(HANDLERS)}",
        )
    text = _decoded(raw, content_type)
    clean = handler(text[:MAX_TEXT])
    if len(text) <= MAX_TEXT:
        return clean
    cut = Finding(MAX_TEXT, len(text), Kind.MALFORMED, "output.cut_off", Severity.FLAG)
    return Clean(clean.content_type, clean.text, (*clean.findings, cut), clean.report, clean.fields)


def from_extract(extract: Extract) -> Clean:
    """A document that was taken apart, scrubbed: what a reader sees, as plain text.

    For kinds that are read in a process of their own (PDF): ``from_extract(await documents.read_document(…))``.
    """
    scrubbed = scrub_extract(extract, scrub)
    findings = scrubbed.findings
    if len(scrubbed.text) > MAX_TEXT:
        cut = Finding(MAX_TEXT, len(scrubbed.text), Kind.MALFORMED, "output.cut_off", Severity.FLAG)
        findings = (*findings, cut)
    return Clean(SanitizedContentType.PLAIN, scrubbed.text[:MAX_TEXT], findings, scrubbed.report)


def _document(raw: bytes, content_type: str) -> Clean:
    try:
        return from_extract(document.extract(raw, content_type))
    except Refused as refused:
        raise Unprocessable(refused.detail, where=refused.reason.value, hint="nothing of it can be used") from refused


def to_sanitized(tool_call_id: str, raw: bytes, content_type: str) -> SanitizedData:
    """The contract's record of a tool output; ``raw`` itself is only hashed.

    Raises:
        Unprocessable: no sanitiser for this type.
    """
    return record(tool_call_id, raw, sanitize(raw, content_type))


def record(tool_call_id: str, raw: bytes, clean: Clean) -> SanitizedData:
    """The contract's record of ``clean``, which was made of ``raw``."""
    fields: dict[str, Any] = {
        "tool_call_id": tool_call_id,
        "source_hash": ids.sha256(raw),
        "content_type": clean.content_type,
        "plain_text": clean.text,
        "strip_report": clean.report,
    }
    try:
        return SanitizedData(**fields, structured_fields=clean.fields)
    except ValidationError:
        if not clean.fields:
            raise
        return SanitizedData(**fields)  # the document is beyond what a record's fields may hold: text only


def _decoded(raw: bytes, content_type: str) -> str:
    named = _CHARSET.search(content_type)
    charset = _CHARSETS.get(named[1].lower(), "utf-8") if named else "utf-8"
    return as_text(raw) if charset == "utf-8" else raw.decode(charset, "replace")


# --- one sanitiser a content type -------------------------------------------------------------------------------------


def _plain(text: str) -> Clean:
    scrubbed = scrub(text)
    return Clean(SanitizedContentType.PLAIN, scrubbed.text, scrubbed.findings, scrubbed.report)


def _markdown(text: str) -> Clean:
    """Markdown, its links, images and elements inert; cleaned in turns until both steps agree."""
    first = scrub(text)
    findings, report, text = first.findings, first.report, first.text
    for _ in range(MAX_ROUNDS):
        harmless = inert(text)
        if harmless == text:
            return Clean(SanitizedContentType.MARKDOWN, text, findings, report)
        report = report.model_copy(update={"removed_active_content": True})
        text = scrub(harmless).text
    raise Unprocessable("Markdown that changes with every cleaning", hint="ask the tool for text/plain")


def _json(text: str) -> Clean:
    """JSON, each of its texts cleaned by itself; text that is no sound JSON, or hides across fields, is plain text."""
    try:
        document = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
        cleaner = _Cleaner()
        document = cleaner.clean(document)
    except (ValueError, RecursionError):
        return _plain(text)
    written = json.dumps(document, ensure_ascii=False, indent=1, sort_keys=True)
    whole = scrub(written)
    if whole.text != written:
        return Clean(SanitizedContentType.PLAIN, whole.text, (*cleaner.findings, *whole.findings), whole.report)
    fields = cast("dict[str, Any]", document) if isinstance(document, dict) else {"items": document}
    report = StripReport(
        removed_zero_width_chars=cleaner.zero_width,
        removed_active_content=cleaner.active,
        instruction_scrub_applied=cleaner.scrubbed,
    )
    findings = (*cleaner.findings, *(one for one in whole.findings if one.severity > Severity.NOTICE))
    return Clean(
        SanitizedContentType.JSON, written, findings, report, fields if len(written) <= MAX_FIELDS_TEXT else {}
    )


class _Cleaner:
    """Walks a JSON document; findings have their places inside the text in which they were found."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.zero_width = 0
        self.active = False
        self.scrubbed = False

    def clean(self, value: object, depth: int = 0) -> object:
        if depth > MAX_JSON_DEPTH:
            raise ValueError("nested too deeply")
        match value:
            case str():
                return self._text(value)
            case list():
                return [self.clean(item, depth + 1) for item in cast("list[object]", value)]
            case dict():
                pairs = cast("dict[str, object]", value).items()
                return _unique([(self._text(key), self.clean(item, depth + 1)) for key, item in pairs])
            case _:
                return value

    def _text(self, text: str) -> str:
        scrubbed = scrub(text)
        self.findings += scrubbed.findings
        self.zero_width += scrubbed.report.removed_zero_width_chars
        self.active |= scrubbed.report.removed_active_content
        self.scrubbed |= scrubbed.report.instruction_scrub_applied
        return scrubbed.text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys are all different: two readers must not see two documents."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


HANDLERS: Final[dict[str, Callable[[str], Clean]]] = {
    "text/plain": _plain,
    "text/markdown": _markdown,
    "application/json": _json,
}
"""The dispatch: a media type and its sanitiser."""
DOCUMENTS: Final = frozenset({kinds.Media.HTML, *kinds.IMAGES, *kinds.AUDIO, "application/xhtml+xml", "image/jpg"})
"""Media types that are taken apart first. Not PDF: its parsers run in a process of their own (``from_extract``)."""
