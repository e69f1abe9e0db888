"""Links, images and active elements of a page: what stays a link, what is reported, what is looked into.

Only links to the page's own host stay links. A link to another host keeps its text and names the host, without an
address that a program would load or a reader could click on.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from gnusnode.sanitize.elements import Element
from gnusnode.sanitize.extract import finding
from gnusnode.sanitize.findings import Finding, Kind, Severity
from gnusnode.sanitize.plaintext import Writer

_MAX_URL: Final = 512
_MAX_SCANNED: Final = 64
_SCANNED_TEXT: Final = 8192
_BLANKS: Final = re.compile(r"[\x00-\x20\x7f]+")
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_ADDRESSES: Final = frozenset(
    {"href", "src", "action", "formaction", "data", "poster", "xlink:href", "srcset", "background", "ping"}
)
_LOADED: Final = frozenset({"img", "image", "video", "audio", "embed", "object"})
_INNER: Final = frozenset({"iframe", "frame", "object", "embed", "applet", "portal", "fencedframe"})
_PROGRAMS: Final = frozenset({"javascript", "vbscript", "data", "livescript", "blob", "filesystem"})
_PICTURES: Final = ("data:image/png", "data:image/jpeg", "data:image/gif", "data:image/webp", "data:image/avif")


class Links:
    """Looks at each element once; gathers findings and texts to be scanned."""

    def __init__(self, url: str) -> None:
        """``url`` is the page's own address; empty when it has none, so that every host is another."""
        self._base = url
        self._host = _host(url)
        self._found: dict[Finding, None] = {}
        self.scanned: list[str] = []
        """Decoded content of ``data:`` addresses and of inner documents."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(self._found)

    def _report(self, kind: Kind, rule: str, severity: Severity) -> None:
        self._found[finding(kind, rule, severity)] = None

    def look_at(self, element: Element, *, hidden: bool) -> None:
        """Reports what is active about an element; ``hidden``: it is not seen."""
        attributes = element.attributes
        if element.tag == "base":
            self._rebase(attributes.get("href") or "")
        elif element.tag in _INNER:
            inner = attributes.get("srcdoc")
            if inner:
                self._scan(inner)
            self._report(Kind.ACTIVE_CONTENT, "active.inner_document", Severity.FLAG if inner else Severity.NOTICE)
        elif element.tag == "meta" and (attributes.get("http-equiv") or "").strip().lower() == "refresh":
            self._report(Kind.ACTIVE_CONTENT, "active.refresh", Severity.FLAG)
        for name, value in attributes.items():
            if name in _ADDRESSES:
                if value:
                    self._address(element, value, hidden=hidden)
            elif name.startswith("on"):
                self._report(Kind.ACTIVE_CONTENT, "active.handler", Severity.NOTICE)

    def _rebase(self, href: str) -> None:
        if not href:
            return
        base = _joined(self._base, href)
        if _host(base) != self._host:
            self._report(Kind.ACTIVE_CONTENT, "active.base", Severity.FLAG)
        self._base = base

    def _scan(self, text: str) -> None:
        if len(self.scanned) < _MAX_SCANNED:
            self.scanned.append(text[:_SCANNED_TEXT])

    def _address(self, element: Element, value: str, *, hidden: bool) -> None:
        plain = _BLANKS.sub("", value) if element.tag != "a" or ":" in value else ""  # the most common case by far
        scheme = _SCHEME.match(plain)
        word = scheme.group(1).lower() if scheme else ""
        if word not in _PROGRAMS:
            if element.tag in _LOADED:
                self._loaded(element, value, hidden=hidden)
        elif not plain.lower().startswith(_PICTURES):
            self._report(Kind.ACTIVE_CONTENT, f"active.{word}_address", Severity.FLAG)
            self._scan(unquote(value[:_SCANNED_TEXT]))

    def _loaded(self, element: Element, value: str, *, hidden: bool) -> None:
        """An address that a browser would fetch by itself, and could carry something out with."""
        target = _joined(self._base, value)
        host = _host(target)
        if not host or host == self._host or "?" not in target:
            return
        sizes = [(element.attributes.get(name) or "").strip() for name in ("width", "height")]
        pixel = hidden or "0" in sizes or "1" in sizes
        self._report(Kind.EXFIL_MARKUP, "exfil.image", Severity.FLAG if pixel else Severity.NOTICE)

    def close(self, element: Element, writer: Writer, mark: int) -> None:
        """Ends a link whose text was written since ``mark``."""
        href = (element.attributes.get("href") or "").strip()
        text = writer.since(mark).strip()
        if not text or not href or href.startswith("#"):
            return
        target = _joined(self._base, href)
        parts = _split(target)
        if parts is None or parts.scheme.lower() not in ("http", "https"):
            return
        host = _host(target)
        if host and host == self._host and len(target) <= _MAX_URL and not _BLANKS.search(target):
            writer.mark(f" <{target}>")
        elif host and host not in text:
            writer.mark(f" [{host[:100]}]")


def _joined(base: str, href: str) -> str:
    """``href`` as seen from ``base``, as browsers do it: backslashes are slashes, blanks and controls are nothing."""
    plain = _BLANKS.sub("", href).replace("\\", "/")
    try:
        return urljoin(base, plain)
    except ValueError:
        return plain


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _host(url: str) -> str:
    """Scheme-less host and port of an address, in lower case; empty when it has none."""
    parts = _split(url)
    if parts is None:
        return ""
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    return (parts.hostname or "") + port
