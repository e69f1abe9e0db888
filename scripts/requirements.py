#!/usr/bin/env python3
"""Says what does not agree between tests/requirements.toml, the tests and docs/requirements.md.

scripts/requirements.py            exit status 1 and a list when something does not agree
scripts/requirements.py --write    writes docs/requirements.md; the rest is for people to mend
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the tests are not installed with the package

from tests import manifest  # noqa: E402  the line above has to come first

PAGE = ROOT / "docs" / "requirements.md"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    listed, found = manifest.load(), manifest.tags()
    faults = manifest.faults(listed, found)
    page = manifest.render(listed, found)
    if arguments:
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        faults.append("docs/requirements.md is out of date: run scripts/requirements.py --write")
    print("\n".join(faults) or f"{len(listed.ids)} requirements, {len(found)} tags: all agree")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
