"""Files that ship with gnusnode: profiles, schemas, unit files."""

from __future__ import annotations

from pathlib import Path

import gnusnode


def configs_dir() -> Path:
    """The directory of shipped configuration: inside the package in a wheel, ``configs/`` of a checkout."""
    package = Path(gnusnode.__file__).resolve().parent
    packed = package / "_configs"
    return packed if packed.is_dir() else package.parent / "configs"
