"""JSON Schemas of the records, for people and programs that do not speak Python. Generated, never written by hand."""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import TypeAdapter

from gnusnode.contracts.memory import TrustClass
from gnusnode.contracts.registry import RECORDS

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, dict[str, Any]]:
    """The schema of each record, and of ``TrustClass``, by name; ``$id`` is ``gnus://schema/NAME``.

    ``required`` is what a writer in JSON has to give; in the signed encoding every field is present.
    """
    made = {name: cls.model_json_schema() for name, cls in RECORDS.items()}
    made["TrustClass"] = TypeAdapter(TrustClass).json_schema()
    return {name: {"$schema": DIALECT, "$id": f"gnus://schema/{name}"} | body for name, body in sorted(made.items())}


def render(schema: dict[str, Any]) -> str:
    """The text of a schema file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
