"""The text sanitiser: bytes or text in, clean text and findings out. Pure, total, linear, idempotent.

    decode bytes ─ terminal sequences ─ invisible characters ─ scan every reading ─ take out the lines of what is sure
         ^                                                                                    │
         └──────────────── again, until a pass takes nothing out (at most MAX_PASSES) ─────────┘

What is *removed* is what nobody writes but to steer a model; what is *flagged* stays in the text and is for a person to
judge. A text that still changes after the last pass is given up whole: better nothing than something unclean.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from gnusnode.sanitize import secrets, terminal, unicode
from gnusnode.sanitize.ciphers import Respelling, respell, spaced
from gnusnode.sanitize.edits import Trimmed, merged, trim
from gnusnode.sanitize.encoded import Reading, decode, is_prose
from gnusnode.sanitize.expressions import markup
from gnusnode.sanitize.findings import INSTRUCTIONS, Finding, Kind, Scrubbed, Severity, in_order, strip_report
from gnusnode.sanitize.fold import Words
from gnusnode.sanitize.phrases import Phrasebook, phrasebook

MAX_PASSES: Final = 6
MAX_DEPTH: Final = 3
"""So many encodings inside one another are undone."""
LONG_LINE: Final = 1000
"""Where a finding is farther than so many characters from the end of its line, only its sentence goes."""
MAX_FINDINGS: Final = 1000
"""So many are named; all are acted on."""


def scrub(raw: bytes | str, *, engine: str | None = None) -> Scrubbed:
    """``raw`` without what a reader does not see and without what was surely written to steer a model.

    Args:
        raw: text, or bytes of it: UTF-16 or UTF-32 by their byte order mark, else UTF-8.
        engine: a name of ``engine.ENGINES``; None takes the best that is installed. The result is the same.

    Returns:
        the clean text; findings with spans in ``raw`` as text; ``scrub`` of its text changes nothing more.
    """
    given = text = as_text(raw)
    findings: list[Finding] = []
    way_back: list[Trimmed] = []
    invisible = 0
    for _ in range(MAX_PASSES):
        printable, commands = terminal.clean(text)
        visible = unicode.clean(printable.text)
        findings += _placed(commands, way_back)
        way_back.append(printable)
        findings += _placed(visible.findings, way_back)
        findings += _placed(_messages(visible.hidden, engine), way_back)
        way_back.append(visible.trimmed)
        invisible += visible.removed
        text = visible.trimmed.text
        found = scan(text, engine=engine)
        findings += _placed(found, way_back)
        removals = _removals(text, found)
        if not removals:
            return _result(text, findings, invisible)
        way_back.append(trim(text, removals))
        text = way_back[-1].text
    findings.append(Finding(0, len(given), Kind.MALFORMED, "text.unstable", Severity.REMOVE))
    return _result("", findings, invisible)


def warm(engine: str | None = None) -> None:
    """Builds the automata now, not at the first text. With hyperscan that is some seconds of CPU: do it in a thread."""
    scrub("", engine=engine)


def scan(text: str, *, depth: int = 0, engine: str | None = None) -> list[Finding]:
    """What is found in clean ``text`` in any reading, with spans in it. Nothing is changed."""
    words = Words(text)
    book = phrasebook(engine)
    findings = book.find(words)
    marks = markup(engine).find(text)
    if any(mark.kind is Kind.ACTIVE_CONTENT for mark in marks):
        marks = _live(text, marks)
    findings += marks
    findings += secrets.find(text, engine=engine)
    if not text.isascii():
        findings += unicode.disguises(text)
        if (shape := unicode.skeleton(text)) != text:
            findings += book.find(Words(shape))
    if _TAG.search(text):
        findings += book.find(Words(_TAG.sub(lambda tag: " " * len(tag[0]), text)))
    if _INSIDE_WORD.search(text):
        findings += _unmarked(text, book)
    for respelling in respell(words):
        findings += _respelled(respelling, book)
    if depth < MAX_DEPTH:
        for reading in (*decode(words), *spaced(words)):
            findings += _decoded(reading, depth, engine)
    return in_order(set(findings))


def as_text(raw: bytes | str) -> str:
    """``raw`` as text; what is no text in its encoding becomes U+FFFD. Never raises."""
    if isinstance(raw, str):
        return raw
    for mark, encoding in _MARKS:
        if raw.startswith(mark):
            return raw[len(mark) :].decode(encoding, "replace")
    return raw.decode("utf-8", "replace")


_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_PAGE: Final = re.compile(r"^\s*(?:<\?xml[^>]{0,200}>\s*)?<(?:!doctype html|html)", re.IGNORECASE)
_HEAD: Final = re.compile(r"<(?:head|body|meta|title)\b", re.IGNORECASE)
_TAG: Final = re.compile(
    r"</?(?:a|abbr|article|b|big|blockquote|body|br|button|caption|center|cite|code|dd|del|div|dl|dt|em|figcaption|font"
    r"|footer|h[1-6]|head|header|hr|html|i|img|ins|label|li|main|mark|nav|ol|p|pre|q|s|section|small|span|strong|style|sub"
    r"|sup|table|tbody|td|th|thead|title|tr|tt|u|ul)\b[^<>]{0,300}>",
    re.IGNORECASE,
)
"""What may stand between the words of an order without being heard."""


def _live(text: str, marks: list[Finding]) -> list[Finding]:
    """``marks`` without active content that is none here: scripts of a page, which the HTML sanitiser takes out, and
    code that is shown as code."""
    if _PAGE.search(text[:1024]) and _HEAD.search(text[:1024]):
        marks = [mark for mark in marks if mark.rule != "active.code"]
    shown = merged([match.span() for match in _SHOWN_AS_CODE.finditer(text)])
    starts = [start for start, _ in shown]

    def is_shown(mark: Finding) -> bool:
        at = bisect_right(starts, mark.start) - 1
        return mark.kind is Kind.ACTIVE_CONTENT and at >= 0 and mark.end <= shown[at][1]

    return [mark for mark in marks if not is_shown(mark)]


_SHOWN_AS_CODE: Final = re.compile(
    r"^[ ]{0,3}(```|~~~)[^\n]*\n(?:(?![ ]{0,3}\1)[^\n]*\n)*[ ]{0,3}\1|`[^`\n]{1,400}`|^(?: {4}|\t)[^\n]*$", re.MULTILINE
)


def _placed(found: Sequence[Finding], way_back: Sequence[Trimmed]) -> list[Finding]:
    """Findings in the text that was given, from findings in what was left of it."""
    if not found:
        return []
    steps = [trimmed for trimmed in reversed(way_back) if not trimmed.is_whole]
    if not steps:
        return list(found)
    placed: list[Finding] = []
    for finding in found:
        start, end = finding.start, finding.end
        for trimmed in steps:
            start, end = trimmed.origin(start, end)
        placed.append(Finding(start, end, finding.kind, finding.rule, finding.severity))
    return placed


def _messages(hidden: Sequence[unicode.Hidden], engine: str | None) -> list[Finding]:
    """Findings for what invisible characters spelled, in one piece or in many. They are gone already; this says what
    they wanted."""
    if not hidden:
        return []
    inside = scan("\n".join(message.text for message in hidden), depth=1, engine=engine)
    wanted = {(finding.kind, finding.rule) for finding in inside if finding.kind in INSTRUCTIONS}
    return [
        Finding(hidden[0].start, hidden[-1].end, kind, rule, Severity.REMOVE)
        for kind, rule in sorted(wanted or {(Kind.HIDDEN_TEXT, "unicode.message")})
    ]


def _unmarked(text: str, book: Phrasebook) -> list[Finding]:
    """Findings in ``text`` without the emphasis that stands inside words: ``ig**nore** this``."""
    trimmed = trim(text, [match.span() for match in _INSIDE_WORD.finditer(text)])
    found = book.find(Words(trimmed.text))
    return _placed(found, [trimmed])


_INSIDE_WORD: Final = re.compile(r"(?<=[A-Za-z])(?:\*{1,3}|~~|</?[a-z]{1,6}>)(?=[A-Za-z])")


def _respelled(respelling: Respelling, book: Phrasebook) -> list[Finding]:
    length = len(respelling.words.text)
    findings: list[Finding] = []
    if respelling.suspect:
        findings.append(Finding(0, length, Kind.ENCODED_CONTENT, f"encoded.{respelling.rule}", Severity.FLAG))
    for one in book.find(respelling.words, respelling.data):
        span = (length - one.end, length - one.start) if respelling.mirrored else (one.start, one.end)
        findings.append(Finding(*span, one.kind, f"{respelling.rule}:{one.rule}", one.severity))
    return findings


def _decoded(reading: Reading, depth: int, engine: str | None) -> list[Finding]:
    """Findings at the place of a blob for what it holds; that it holds a sentence at all is one."""
    inside = scan(unicode.clean(terminal.clean(reading.text)[0].text).trimmed.text, depth=depth + 1, engine=engine)
    # a rule has one severity, so the last of its findings is as good as any
    worst = {(one.kind, one.rule): one.severity for one in inside}
    findings = [
        Finding(reading.start, reading.end, kind, f"{reading.rule}:{rule}", severity)
        for (kind, rule), severity in worst.items()
    ]
    if is_prose(reading.text):
        rule = f"encoded.{reading.rule}"
        findings.append(Finding(reading.start, reading.end, Kind.ENCODED_CONTENT, rule, Severity.FLAG))
    return findings


# --- taking out -------------------------------------------------------------------------------------------------------


def _removals(text: str, found: Iterable[Finding]) -> list[tuple[int, int]]:
    """The lines of what is to be removed; of very long lines the sentences."""
    sure = merged([(one.start, one.end) for one in found if one.severity is Severity.REMOVE])
    return merged([_around(text, start, end) for start, end in sure])


def _around(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end - 1 and text[start] == "\n":
        start += 1
    while end - 1 > start and text[end - 1] == "\n":
        end -= 1
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    last = len(text) if last < 0 else last + 1
    if start - first > LONG_LINE:
        first = _sentence_start(text, start - LONG_LINE, start)
    if last - end > LONG_LINE:
        last = _sentence_end(text, end, end + LONG_LINE)
    return first, last


def _sentence_start(text: str, low: int, start: int) -> int:
    stop = max(text.rfind(mark, low, start) for mark in (". ", "! ", "? ", "\u3002"))
    return stop + 1 if stop >= 0 else low


def _sentence_end(text: str, end: int, high: int) -> int:
    stops = [stop for mark in (". ", "! ", "? ", "\u3002") if (stop := text.find(mark, end, high)) >= 0]
    return min(stops) + 1 if stops else high


def _result(text: str, findings: list[Finding], invisible: int) -> Scrubbed:
    kept = _condensed(findings)
    return Scrubbed(text, kept, strip_report(findings, zero_width=invisible))


def _condensed(findings: list[Finding]) -> tuple[Finding, ...]:
    """Findings in order of place, the gravest first where there are too many; routine ones once per rule."""
    routine: dict[str, Finding] = {}
    grave: set[Finding] = set()
    for finding in findings:
        if finding.severity is not Severity.NOTICE:
            grave.add(finding)
        elif known := routine.get(finding.rule):
            span = {"start": min(known.start, finding.start), "end": max(known.end, finding.end)}
            routine[finding.rule] = replace(known, **span)
        else:
            routine[finding.rule] = finding
    chosen = sorted(in_order({*grave, *routine.values()}), key=lambda one: -one.severity)[:MAX_FINDINGS]
    return tuple(in_order(chosen))
