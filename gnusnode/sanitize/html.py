"""HTML to the text that a reader sees. What is hidden is taken out and reported, as is everything active.

Visibility is decided by evaluating the page's own CSS (``css``, ``visibility``) and not by looking for known tricks.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gnusnode.sanitize import css, htmltree, presentation
from gnusnode.sanitize.css import Block, Declarations, Rule
from gnusnode.sanitize.elements import Budget, Element, TooComplex
from gnusnode.sanitize.extract import Extract, Hidden, Refusal, Refused, hidden_ink
from gnusnode.sanitize.htmltree import Op, Page
from gnusnode.sanitize.hyperlinks import Links
from gnusnode.sanitize.plaintext import Writer
from gnusnode.sanitize.style import ROOT, ROUTINE, Style
from gnusnode.sanitize.visibility import compute

_STEPS_EACH: Final = 200
"""Selector steps that an element may cost on average."""
_STEPS: Final = 200_000
_BLOCKS: Final = frozenset({"block", "flex", "grid", "list-item", "table", "flow-root", "table-row", "table-caption"})
_SOURCES: Final = frozenset({"script", "style"})
_UNSEEN_METADATA: Final = frozenset(
    {"alt", "title", "aria-label", "aria-description", "placeholder", "summary", "label"}
)
_MAX_METADATA: Final = 512
_QUIET: Final = ROUTINE | {"comment", "never_shown", "closed"}


def extract_html(data: bytes, *, url: str = "", charset: str = "") -> Extract:
    """Takes a page apart. Linear in its size.

    Args:
        url: where the page came from; links to the same host stay links. Empty: all are made inert.
        charset: the encoding that the HTTP header names.

    Raises:
        Refused: too large, too intricate, or the parser is missing. Nothing else, whatever the bytes are.
    """
    if len(data) > htmltree.MAX_BYTES:
        raise Refused(Refusal.TOO_LARGE, f"the page has more than {htmltree.MAX_BYTES} bytes")
    with _collector_paused():
        page = htmltree.parse(htmltree.decode(data, charset))
        try:
            return _Reader(page, Links(url)).read()
        except TooComplex as error:
            raise Refused(Refusal.TOO_COMPLEX, str(error)) from error


@contextmanager
def _collector_paused() -> Generator[None]:
    """Spares Python's collector a tree that lives until the page is read: looking through it again and again would cost
    a large page more than its size. Threads may overlap: the one that found the collector on turns it on again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@lru_cache(maxsize=512)
def _inline(style: str) -> Block:
    return css.inline_block(style)


@dataclass(slots=True)
class _Holder:
    """An open element that holds what is positioned in it."""

    mark: int
    """Where its text begins."""
    covered: bool = False


class _Reader:
    """Goes once through the events of a page."""

    def __init__(self, page: Page, links: Links) -> None:
        self._page = page
        self._links = links
        self._budget = Budget(_STEPS + _STEPS_EACH * page.elements)
        self._writer = Writer()
        self._styles: list[Style] = [ROOT]
        self._computed: dict[tuple[int, tuple[int, ...], str, str, str, str, bool], Style] = {}
        self._plain: dict[tuple[int, str], Style] = {}
        """Style of the parent and tag -> style of an element with no attributes, which no rule concerns."""
        self._equal: dict[Style, Style] = {}
        self._cascaded: dict[tuple[tuple[int, ...], str, str], Declarations] = {}
        self._hidden: list[Hidden] = []
        self._piece: list[str] = []
        self._piece_reason = ""
        self._metadata: list[str] = []
        self._scripts: list[str] = []
        self._anchors: list[int] = []
        self._above: dict[str, int] = {}
        """Keys of the open elements."""
        self._title: list[str] = []
        self._holders: list[_Holder] = [_Holder(0)]
        """The open elements that hold what is positioned in them, outermost first."""

    def read(self) -> Extract:
        for op, element, text in self._page.events:
            match op:
                case Op.TEXT:
                    self._text(element, text)
                case Op.ENTER:
                    self._enter(element)
                case Op.LEAVE:
                    self._leave(element)
                case Op.COMMENT:
                    self._hide("comment", text)
                case Op.TEMPLATE:
                    self._hide("never_shown", text)
        self._end_piece()
        return Extract(
            text=self._with_title(),
            hidden=tuple(self._hidden),
            metadata=(*self._metadata, *self._links.scanned),
            scripts=tuple(self._scripts),
            findings=self._links.findings,
        )

    def _with_title(self) -> str:
        """The text below the page's title, unless it begins with it."""
        title, text = " ".join("".join(self._title).split()), self._writer.done()
        return text if not title or text.lstrip("# ").startswith(title) else f"{title}\n\n{text}".rstrip()

    def _text(self, element: Element, text: str) -> None:
        if element.tag in _SOURCES:
            if element.tag == "script" and len(self._scripts) < _MAX_METADATA:
                self._scripts.append(text)
            return
        if element.tag == "title" and element.parent is not None and element.parent.tag == "head":
            self._title.append(text)  # seen on the tab
            return
        closed = "closed" if presentation.is_closed(element) else ""
        reason = self._styles[-1].hidden or closed or ("covered" if self._holders[-1].covered else "")
        if reason:
            if text.strip():
                self._hide(reason, text)
        else:
            if text.strip():
                self._end_piece()
            self._writer.text(text)

    def _cover(self, holder: _Holder) -> None:
        """Takes back what was written in an element that something opaque now lies over."""
        self._hide("covered", self._writer.taken(holder.mark))
        holder.covered = True

    def _hide(self, reason: str, text: str) -> None:
        if reason != self._piece_reason:
            self._end_piece()
            self._piece_reason = reason
        self._piece.append(text)

    def _end_piece(self) -> None:
        text = " ".join("".join(self._piece).split())
        if text:
            quiet = self._piece_reason in _QUIET
            self._hidden.append(Hidden(self._piece_reason, text) if quiet else hidden_ink(self._piece_reason, text))
        self._piece, self._piece_reason = [], ""

    def _enter(self, element: Element) -> None:
        style = self._style(element)
        self._styles.append(style)
        for key in element.keys:
            self._above[key] = self._above.get(key, 0) + 1
        self._note(element, style)
        if style.gone:
            return
        if style.covers and len(self._holders) > 1:
            self._cover(self._holders[-1])
        if style.holds:
            self._holders.append(_Holder(len(self._writer)))
        self._writer.enter(element.tag, block=style.display in _BLOCKS)
        if element.tag == "a":
            self._anchors.append(len(self._writer))
        elif element.tag == "input":
            label = presentation.button_label(element)
            if label and not style.hidden:
                self._writer.text(f" {label} ")

    def _leave(self, element: Element) -> None:
        style = self._styles.pop()
        for key in element.keys:
            self._above[key] -= 1
        if style.gone:
            return
        if style.holds:
            self._holders.pop()
        if element.tag == "a" and self._anchors:
            mark = self._anchors.pop()
            if element.attributes.get("href") is not None and not style.hidden:
                self._links.close(element, self._writer, mark)
        self._writer.leave(element.tag, block=style.display in _BLOCKS)

    def _note(self, element: Element, style: Style) -> None:
        """What an element brings besides its text."""
        if not element.attributes and element.tag not in presentation.ACTIVE_TAGS:
            return
        self._links.look_at(element, hidden=bool(style.hidden))
        if len(self._metadata) < _MAX_METADATA:
            for name, value in element.attributes.items():
                if (
                    value
                    and len(value) > 8
                    and (name in _UNSEEN_METADATA or (name == "content" and element.tag == "meta"))
                ):
                    self._metadata.append(value)

    def _style(self, element: Element) -> Style:
        """The element's computed style. Equal elements under equal parents share one."""
        if element.attributes or presentation.has_a_place(element) or self._page.sheet.concerns(element):
            return self._style_of_its_own(element)
        key = (id(self._styles[-1]), element.tag)
        style = self._plain.get(key)
        if style is None:
            style = self._plain[key] = self._style_of_its_own(element)
        return style

    def _style_of_its_own(self, element: Element) -> Style:
        parent = self._styles[-1]
        rules: tuple[Rule, ...] = self._page.sheet.matching(element, self._budget, self._above)
        inline = element.attributes.get("style") or "" if element.attributes else ""
        hints = presentation.hints(element) if element.attributes else ""
        default = presentation.default_display(element)
        root = element.tag in ("html", "body")
        numbers = tuple(rule.order for rule in rules)
        where = presentation.place(element)
        key = (id(parent), numbers, inline, hints, default, where, root)  # all styles live as long as this reader
        style = self._computed.get(key)
        if style is None:
            declared = self._declared(rules, numbers, inline, hints)
            style = compute(parent, declared, default=default, root=root, animations=self._page.sheet.keyframes)
            style = presentation.placed(style, where)
            # One object for equal styles: what is below them is then computed once.
            style = self._computed[key] = self._equal.setdefault(style, style)
        return style

    def _declared(self, rules: tuple[Rule, ...], numbers: tuple[int, ...], inline: str, hints: str) -> Declarations:
        key = (numbers, inline, hints)
        declared = self._cascaded.get(key)
        if declared is None:
            declared = {**_inline(hints).normal, **css.cascade(rules, _inline(inline))}
            self._cascaded[key] = declared
        return declared
