"""How deep a page nests, judged before it is parsed.

An HTML5 parser looks through its stack of open elements at most tags, so its work grows with the square of the depth.
A page is tokenised here just well enough to tell how many elements may be open at once.
"""

from __future__ import annotations

import re
from typing import Final

from gnusnode.sanitize.extract import Refusal, Refused

MAX_DEPTH: Final = 1024
"""Elements open at once. Browsers flatten what is deeper than 512."""
MAX_TAGS: Final = 200_000

# Possessive throughout: every character is looked at once, also where the page ends within a tag.
_TAG: Final = re.compile(
    r"""<!--(?>-?>|.*?--!?>|.*+)              # a comment
      | <(?:[!?]|/[^a-zA-Z>])[^>]*+(?:>|\Z)   # what HTML takes for a comment
      | <(/?)([a-zA-Z][^\s/>]*+)              # a tag, its attributes, its end
        (?>[\s/]++ | [^\s/>=]++ (?>\s*+ = \s*+ (?>"[^"]*+(?:"|\Z) | '[^']*+(?:'|\Z) | [^\s>]*+))?+ | =)*+
        (?:>|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)
_RAW: Final = frozenset({"script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes"})
_RAW_END: Final = {tag: re.compile(f"</{tag}(?=[\\s/>]|\\Z)", re.IGNORECASE) for tag in _RAW}
_SHALLOW: Final = frozenset(
    {
        "area", "base", "basefont", "bgsound", "br", "col", "embed", "frame", "hr", "img", "input", "keygen", "link",
        "meta", "param", "source", "track", "wbr", "image", "p", "li", "dd", "dt", "option", "td", "th", "tr", "tbody",
        "thead", "tfoot", "colgroup", "html", "head", "body",
    }
)  # fmt: skip
"""Tags that open nothing, or that end the one before them."""


def check_depth(text: str) -> None:
    """Refuses a page that nests too deep or has too many tags. Linear.

    Raises:
        Refused: ``too_complex``.
    """
    opened: dict[str, int] = {}
    depth = tags = at = 0
    while found := _TAG.search(text, at):
        at = found.end()
        name = found.group(2)
        if name is None:
            continue
        tags += 1
        tag = name.lower()
        if tag in _SHALLOW:
            continue
        if found.group(1):
            if opened.get(tag, 0) > 0:
                opened[tag] -= 1
                depth -= 1
            continue
        if tag in _RAW:
            end = _RAW_END[tag].search(text, at)
            at = end.start() if end else len(text)
        opened[tag] = opened.get(tag, 0) + 1
        depth += 1
        if depth > MAX_DEPTH or tags > MAX_TAGS:
            raise Refused(Refusal.TOO_COMPLEX, f"more than {MAX_DEPTH} elements are open at once, or {MAX_TAGS} tags")
