"""PDF: what is in a document besides its pages. Actions, programs, files and texts that no page shows.

``extract_pdf`` walks every object with pikepdf, reports what acts or hides, and hands a rewritten copy, without
replacement texts, to ``pdftext``, which finds out what a reader sees. Rewriting means that both parsers read the same
document. Both are native: run this in a confined process (``gnusnode.documents``).
"""

from __future__ import annotations

import io
import re
from typing import Any, Final

from gnusnode.sanitize import pdftext
from gnusnode.sanitize.extract import Extract, Hidden, Refusal, Refused, finding
from gnusnode.sanitize.findings import Finding, Kind, Severity

MAX_OBJECTS: Final = 200_000
MAX_DEPTH: Final = 64
_MAX_TEXTS: Final = 512
_MAX_TEXT: Final = 16 * 1024
_MAX_CONTENT: Final = 32 * 1024 * 1024
_TYPOGRAPHIC: Final = 4
"""A replacement text of so many characters is a ligature or a hyphen."""

ACTIONS: Final = {
    "/JavaScript": "javascript", "/Launch": "launch", "/GoToR": "remote_document", "/GoToE": "embedded_document",
    "/SubmitForm": "submit_form", "/ImportData": "import_data", "/Rendition": "rendition", "/Movie": "movie",
    "/Sound": "sound", "/RichMediaExecute": "rich_media", "/GoTo3DView": "three_d", "/Trans": "transition",
    "/SetOCGState": "layers", "/Hide": "hide", "/ResetForm": "reset_form",
}  # fmt: skip
"""Action types that do more than to jump within the document, and the rules that name them."""
_KEYS: Final = {
    "/JS": ("javascript", Kind.PDF_ACTIVE), "/JavaScript": ("javascript", Kind.PDF_ACTIVE),
    "/AA": ("additional_actions", Kind.PDF_ACTIVE), "/XFA": ("xfa", Kind.PDF_ACTIVE),
    "/RichMediaContent": ("rich_media", Kind.PDF_ACTIVE), "/EmbeddedFiles": ("embedded_files", Kind.PDF_EMBEDDED),
    "/EF": ("embedded_files", Kind.PDF_EMBEDDED), "/Collection": ("portfolio", Kind.PDF_EMBEDDED),
}  # fmt: skip
_TEXT_KEYS: Final = frozenset(
    {"/Alt", "/E", "/TU", "/V", "/DV", "/Contents", "/Title", "/Subject", "/Author", "/Keywords", "/Creator",
     "/Producer", "/T", "/Desc", "/RC", "/Subj", "/CA"}
)  # fmt: skip
_HIDDEN_FLAGS: Final = 1 | 2 | 32
"""Of an annotation: invisible, hidden, no view."""
_SAFE_LINK: Final = re.compile(r"(?:https?://[^?]*|mailto:[^?]*)$", re.IGNORECASE)


def extract_pdf(data: bytes) -> Extract:
    """Takes a PDF apart.

    Raises:
        Refused: encrypted, malformed, too large, or a parser is missing. Native code may also end the process.
    """
    try:
        import pikepdf
    except ImportError as error:
        raise Refused(Refusal.PARSER_MISSING, "pikepdf is not installed, so PDF is not read") from error
    try:
        with pikepdf.open(io.BytesIO(data), attempt_recovery=True) as document:
            walk = _Walk(pikepdf)
            walk.document(document)
            copy = io.BytesIO()
            document.save(copy, static_id=True)
    except pikepdf.PasswordError as error:
        raise Refused(Refusal.ENCRYPTED, "the PDF is encrypted") from error
    except (pikepdf.PdfError, ValueError, RuntimeError, TypeError, KeyError, AttributeError, IndexError) as error:
        # What pikepdf raises for the many ways in which objects are not what their place asks for.
        raise Refused(Refusal.MALFORMED, "the PDF cannot be parsed") from error
    seen = pdftext.read_pages(copy.getvalue())
    return Extract(
        text=seen.text,
        hidden=(*walk.hidden, *seen.hidden),
        metadata=tuple(walk.texts),
        findings=(*walk.findings, *seen.findings, *_trailing(data)),
        lower_trust=seen.layer,
    )


def _trailing(data: bytes) -> list[Finding]:
    """Data behind the end of the document: another file that shares its bytes."""
    from gnusnode.sanitize.binary import trailing

    end = data.rfind(b"%%EOF")
    return trailing(data, end + 5) if end >= 0 else []


class _Walk:
    """Goes through every object once; gathers findings and texts, and takes replacement texts out."""

    def __init__(self, pikepdf: Any) -> None:
        self._pdf = pikepdf
        self._found: dict[Finding, None] = {}
        self.hidden: list[Hidden] = []
        self.texts: list[str] = []

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(self._found)

    def _report(self, kind: Kind, rule: str, severity: Severity = Severity.FLAG) -> None:
        self._found[finding(kind, f"pdf.{rule}", severity)] = None

    def document(self, document: Any) -> None:
        """Looks at the catalogue, at all objects, and at the information about the document."""
        if len(document.objects) > MAX_OBJECTS:
            raise Refused(Refusal.TOO_LARGE, f"the PDF has more than {MAX_OBJECTS} objects")
        opened = document.Root.get("/OpenAction")
        if isinstance(opened, self._pdf.Dictionary) and str(opened.get("/S", "/GoTo")) != "/GoTo":
            self._report(Kind.PDF_ACTIVE, "open_action")
        for item in document.objects:
            self._object(item, 0)
        for item in document.trailer.get("/Info", {}).values() if "/Info" in document.trailer else ():
            self._text(item)

    def _object(self, item: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise Refused(Refusal.TOO_COMPLEX, f"objects are nested deeper than {MAX_DEPTH}")
        if isinstance(item, self._pdf.Array):
            for part in item:
                if not getattr(part, "is_indirect", False):
                    self._object(part, depth + 1)
        elif isinstance(item, self._pdf.Dictionary | self._pdf.Stream):
            self._dictionary(item, depth)

    def _dictionary(self, item: Any, depth: int) -> None:
        subtype, kind, action = (str(item.get(key, "")) for key in ("/Subtype", "/Type", "/S"))
        if kind == "/EmbeddedFile" or subtype == "/FileAttachment":
            self._report(Kind.PDF_EMBEDDED, "embedded_files")
        if action in ACTIONS:
            self._report(Kind.PDF_ACTIVE, ACTIONS[action])
        if action == "/URI" or "/URI" in item:
            self._link(item.get("/URI"))
        self._annotation(item)
        for key in list(item.keys()):
            value = item[key]
            if key in _KEYS:
                self._report(_KEYS[key][1], _KEYS[key][0])
            if key == "/ActualText":
                self._replacement(value)
                del item[key]
            elif key in _TEXT_KEYS:
                self._text(value)
            if not getattr(value, "is_indirect", False):
                self._object(value, depth + 1)
        if isinstance(item, self._pdf.Stream):
            self._stream(item, kind, subtype)

    def _link(self, target: Any) -> None:
        address = str(target) if isinstance(target, self._pdf.String) else ""
        severity = Severity.NOTICE if _SAFE_LINK.match(address) else Severity.FLAG
        self._report(Kind.PDF_ACTIVE, "link", severity)
        self._keep(address)

    def _annotation(self, item: Any) -> None:
        flags = item.get("/F")
        if "/Rect" not in item or not isinstance(flags, int) or not flags & _HIDDEN_FLAGS:
            return
        for key in ("/Contents", "/RC", "/V"):
            value = item.get(key)
            if isinstance(value, self._pdf.String) and str(value).strip():
                self.hidden.append(Hidden("annotation", str(value)[:_MAX_TEXT], suspect=True))

    def _replacement(self, value: Any) -> None:
        text = str(value) if isinstance(value, self._pdf.String) else ""
        if len(text.strip()) > _TYPOGRAPHIC and len(self.hidden) < _MAX_TEXTS:
            self.hidden.append(Hidden("actual_text", text[:_MAX_TEXT]))

    def _text(self, value: Any) -> None:
        if isinstance(value, self._pdf.String):
            self._keep(str(value))

    def _keep(self, text: str) -> None:
        if text.strip() and len(self.texts) < _MAX_TEXTS:
            self.texts.append(text[:_MAX_TEXT])

    def _stream(self, item: Any, kind: str, subtype: str) -> None:
        if kind == "/Metadata" or subtype == "/XML":
            self._keep(item.read_bytes()[:_MAX_TEXT].decode("utf-8", "replace"))
        elif subtype != "/Image" and kind not in ("/ObjStm", "/XRef", "/EmbeddedFile") and "/Length1" not in item:
            self._content(item)

    def _content(self, stream: Any) -> None:
        """Takes replacement texts out of a content stream, where marked content carries them."""
        try:
            data = stream.read_bytes()
        except self._pdf.PdfError:  # a filter that is not known: no page can show it either
            return
        if len(data) > _MAX_CONTENT:
            raise Refused(Refusal.TOO_LARGE, f"a page has more than {_MAX_CONTENT} bytes of content")
        if b"BDC" not in data or (b"ActualText" not in data and b"#" not in data):
            return
        kept: list[Any] = []
        for instruction in self._pdf.parse_content_stream(stream):
            for operand in instruction.operands:
                if isinstance(operand, self._pdf.Dictionary) and "/ActualText" in operand:
                    self._replacement(operand["/ActualText"])
                    del operand["/ActualText"]
            kept.append(instruction)
        stream.write(self._pdf.unparse_content_stream(kept))
