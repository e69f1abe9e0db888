"""Computed styles without layout: from an element's declarations, and its parent's style, to its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gnusnode.sanitize import boxes
from gnusnode.sanitize.css import Block, Declarations
from gnusnode.sanitize.cssread import FONT_WORDS, Reading, is_picture
from gnusnode.sanitize.cssvalues import (
    HEIGHT,
    ROOT_FONT,
    WIDTH,
    Rgba,
    Token,
    by_comma,
    color,
    idents,
    keyword,
    length,
    over,
    share,
)
from gnusnode.sanitize.style import FAINT, USUAL_WIDTH, Style

_POSITIONED: Final = frozenset({"relative", "absolute", "fixed", "sticky"})
_NOTHING: Final = 0.02
_USUAL_HEIGHT: Final = 50.0
_MAX_GROUNDS: Final = 8
_UNDRAWN: Final = frozenset({"none", "table-column", "table-column-group"})
_INLINE: Final = frozenset({"inline", "contents", "ruby", "ruby-text"})

# Which properties concern which step of ``compute``: most elements set few, and most steps are left out.
_INHERITED: Final = frozenset(
    {"font-size", "zoom", "color", "-webkit-text-fill-color", "text-indent", "letter-spacing", "visibility",
     "text-shadow", "fill", "fill-opacity"}
)  # fmt: skip
_MOVING: Final = frozenset(
    {"position", "left", "right", "top", "bottom", "margin-left", "margin-top", "transform", "translate", "scale",
     "rotate", "width", "max-width", "min-width"}
)  # fmt: skip
_GROUNDING: Final = frozenset(
    {"opacity", "filter", "mask-image", "z-index", "position", "transform", "clip-path", "isolation",
     "background-color", "background-image", "background-clip"}
)  # fmt: skip
_BOXING: Final = frozenset(
    {"content-visibility", "clip", "clip-path", "position", "transform", "scale", "rotate", "overflow-x", "overflow-y",
     "contain", "text-indent"}
)  # fmt: skip


def compute(
    parent: Style,
    declared: Declarations,
    *,
    default: str,
    root: bool = False,
    animations: Mapping[str, Block] | None = None,
) -> Style:
    """The style of an element.

    Args:
        declared: what the cascade found, with presentational attributes among it.
        default: the display that the element has by itself; ``none`` for what is never shown.
        root: it is ``html`` or ``body``, whose background is the page's.
        animations: name -> where each animation ends; one that stays at its end counts as if it were there.
    """
    if animations and (ends := _ends(declared, animations)):
        declared = {**declared, **ends.normal}
    custom = parent.custom
    if any(name.startswith("--") for name in declared):
        custom = {**custom, **{name: value.tokens for name, value in declared.items() if name.startswith("--")}}
    get = Reading(declared, custom)
    style = replace(parent, custom=custom, display=_display(get, parent, default), holds=False, covers=False)
    if not declared:
        return replace(style, flexible=False, gone=parent.gone or ("display" if style.display in _UNDRAWN else ""))
    if not _INHERITED.isdisjoint(declared):
        style = _inherited(get, style)
    if not _MOVING.isdisjoint(declared):
        style = _moved(get, style, root=root)
    if root or not _GROUNDING.isdisjoint(declared):
        style = _grounded(get, style, parent, root=root)
    if _BOXING.isdisjoint(declared):
        gone = "display" if style.display in _UNDRAWN else "opacity" if style.alpha < _NOTHING else ""
        return replace(style, gone=style.gone or gone, flexible=_is_flexible(style))
    return replace(
        style,
        gone=parent.gone or _gone(get, style),
        flexible=_is_flexible(style),
        holds=keyword(get("position")) in _POSITIONED or bool(get("transform")),
        covers=_covers(get, style, parent),
    )


def _is_flexible(style: Style) -> bool:
    return "flex" in style.display or "grid" in style.display


def _ends(declared: Declarations, animations: Mapping[str, Block]) -> Block | None:
    get = Reading(declared, {})
    words = [token for name in ("animation", "animation-name") for token in get(name) or []]
    stays = {"forwards", "both"} & {*idents(words), *idents(get("animation-fill-mode") or [])}
    named = (animations.get(token.value) for token in words if token.type in ("ident", "string"))
    return next((block for block in named if block is not None), None) if stays else None


def _display(get: Reading, parent: Style, default: str) -> str:
    words = idents(get("display") or []) or [default]
    if "none" in words:
        return "none"
    found = words[-1] if words[0] in ("block", "inline") and len(words) > 1 else words[0]
    taken_out = keyword(get("position")) in ("absolute", "fixed") or keyword(get("float")) in ("left", "right")
    return "block" if found == "inline" and (taken_out or parent.flexible) else found


def _inherited(get: Reading, style: Style) -> Style:
    """Properties that pass from parent to child by themselves."""
    font = _font_size(get, style.font)
    if zoom := get("zoom"):
        factor = share(zoom[0])
        font *= factor if factor else 1.0
    paint = (0, 0, 0, 1) if get.is_initial("color") else _paint(get, "color", style.color) or style.color
    indent, spacing = get("text-indent"), get("letter-spacing")
    seen = keyword(get("visibility"))
    return replace(
        style,
        font=font,
        color=paint,
        fill=_drawn_fill(get, style) if style.drawn else _paint(get, "-webkit-text-fill-color", paint) or style.fill,
        shadow=_shadow(get("text-shadow"), paint, font) if get("text-shadow") else style.shadow,
        indent=(length(indent[0], base=style.width, font=font) or 0.0) if indent else style.indent,
        spacing=(length(spacing[0], base=font, font=font) or 0.0) / (font or 1.0) if spacing else style.spacing,
        invisible=seen != "visible" if seen else style.invisible and not get.is_initial("visibility"),
    )


def _paint(get: Reading, name: str, current: Rgba) -> Rgba | None:
    tokens = get(name)
    return color(tokens[0], current) if tokens else None


def _drawn_fill(get: Reading, style: Style) -> Rgba | None:
    tokens, opacity = get("fill"), get("fill-opacity")
    fill = style.fill or (0.0, 0.0, 0.0, 1.0)
    if tokens:
        fill = (0.0, 0.0, 0.0, 0.0) if keyword(tokens) == "none" else color(tokens[0], style.color) or (0, 0, 0, 1)
    share_left = share(opacity[0]) if opacity else None
    left = 1.0 if share_left is None else max(0.0, min(1.0, share_left))
    return fill[0], fill[1], fill[2], fill[3] * left


def _font_size(get: Reading, inherited: float) -> float:
    if get.is_initial("font-size"):
        return ROOT_FONT
    tokens = get("font-size")
    if not tokens:
        return inherited
    word = keyword(tokens[:1])
    if word in FONT_WORDS:
        return FONT_WORDS[word]
    if word in ("smaller", "larger"):
        return inherited * (1.2 if word == "larger" else 1 / 1.2)
    found = length(tokens[0], base=inherited, font=inherited)
    return inherited if found is None else max(0.0, found)


def _shadow(tokens: list[Token] | None, current: Rgba, font: float) -> Rgba | None:
    """The colour of a text shadow that lies close enough to be read; None: there is none."""
    for part in by_comma(tokens or []):
        lengths = [found for token in part if (found := length(token, base=0, font=font)) is not None]
        if len(lengths) >= 2 and max(abs(size) for size in lengths) <= 10:
            colors = [found for token in part if (found := color(token, current)) is not None]
            return colors[0] if colors else current
    return None


def _moved(get: Reading, style: Style, *, root: bool) -> Style:
    """Where the element lies, relative to where it would have been."""
    position = keyword(get("position"))
    x, y = style.x, style.y
    base = WIDTH if not style.positioned else min(style.width, USUAL_WIDTH)
    side = {name: boxes.pixels(get, name, base=base, font=style.font) for name in ("left", "right")}
    side |= {name: boxes.pixels(get, name, base=HEIGHT, font=style.font) for name in ("top", "bottom")}
    if position in ("absolute", "fixed"):
        from_x, from_y = style.base if position == "absolute" else (0.0, 0.0)
        # Far edges are known only of the window; what hangs on them is taken to be of usual size.
        of_window = position == "fixed" or not style.positioned
        x = _offset(side["left"], side["right"], from_x, x, WIDTH - USUAL_WIDTH if of_window else 0.0)
        y = _offset(side["top"], side["bottom"], from_y, y, HEIGHT - _USUAL_HEIGHT if of_window else 0.0)
    elif position == "relative":
        x = _offset(side["left"], side["right"], x, x, 0.0)
        y = _offset(side["top"], side["bottom"], y, y, 0.0)
    x += boxes.pixels(get, "margin-left", base=WIDTH, font=style.font) or 0.0
    y += boxes.pixels(get, "margin-top", base=WIDTH, font=style.font) or 0.0
    scale = style.scale
    if style.display not in _INLINE:
        transform = boxes.Transform(get, style.font)
        x, y, scale = x + transform.x, y + transform.y, scale * transform.scale
    width = boxes.extent(get, "width", base=style.width, font=style.font) if style.display not in _INLINE else None
    moved = replace(style, x=x, y=y, scale=scale, width=style.width if width is None else max(width, 0.0))
    if position in _POSITIONED:
        moved = replace(
            moved,
            base=(x, y),
            positioned=style.positioned or not root,
            fixed=style.fixed or position == "fixed",
            afloat=style.afloat or position in ("absolute", "fixed"),
        )
        # An element out of the flow is judged by its own offsets: only ancestors count as "positioned".
        if position in ("absolute", "fixed") and not style.positioned:
            moved = replace(moved, positioned=False)
    return moved


def _offset(near: float | None, far: float | None, base: float, own: float, room: float) -> float:
    """A coordinate: ``near`` from the base, or ``far`` from ``room`` behind it, or where it was anyway."""
    if near is not None:
        return base + near
    return base + room - far if far is not None else own


def _grounded(get: Reading, style: Style, parent: Style, *, root: bool) -> Style:
    """Opacity and background; a negative ``z-index`` may slip the element under an ancestor's background."""
    opacity = get("opacity")
    alpha = parent.alpha * boxes.filtered_away(get)
    if opacity and (found := share(opacity[0])) is not None:
        alpha *= max(0.0, min(1.0, found))
    style = replace(style, alpha=alpha)
    depth = get("z-index")
    level = depth[0].value if depth and depth[0].type == "number" else None
    positioned = keyword(get("position")) in _POSITIONED
    if level is not None and level < 0 and positioned and parent.covered:
        style = replace(style, gone=style.gone or "behind")
    opens = bool(
        (positioned and level is not None)
        or keyword(get("position")) in ("fixed", "sticky")
        or (opacity and alpha < parent.alpha)
        or any(get(name) for name in ("transform", "filter", "clip-path", "mask-image"))
        or keyword(get("isolation")) == "isolate"
    )
    own = _paint(get, "background-color", style.color)
    pictures = [token for token in get("background-image") or [] if is_picture(token)]
    if _has_no_area(get, style):
        own, pictures = None, []
    if "text" in idents(get("background-clip") or []):
        return _clipped_to_text(style, own, pictures)
    covered = False if opens or root else parent.covered or (own is not None and own[3] > 0.95)
    return replace(_backed(style, own, pictures, get), covered=covered)


def _covers(get: Reading, style: Style, parent: Style) -> bool:
    """Whether an opaque box was laid over everything in the positioned element around it, which is not the page."""
    own = _paint(get, "background-color", style.color)
    if keyword(get("position")) != "absolute" or not parent.positioned or own is None or own[3] * style.alpha < 0.95:
        return False
    depth = get("z-index")
    if depth and depth[0].type == "number" and depth[0].value < 0:
        return False
    for near, far, size in (("left", "right", "width"), ("top", "bottom", "height")):
        tokens = get(size)
        extent = length(tokens[0], base=100.0, font=style.font) if tokens else None
        starts = (boxes.pixels(get, near, base=100.0, font=style.font) or 0.0) <= 0
        ends = boxes.pixels(get, far, base=100.0, font=style.font)
        full = extent is not None and extent >= 100
        if not starts or not (full or (ends is not None and ends <= 0 and get(near))):
            return False
    return True


def _has_no_area(get: Reading, style: Style) -> bool:
    """A box of no size, whose text runs out over it, puts nothing behind that text."""
    if style.display in _INLINE:
        return False
    sizes = (boxes.extent(get, axis, base=style.width, font=style.font) for axis in ("width", "height"))
    return any(size is not None and size <= boxes.SLIVER for size in sizes)


def _clipped_to_text(style: Style, own: Rgba | None, pictures: list[Token]) -> Style:
    if pictures:
        return replace(style, pictured=True)
    return replace(style, fill=own) if own is not None and (style.fill or style.color)[3] < FAINT else style


def _backed(style: Style, own: Rgba | None, pictures: list[Token], get: Reading) -> Style:
    if own is not None and own[3] > 0:
        opaque = own[3] > 0.95
        grounds = tuple(dict.fromkeys(over(own, ground) for ground in style.grounds))
        style = replace(
            style, grounds=grounds[:_MAX_GROUNDS], ground_known=style.ground_known or opaque, pictured=False
        )
    size = get("background-size")
    if not pictures or (size and all(length(token, base=1, font=style.font) == 0 for token in size[:2])):
        return style
    stops = [
        found
        for picture in pictures
        if picture.type == "function" and "gradient" in picture.lower_name
        for part in by_comma(picture.arguments)
        for token in part
        if (found := color(token, style.color)) is not None
    ]
    if len(stops) < len(pictures):
        return replace(style, ground_known=False)
    grounds = tuple(dict.fromkeys(over(stop, ground) for ground in style.grounds for stop in stops))
    return replace(style, grounds=grounds[:_MAX_GROUNDS])


def _gone(get: Reading, style: Style) -> str:
    """Why nothing of the element can be seen, whatever its children say; empty: something can."""
    if style.gone:
        return style.gone
    if style.display in _UNDRAWN:
        return "display"
    if keyword(get("content-visibility")) == "hidden":
        return "content_visibility"
    if style.alpha < _NOTHING:
        return "opacity"
    if boxes.clipped_away(get, positioned=style.afloat, font=style.font):
        return "clip"
    if style.display in _INLINE:
        return ""
    if style.scale == 0:
        return "scale"
    return _cut_off(get, style)


def _cut_off(get: Reading, style: Style) -> str:
    """Why the content of a box is cut away at its edges; empty: it is not."""
    for axis in ("width", "height"):
        size = boxes.extent(get, axis, base=style.width, font=style.font)
        if size is None or not boxes.cuts(get, axis):
            continue
        if size <= boxes.SLIVER and size + boxes.padded(get, axis, font=style.font) <= boxes.SLIVER:
            return "box"
    lines = get("line-height")
    if lines and boxes.cuts(get, "height"):
        size = share(lines[0]) if lines[0].type != "dimension" else length(lines[0], base=1, font=style.font)
        if size is not None and size <= 0:
            return "box"
    indent = get("text-indent")
    if indent and indent[0].type == "percentage" and indent[0].value >= 100 and boxes.cuts(get, "width"):
        return "offscreen"
    return ""
