"""What an answer may be made of: its declared type and its first bytes must agree on one that we can clean. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from gnusnode.web.refusals import Reason, WebRefused

TEXT_TYPES: Final = frozenset(
    {
        "text/html",
        "application/xhtml+xml",
        "text/plain",
        "text/markdown",
        "text/csv",
        "application/json",
        "application/xml",
        "text/xml",
        "application/atom+xml",
        "application/rss+xml",
    }
)
PAGE_TYPES: Final = TEXT_TYPES | {"application/pdf"}
"""What a page that is read for its text may be."""
SNIFFED_BYTES: Final = 1024

_MEDIA_TYPE: Final = re.compile(r"[a-z0-9.+-]{1,64}/[a-z0-9.+-]{1,64}")
_CHARSET: Final = re.compile(r"charset\s*=\s*\"?([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_HTML: Final = re.compile(rb"\s*(<!--|<!doctype\s+html|<(html|head|body|script|iframe|svg|style|title|meta)\b)", re.I)
_MAGIC: Final = (
    (b"%PDF-", "application/pdf"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"\x7fELF", "application/x-executable"),
    (b"\xca\xfe\xba\xbe", "application/x-executable"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
)
_TEXT_MARKS: Final = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


def declared_type(header: str, allowed: Collection[str], where: str) -> tuple[str, str | None]:
    """Media type and character set of a ``Content-Type`` header.

    Raises:
        WebRefused: CONTENT_TYPE, there is none, or it is not in ``allowed``.
    """
    media, _, parameters = header.partition(";")
    media = media.strip().lower()
    if not _MEDIA_TYPE.fullmatch(media) or media not in allowed:
        raise WebRefused(Reason.CONTENT_TYPE, f"the content type {media[:128]!r} is not accepted", where=where)
    charset = _CHARSET.search(parameters)
    return media, charset[1].lower() if charset else None


def actual_type(declared: str, head: bytes, where: str) -> str:
    """The type as which a body that begins with ``head`` has to be treated.

    Text that begins like a page of HTML is one, whatever was declared: a reader that is stricter than needed loses
    nothing, one that shows markup as text lets hidden words through.

    Raises:
        WebRefused: CONTENT_TYPE, the bytes are of another type than declared.
    """
    found = next((media for magic, media in _MAGIC if head.startswith(magic)), None)
    if found == declared:
        return declared
    if found is not None or declared not in TEXT_TYPES or _is_binary(head):
        shown = found or "something else"
        raise WebRefused(Reason.CONTENT_TYPE, f"declared as {declared}, but the bytes are {shown}", where=where)
    if _HTML.match(head.lstrip(b"\xef\xbb\xbf")) and declared != "application/xhtml+xml":
        return "text/html"
    return declared


def _is_binary(head: bytes) -> bool:
    return b"\0" in head[:SNIFFED_BYTES] and not head.startswith(_TEXT_MARKS)
