"""An ``Extract``, or a refusal, as a frame between worker and node. The node trusts no shape that a worker sends."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from gnusnode.sanitize.extract import Extract, Hidden, Refusal, Refused
from gnusnode.sanitize.findings import Finding, Kind, Severity

MAX_TEXT: Final = 8 * 1024 * 1024
"""Characters of a document's text."""
MAX_PIECES: Final = 4096


class _Found(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    text: str
    hidden: list[tuple[str, str, bool]]
    metadata: list[str]
    findings: list[tuple[int, int, str, str, int]]
    lower_trust: str


def to_frame(extract: Extract) -> dict[str, Any]:
    """The plain form of an extract, cut to size. What is cut off is hidden text and metadata, never findings."""
    return {
        "ev": "done",
        "text": _sound(extract.text[:MAX_TEXT]),
        "hidden": [[piece.reason, _sound(piece.text), piece.suspect] for piece in extract.hidden[:MAX_PIECES]],
        "metadata": [_sound(text) for text in extract.metadata[:MAX_PIECES]],
        "findings": [[f.start, f.end, f.kind.value, f.rule, int(f.severity)] for f in extract.findings],
        "lower_trust": _sound(extract.lower_trust[:MAX_TEXT]),
    }


def refusal_frame(refused: Refused) -> dict[str, Any]:
    return {"ev": "refused", "reason": refused.reason.value, "detail": refused.detail}


def from_frame(frame: dict[str, Any]) -> Extract:
    """The extract that a worker sent.

    Raises:
        Refused: the worker refused, or what it sent is no answer.
    """
    kind = frame.pop("ev", None)
    try:
        if kind == "refused":
            raise Refused(Refusal(frame["reason"]), str(frame["detail"])[:500])
        found = _Found.model_validate_json(_as_json(frame)) if kind == "done" else None
        if found is None or len(found.text) > MAX_TEXT:
            raise ValueError("no answer")
        return Extract(
            text=found.text,
            hidden=tuple(Hidden(reason[:64], text, suspect=suspect) for reason, text, suspect in found.hidden),
            metadata=tuple(found.metadata),
            findings=tuple(
                Finding(start, end, Kind(name), rule[:128], Severity(severity))
                for start, end, name, rule, severity in found.findings
            ),
            lower_trust=found.lower_trust,
        )
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        raise Refused(Refusal.PARSER_FAILED, "the parser process answered nonsense") from error


def _as_json(frame: dict[str, Any]) -> str:
    """Strict validation reads lists as tuples only from JSON."""
    import json

    return json.dumps(frame)


def _sound(text: str) -> str:
    """Text that can be encoded: lone surrogates, which a PDF may hold, are replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")
