"""CSS selectors, parsed from tinycss2 tokens.

Pointer and focus states (``:hover``) never match: what is judged is the page as it stands when nobody touches it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import tinycss2.nth

from gnusnode.sanitize.cssvalues import Token, Tokens, bare
from gnusnode.sanitize.elements import Budget, Compound, Element, Selector, Specificity, Test

_MAX_DEPTH: Final = 6
"""Selectors inside selectors, as in ``:not(:is(…))``."""
_MAX_COMPOUNDS: Final = 24


class _Invalid(Exception):
    """Not a selector: a browser drops the whole rule."""


def parse(prelude: Tokens, parents: tuple[Selector, ...] = (), depth: int = 0) -> tuple[Selector, ...]:
    """The selectors of a rule; empty when they are not valid, or style only pseudo-elements.

    Args:
        parents: the selectors of the rule around this one (CSS nesting), for which ``&`` stands.
    """
    try:
        found = [_selector(part, parents, depth) for part in _split(prelude)]
    except _Invalid:
        return ()
    return tuple(selector for selector in found if selector is not None)


def _split(tokens: Tokens) -> list[list[Token]]:
    parts: list[list[Token]] = [[]]
    for token in tokens:
        if token.type == "comment":
            continue
        if token.type == "literal" and token.value == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _strip(tokens: list[Token]) -> list[Token]:
    start, end = 0, len(tokens)
    while start < end and tokens[start].type == "whitespace":
        start += 1
    while end > start and tokens[end - 1].type == "whitespace":
        end -= 1
    return tokens[start:end]


def _selector(tokens: list[Token], parents: tuple[Selector, ...], depth: int) -> Selector | None:
    tokens = _strip(tokens)
    if not tokens or depth > _MAX_DEPTH:
        raise _Invalid
    if parents and not any(token.type == "literal" and token.value == "&" for token in tokens):
        tokens = [_AMPERSAND, *([] if _combinator(tokens[0]) else [_SPACE]), *tokens]
    reader = _Reader(parents, depth)
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        reader.take(token, following)
    return reader.done()


_AMPERSAND, _SPACE = tinycss2.parse_component_value_list("& ")


def _combinator(token: Token | None) -> str:
    return token.value if token is not None and token.type == "literal" and token.value in (">", "+", "~") else ""


class _Reader:
    """Builds one selector, token by token."""

    def __init__(self, parents: tuple[Selector, ...], depth: int) -> None:
        self._parents = parents
        self._depth = depth
        self._done: list[Compound] = []
        self._new = Compound()
        self._begun = False
        self._combinator = ""
        self._specificity = (0, 0, 0)
        self._dot = self._colons = 0
        self._pseudo_element = False

    def take(self, token: Token, following: Token | None) -> None:
        if self._dot:
            self._class(token)
        elif self._colons:
            self._pseudo(token)
        elif token.type == "whitespace":
            if self._begun and not _combinator(following):
                self._next(" ")
        elif found := _combinator(token):
            self._next(found)
        else:
            self._simple(token)

    def done(self) -> Selector | None:
        if not self._begun or self._dot or self._colons or len(self._done) >= _MAX_COMPOUNDS:
            raise _Invalid
        self._done.append(self._new)
        return None if self._pseudo_element else Selector(tuple(reversed(self._done)), self._specificity)

    def _next(self, combinator: str) -> None:
        if not self._begun:
            raise _Invalid
        self._done.append(self._new)
        self._new, self._begun = Compound(combinator=combinator), False

    def _count(self, specificity: Specificity) -> None:
        a, b, c = self._specificity
        self._specificity = (a + specificity[0], b + specificity[1], c + specificity[2])

    def _simple(self, token: Token) -> None:
        self._colons = 0
        match token.type:
            case "ident":
                self._new.tag = token.lower_value
                self._count((0, 0, 1))
            case "hash":
                if self._new.id and self._new.id != token.value:
                    self._test(_never)
                self._new.id = token.value
                self._count((1, 0, 0))
            case "[] block":
                self._test(_attribute(token.content))
                self._count((0, 1, 0))
            case "literal" if token.value == "*" or token.value == "|":
                pass
            case "literal" if token.value == ".":
                self._dot = 1
            case "literal" if token.value == ":":
                self._colons = 1
            case "literal" if token.value == "&":
                self._test(_any_of(self._parents) if self._parents else _is_root)
                self._count(max((parent.specificity for parent in self._parents), default=(0, 0, 0)))
            case _:
                raise _Invalid
        self._begun = True

    def _class(self, token: Token) -> None:
        if token.type != "ident":
            raise _Invalid
        self._dot = 0
        self._new.classes |= {token.value}
        self._count((0, 1, 0))

    def _pseudo(self, token: Token) -> None:
        if token.type == "literal" and token.value == ":" and self._colons == 1:
            self._colons = 2
            return
        if token.type not in ("ident", "function"):
            raise _Invalid
        name = token.lower_value if token.type == "ident" else token.lower_name
        if self._colons == 2 or name in ("before", "after", "first-line", "first-letter"):
            self._pseudo_element = True
        elif token.type == "ident":
            self._test(PLAIN_PSEUDO.get(name, _never))
            self._count((0, 1, 0))
        else:
            test, specificity = _functional(name, token.arguments, self._parents, self._depth + 1)
            self._test(test)
            self._count(specificity)
        self._colons = 0

    def _test(self, test: Test) -> None:
        self._new.tests = (*self._new.tests, test)


def _never(element: Element, budget: Budget) -> bool:
    return False


def _is_root(element: Element, budget: Budget) -> bool:
    return element.parent is None


def _is_link(element: Element, budget: Budget) -> bool:
    return element.tag in ("a", "area") and "href" in element.attributes


def _last(element: Element) -> bool:
    return element.parent is None or element.parent.children[-1] is element


def _of_type(element: Element, *, backwards: bool = False) -> int:
    """The element's number among those of its tag, from 1."""
    same = element.parent.kinds.get(element.tag, 1) if element.parent else 1
    return same - element.place + 1 if backwards else element.place


PLAIN_PSEUDO: Final[dict[str, Test]] = {
    "root": _is_root,
    "scope": _is_root,
    "link": _is_link,
    "any-link": _is_link,
    "first-child": lambda element, _: element.index == 1,
    "last-child": lambda element, _: _last(element),
    "only-child": lambda element, _: element.index == 1 and _last(element),
    "first-of-type": lambda element, _: element.place == 1,
    "last-of-type": lambda element, _: _of_type(element, backwards=True) == 1,
    "only-of-type": lambda element, _: element.place == 1 and _of_type(element, backwards=True) == 1,
    "empty": lambda element, _: not element.children and not element.has_text,
    "checked": lambda element, _: "checked" in element.attributes or "selected" in element.attributes,
    "disabled": lambda element, _: "disabled" in element.attributes,
    "enabled": lambda element, _: element.tag in _CONTROLS and "disabled" not in element.attributes,
    "required": lambda element, _: "required" in element.attributes,
    "optional": lambda element, _: element.tag in _CONTROLS and "required" not in element.attributes,
    "read-only": lambda element, _: element.tag not in _CONTROLS or "readonly" in element.attributes,
    "read-write": lambda element, _: element.tag in _CONTROLS and "readonly" not in element.attributes,
    "open": lambda element, _: "open" in element.attributes,
    "defined": lambda element, _: "-" not in element.tag,
}
_CONTROLS: Final = frozenset({"input", "textarea", "select", "button"})


def _any_of(selectors: tuple[Selector, ...]) -> Test:
    return lambda element, budget: any(selector.matches(element, budget) for selector in selectors)


def _functional(name: str, arguments: Tokens, parents: tuple[Selector, ...], depth: int) -> tuple[Test, Specificity]:
    match name:
        case "not" | "is" | "where" | "matches" | "-webkit-any" | "-moz-any":
            inner = tuple(selector for part in _split(arguments) for selector in parse(part, depth=depth))
            if name == "not" and not inner:
                raise _Invalid
            test = _any_of(inner)
            weight = max((selector.specificity for selector in inner), default=(0, 0, 0))
            if name == "not":
                return lambda element, budget: not test(element, budget), weight
            return test, (0, 0, 0) if name == "where" else weight
        case "has":
            return _has(arguments, depth)
        case "nth-child" | "nth-last-child" | "nth-of-type" | "nth-last-of-type":
            return _nth(name, arguments), (0, 1, 0)
        case "lang":
            wanted = {token.value.lower() for token in bare(arguments) if token.type in ("ident", "string")}
            return lambda element, budget: _language(element, budget) in wanted, (0, 1, 0)
        case _:
            return _never, (0, 1, 0)


def _language(element: Element | None, budget: Budget) -> str:
    while element is not None:
        budget.spend()
        if value := element.attributes.get("lang"):
            return value.lower().partition("-")[0]
        element = element.parent
    return ""


def _has(arguments: Tokens, depth: int) -> tuple[Test, Specificity]:
    """``:has(…)``: searched below the element, or among the siblings after it."""
    looks: list[tuple[str, Selector]] = []
    for part in _split(arguments):
        tokens = _strip(part)
        combinator = _combinator(tokens[0]) if tokens else ""
        found = parse(tokens[1:] if combinator else tokens, depth=depth)
        looks += [(combinator or " ", selector) for selector in found]

    def test(element: Element, budget: Budget) -> bool:
        for combinator, selector in looks:
            if any(selector.matches(other, budget) for other in _related(element, combinator, budget)):
                return True
        return False

    return test, max((selector.specificity for _, selector in looks), default=(0, 0, 0))


def _related(element: Element, combinator: str, budget: Budget) -> list[Element]:
    if combinator in ("+", "~"):
        after = element.parent.children[element.index :] if element.parent else []
        budget.spend(len(after))
        return after[:1] if combinator == "+" else after
    if combinator == ">":
        return element.children
    found: list[Element] = []
    pending = list(element.children)
    while pending:
        budget.spend()
        found.append(pending.pop())
        pending += found[-1].children
    return found


def _nth(name: str, arguments: Tokens) -> Test:
    only: tuple[Selector, ...] = ()
    tokens = list(arguments)
    for place, token in enumerate(tokens):
        if token.type == "ident" and token.lower_value == "of":
            only, tokens = parse(tokens[place + 1 :], depth=1), tokens[:place]
            break
    try:
        parsed = tinycss2.nth.parse_nth(tokens)
    except (ValueError, TypeError):
        parsed = None
    if parsed is None:
        raise _Invalid
    step, offset = parsed
    backwards = "last" in name

    def test(element: Element, budget: Budget) -> bool:
        if name.endswith("of-type"):
            place = _of_type(element, backwards=backwards)
        else:
            count = len(element.parent.children) if element.parent else 1
            place = count - element.index + 1 if backwards else element.index
        if only and not any(selector.matches(element, budget) for selector in only):
            return False
        return place == offset if step == 0 else (place - offset) % step == 0 and (place - offset) // step >= 0

    return test


def _attribute(content: Tokens) -> Test:
    tokens = bare(content)
    if not tokens or tokens[0].type != "ident":
        raise _Invalid
    name = tokens[0].lower_value
    operator = "".join(token.value for token in tokens[1:] if token.type == "literal")
    values = [token for token in tokens[1:] if token.type in ("string", "ident", "number", "dimension", "hash")]
    if not values:
        if operator:
            raise _Invalid
        return lambda element, _: name in element.attributes
    fold = len(values) > 1 and values[-1].type == "ident" and values[-1].lower_value == "i"
    wanted = values[0].value if values[0].type in ("string", "ident") else values[0].serialize()
    compare = _COMPARE.get(operator)
    if compare is None:
        raise _Invalid
    fold = fold or name in ("type", "dir", "align", "hidden", "method", "rel", "lang", "color", "face", "bgcolor")

    def test(element: Element, budget: Budget) -> bool:
        if name not in element.attributes:
            return False
        value = element.attributes[name] or ""
        budget.spend(1 + len(value) // 64)
        return compare(value.lower(), wanted.lower()) if fold else compare(value, wanted)

    return test


_COMPARE: Final[dict[str, Callable[[str, str], bool]]] = {
    "=": lambda value, wanted: value == wanted,
    "~=": lambda value, wanted: wanted in value.split(),
    "|=": lambda value, wanted: value == wanted or value.startswith(f"{wanted}-"),
    "^=": lambda value, wanted: bool(wanted) and value.startswith(wanted),
    "$=": lambda value, wanted: bool(wanted) and value.endswith(wanted),
    "*=": lambda value, wanted: bool(wanted) and wanted in value,
}
