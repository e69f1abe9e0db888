"""CSS values as numbers: lengths in pixels, shares, colours. No layout is made: a fixed desktop window stands in.

All functions are total: a value that is not understood is ``None``, which callers read as "not set", as a browser does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from tinycss2 import color4

Token = Any
"""A node of tinycss2, which has no published types."""
Tokens = Sequence[Token]
Rgb = tuple[float, float, float]
"""Red, green, blue, each 0 … 255."""
Rgba = tuple[float, float, float, float]
"""As ``Rgb``, with alpha 0 … 1."""

WIDTH: Final = 1280.0
"""Width of the window that stands in for a reader's, in pixels."""
HEIGHT: Final = 800.0
ROOT_FONT: Final = 16.0

_PIXELS: Final = {"px": 1.0, "pt": 4 / 3, "pc": 16.0, "in": 96.0, "cm": 96 / 2.54, "mm": 9.6 / 2.54, "q": 2.4 / 2.54}
_OF_FONT: Final = {"em": 1.0, "ex": 0.5, "ch": 0.5, "cap": 0.7, "ic": 1.0, "lh": 1.2}
_OF_WINDOW: Final = {"w": WIDTH, "i": WIDTH, "h": HEIGHT, "b": HEIGHT, "min": HEIGHT, "max": WIDTH}
_ANGLES: Final = {"deg": 1.0, "grad": 0.9, "rad": 180 / math.pi, "turn": 360.0}
_MAX_CALC_DEPTH: Final = 8
_FUNCTIONS: Final = ("calc", "min", "max", "clamp")

MIN_CONTRAST: Final = 1.25
"""Contrast ratio (WCAG 2) below which a reader does not notice text; #ddd on white has 1.36, #eee 1.16."""
MIN_DISTANCE: Final = 40.0
"""Largest difference of a channel that still passes for the same colour, when contrast is low as well."""


def bare(tokens: Tokens) -> list[Token]:
    """The tokens without white space and comments."""
    return [token for token in tokens if token.type not in ("whitespace", "comment")]


def idents(tokens: Tokens) -> list[str]:
    """The identifiers among the tokens, in lower case."""
    return [token.lower_value for token in tokens if token.type == "ident"]


def keyword(tokens: Tokens | None) -> str:
    """The first identifier in lower case; empty when there is none."""
    return next(iter(idents(tokens)), "") if tokens else ""


def length(token: Token, *, base: float, font: float, depth: int = 0) -> float | None:
    """A length in pixels.

    Args:
        base: pixels that ``100%`` stands for.
        font: the element's font size in pixels.
    """
    match token.type:
        case "number":
            return 0.0 if token.value == 0 else None
        case "percentage":
            return float(token.value) * base / 100
        case "dimension":
            factor = _unit(token.lower_unit, font)
            return None if factor is None else float(token.value) * factor
        case "function" if token.lower_name in _FUNCTIONS and depth < _MAX_CALC_DEPTH:
            return _function(token, base=base, font=font, depth=depth + 1)
        case _:
            return None


def _unit(unit: str, font: float) -> float | None:
    if unit in _PIXELS:
        return _PIXELS[unit]
    if unit in _OF_FONT:
        return font * _OF_FONT[unit]
    if unit.startswith("r") and unit[1:] in _OF_FONT:
        return ROOT_FONT * _OF_FONT[unit[1:]]
    if unit.startswith("cq"):
        return _OF_WINDOW.get(unit[2:], WIDTH) / 100
    for prefix in ("v", "sv", "lv", "dv"):
        if unit.startswith(prefix) and unit[len(prefix) :] in _OF_WINDOW:
            return _OF_WINDOW[unit[len(prefix) :]] / 100
    return None


def _function(token: Token, *, base: float, font: float, depth: int) -> float | None:
    parts = [_sum(part, base=base, font=font, depth=depth) for part in by_comma(token.arguments)]
    known = [part for part in parts if part is not None]
    if not known or len(known) != len(parts):
        return None
    match token.lower_name:
        case "min":
            return min(known)
        case "max":
            return max(known)
        case "clamp" if len(known) == 3:
            return max(known[0], min(known[1], known[2]))
        case _:
            return known[0]


def _sum(tokens: Tokens, *, base: float, font: float, depth: int) -> float | None:
    """``a + b * c - d / e`` of one argument of ``calc``; numbers without unit count as factors."""
    total, product, sign, operator = 0.0, None, 1.0, ""
    for token in bare(tokens):
        if token.type == "literal" and token.value in "+-*/":
            if token.value in "+-":
                total, product, sign = total + sign * (product or 0.0), None, 1.0 if token.value == "+" else -1.0
            operator = token.value
            continue
        value = _operand(token, base=base, font=font, depth=depth)
        if value is None:
            return None
        if product is None:
            product = value
        elif operator == "*":
            product *= value
        elif operator == "/" and value:
            product /= value
        else:
            return None
    return total + sign * (product or 0.0)


def _operand(token: Token, *, base: float, font: float, depth: int) -> float | None:
    if token.type == "number":
        return float(token.value)
    if token.type == "() block" and depth < _MAX_CALC_DEPTH:
        return _sum(token.content, base=base, font=font, depth=depth + 1)
    return length(token, base=base, font=font, depth=depth)


def by_comma(tokens: Tokens) -> list[list[Token]]:
    """The tokens cut at their commas; white space and comments are left out."""
    parts: list[list[Token]] = [[]]
    for token in bare(tokens):
        if token.type == "literal" and token.value == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def share(token: Token) -> float | None:
    """A number or a percentage as a share of 1."""
    match token.type:
        case "number":
            return float(token.value)
        case "percentage":
            return float(token.value) / 100
        case "function" if token.lower_name in _FUNCTIONS:
            return _function(token, base=1.0, font=ROOT_FONT, depth=1)
        case _:
            return None


def angle(token: Token) -> float | None:
    """An angle in degrees."""
    if token.type == "dimension" and token.lower_unit in _ANGLES:
        return float(token.value) * _ANGLES[token.lower_unit]
    return 0.0 if token.type == "number" and token.value == 0 else None


def color(token: Token, current: Rgba = (0, 0, 0, 1)) -> Rgba | None:
    """A colour; ``current`` is what ``currentcolor`` stands for."""
    if token.type not in ("ident", "hash", "function"):
        return None
    if token.type == "ident" and token.lower_value in _SYSTEM_COLORS:
        return _SYSTEM_COLORS[token.lower_value]
    if token.type == "function" and token.lower_name in ("light-dark", "color-mix"):
        return _first_color(token.arguments, current)
    try:
        parsed: Any = color4.parse_color(token)
        if parsed is None:
            return None
        if parsed == "currentcolor":
            return current
        red, green, blue = (max(0.0, min(255.0, 255 * part)) for part in _srgb(parsed))
        return red, green, blue, max(0.0, min(1.0, float(parsed.alpha)))
    except (ValueError, TypeError, ArithmeticError):  # numbers that no colour has, such as infinity
        return None


def _srgb(parsed: Any) -> list[float]:
    """Red, green and blue of a parsed colour, 0 … 1. Wide RGB spaces are read as sRGB: near enough for contrast."""
    space = parsed.space
    if space in ("hsl", "hwb"):
        return [part or 0.0 for part in parsed.to("srgb").coordinates]
    if space in ("lab", "lch"):
        return _from_xyz(parsed.to("xyz-d50").coordinates, _FROM_D50)
    if space in ("oklab", "oklch"):
        return _from_xyz(parsed.to("xyz-d65").coordinates, _FROM_D65)
    if space.startswith("xyz"):
        return _from_xyz(parsed.coordinates, _FROM_D50 if space == "xyz-d50" else _FROM_D65)
    return [part or 0.0 for part in parsed.coordinates]


_FROM_D65: Final = ((3.2406, -1.5372, -0.4986), (-0.9689, 1.8758, 0.0415), (0.0557, -0.2040, 1.0570))
_FROM_D50: Final = ((3.1339, -1.6169, -0.4906), (-0.9788, 1.9161, 0.0335), (0.0719, -0.2290, 1.4052))


def _from_xyz(xyz: Sequence[float | None], matrix: tuple[tuple[float, float, float], ...]) -> list[float]:
    linear = [sum(weight * (part or 0.0) for weight, part in zip(row, xyz, strict=True)) for row in matrix]
    return [12.92 * c if c <= 0.0031308 else 1.055 * c ** (1 / 2.4) - 0.055 for c in linear]


_SYSTEM_COLORS: Final[dict[str, Rgba]] = {
    "canvas": (255, 255, 255, 1), "canvastext": (0, 0, 0, 1), "field": (255, 255, 255, 1), "fieldtext": (0, 0, 0, 1),
    "linktext": (0, 0, 238, 1), "buttonface": (239, 239, 239, 1), "buttontext": (0, 0, 0, 1),
    "window": (255, 255, 255, 1), "windowtext": (0, 0, 0, 1),
}  # fmt: skip


def _first_color(tokens: Tokens, current: Rgba) -> Rgba | None:
    return next((found for token in tokens if (found := color(token, current)) is not None), None)


def legacy_color(text: str) -> Rgba | None:
    """The colour of an HTML attribute such as ``bgcolor``: a name, ``#rgb``, ``rrggbb``."""
    import tinycss2

    text = text.strip()
    if len(text) in (3, 6) and all(letter in "0123456789abcdefABCDEF" for letter in text):
        text = f"#{text}"
    tokens = bare(tinycss2.parse_component_value_list(text[:64]))
    return color(tokens[0]) if len(tokens) == 1 else None


def over(top: Rgba, below: Rgb, alpha: float = 1.0) -> Rgb:
    """The colour seen when ``top``, made fainter by ``alpha``, lies on ``below``."""
    share_of_top = top[3] * alpha
    red, green, blue = (top[i] * share_of_top + below[i] * (1 - share_of_top) for i in range(3))
    return red, green, blue


def indistinguishable(text: Rgb, ground: Rgb) -> bool:
    """Whether a reader would overlook text of one colour on the other."""
    if max(abs(a - b) for a, b in zip(text, ground, strict=True)) > MIN_DISTANCE:
        return False
    bright, dark = sorted((_luminance(text), _luminance(ground)), reverse=True)
    return (bright + 0.05) / (dark + 0.05) < MIN_CONTRAST


def _luminance(rgb: Rgb) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in rgb)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
