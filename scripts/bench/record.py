"""What every benchmark prints: one JSON record a line, with enough beside the figures to repeat the run."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any


def emit(bench: str, figures: dict[str, Any], *, model: Path | None = None, **more: Any) -> None:
    """Prints a record: the benchmark's name, raw figures, commit, hardware, build, model and command."""
    record = {
        "bench": bench,
        "figures": figures,
        "commit": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain") else ""),
        "hardware": hardware(),
        "build": build(),
        "model_sha256": sha256(model) if model else None,
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        **more,
    }
    print(json.dumps(record), flush=True)


def spread(values: list[float], digits: int = 3) -> dict[str, Any]:
    """Minimum, median, maximum and the raw values."""
    return {
        "min": round(min(values), digits),
        "median": round(statistics.median(values), digits),
        "max": round(max(values), digits),
        "raw": [round(value, digits) for value in values],
    }


def hardware() -> dict[str, Any]:
    name = platform.processor() or platform.machine()
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return {"cpu": name, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2), "system": platform.system()}


def build() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str] = {"python": platform.python_version()}
    for package in ("gnusnode", "llama-cpp-python", "anycorn", "trio", "pydantic", "lmdb"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git(*words: str) -> str:
    try:
        return subprocess.run(["git", *words], capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
