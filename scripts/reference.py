#!/usr/bin/env python3
"""Writes what follows from gnusnode/config/settings.py: the example file, the JSON Schema, the tables of the manual.

scripts/reference.py            exit status 1 and a list when a file differs
scripts/reference.py --write    makes them agree
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gnusnode.config import reference
from gnusnode.config.schema import schema

ROOT = Path(__file__).parents[1]
MANUAL = ROOT / "docs" / "configuration.md"


def wanted() -> dict[Path, str]:
    """Content of each generated file."""
    manual = MANUAL.read_text(encoding="utf-8")
    before, _, rest = manual.partition(reference.BEGIN)
    after = rest.partition(reference.END)[2]
    return {
        ROOT / "configs" / "gnusnode.toml.example": reference.example(),
        ROOT / "configs" / "gnusnode.schema.json": json.dumps(schema(), indent=2, ensure_ascii=False) + "\n",
        MANUAL: before + reference.markdown() + after,
    }


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    stale = [
        (path, text) for path, text in wanted().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in stale:
        if arguments:
            path.write_text(text, encoding="utf-8")
        print(
            f"{path.relative_to(ROOT)} {'written' if arguments else 'is out of date: run scripts/reference.py --write'}"
        )
    return 1 if stale and not arguments else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
