"""How an answer stands in a signed package; expert and reader agree on it here."""

from __future__ import annotations

from typing import Any, Final

from gnusnode.contracts import ids

MAX_ANSWER: Final = 500_000
"""Characters of an answer that fit a package; of a longer one it carries digest and length."""


def packaged(answer: str) -> str | dict[str, Any]:
    """The answer as a package carries it: itself or ``{sha256, characters}`` where it is longer than ``MAX_ANSWER``."""
    if len(answer) <= MAX_ANSWER:
        return answer
    return {"sha256": ids.sha256(answer.encode("utf-8", "surrogatepass")), "characters": len(answer)}
