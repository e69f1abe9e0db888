"""Writes what is seen of a page as plain text with a little Markdown: headings, lists, tables."""

from __future__ import annotations

import re
from typing import Final

BLOCKS: Final = frozenset(
    {
        "address", "article", "aside", "blockquote", "body", "center", "dd", "details", "dialog", "dir", "div", "dl",
        "dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "hgroup", "hr", "html", "legend",
        "listing", "main", "menu", "nav", "ol", "optgroup", "option", "p", "plaintext", "pre", "search", "section",
        "summary", "ul", "xmp",
    }
)  # fmt: skip
PARAGRAPHS: Final = frozenset({"p", "pre", "blockquote", "ul", "ol", "table", "section", "article", "h1", "h2", "h3"})
HEADINGS: Final = {f"h{level}": "#" * level for level in range(1, 7)}
KEPT_SPACE: Final = frozenset({"pre", "textarea", "listing", "plaintext", "xmp"})
_BLANKS: Final = " \t\n\r\f"
_RUNS: Final = re.compile(r"[ \t\n\r\f]+")


class Writer:
    """Collects text; blanks collapse as they do on a page, breaks are written before the next text."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._break = 0
        self._space = False
        self._prefix = ""
        self._kept = 0
        self._lists: list[int | None] = []

    def __len__(self) -> int:
        """How many parts there are: a mark for ``taken``."""
        return len(self._parts)

    def text(self, text: str) -> None:
        """Adds text of the page."""
        if self._kept:
            self._flush()
            self._parts.append(text)
            return
        words = _RUNS.sub(" ", text)
        if words == " ":
            self._space = True
            return
        if not words:
            return
        self._space = self._space or words[0] == " "
        self._flush()
        self._parts.append(words.strip(" "))
        self._space = words[-1] == " "

    def mark(self, text: str) -> None:
        """Adds a sign of our own, without a blank before it."""
        self._space = False
        self._parts.append(text)

    def taken(self, since: int) -> str:
        """Takes back what was added since the mark, and returns it."""
        text = "".join(self._parts[since:])
        del self._parts[since:]
        return text

    def since(self, mark: int) -> str:
        return "".join(self._parts[mark:])

    def _flush(self) -> None:
        if self._break and self._parts:
            self._parts.append("\n" * self._break)
        elif self._space and self._parts and not self._prefix:
            self._parts.append(" ")
        if self._prefix:
            self._parts.append(self._prefix)
        self._break, self._space, self._prefix = 0, False, ""

    def line(self, count: int = 1) -> None:
        """Has the next text begin on a new line, ``count`` 2: after an empty one."""
        self._break = max(self._break, count)
        self._space = False

    def enter(self, tag: str, *, block: bool) -> None:
        """Begins an element that is seen."""
        if block or tag in BLOCKS or tag in HEADINGS:
            self.line(2 if tag in PARAGRAPHS or tag in HEADINGS else 1)
        if tag in HEADINGS:
            self._prefix = f"{HEADINGS[tag]} "
        elif tag in ("ul", "ol", "menu", "dir"):
            self._lists.append(0 if tag == "ol" else None)
        elif tag == "li":
            self._prefix = self._bullet()
        elif tag == "br":
            self._break = min(2, self._break + 1)
            self._space = False
        elif tag == "tr":
            self.line()
        elif tag == "blockquote":
            self._prefix = "> "
        if tag in KEPT_SPACE:
            self._kept += 1

    def leave(self, tag: str, *, block: bool) -> None:
        """Ends it."""
        if block or tag in BLOCKS or tag in HEADINGS:
            self.line(2 if tag in PARAGRAPHS or tag in HEADINGS else 1)
        if tag in ("ul", "ol", "menu", "dir") and self._lists:
            self._lists.pop()
        if tag in ("td", "th") and self._parts and not self._break:
            self._parts.append(" |")
            self._space = True
        if tag in KEPT_SPACE:
            self._kept = max(0, self._kept - 1)
        if tag in ("li", "blockquote") or tag in HEADINGS:
            self._prefix = ""

    def _bullet(self) -> str:
        depth = max(0, min(len(self._lists) - 1, 6))
        count = self._lists[-1] if self._lists else None
        if count is None:
            return f"{'  ' * depth}- "
        self._lists[-1] = count + 1
        return f"{'  ' * depth}{count + 1}. "

    def done(self) -> str:
        """All of it, without blanks at the ends."""
        return "".join(self._parts).strip(_BLANKS)
