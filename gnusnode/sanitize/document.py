"""One door for documents: bytes and a content type in, an ``Extract`` out, or a refusal with its reason.

Text, Markdown and JSON are no documents in this sense: the text scrubber takes them as they are.
"""

from __future__ import annotations

from typing import Final

from gnusnode.sanitize import kinds
from gnusnode.sanitize.audio import extract_audio
from gnusnode.sanitize.extract import Extract, Refusal, Refused
from gnusnode.sanitize.html import extract_html
from gnusnode.sanitize.images import extract_image
from gnusnode.sanitize.kinds import Media

MAX_BYTES: Final = 32 * 1024 * 1024
NATIVE: Final = frozenset({Media.PDF})
"""Kinds that are read in a confined process only (``gnusnode.documents``): their parsers have a history of faults."""


def extract(data: bytes, declared: str = "", *, url: str = "") -> Extract:
    """Takes a document apart, whatever its kind.

    Args:
        declared: the content type that came with it; empty: none did.
        url: where it came from.

    Raises:
        Refused: unknown, contradicting or unsupported type; too large; cannot be parsed; or text, which is no document.
    """
    kind = identify(data, declared)
    if kind in NATIVE:
        from gnusnode.sanitize.pdf import extract_pdf  # numpy and native libraries: only where they are needed

        return extract_pdf(data)
    if kind is Media.HTML:
        return extract_html(data, url=url, charset=kinds.charset(declared))
    return extract_image(data, kind) if kind in kinds.IMAGES else extract_audio(data, kind)


def identify(data: bytes, declared: str = "") -> Media:
    """The kind of a document.

    Raises:
        Refused: see ``extract``.
    """
    if len(data) > MAX_BYTES:
        raise Refused(Refusal.TOO_LARGE, f"the document has more than {MAX_BYTES} bytes")
    kind = kinds.identify(data, declared)
    if kind in kinds.TEXTS:
        raise Refused(Refusal.UNSUPPORTED_TYPE, "plain text is no document: it goes to the text scrubber as it is")
    return kind
