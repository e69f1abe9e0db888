"""What a terminal would obey: escape sequences, control characters, line ends that overwrite."""

from __future__ import annotations

import re
from typing import Final

from gnusnode.sanitize.edits import Trimmed, trim
from gnusnode.sanitize.findings import Finding, Kind, Severity, Tally

_LINE_ENDS: Final = re.compile(r"\r(?!\n)|[\x0b\x0c\x85\u2028\u2029]")
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_CONTROLS: Final = re.compile(r"[\x80-\x9f\u2028\u2029]")
_CONTROL_BYTES: Final = bytes(code for code in (*range(32), 127) if code not in (9, 10))
_SEQUENCE: Final = re.compile(
    r"""
      (?P<style>  (?:\x1b\[|\x9b) (?P<codes>[0-9;:]{0,64}) m )
    | (?P<string> (?:\x1b[\]P^_X]|[\x90\x98\x9d-\x9f]) [^\x00-\x1f\x7f-\x9f]{0,4096} (?:\x07|\x1b\\|\x9c) )
    | (?P<move>   (?:\x1b\[|\x9b) [0-?]{0,64} [\x20-/]{0,8} [@-~] | \x1b[\x20-/]{0,8}[0-~] )
    | (?P<return> \r(?=\n) )
    | (?P<control> [\x00-\x08\r\x0e-\x1f\x7f-\x9f] )
    """,
    re.VERBOSE,
)
_CONCEAL: Final = re.compile(r"(?:^|[;:])0*8(?:$|[;:])")
_SHOW: Final = re.compile(r"(?:^|[;:])0*(?:28)?(?:$|[;:])")
_RULES: Final = {
    "style": ("terminal.style", Severity.NOTICE),
    "string": ("terminal.string", Severity.REMOVE),
    "move": ("terminal.sequence", Severity.REMOVE),
    "control": ("terminal.control", Severity.NOTICE),
}


def clean(text: str) -> tuple[Trimmed, list[Finding]]:
    """``text`` without anything that a terminal obeys, and without what it was told to conceal.

    Every line ends in ``\\n``; a lone surrogate becomes U+FFFD. Cleaning twice is cleaning once.
    """
    if _is_plain(text):
        return Trimmed(text), []
    text = _LINE_ENDS.sub("\n", _SURROGATES.sub("\ufffd", text))
    removals: list[tuple[int, int]] = []
    tally = Tally()
    concealed: int | None = None
    for match in _SEQUENCE.finditer(text):
        start, end = match.span()
        if concealed is not None and _ends_concealment(match, concealed):
            removals.append((concealed, start))
            tally.add(concealed, start, Kind.HIDDEN_TEXT, "terminal.concealed", Severity.REMOVE)
            concealed = None
        removals.append((start, end))
        if match.lastgroup != "return":
            rule, severity = _RULES["style" if match["style"] else str(match.lastgroup)]
            tally.add(start, end, Kind.CONTROL_SEQUENCE, rule, severity)
        if concealed is None and match["style"] and _CONCEAL.search(match["codes"]):
            concealed = end
            tally.add(start, end, Kind.CONTROL_SEQUENCE, "terminal.conceal", Severity.REMOVE)
    return trim(text, _flat(removals)), tally.findings()


def _is_plain(text: str) -> bool:
    """Whether there is nothing to clean: the usual case, told at the speed of a copy."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return False
    if len(data.translate(None, _CONTROL_BYTES)) != len(data):
        return False
    return text.isascii() or not _CONTROLS.search("".join(set(text)))


def _ends_concealment(match: re.Match[str], since: int) -> bool:
    return bool(match["style"] and _SHOW.search(match["codes"])) and match.start() > since


def _flat(removals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Removals in order; what lies inside another goes with it."""
    flat: list[tuple[int, int]] = []
    for start, end in sorted(removals, key=lambda span: (span[0], -span[1])):
        if not flat or start >= flat[-1][1]:
            flat.append((start, end))
    return flat
