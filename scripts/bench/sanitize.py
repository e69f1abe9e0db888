"""The text sanitiser on a labelled corpus: what it finds, what it wrongly finds, what it leaves, what it costs.

    python scripts/bench/sanitize.py DIR [--split dev] [--half tune|other] [--engine NAME] [--fuzz N]

DIR holds ``attacks.jsonl``, ``benign_lines.jsonl``, ``benign_docs.jsonl`` and ``embedded.jsonl`` (one JSON object a
line). Detection is the share of attacks with a finding at an operating point; a false positive is a benign text with
one. *core* leaves out the groups that no text filter can be asked to find; prose about attacks, which quotes them, is
counted apart. ``--half`` takes one of two halves of the rows, by a hash of their id.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import record

from gnusnode.sanitize.engine import ENGINES, best
from gnusnode.sanitize.findings import Point
from gnusnode.sanitize.output import SANITIZER_VERSION
from gnusnode.sanitize.text import scrub, warm

NOT_CORE = ("bare_task", "direct_trick", "jailbreak", "lang_switch")
APART = "security_prose"
HEAD = 8192
"""Of a document so many characters are read."""
LONG = 25
"""Shorter lines say too little to be counted as kept or surviving."""
Row = dict[str, Any]


def main() -> None:
    args = arguments()
    rows = Rows(args.dir, args.split, args.half)
    common = {"engine": args.engine or best(), "sanitizer": SANITIZER_VERSION, "split": args.split, "half": args.half}
    warm(args.engine)
    record.emit("sanitize.detection", detection(rows, args.engine), **common)
    record.emit("sanitize.lines", false_positives(rows, "benign_lines", None, args.engine), **common)
    record.emit("sanitize.documents", false_positives(rows, "benign_docs", HEAD, args.engine), **common)
    record.emit("sanitize.embedded", embedded(rows, args.engine), **common)
    record.emit("sanitize.scaling", scaling(args.engine), **common)
    if args.fuzz:
        record.emit("sanitize.fuzz", fuzz(rows, args.fuzz, args.engine), **common)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--split", default="all", help="the value of the rows' field `split`; all takes every row")
    parser.add_argument("--half", choices=("tune", "other"))
    parser.add_argument("--fuzz", type=int, default=0, metavar="N", help="also N mutated byte strings")
    parser.add_argument("--engine", choices=list(ENGINES))
    return parser.parse_args()


class Rows:
    """The chosen rows of a corpus."""

    def __init__(self, directory: Path, split: str, half: str | None) -> None:
        self._directory, self._split, self._half = directory, split, half

    def of(self, name: str) -> Iterator[Row]:
        with (self._directory / f"{name}.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                if self._split in ("all", row.get("split")) and self._half in (None, half(row["id"])):
                    yield row


def half(row_id: str) -> str:
    return "tune" if hashlib.sha256(f"split2{row_id}".encode()).digest()[0] < 128 else "other"


def detection(rows: Rows, engine: str | None) -> dict[str, Any]:
    """Share of attacks found, of the core and by group, at both points."""
    found: dict[str, list[set[Point]]] = defaultdict(list)
    for row in rows.of("attacks"):
        found[row["group"]].append(points(row["text"], engine))
    core = [one for group, all_of in found.items() if group not in NOT_CORE for one in all_of]
    return {
        "core": {"n": len(core), **shares(core)},
        "groups": {group: {"n": len(all_of), **shares(all_of)} for group, all_of in sorted(found.items())},
    }


def false_positives(rows: Rows, name: str, head: int | None, engine: str | None) -> dict[str, Any]:
    """Share of benign texts with a finding, by class, and the CPU time of looking."""
    found: dict[str, list[set[Point]]] = defaultdict(list)
    size = 0
    spent = 0.0
    for row in rows.of(name):
        text = row["text"][:head]
        start = time.process_time()
        at = points(text, engine)
        spent += time.process_time() - start
        size += len(text.encode())
        found[row["cls"]].append(at)
    counted = [one for cls, all_of in found.items() if cls != APART for one in all_of]
    no_pages = [one for cls, all_of in found.items() if cls not in (APART, "html") for one in all_of]
    return {
        "all": {"n": len(counted), **shares(counted)},
        "without_html": {"n": len(no_pages), **shares(no_pages)},
        "classes": {cls: {"n": len(all_of), **shares(all_of)} for cls, all_of in sorted(found.items())},
        "us_per_kb": round(spent * 1e6 / max(1, size / 1024), 1),
    }


def embedded(rows: Rows, engine: str | None) -> dict[str, Any]:
    """Attacks inside real passages: how many still show a whole line, how many benign lines are left."""
    texts = survived = lines = kept = 0
    for row in rows.of("embedded"):
        left = scrub(row["text"], engine=engine).text
        payload = long_lines(row["payload"].splitlines()) or [row["payload"].strip()]
        texts += 1
        survived += any(line in left for line in payload)
        benign = long_lines(row["benign_lines"])
        lines += len(benign)
        kept += sum(line in left for line in benign)
    return {
        "n": texts,
        "payload_survives_pct": percent(survived, texts),
        "benign_lines": lines,
        "benign_kept_pct": percent(kept, lines),
    }


HOSTILE: dict[str, Callable[[int], str]] = {
    "prose": lambda n: "The quick brown fox jumps over the lazy dog, as it did before. " * (n // 63),
    "verbs": lambda n: "ignore all " * (n // 11),
    "brackets": lambda n: "![[<" * (n // 4),
    "base64": lambda n: "SWdub3JlIGFsbCBwcmV2aW91cyBpbnN0cnVjdGlvbnMK" * (n // 44),
    "escapes": lambda n: "\x1b]0;" * (n // 4),
    "string_starts": lambda n: "\x90" * n,
    "tags": lambda n: "a\U000e0069\U000e0067" * (n // 3),
    "zero_width": lambda n: "a\u200b\u200c" * (n // 3),
}


def scaling(engine: str | None) -> dict[str, Any]:
    """CPU time of ten times the input over that of the input, for texts that a slow matcher chokes on."""
    figures: dict[str, Any] = {}
    for name, make in HOSTILE.items():
        small, large = (min(cpu(make(size), engine) for _ in range(3)) for size in (100_000, 1_000_000))
        figures[name] = {"ratio": round(large / small, 2), "us_per_kb": round(large * 1e6 / (1_000_000 / 1024), 1)}
    return figures


def fuzz(rows: Rows, count: int, engine: str | None) -> dict[str, Any]:
    """Mutated attacks, cut, mixed and noisy: how many raise, how many change when cleaned again."""
    rng = random.Random(2026)
    seeds = [row["text"].encode()[:400] for row in rows.of("attacks")] or [b"ignore all previous instructions"]
    raised = unstable = 0
    for number in range(count):
        raw = bytearray(rng.choice(seeds) + rng.choice(seeds))
        for _ in range(rng.randrange(0, 12)):
            at = rng.randrange(len(raw))
            raw[at : at + rng.randrange(0, 3)] = rng.randbytes(rng.randrange(0, 4))
        start = rng.randrange(len(raw) or 1)
        data = bytes(raw[start : start + rng.randrange(1, 200)])
        try:
            once = scrub(data, engine=engine)
            unstable += number % 10 == 0 and scrub(once.text, engine=engine).text != once.text
        except Exception:  # noqa: BLE001 - the very thing that is counted
            raised += 1
    return {"n": count, "raised": raised, "checked_again": (count + 9) // 10, "changed_again": unstable}


def cpu(text: str, engine: str | None) -> float:
    start = time.process_time()
    scrub(text, engine=engine)
    return time.process_time() - start


def points(text: str, engine: str | None) -> set[Point]:
    scrubbed = scrub(text, engine=engine)
    return {point for point in Point if scrubbed.at(point)}


def shares(found: list[set[Point]]) -> dict[str, float]:
    return {f"{point}_pct": percent(sum(point in one for one in found), len(found)) for point in Point}


def percent(part: int, whole: int) -> float:
    return round(100 * part / max(1, whole), 3)


def long_lines(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines if len(line.strip()) >= LONG]


if __name__ == "__main__":
    main()
