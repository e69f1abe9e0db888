"""Which values a browser accepts: an invalid declaration must not displace the valid one before it.

``display: none; display: bogus`` hides. Only properties that decide about visibility are checked, and only as far as
telling values from nonsense; a value with ``var()`` is accepted, as CSS demands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gnusnode.sanitize.cssvalues import Token, angle, bare, color, length, share

WIDE: Final = frozenset({"inherit", "initial", "unset", "revert", "revert-layer"})
"""Keywords that every property takes."""

_DISPLAY: Final = frozenset(
    {
        "none", "contents", "block", "inline", "inline-block", "flex", "inline-flex", "grid", "inline-grid", "flow",
        "flow-root", "table", "inline-table", "table-row", "table-cell", "table-row-group", "table-header-group",
        "table-footer-group", "table-column", "table-column-group", "table-caption", "list-item", "ruby", "ruby-text",
        "run-in", "math", "-webkit-box", "-webkit-inline-box", "-webkit-flex", "-webkit-inline-flex", "-ms-flexbox",
        "-ms-grid", "ruby-base",
    }
)  # fmt: skip
_OVERFLOW: Final = frozenset({"visible", "hidden", "clip", "scroll", "auto", "overlay"})
KEYWORDS: Final[dict[str, frozenset[str]]] = {
    "display": _DISPLAY,
    "visibility": frozenset({"visible", "hidden", "collapse"}),
    "content-visibility": frozenset({"visible", "hidden", "auto"}),
    "position": frozenset({"static", "relative", "absolute", "fixed", "sticky", "-webkit-sticky"}),
    "overflow": _OVERFLOW,
    "overflow-x": _OVERFLOW,
    "overflow-y": _OVERFLOW,
    "float": frozenset({"none", "left", "right", "inline-start", "inline-end"}),
    "isolation": frozenset({"auto", "isolate"}),
}
"""Property -> the keywords of which its value consists."""

_FONT_SIZES: Final = frozenset(
    {"xx-small", "x-small", "small", "medium", "large", "x-large", "xx-large", "xxx-large", "smaller", "larger", "math"}
)
_SIZE_WORDS: Final = frozenset({"auto", "none", "normal", "min-content", "max-content", "stretch", "from-font"})


def _is_length(token: Token) -> bool:
    if token.type == "ident":
        return token.lower_value in _SIZE_WORDS
    return length(token, base=1, font=1) is not None or (token.type == "function" and "fit" in token.lower_name)


def _is_share(token: Token) -> bool:
    return share(token) is not None


def _is_color(token: Token) -> bool:
    return color(token) is not None


def _is_font_size(token: Token) -> bool:
    if token.type == "ident":
        return token.lower_value in _FONT_SIZES
    return length(token, base=1, font=1) is not None and getattr(token, "value", 0) >= 0


def _is_size(token: Token) -> bool:
    return _is_length(token) and getattr(token, "value", 0) is not None and not _negative(token)


def _negative(token: Token) -> bool:
    return token.type in ("number", "dimension", "percentage") and token.value < 0


def _is_turn(token: Token) -> bool:
    return angle(token) is not None or token.type in ("number", "ident")


def _is_scale(token: Token) -> bool:
    return share(token) is not None or (token.type == "ident" and token.lower_value == "none")


def _is_zoom(token: Token) -> bool:
    return share(token) is not None or (token.type == "ident" and token.lower_value in ("normal", "reset"))


def _is_integer(token: Token) -> bool:
    if token.type == "ident":
        return token.lower_value == "auto"
    return (token.type == "number" and token.is_integer) or (token.type == "function" and token.lower_name == "calc")


def _is_paint(token: Token) -> bool:
    return color(token) is not None or token.type in ("ident", "url")


def _is_part_of_function_list(token: Token) -> bool:
    return token.type in ("function", "url") or (token.type == "ident" and token.lower_value == "none")


_Check = tuple[Callable[[Token], bool], int]
"""The test that every token must pass, and how many tokens there may be."""
_CHECKS: Final[dict[str, _Check]] = {
    "opacity": (_is_share, 1),
    "-webkit-opacity": (_is_share, 1),
    "fill-opacity": (_is_share, 1),
    "color": (_is_color, 1),
    "background-color": (_is_color, 1),
    "-webkit-text-fill-color": (_is_color, 1),
    "fill": (_is_paint, 2),
    "font-size": (_is_font_size, 1),
    "letter-spacing": (_is_length, 1),
    "text-indent": (_is_length, 3),
    "width": (_is_size, 1),
    "height": (_is_size, 1),
    "max-width": (_is_size, 1),
    "max-height": (_is_size, 1),
    "min-width": (_is_size, 1),
    "min-height": (_is_size, 1),
    "block-size": (_is_size, 1),
    "inline-size": (_is_size, 1),
    "margin": (_is_length, 4),
    "padding": (_is_size, 4),
    "inset": (_is_length, 4),
    "translate": (_is_length, 3),
    "scale": (_is_scale, 3),
    "rotate": (_is_turn, 4),
    "zoom": (_is_zoom, 1),
    "z-index": (_is_integer, 1),
    "transform": (_is_part_of_function_list, 64),
    "filter": (_is_part_of_function_list, 64),
    **{side: (_is_length, 1) for side in ("top", "right", "bottom", "left")},
    **{f"margin-{side}": (_is_length, 1) for side in ("top", "right", "bottom", "left")},
    **{f"padding-{side}": (_is_size, 1) for side in ("top", "right", "bottom", "left")},
}


def is_valid(name: str, tokens: tuple[Token, ...]) -> bool:
    """Whether a browser would take the declaration; True for properties that are not checked."""
    if name.startswith("--"):
        return True
    if not tokens:
        return False
    if len(tokens) == 1 and tokens[0].type == "ident" and tokens[0].lower_value in WIDE:
        return True
    if has_var(tokens):
        return True
    if known := KEYWORDS.get(name):
        return len(tokens) <= 3 and all(token.type == "ident" and token.lower_value in known for token in tokens)
    if check := _CHECKS.get(name):
        test, most = check
        return len(tokens) <= most and all(test(token) for token in tokens)
    return True


def has_var(tokens: tuple[Token, ...] | list[Token], depth: int = 0) -> bool:
    """Whether a custom property is used somewhere in the value."""
    for token in tokens:
        if token.type == "function":
            if token.lower_name in ("var", "env"):
                return True
            if depth < 8 and has_var(bare(token.arguments), depth + 1):
                return True
        elif token.type in ("() block", "[] block") and depth < 8 and has_var(token.content, depth + 1):
            return True
    return False
