"""docs/api.md says what there is."""

from __future__ import annotations

import re
from pathlib import Path

from gnusnode.errors import GnusError
from tests.unit.api.scripted import ScriptedNode
from tests.unit.api.serving import client_of

DOCUMENT = Path(__file__).parents[3] / "docs" / "api.md"
TEXT = DOCUMENT.read_text("utf-8")


async def test_every_route_is_documented(node: ScriptedNode) -> None:
    async with client_of(node) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    # A route stands in a table as a whole, or as the end that differs from the one before it.
    documented = set(re.findall(r"/[\w/{}.]+", TEXT))
    shortened = {re.sub(r"\{\w+\}", "{id}", path) for path in documented}
    missing = [
        path
        for path in (re.sub(r"\{[^}]+\}", "{id}", path) for path in paths)
        if path not in shortened and "/" + path.rpartition("/")[2] not in shortened
    ]
    assert missing == []


def test_every_error_code_that_a_client_can_meet_is_documented() -> None:
    codes = {code for code, cls in GnusError._by_code.items() if cls.status != 500 and not code.startswith("test")}
    assert {code for code in codes if f"`{code}`" not in TEXT} == set()
