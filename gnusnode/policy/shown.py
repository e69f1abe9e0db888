"""What a person reads before a decision: every letter visible, nothing that could move, hide or colour the text."""

from __future__ import annotations

import unicodedata
from typing import Final

from gnusnode.policy.provenance import How, Trace

MAX_SHOWN: Final = 160
_ORIGINS: Final = {
    How.SAID: "your own words",
    How.REMEMBERED: "trusted memory",
    How.NAMED: "the entry that you spoke of",
    How.COMPOSED: "your words and known names",
    How.PICKED: "chosen by the model among known entries",
    How.POINTED: "a message that you asked to read",
    How.READ: "read in",
    How.WRITTEN: "written by the model",
}
_HARMLESS: Final = frozenset({"Ll", "Lu", "Lt", "Lo", "Nd", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Pc", "Sm", "Sc", "Zs"})


def visible(text: str) -> str:
    """``text`` with everything escaped that is no plain letter, digit, mark of punctuation or space."""
    return "".join(
        char
        if (char.isascii() and char.isprintable()) or unicodedata.category(char) in _HARMLESS
        else f"\\u{{{ord(char):x}}}"
        for char in text
    )


def quoted(text: str) -> str:
    """``text`` as a person may safely see it; the middle of a long one is left out and counted."""
    if len(text) > MAX_SHOWN:
        half = MAX_SHOWN // 2
        return f"«{visible(text[:half])}» … {len(text) - 2 * half} more … «{visible(text[-half:])}»"
    return f"«{visible(text)}»"


def in_words(trace: Trace) -> str:
    """One line: the argument, its value, who chose it."""
    origin = _ORIGINS[trace.how] + (f" {visible(trace.source)}" if trace.source else "")
    return f"{visible(trace.path)} = {quoted(trace.value)} ({origin})"
