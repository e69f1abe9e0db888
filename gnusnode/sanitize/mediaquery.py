"""Media queries, answered for a screen of the window's size, with a mouse and without preferences."""

from __future__ import annotations

from typing import Final

from gnusnode.sanitize.cssvalues import HEIGHT, WIDTH, Token, Tokens, bare, by_comma, idents, keyword, length


def media_matches(prelude: Tokens) -> bool:
    """Whether one of a list of media queries holds; an empty list does."""
    queries = by_comma(prelude)
    return queries == [[]] or any(_query(query) for query in queries)


def _query(tokens: list[Token]) -> bool:
    words = idents(tokens)
    negated = bool(words) and words[0] == "not"
    kind = next((word for word in words if word not in ("not", "only", "and", "or")), "all")
    holds = kind in ("all", "screen")
    if negated and kind == "all":  # `not (feature)`: only the first condition is negated
        return not _all_conditions(tokens, either="or" in words)
    holds = holds and _all_conditions(tokens, either="or" in words)
    return holds != negated


def _all_conditions(tokens: Tokens, *, either: bool) -> bool:
    answers = [_condition(token.content) for token in tokens if token.type == "() block"]
    return not answers or (any(answers) if either else all(answers))


def _condition(content: Tokens) -> bool:
    tokens = bare(content)
    if any(token.type == "() block" for token in tokens):
        return _query(tokens)
    colon = next((i for i, token in enumerate(tokens) if token.type == "literal" and token.value == ":"), None)
    if colon is not None:
        return _feature(keyword(tokens[:colon]), tokens[colon + 1 :])
    if len(tokens) > 1:
        return _range(tokens)
    return keyword(tokens) not in _ABSENT


_ABSENT: Final = frozenset({"monochrome", "grid", "inverted-colors", "prefers-reduced-motion", "prefers-contrast"})
_WORDS: Final = {
    "orientation": "landscape", "prefers-color-scheme": "light", "hover": "hover", "any-hover": "hover",
    "pointer": "fine", "any-pointer": "fine", "scripting": "enabled", "display-mode": "browser", "update": "fast",
    "prefers-reduced-motion": "no-preference", "prefers-contrast": "no-preference", "forced-colors": "none",
    "prefers-reduced-transparency": "no-preference", "prefers-reduced-data": "no-preference",
}  # fmt: skip


def _size(name: str) -> float | None:
    sizes = {"width": WIDTH, "height": HEIGHT, "device-width": WIDTH, "device-height": HEIGHT, "aspect-ratio": 1.6}
    return sizes.get(name)


def _number(token: Token) -> float | None:
    return float(token.value) if token.type == "number" else length(token, base=0, font=16)


def _feature(name: str, value: list[Token]) -> bool:
    bound, _, rest = name.partition("-") if name.startswith(("min-", "max-")) else ("", "", name)
    size = _size(rest)
    if size is None:
        return _WORDS.get(name, keyword(value)) == keyword(value)
    wanted = _number(value[0]) if value else None
    if wanted is None:
        return False
    if len(value) == 3 and value[1].type == "literal" and (under := _number(value[2])):  # a ratio: 16/9
        wanted /= under
    return size >= wanted if bound == "min" else size <= wanted if bound == "max" else abs(size - wanted) < 0.01


def _range(tokens: list[Token]) -> bool:
    """``width > 600px``, ``400px <= width <= 700px``."""
    values: list[float | None] = []
    signs: list[str] = []
    joined = ""
    for token in tokens:
        if token.type == "literal":
            joined += token.value
            continue
        if joined:
            signs.append(joined)
            joined = ""
        values.append(_size(token.lower_value) if token.type == "ident" else _number(token))
    if len(values) != len(signs) + 1:
        return False
    return all(_ordered(values[i], sign, values[i + 1]) for i, sign in enumerate(signs))


def _ordered(left: float | None, sign: str, right: float | None) -> bool:
    if left is None or right is None:
        return False
    match sign:
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case ">=":
            return left >= right
        case _:
            return sign == "=" and left == right
