"""The cascade: which declarations hold for an element, as a browser with a desktop window would find.

``Sheet`` takes the text of ``<style>`` elements in order; ``Sheet.declared`` gives an element's winning declarations by
importance, layer, specificity and order, with the inline style among them. Style sheets of other files are not loaded;
nothing is.
"""

from __future__ import annotations

import binascii
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final
from urllib.parse import unquote_to_bytes

import tinycss2

from gnusnode.sanitize import selectors
from gnusnode.sanitize.cssvalid import is_valid
from gnusnode.sanitize.cssvalues import Token, Tokens, bare, by_comma, keyword
from gnusnode.sanitize.elements import Budget, Element, Selector
from gnusnode.sanitize.mediaquery import media_matches

_MAX_NESTING: Final = 8
_NO_LAYER: Final = 1 << 20

SHORTHANDS: Final[dict[str, tuple[str, ...]]] = {
    "inset": ("top", "right", "bottom", "left"),
    "inset-block": ("top", "bottom"),
    "inset-inline": ("left", "right"),
    "inset-block-start": ("top",),
    "inset-block-end": ("bottom",),
    "inset-inline-start": ("left",),
    "inset-inline-end": ("right",),
    "margin": ("margin-top", "margin-right", "margin-bottom", "margin-left"),
    "margin-inline": ("margin-left", "margin-right"),
    "margin-inline-start": ("margin-left",),
    "margin-block": ("margin-top", "margin-bottom"),
    "margin-block-start": ("margin-top",),
    "padding": ("padding-top", "padding-right", "padding-bottom", "padding-left"),
    "padding-block": ("padding-top", "padding-bottom"),
    "padding-inline": ("padding-left", "padding-right"),
    "overflow": ("overflow-x", "overflow-y"),
    "overflow-block": ("overflow-y",),
    "overflow-inline": ("overflow-x",),
    "background": ("background-color", "background-image", "background-clip", "background-size"),
    "-webkit-background-clip": ("background-clip",),
    "font": ("font-size",),
    "block-size": ("height",),
    "inline-size": ("width",),
    "max-block-size": ("max-height",),
    "max-inline-size": ("max-width",),
    "-webkit-clip-path": ("clip-path",),
    "-webkit-transform": ("transform",),
    "-webkit-filter": ("filter",),
    "-webkit-mask": ("mask-image",),
    "-webkit-mask-image": ("mask-image",),
    "mask": ("mask-image",),
    "-webkit-opacity": ("opacity",),
}

RELEVANT: Final = frozenset(
    {
        "display", "visibility", "content-visibility", "opacity", "color", "background-color", "background-image",
        "background-clip", "-webkit-text-fill-color", "font-size", "letter-spacing", "text-indent", "position", "top",
        "right", "bottom", "left", "margin-top", "margin-right", "margin-bottom", "margin-left", "padding-top",
        "padding-right", "padding-bottom", "padding-left", "width", "height", "max-width", "max-height", "min-width",
        "min-height", "overflow-x", "overflow-y", "clip", "clip-path", "transform", "translate",
        "scale", "rotate", "zoom", "filter", "mask-image", "background-size", "fill", "fill-opacity",
        "z-index", "float", "contain", "animation", "animation-name", "animation-fill-mode", "text-shadow",
        "line-height", "isolation",
    }
)  # fmt: skip
"""Longhand properties that decide whether text can be seen; no other is kept."""


@dataclass(frozen=True, slots=True)
class Value:
    """The tokens of a declaration, and the name under which they were written, which may be a shorthand."""

    name: str
    tokens: tuple[Token, ...]


Declarations = dict[str, Value]
"""Longhand (or custom) property -> its value."""


@dataclass(slots=True)
class Block:
    """The declarations of one rule, split by importance."""

    normal: Declarations = field(default_factory=dict[str, Value])
    important: Declarations = field(default_factory=dict[str, Value])

    def __bool__(self) -> bool:
        return bool(self.normal or self.important)


@dataclass(slots=True)
class Rule:
    selector: Selector
    block: Block
    layer: int
    order: int
    needs: tuple[str, ...]
    """Keys of what must stand above the element."""

    @property
    def rank(self) -> tuple[int, tuple[int, int, int], int]:
        return self.layer, self.selector.specificity, self.order


EMPTY: Final = Block()


def block_of(declarations: Iterable[Token]) -> Block:
    """The declarations that matter, shorthands spread over their longhands."""
    block = Block()
    for item in declarations:
        if item.type != "declaration":
            continue
        name = item.name if item.name.startswith("--") else item.lower_name
        targets = (name,) if name.startswith("--") or name in RELEVANT else SHORTHANDS.get(name, ())
        if not targets:
            continue
        value = Value(name, tuple(bare(item.value)))
        if not is_valid(name, value.tokens):
            continue  # as a browser does: the declaration before it stays in force
        into = block.important if item.important else block.normal
        for target in targets:
            into.pop(target, None)  # a later declaration also wins the place
            into[target] = value
    return block


def inline_block(style: str) -> Block:
    """The block of a ``style`` attribute."""
    return block_of(tinycss2.parse_blocks_contents(style, skip_comments=True, skip_whitespace=True))


class Sheet:
    """All style rules of a document, indexed by what the styled element must have."""

    def __init__(self, *, quirks: bool = False) -> None:
        """``quirks``: the document has no doctype, so that classes and ids are compared without regard to case."""
        self.keyframes: dict[str, Block] = {}
        """Animation name -> where it ends."""
        self._quirks = quirks
        self._rules: dict[str, dict[str, list[Rule]]] = defaultdict(lambda: defaultdict(list))
        """Key of the styled element -> key of something above it, or nothing -> rules."""
        self._candidates: dict[tuple[str, ...], list[tuple[str, list[Rule]]]] = {}
        """Keys of an element -> the part of ``_rules`` that may concern it."""
        self._layers: dict[str, int] = {}
        self._order = 0
        self._texts: dict[str, None] = {}

    def add(self, text: str) -> None:
        """Adds the rules of a style sheet. Rules that a browser would not understand are left out; never raises.

        A sheet that was added before moves to the end: its first copy decides nothing any more.
        """
        self._texts.pop(text, None)
        self._texts[text] = None

    def build(self) -> None:
        """Parses what was added; to be called once, before the first question."""
        for text in self._texts:
            rules = tinycss2.parse_stylesheet(text, skip_comments=True, skip_whitespace=True)
            self._add(rules, (), _NO_LAYER, 0)
        self._texts.clear()

    def _add(self, rules: Iterable[Token], parents: tuple[Selector, ...], layer: int, depth: int) -> None:
        if depth > _MAX_NESTING:
            return
        for rule in rules:
            if rule.type == "qualified-rule":
                self._add_style(rule, parents, layer, depth)
            elif rule.type == "at-rule":
                self._add_at_rule(rule, parents, layer, depth)

    def _add_style(self, rule: Token, parents: tuple[Selector, ...], layer: int, depth: int) -> None:
        found = selectors.parse(rule.prelude, parents)
        if not found:
            return
        contents = tinycss2.parse_blocks_contents(rule.content, skip_comments=True, skip_whitespace=True)
        self._keep(found, block_of(contents), layer)
        nested = [item for item in contents if item.type in ("qualified-rule", "at-rule")]
        if nested:
            self._add(nested, found, layer, depth + 1)

    def _keep(self, found: tuple[Selector, ...], block: Block, layer: int) -> None:
        if not block:
            return
        self._order += 1
        for selector in found:
            if self._quirks:
                _fold(selector)
            subject = selector.subject
            key = f"#{subject.id}" if subject.id else f".{min(subject.classes)}" if subject.classes else subject.tag
            needs = _needs(selector)
            self._rules[key][needs[0] if needs else ""].append(Rule(selector, block, layer, self._order, needs))

    def _add_at_rule(self, rule: Token, parents: tuple[Selector, ...], layer: int, depth: int) -> None:
        name = rule.lower_at_keyword
        if name == "layer":
            layer = self._layer(rule.prelude, known=rule.content is None)
        if rule.content is None:
            if name == "import":
                self._import(rule, layer, depth)
            return
        if name in ("keyframes", "-webkit-keyframes"):
            self._add_keyframes(rule)
        elif name in ("media", "supports", "layer", "container", "scope"):
            if name == "media" and not media_matches(rule.prelude):
                return
            if name == "supports" and keyword(bare(rule.prelude)) == "not":
                return
            contents = tinycss2.parse_blocks_contents(rule.content, skip_comments=True, skip_whitespace=True)
            if parents:
                self._keep(parents, block_of(contents), layer)
            self._add(contents, parents, layer, depth + 1)

    def _import(self, rule: Token, layer: int, depth: int) -> None:
        """An imported sheet, where its address holds it; nothing is loaded."""
        prelude = bare(rule.prelude)
        if not prelude or not media_matches([token for token in prelude[1:] if token.type != "function"]):
            return
        if text := inline_sheet(_address(prelude[0])):
            rules = tinycss2.parse_stylesheet(text, skip_comments=True, skip_whitespace=True)
            self._add(rules, (), layer, depth + 1)

    def _layer(self, prelude: Tokens, *, known: bool) -> int:
        """The rank of a cascade layer: later ones win, rules outside of layers win over all."""
        names = ["".join(token.serialize() for token in part) for part in by_comma(prelude)]
        for name in names if known else names[:1]:
            self._layers.setdefault(name or f"({len(self._layers)})", len(self._layers))
        return self._layers.get(names[0], len(self._layers) - 1)

    def _add_keyframes(self, rule: Token) -> None:
        name = next((token.value for token in bare(rule.prelude) if token.type in ("ident", "string")), "")
        for item in tinycss2.parse_rule_list(rule.content, skip_comments=True, skip_whitespace=True):
            frame: Token = item
            if name and frame.type == "qualified-rule" and any(_is_end(token) for token in frame.prelude):
                self.keyframes[name] = block_of(
                    tinycss2.parse_blocks_contents(frame.content, skip_comments=True, skip_whitespace=True)
                )

    def concerns(self, element: Element) -> bool:
        """Whether any rule may match an element with these keys."""
        return bool(self._groups(element))

    def _groups(self, element: Element) -> list[tuple[str, list[Rule]]]:
        found = self._candidates.get(element.keys)
        if found is None:
            groups = [self._rules[key] for key in ("", *element.keys) if key in self._rules]
            found = self._candidates[element.keys] = [item for group in groups for item in group.items()]
        return found

    def matching(self, element: Element, budget: Budget, above: Mapping[str, int]) -> tuple[Rule, ...]:
        """The rules whose selector the element satisfies, weakest first.

        Args:
            above: how many ancestors have each key (see ``Element.keys``): most rules fail by it at once.
        """
        candidates = self._groups(element)
        if not candidates:
            return ()
        budget.spend(len(candidates) // 8)
        found: list[Rule] = []
        for need, rules in candidates:
            if not need or above.get(need):
                likely = [rule for rule in rules if _may_match(rule, above)]
                found += [rule for rule in likely if rule.selector.matches(element, budget)]
        if len(found) > 1:
            found.sort(key=lambda rule: rule.rank)
        return tuple(found)


def _may_match(rule: Rule, above: Mapping[str, int]) -> bool:
    return len(rule.needs) < 2 or all(above.get(key) for key in rule.needs)


def cascade(rules: tuple[Rule, ...], inline: Block) -> Declarations:
    """What is declared once everything is weighed. Important declarations win, and among them the earlier layer."""
    declared: Declarations = {}
    for rule in rules:
        declared.update(rule.block.normal)
    declared.update(inline.normal)
    if any(rule.block.important for rule in rules):
        for rule in sorted(rules, key=lambda rule: (-rule.layer, *rule.rank[1:])):
            declared.update(rule.block.important)
    declared.update(inline.important)
    return declared


def _needs(selector: Selector) -> tuple[str, ...]:
    keys: list[str] = []
    for compound, left in pairwise(selector.compounds):
        if compound.combinator in (" ", ">"):
            keys += [f".{name}" for name in left.classes]
            keys += [key for key in (left.tag, left.id and f"#{left.id}") if key]
    return tuple(keys)


def _is_end(token: Token) -> bool:
    """Whether a keyframe is the last: ``to`` or ``100%``."""
    if token.type == "ident":
        return token.lower_value == "to"
    return token.type == "percentage" and token.value == 100


def _address(token: Token) -> str:
    if token.type in ("string", "url"):
        return token.value
    arguments = bare(token.arguments) if token.type == "function" and token.lower_name == "url" else []
    return arguments[0].value if arguments and arguments[0].type == "string" else ""


def inline_sheet(address: str) -> str:
    """The style sheet that a ``data:`` address holds; empty for any other address."""
    head, comma, body = address.strip().partition(",")
    kind = head.lower().replace(" ", "")
    if not comma or not kind.startswith("data:text/css"):
        return ""
    plain = unquote_to_bytes(body)
    if kind.endswith(";base64"):
        try:
            plain = binascii.a2b_base64(plain)
        except binascii.Error:
            return ""
    return plain.decode("utf-8", "replace")


def _fold(selector: Selector) -> None:
    for compound in selector.compounds:
        compound.id = compound.id.lower()
        compound.classes = frozenset(name.lower() for name in compound.classes)
