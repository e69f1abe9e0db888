"""Trap documents through the sanitiser: what of each is caught, and what it costs; prints one JSON record a line.

    python scripts/bench/traps.py DIR [--html-kb 100] [--rounds 5]

DIR holds ``manifest.json``: a list of ``{file, technique, flags, must_contain, must_not_contain}``. One record names
every trap that was missed and the share of each kind that was caught; one gives CPU milliseconds for a page.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import record
import trio

from gnusnode.documents.reader import read_document
from gnusnode.sanitize.extract import Refused, scrub_extract
from gnusnode.sanitize.findings import INSTRUCTIONS, Finding, Kind, Severity
from gnusnode.sanitize.output import sanitize
from gnusnode.sanitize.text import scrub

FLAGS: dict[str, frozenset[Kind]] = {
    "instruction_like_text": INSTRUCTIONS,
    "tracking_or_exfil_url": frozenset({Kind.EXFIL_MARKUP}),
}
"""Flags of the manifest that are not the name of a kind of finding."""


def flags_of(findings: tuple[Finding, ...]) -> set[Kind]:
    return {item.kind for item in findings if item.severity >= Severity.FLAG}


def judge(trap: dict[str, Any], directory: Path) -> dict[str, Any]:
    """What became of one trap; ``wrong`` is empty when all is as the manifest says."""
    data = (directory / trap["file"]).read_bytes()
    try:
        found = scrub_extract(trio.run(read_document, data), scrub)
        text, findings, refused = found.text, found.findings, None
    except Refused as error:
        text, findings, refused = "", error.findings, error.reason.value
    flags = flags_of(findings)
    wrong = [f"kept {words!r}" for words in trap["must_not_contain"] if words in text]
    wrong += [f"lost {words!r}" for words in trap["must_contain"] if words not in text]
    wrong += [f"no {flag}" for flag in trap["flags"] if not flags & (FLAGS.get(flag) or {Kind(flag)})]
    if not trap["flags"] and flags:
        wrong.append(f"raised {sorted(flags)}")
    return {"technique": trap["technique"], "wrong": wrong, "flags": sorted(flags), "refused": refused}


def page(kilobytes: int) -> bytes:
    """A page of mixed elements with a style sheet."""
    sheet = "".join(f".c{n}{{color:#333;margin:0 auto}} .c{n} > a:hover{{color:red}}" for n in range(60))
    body: list[str] = []
    size = len(sheet)
    while size < kilobytes * 1024:
        n = len(body)
        body.append(
            f'<div class="c{n % 60}" style="padding:{n % 9}px"><h3>Part {n}</h3><p>Some words about item {n}, '
            f'<a href="/item/{n}">more of it</a> and <b>a few</b> that stand out, for a reader to read.</p></div>'
        )
        size += len(body[-1])
    return f"<!doctype html><title>Items</title><style>{sheet}</style>{''.join(body)}".encode()


def milliseconds(data: bytes, rounds: int) -> list[float]:
    found: list[float] = []
    for _ in range(rounds):
        before = time.process_time()
        sanitize(data, "text/html; charset=utf-8")
        found.append((time.process_time() - before) * 1000)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--html-kb", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    traps = json.loads((options.directory / "manifest.json").read_text("utf-8"))
    judged = [(trap["file"].partition("/")[0], judge(trap, options.directory)) for trap in traps]
    total, right = Counter(group for group, _ in judged), Counter(group for group, one in judged if not one["wrong"])
    figures = {
        "right": {group: f"{right[group]}/{total[group]}" for group in total},
        "wrong": [one for _, one in judged if one["wrong"]],
    }
    record.emit("traps", figures)
    sanitize(b"<p>x", "text/html")  # the rules are compiled once
    small, large = page(options.html_kb), page(options.html_kb * 10)
    timed = {"page_kb": options.html_kb, "cpu_ms": record.spread(milliseconds(small, options.rounds), 1)}
    timed["ten_times_ratio"] = round(min(milliseconds(large, 2)) / min(milliseconds(small, options.rounds)), 2)
    record.emit("traps_cost", timed)


if __name__ == "__main__":
    main()
