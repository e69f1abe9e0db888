"""Links and images of Markdown made inert: what a renderer would load or a reader would click stays readable only.

Detection is not needed here: whatever points to a host that is not trusted loses its brackets. So an answer that was
bent by an attacker has nothing in it that loads by itself (inline images, reference images, autolinks, nested URLs).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Set
from typing import Final
from urllib.parse import unquote, urlsplit

_INLINE: Final = re.compile(
    r"(!?)\[([^\[\]\n]{0,500})\]\([ \t]{0,4}<?((?:[^()\s<>]|\([^()\s<>]{0,500}\)){1,2000})>?(?:[ \t][^()\n]{0,500})?\)"
    r"|\]\("
)
"""A link or image; else a bracket that some renderer may yet take for the end of one."""
_REFERENCE: Final = re.compile(r"(!?)\[([^\[\]\n]{1,500})\]\[([^\[\]\n]{0,100})\]")
_DEFINITION: Final = re.compile(
    r"^[ ]{0,3}\[([^\[\]\n]{1,100})\]:[ \t]*<?(\S{1,2000}?)>?(?:[ \t]+[^\n]{0,500})?$", re.MULTILINE
)
_AUTOLINK: Final = re.compile(r"<([a-zA-Z][a-zA-Z0-9+.-]{1,20}:[^\s<>]{1,2000})>")
_ELEMENT: Final = re.compile(
    r"<(?=/?(?:script|iframe|object|embed|img|svg|video|audio|source|link|meta|base|form|style|input|button|frame|math|a)\b)",
    re.IGNORECASE,
)
_NESTED: Final = re.compile(r"https?:/*|//", re.IGNORECASE)
_MAX_UNQUOTE: Final = 3


def inert(text: str, trusted_hosts: Set[str] = frozenset()) -> str:
    """``text`` without any link, image or element that leads to a host outside ``trusted_hosts``.

    An image keeps its alternative text, a link its words and, as plain text, the host that it led to. A trusted host
    is no cover for another: a URL that carries a second URL to a stranger counts as the stranger's. Idempotent, linear.

    Args:
        trusted_hosts: exact host names in lower case.
    """
    known = {name.lower(): url for name, url in _DEFINITION.findall(text)}

    def trusted(url: str) -> bool:
        return is_trusted(url, trusted_hosts)

    text = _INLINE.sub(_rewrite(trusted, lambda match: match[3]), text)
    text = _REFERENCE.sub(_rewrite(trusted, lambda match: known.get((match[3] or match[2]).lower(), "")), text)
    text = _DEFINITION.sub(lambda match: match[0] if trusted(match[2]) else f"{match[1]} {_host(match[2])}", text)
    text = _AUTOLINK.sub(lambda match: match[0] if trusted(match[1]) else _host(match[1]), text)
    return _ELEMENT.sub("&lt;", text)


def is_trusted(url: str, trusted_hosts: Set[str]) -> bool:
    """Whether ``url``, and every URL that it carries, leads to a trusted host. Relative addresses lead nowhere else."""
    if "\\" in url:  # an escape in Markdown, a slash in a browser
        return False
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    if not parts.scheme and not parts.netloc:
        return True
    if parts.scheme not in ("http", "https", "") or parts.username is not None or host not in trusted_hosts:
        return False
    rest = parts.path + "?" + parts.query + "#" + parts.fragment
    for _ in range(_MAX_UNQUOTE):
        rest = unquote(rest)
    return not _NESTED.search(rest)


def _rewrite(trusted: Callable[[str], bool], target: Callable[[re.Match[str]], str]) -> Callable[[re.Match[str]], str]:
    def rewrite(match: re.Match[str]) -> str:
        if match[0] == "](":
            return "] ("
        url = target(match)
        if not url or trusted(url):
            return match[0]
        return match[2] if match[1] else f"{match[2]} ({_host(url)})"

    return rewrite


def _host(url: str) -> str:
    """The host of a URL as plain text that no renderer makes a link of."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        host = ""
    return host.replace(".", "\u2024") or "link removed"
