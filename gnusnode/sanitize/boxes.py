"""Geometry without layout: where an element is moved to, how far it is scaled, what is cut off.

Every function reads declarations through ``Get`` and answers with numbers or with yes and no; none raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from gnusnode.sanitize.cssvalues import (
    HEIGHT,
    WIDTH,
    Token,
    angle,
    bare,
    by_comma,
    color,
    idents,
    keyword,
    length,
    share,
)

Get = Callable[[str], list[Token] | None]
"""Property -> its tokens; None: not set."""

SLIVER: Final = 2.0
"""A box of at most so many pixels shows no text."""
_EDGE_ON: Final = 1.0
"""Degrees from 90 within which a turned plane is seen from its edge."""


def pixels(get: Get, name: str, *, base: float, font: float) -> float | None:
    """The first length of a property, in pixels."""
    tokens = get(name)
    return length(tokens[0], base=base, font=font) if tokens else None


def extent(get: Get, axis: str, *, base: float, font: float) -> float | None:
    """The size that is set for ``width`` or ``height``, between its minimum and maximum; None: as the content needs.

    A height in percent of a parent without one means nothing and is ignored.
    """
    size = _own(get, axis, base, font)
    limit = _own(get, f"max-{axis}", base, font)
    least = _own(get, f"min-{axis}", base, font)
    if limit is not None:
        size = min(size, limit) if size is not None else (limit if limit <= SLIVER else None)
    if least is not None and size is not None:
        size = max(size, least)
    return size


def _own(get: Get, name: str, base: float, font: float) -> float | None:
    tokens = get(name)
    if not tokens or (name.endswith("height") and tokens[0].type == "percentage"):
        return None
    return length(tokens[0], base=base, font=font)


def padded(get: Get, axis: str, *, font: float) -> float:
    """The padding along an axis, in pixels."""
    sides = ("left", "right") if axis == "width" else ("top", "bottom")
    return sum(pixels(get, f"padding-{side}", base=WIDTH, font=font) or 0.0 for side in sides)


def cuts(get: Get, axis: str) -> bool:
    """Whether what does not fit along an axis is cut off. Scrolling counts: a sliver cannot be scrolled."""
    words = set(idents(get("contain") or []))
    if words & {"paint", "strict", "content"}:
        return True
    return keyword(get("overflow-x" if axis == "width" else "overflow-y")) in ("hidden", "clip", "scroll", "auto")


def clipped_away(get: Get, *, positioned: bool, font: float) -> bool:
    """Whether ``clip`` (of a positioned box) or ``clip-path`` leave nothing to be seen."""
    clip = get("clip")
    if positioned and clip and clip[0].type == "function" and clip[0].lower_name == "rect":
        values = [length(token, base=0, font=font) for token in bare(clip[0].arguments) if token.type != "literal"]
        if len(values) == 4:
            top, right, bottom, left = values
            if _less(bottom, top or 0.0) or _less(right, left or 0.0):
                return True
    path = get("clip-path")
    return bool(path) and any(_nothing_left(token, font) for token in path or [] if token.type == "function")


def _less(far: float | None, near: float) -> bool:
    return far is not None and far - near <= SLIVER


def _nothing_left(shape: Token, font: float) -> bool:
    match shape.lower_name:
        case "inset":
            return _inset_is_empty(bare(shape.arguments), font)
        case "circle" | "ellipse":
            radii = [length(token, base=100, font=font) for token in _until(shape.arguments, "at")]
            return any(radius is not None and radius <= 1 for radius in radii)
        case "polygon":
            return _polygon_is_empty(shape, font)
        case "xywh":
            sizes = [length(token, base=100, font=font) for token in bare(shape.arguments)[2:4]]
            return any(size is not None and size <= SLIVER for size in sizes)
        case "rect":
            values = [length(token, base=100, font=font) for token in bare(shape.arguments)[:4]]
            return len(values) == 4 and (_less(values[2], values[0] or 0.0) or _less(values[1], values[3] or 0.0))
        case "path":
            text = next((token.value for token in bare(shape.arguments) if token.type == "string"), "x")
            return not any(letter in text.lower() for letter in "lhvcsqta") or not text.strip()
        case _:
            return False


def _until(tokens: list[Token], word: str) -> list[Token]:
    found: list[Token] = []
    for token in bare(tokens):
        if token.type == "ident" and token.lower_value == word:
            break
        found.append(token)
    return found


def _inset_is_empty(tokens: list[Token], font: float) -> bool:
    """``inset(50%)`` and more from opposite sides; lengths count against a box of 100 by 1,000 pixels."""
    sides = _until(tokens, "round")
    values = [
        ((length(token, base=1, font=font) or 0.0) if token.type == "percentage" else None, token) for token in sides
    ]
    if not 1 <= len(values) <= 4:
        return False

    def part(index: int, size: float) -> float:
        own, token = values[index if index < len(values) else index - 2 if index - 2 in range(len(values)) else 0]
        return own if own is not None else (length(token, base=size, font=font) or 0.0) / size

    return part(0, 100.0) + part(2, 100.0) >= 0.98 or part(1, 1000.0) + part(3, 1000.0) >= 0.98


def _polygon_is_empty(shape: Token, font: float) -> bool:
    points: list[tuple[float, float]] = []
    for pair in by_comma(shape.arguments):
        values = [length(token, base=100, font=font) for token in pair if token.type != "ident"]
        if len(values) == 2 and values[0] is not None and values[1] is not None:
            points.append((values[0], values[1]))
    area = sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in zip(points, [*points[1:], *points[:1]], strict=True))
    outside = points and all(x <= 0 for x, _ in points)
    return abs(area) / 2 <= 4 or bool(outside)


class Transform:
    """What ``transform`` and its single properties do: a move in pixels, a factor, a plane turned away."""

    __slots__ = ("scale", "x", "y")

    def __init__(self, get: Get, font: float) -> None:
        self.x = self.y = 0.0
        self.scale = 1.0
        for token in get("transform") or []:
            if token.type == "function":
                self._apply(token, font)
        if moved := get("translate"):
            self._translate(moved, font)
        if factors := get("scale"):
            self._scale(factors)
        if turned := get("rotate"):
            self._turn(idents(turned)[:1], turned)

    def _apply(self, token: Token, font: float) -> None:
        name, arguments = token.lower_name, bare(token.arguments)
        values = [item for item in arguments if not (item.type == "literal" and item.value == ",")]
        match name:
            case "translate" | "translate3d":
                self._translate(values, font)
            case "translatex":
                self._translate(values[:1], font)
            case "translatey" if values:
                self.y += self.scale * (length(values[0], base=HEIGHT, font=font) or 0.0)
            case "scale" | "scalex" | "scaley":
                self._scale(values)
            case "scale3d":
                self._scale(values[:2])
            case "rotatex" | "rotatey":
                self._turn([name[-1]], values)
            case "matrix" | "matrix3d":
                self._matrix([share(item) or 0.0 for item in values])
            case _:
                pass

    def _translate(self, values: list[Token], font: float) -> None:
        if values:
            self.x += self.scale * (length(values[0], base=WIDTH, font=font) or 0.0)
        if len(values) > 1:
            self.y += self.scale * (length(values[1], base=HEIGHT, font=font) or 0.0)

    def _scale(self, values: list[Token]) -> None:
        factors = [abs(factor) for token in values if (factor := share(token)) is not None]
        if factors:
            self.scale *= min(factors)

    def _turn(self, axes: list[str], values: list[Token]) -> None:
        turned = next((found for token in values if (found := angle(token)) is not None), 0.0)
        if axes and axes[0] in ("x", "y") and abs(abs(math.fmod(turned, 180.0)) - 90.0) <= _EDGE_ON:
            self.scale = 0.0

    def _matrix(self, values: list[float]) -> None:
        if len(values) == 6:
            a, b, c, d, x, y = values
        elif len(values) == 16:
            a, b, c, d, x, y = values[0], values[1], values[4], values[5], values[12], values[13]
        else:
            return
        self.x += self.scale * x
        self.y += self.scale * y
        self.scale *= min(math.hypot(a, b), math.hypot(c, d), math.sqrt(abs(a * d - b * c)))


def filtered_away(get: Get) -> float:
    """How much of the element ``filter`` and ``mask-image`` let through, 0 … 1; a strong blur lets nothing through."""
    left = 1.0
    for token in get("filter") or []:
        if token.type != "function":
            continue
        value = next(iter(bare(token.arguments)), None)
        if token.lower_name == "opacity" and value is not None:
            left *= max(0.0, min(1.0, share(value) or 0.0))
        elif token.lower_name == "blur" and value is not None and (length(value, base=0, font=16) or 0.0) >= 8:
            left = 0.0
    for token in get("mask-image") or []:
        if token.type == "function" and "gradient" in token.lower_name:
            stops = [found for item in bare(token.arguments) if (found := color(item)) is not None]
            if stops:
                left *= max(stop[3] for stop in stops)
    return left
