"""JSON Schema of the settings, for editors and for tools that write the file."""

from __future__ import annotations

from typing import Any

from gnusnode.config.settings import Settings


def schema() -> dict[str, Any]:
    """The schema of ``gnusnode.toml``; committed as ``configs/gnusnode.schema.json``."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "gnus://schema/gnusnode-settings",
        **Settings.model_json_schema(mode="validation"),
    }
