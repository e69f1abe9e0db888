"""A file system for local sandboxes, made once for all tests of a run, where it can be used at all."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import trio

from sandbox.run import rootfs
from sandbox.run.local.backend import LocalBackend
from sandbox.run.local.recipe import Recipe


def directory(recipe: Callable[[Path], Recipe]) -> Path:
    """What ``rootfs.build`` made; skips the test with the reason where ``recipe`` cannot be used."""
    found = trio.run(LocalBackend(recipe(_built()), node="tests").probe)
    if not found.available:
        pytest.skip(found.reason)
    return _built()


@cache
def _built() -> Path:
    place = Path(tempfile.mkdtemp(prefix="gnusnode-rootfs-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    place.chmod(0o755)
    rootfs.build(place / "root")
    return place / "root"
