"""A page as a flat list of events: elements begin and end, text and comments between. Lexbor parses as HTML5 says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple

import tinycss2
import webencodings

from gnusnode.sanitize.css import Sheet, inline_sheet
from gnusnode.sanitize.elements import Element, TooComplex
from gnusnode.sanitize.extract import Refusal, Refused
from gnusnode.sanitize.htmldepth import MAX_DEPTH, check_depth
from gnusnode.sanitize.mediaquery import media_matches

MAX_BYTES: Final = 8 * 1024 * 1024
_CHARSET: Final = re.compile(rb"""<meta[^>]{0,256}?charset\s*=\s*["']?\s*([a-zA-Z0-9_:.-]{1,40})""", re.IGNORECASE)
_DOCTYPE: Final = re.compile(r"\s*(?:<!--.{0,4096}?-->\s*)*<!doctype\s+html", re.IGNORECASE | re.DOTALL)


class Op(Enum):
    ENTER = 1
    LEAVE = 2
    TEXT = 3
    COMMENT = 4
    TEMPLATE = 5


class Events:
    """What happens on a page, in order: three columns, since an object for each event would keep the collector busy."""

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._elements: list[Element] = []
        self._texts: list[str] = []

    def add(self, op: Op, element: Element, text: str = "") -> None:
        """``element`` is what begins or ends, or in which the text stands."""
        self._ops.append(op)
        self._elements.append(element)
        self._texts.append(text)

    def __iter__(self) -> Iterator[tuple[Op, Element, str]]:
        return zip(self._ops, self._elements, self._texts, strict=True)


class Page(NamedTuple):
    events: Events
    sheet: Sheet
    elements: int


def decode(data: bytes, charset: str = "") -> str:
    """The text of a page: by byte order mark, by the header's charset, by ``<meta charset>``, else UTF-8.

    Unknown names and wrong bytes become replacement characters; never raises.
    """
    found = _CHARSET.search(data, 0, 2048)
    declared = charset or (found.group(1).decode("ascii") if found else "")
    encoding = webencodings.lookup(declared) if declared else None
    if encoding is not None and encoding.name.startswith("utf-16") and not charset:
        encoding = None  # a meta element that could be read is not UTF-16
    text, _ = webencodings.decode(data, encoding or webencodings.UTF8, errors="replace")
    return text


def parse(text: str) -> Page:
    """The events of a page and its style rules.

    Raises:
        Refused: the parser is not installed, or the page is nested beyond reason.
    """
    if len(text) > MAX_BYTES:
        raise Refused(Refusal.TOO_LARGE, f"the page has more than {MAX_BYTES} characters")
    try:
        from selectolax.lexbor import LexborHTMLParser
    except ImportError as error:
        raise Refused(Refusal.PARSER_MISSING, "selectolax is not installed, so HTML is not read") from error
    # Lone surrogates cannot be handed to the parser; NUL means nothing on a page.
    clean = text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
    check_depth(clean)
    try:
        root: Any = LexborHTMLParser(clean).root
    except (ValueError, RuntimeError, MemoryError) as error:  # what selectolax raises when Lexbor gives up
        raise Refused(Refusal.MALFORMED, "the page cannot be parsed") from error
    quirks = not _DOCTYPE.match(clean)
    sheet = Sheet(quirks=quirks)
    try:
        events, elements = _events(root, sheet, quirks=quirks) if root is not None else (Events(), 0)
    except TooComplex as error:
        raise Refused(Refusal.TOO_COMPLEX, str(error)) from error
    sheet.build()
    return Page(events, sheet, elements)


def _events(root: Any, sheet: Sheet, *, quirks: bool) -> tuple[Events, int]:
    """The events under ``root``, and how many elements there are."""
    events, elements = Events(), 0
    open_ids: list[int] = []
    around: list[Element] = []
    for node in root.traverse(include_text=True):
        parent_id = node.parent.mem_id if open_ids else 0
        while open_ids and open_ids[-1] != parent_id:
            open_ids.pop()
            events.add(Op.LEAVE, around.pop())
        if node.is_element_node:
            if len(open_ids) > 4 * MAX_DEPTH:  # what ends by itself was not counted before
                raise TooComplex(f"elements are nested deeper than {4 * MAX_DEPTH}")
            element = _element(node, around[-1] if around else None, quirks=quirks)
            if element.tag == "link" and _is_in_force(element, around):
                sheet.add(inline_sheet(element.attributes.get("href") or ""))
            open_ids.append(node.mem_id)
            around.append(element)
            elements += 1
            events.add(Op.ENTER, element)
            if element.tag == "template":
                for part in node.template_fragments():
                    events.add(Op.TEMPLATE, element, part.text())
        elif around and node.is_text_node:
            _text(node.text_content or "", around, sheet, events)
        elif around and node.is_comment_node:
            events.add(Op.COMMENT, around[-1], node.comment_content or "")
    while around:
        events.add(Op.LEAVE, around.pop())
    return events, elements


def _text(text: str, around: list[Element], sheet: Sheet, events: Events) -> None:
    """Adds a text to the events, or, when it is a style sheet's, to ``sheet``."""
    inside = around[-1]
    if inside.tag != "style":
        inside.has_text = inside.has_text or bool(text.strip())
        events.add(Op.TEXT, inside, text)
    elif _is_in_force(inside, around):
        sheet.add(text)


def _is_in_force(element: Element, around: list[Element]) -> bool:
    """Whether a ``style`` or ``link`` element brings rules for a screen, with scripts on."""
    attributes = element.attributes
    if element.tag == "link" and "stylesheet" not in (attributes.get("rel") or "").lower().split():
        return False
    kind = (attributes.get("type") or "").strip().lower()
    if kind not in ("", "text/css") or "disabled" in attributes or any(above.tag == "noscript" for above in around):
        return False
    return media_matches(tinycss2.parse_component_value_list((attributes.get("media") or "")[:1024]))


@lru_cache(maxsize=256)
def _plain_keys(tag: str) -> tuple[str, ...]:
    return (tag,)


def _element(node: Any, parent: Element | None, *, quirks: bool) -> Element:
    attributes: dict[str, str | None] = node.attributes
    tag = (node.tag or "").lower()
    before = parent.children[-1] if parent is not None and parent.children else None
    element = Element(tag, attributes, parent, before, 1, keys=_plain_keys(tag))
    if attributes:
        name, classes = attributes.get("id") or "", attributes.get("class") or ""
        if quirks:
            name, classes = name.lower(), classes.lower()
        if name or classes:
            element.id, element.classes = name, frozenset(classes.split())
            element.keys += tuple(f".{found}" for found in element.classes)
            element.keys += (f"#{name}",) if name else ()
    if parent is not None:
        parent.adopt(element)
    return element
