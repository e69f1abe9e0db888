"""Elements as style rules see them, and selectors that match them.

Matching counts its steps, so that selectors made to be slow end in ``TooComplex`` and not in a long wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


class TooComplex(Exception):
    """The document asks for more work than its size allows; it is refused."""


@dataclass(slots=True, eq=False)
class Element:
    """An element as selectors see it."""

    tag: str
    attributes: dict[str, str | None]
    parent: Element | None
    before: Element | None
    """The element before it under the same parent."""
    index: int
    """1 for the first element of its parent."""
    id: str = ""
    classes: frozenset[str] = frozenset()
    keys: tuple[str, ...] = ()
    """What rules are found by: the tag, ``.class``, ``#id``."""
    children: list[Element] = field(default_factory=lambda: _NO_CHILDREN)
    kinds: dict[str, int] = field(default_factory=lambda: _NO_KINDS)
    """How many children of each tag there are."""
    place: int = 1
    """1 for the first of its tag under its parent."""
    has_text: bool = False

    def adopt(self, child: Element) -> None:
        """Makes ``child`` the last of this element's children; most elements have none, and no containers for them."""
        if not self.children:
            self.children, self.kinds = [], {}
        self.children.append(child)
        child.index = len(self.children)
        child.place = self.kinds.get(child.tag, 0) + 1
        self.kinds[child.tag] = child.place


_NO_CHILDREN: list[Element] = []
_NO_KINDS: dict[str, int] = {}
"""Shared by all elements without children, and never changed: ``adopt`` replaces them."""


class Budget:
    """Steps that are left."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooComplex("the style sheet is too intricate for the size of the document")


Test = Callable[[Element, Budget], bool]
Specificity = tuple[int, int, int]


@dataclass(slots=True, eq=False)
class Compound:
    """Simple selectors that one element must satisfy. ``combinator`` ties it to the compound on its left."""

    tag: str = ""
    id: str = ""
    classes: frozenset[str] = frozenset()
    tests: tuple[Test, ...] = ()
    combinator: str = ""

    def matches(self, element: Element, budget: Budget) -> bool:
        budget.spend()
        return (
            (not self.tag or self.tag == element.tag)
            and (not self.id or self.id == element.id)
            and self.classes <= element.classes
            and all(test(element, budget) for test in self.tests)
        )


@dataclass(slots=True, eq=False)
class Selector:
    """Compounds from right to left."""

    compounds: tuple[Compound, ...]
    specificity: Specificity

    @property
    def subject(self) -> Compound:
        """What the styled element itself must satisfy."""
        return self.compounds[0]

    def matches(self, element: Element, budget: Budget) -> bool:
        return self.subject.matches(element, budget) and self._rest(element, 0, budget)

    def _rest(self, element: Element, at: int, budget: Budget) -> bool:
        """Whether what stands left of compound ``at``, which ``element`` satisfies, is satisfied too."""
        if at + 1 == len(self.compounds):
            return True
        combinator, left = self.compounds[at].combinator, self.compounds[at + 1]
        step = _parent if combinator in (" ", ">") else _before
        candidate = step(element)
        while candidate is not None:
            if left.matches(candidate, budget) and self._rest(candidate, at + 1, budget):
                return True
            if combinator in (">", "+"):
                return False
            candidate = step(candidate)
        return False


def _parent(element: Element) -> Element | None:
    return element.parent


def _before(element: Element) -> Element | None:
    return element.before
