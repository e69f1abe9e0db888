"""Reading a declared property: custom properties put in, the right part of a shorthand taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gnusnode.sanitize.css import Declarations
from gnusnode.sanitize.cssvalid import WIDE, has_var
from gnusnode.sanitize.cssvalues import Token, bare, by_comma, color, keyword

FONT_WORDS: Final = {
    "xx-small": 9.0, "x-small": 10.0, "small": 13.0, "medium": 16.0, "large": 18.0, "x-large": 24.0, "xx-large": 32.0,
    "xxx-large": 48.0,
}  # fmt: skip
_MAX_DEPTH: Final = 8
_MAX_TOKENS: Final = 256


class Reading:
    """Declarations of one element, with custom properties put in."""

    def __init__(self, declared: Declarations, custom: Mapping[str, tuple[Token, ...]]) -> None:
        self._declared = declared
        self._custom = custom

    def __call__(self, name: str) -> list[Token] | None:
        value = self._declared.get(name)
        if value is None:
            return None
        tokens: list[Token] | None = list(value.tokens)
        if has_var(value.tokens):
            tokens = self._put_in(tokens or [], 0)
        if not tokens or (len(tokens) == 1 and tokens[0].type == "ident" and tokens[0].lower_value in WIDE):
            return None
        return _longhand(name, value.name, tokens) if value.name != name else tokens

    def is_initial(self, name: str) -> bool:
        value = self._declared.get(name)
        return value is not None and keyword(value.tokens) == "initial"

    def _put_in(self, tokens: list[Token], depth: int) -> list[Token] | None:
        """The tokens with every ``var()`` replaced; None when one has no value, which voids the declaration."""
        found: list[Token] = []
        for token in tokens:
            if token.type != "function" or token.lower_name != "var":
                if token.type == "function" and has_var([token]):
                    inner = self._put_in(token.arguments, depth + 1) if depth < _MAX_DEPTH else None
                    if inner is None:
                        return None
                    token = _with_arguments(token, inner)
                found.append(token)
                continue
            name, _, fallback = _var_parts(token)
            replacement = self._custom.get(name, fallback)
            if replacement is None or depth >= _MAX_DEPTH or len(found) > _MAX_TOKENS:
                return None
            inner = self._put_in(list(replacement), depth + 1)
            if inner is None:
                return None
            found += bare(inner)
        return found[:_MAX_TOKENS]


def _var_parts(token: Token) -> tuple[str, bool, tuple[Token, ...] | None]:
    arguments = bare(token.arguments)
    name = arguments[0].value if arguments and arguments[0].type == "ident" else ""
    comma = len(arguments) > 1 and arguments[1].type == "literal" and arguments[1].value == ","
    return name, comma, tuple(arguments[2:]) if comma else None


def _with_arguments(token: Token, arguments: list[Token]) -> Token:
    return type(token)(token.source_line, token.source_column, token.name, arguments)


def _longhand(name: str, written: str, tokens: list[Token]) -> list[Token] | None:
    """The part of a shorthand's value that is for ``name``."""
    match written:
        case "margin" | "padding" | "inset":
            side = ("top", "right", "bottom", "left").index(name.rpartition("-")[2])
            place = side if side < len(tokens) else side - 2 if side - 2 in range(len(tokens)) else 0
            return [tokens[place]]
        case _ if written.startswith(("margin-", "padding-", "inset-", "overflow")) and len(tokens) > 1:
            last = name.endswith(("right", "bottom", "-y"))
            return [tokens[1 if last else 0]]
        case "background":
            return _background(name, tokens)
        case "font":
            return _font(tokens)
        case "mask" | "-webkit-mask":
            return [token for token in tokens if token.type in ("function", "url")]
        case _:
            return tokens


def _background(name: str, tokens: list[Token]) -> list[Token] | None:
    match name:
        case "background-color":
            found = [token for token in by_comma(tokens)[-1] if color(token) is not None]
        case "background-image":
            found = [token for token in tokens if is_picture(token)]
        case "background-size":
            slash = next((i for i, token in enumerate(tokens) if token.type == "literal" and token.value == "/"), None)
            found = tokens[slash + 1 : slash + 3] if slash is not None else []
        case _:
            found = [token for token in tokens if token.type == "ident" and token.lower_value == "text"]
    return found or None


def is_picture(token: Token) -> bool:
    if token.type == "url":
        return True
    return token.type == "function" and (
        "gradient" in token.lower_name or token.lower_name in ("url", "image", "image-set", "-webkit-image-set", "src")
    )


def _font(tokens: list[Token]) -> list[Token] | None:
    for token in tokens:
        if token.type in ("dimension", "percentage", "function") or keyword([token]) in FONT_WORDS:
            return [token]
        if token.type == "number" and token.value == 0:
            return [token]
    return None
