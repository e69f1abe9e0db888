#!/usr/bin/env python3
"""Writes the JSON Schemas of all records into configs/schemas, or says which of them are out of date.

scripts/schemas.py            exit status 1 and a list when a file differs
scripts/schemas.py --write    makes them agree with gnusnode.contracts
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the schemas of this checkout, not of an installed package

from gnusnode.contracts.schema import render, schemas  # noqa: E402  the line above has to come first

FOLDER = ROOT / "configs" / "schemas"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    wanted = {FOLDER / f"{name}.json": render(schema) for name, schema in schemas().items()}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    extra = sorted(set(FOLDER.glob("*.json")) - set(wanted))
    if not arguments:
        for path in stale + extra:
            print(f"{path.name} does not agree with gnusnode.contracts: run scripts/schemas.py --write")
        return 1 if stale or extra else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    for path in extra:
        path.unlink()
    print(f"{len(stale)} written, {len(extra)} removed, {len(wanted)} in all")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
