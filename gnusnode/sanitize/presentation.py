"""What HTML itself says about how an element is shown: default display, old attributes, elements that start closed."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from typing import Final

from gnusnode.sanitize.cssvalues import legacy_color
from gnusnode.sanitize.elements import Element
from gnusnode.sanitize.style import Style

NEVER_SHOWN: Final = frozenset(
    {
        "head", "meta", "link", "style", "script", "template", "noscript", "datalist", "area", "param", "source",
        "track", "base", "rp", "noembed", "noframes", "audio", "video", "canvas", "iframe", "object", "embed", "applet",
        "frame", "frameset", "defs", "symbol", "clippath", "mask", "metadata", "desc", "lineargradient",
        "radialgradient", "pattern", "marker", "filter", "annotation", "annotation-xml", "portal",
    }
)  # fmt: skip
"""Elements whose content is not shown, or only where they themselves do not work."""
ACTIVE_TAGS: Final = frozenset(
    {"iframe", "object", "embed", "applet", "frame", "base", "form", "portal", "fencedframe"}
)
_BLOCKS: Final = frozenset(
    {
        "address", "article", "aside", "blockquote", "body", "center", "dd", "details", "dialog", "dir", "div", "dl",
        "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header",
        "hgroup", "hr", "html", "legend", "listing", "main", "menu", "nav", "ol", "optgroup", "option", "p",
        "plaintext", "pre", "search", "section", "summary", "ul", "xmp", "svg", "foreignobject",
    }
)  # fmt: skip
_DISPLAYS: Final = {
    "li": "list-item", "table": "table", "tr": "table-row", "td": "table-cell", "th": "table-cell",
    "caption": "table-caption", "tbody": "table-row-group", "thead": "table-row-group", "tfoot": "table-row-group",
    "button": "inline-block", "input": "inline-block", "select": "inline-block", "textarea": "inline-block",
    "img": "inline-block", "marquee": "inline-block", "meter": "inline-block", "progress": "inline-block",
}  # fmt: skip
_SVG: Final = frozenset({"svg", "g", "text", "tspan", "textpath", "a", "switch"})
_SHAPES: Final = frozenset({"rect", "path", "circle", "ellipse", "polygon", "image", "use", "foreignobject"})
_SVG_STYLE: Final = (
    "fill", "fill-opacity", "opacity", "display", "visibility", "font-size", "transform", "clip-path", "color",
    "letter-spacing",
)  # fmt: skip
_HINTS: Final = frozenset({"hidden", "color", "text", "bgcolor", "background"})
_BUTTONS: Final = frozenset({"submit", "button", "reset"})
_OUTSIDE: Final = -100.0


def default_display(element: Element) -> str:
    """The display that the browser's own style sheet gives."""
    tag = element.tag
    if tag in NEVER_SHOWN or (tag == "title" and _inside(element, "svg")):
        return "none"
    if element.attributes:
        attributes = element.attributes
        if "hidden" in attributes and (attributes["hidden"] or "").lower() != "until-found":
            return "none"
        if "popover" in attributes or (tag == "dialog" and "open" not in attributes):
            return "none"
        if tag == "input" and (attributes.get("type") or "").lower() == "hidden":
            return "none"
    elif tag == "dialog":
        return "none"
    if tag in _BLOCKS:
        return "block"
    return _DISPLAYS.get(tag, "inline")


def _inside(element: Element, tag: str) -> bool:
    above = element.parent
    for _ in range(64):
        if above is None:
            return False
        if above.tag == tag:
            return True
        above = above.parent
    return False


def hints(element: Element) -> str:
    """Old attributes as declarations; they weigh less than any style rule."""
    attributes = element.attributes
    if _HINTS.isdisjoint(attributes) and element.tag not in _SVG:
        return ""
    found: list[str] = []
    if (attributes.get("hidden") or "").lower() == "until-found":
        found.append("content-visibility:hidden")
    if element.tag == "font" and (color := attributes.get("color")):
        found.append(_color("color", color))
    if element.tag == "body" and (color := attributes.get("text")):
        found.append(_color("color", color))
    if color := attributes.get("bgcolor"):
        found.append(_color("background-color", color))
    if attributes.get("background") and element.tag in ("body", "table", "tr", "td", "th"):
        found.append("background-image:url(x)")
    if element.tag in _SVG and _in_svg(element):
        found += [f"{name}:{value}" for name in _SVG_STYLE if (value := attributes.get(name)) and ";" not in value]
        found += _svg_place(attributes)
    return ";".join(part for part in found if part)


def _in_svg(element: Element) -> bool:
    return element.tag == "svg" or _inside(element, "svg")


@lru_cache(maxsize=256)
def _color(name: str, value: str) -> str:
    found = legacy_color(value)
    return f"{name}:rgb({found[0]:.0f} {found[1]:.0f} {found[2]:.0f} / {found[3]:.3f})" if found else ""


def _svg_place(attributes: dict[str, str | None]) -> list[str]:
    """Text put far outside of its picture."""
    for name in ("x", "y"):
        value = (attributes.get(name) or "").strip().removesuffix("px")
        try:
            if float(value or 0) <= _OUTSIDE:
                return ["content-visibility:hidden"]
        except ValueError:
            continue
    return []


class Place(StrEnum):
    """What an element's place in the document does to it, whatever CSS says."""

    NOWHERE = ""
    NEVER_SHOWN = "never_shown"
    CLOSED = "closed"
    """In something that a reader would have to open first."""
    PICTURE = "picture"
    """The beginning of a drawing, where text has the colour of its ``fill``."""
    ON_SHAPES = "on_shapes"
    """Text in a drawing, with shapes that may lie behind it."""


def place(element: Element) -> Place:
    """Where an element stands."""
    tag, parent = element.tag, element.parent
    if tag in NEVER_SHOWN:
        return Place.NEVER_SHOWN
    if tag == "svg":
        return Place.PICTURE
    if parent is None:
        return Place.NOWHERE
    if parent.tag == "details" and is_closed(parent) and _first_summary(parent) is not element:
        return Place.CLOSED
    if tag == "option" and not _is_chosen(element):
        return Place.CLOSED
    if tag == "text" and _in_svg(element) and _has_shapes(element):
        return Place.ON_SHAPES
    return Place.NOWHERE


def has_a_place(element: Element) -> bool:
    """Whether an element without attributes may be another thing than its tag says, by where it stands."""
    parent = element.parent
    return element.tag in ("option", "text", "title") or (parent is not None and parent.tag == "details")


def placed(style: Style, where: Place) -> Style:
    """The style of an element that stands there."""
    match where:
        case Place.NEVER_SHOWN:
            return replace(style, gone="never_shown")
        case Place.CLOSED:
            return replace(style, gone=style.gone or "closed")
        case Place.PICTURE:
            return replace(style, drawn=True, fill=style.fill if style.drawn else (0, 0, 0, 1))
        case Place.ON_SHAPES:
            return replace(style, ground_known=False)
        case Place.NOWHERE:
            return style


def is_closed(element: Element) -> bool:
    """Whether it is a ``details`` whose content does not show."""
    return element.tag == "details" and "open" not in element.attributes


def _first_summary(details: Element) -> Element | None:
    return next((child for child in details.children if child.tag == "summary"), None)


def _is_chosen(option: Element) -> bool:
    """Whether a closed list shows this option; the list of a ``multiple`` or sized select is open."""
    above = option.parent
    while above is not None and above.tag == "optgroup":
        above = above.parent
    if above is None or above.tag != "select" or "multiple" in above.attributes or "size" in above.attributes:
        return True
    return "selected" in option.attributes or (option.before is None and option.parent is above)


def _has_shapes(element: Element) -> bool:
    parent = element.parent
    return parent is not None and any(child.tag in _SHAPES for child in parent.children)


def button_label(element: Element) -> str:
    """The text that a button shows which has no content."""
    if (element.attributes.get("type") or "").lower() in _BUTTONS:
        return (element.attributes.get("value") or "").strip()
    return ""
