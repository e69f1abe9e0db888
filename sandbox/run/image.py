"""The sandbox's file system, made of the Python that runs this node: no registry, no network, no shell inside.

Interpreter, standard library with byte code, and the shared libraries that they need, as an archive for ``docker
load``. The image id is a function of the files alone: the same installation gives the same id, on every run.

Byte code is of the unchecked kind, since on a read-only root it can neither be refreshed nor does a time stamp mean
anything; without it programs that import much start about four times slower.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from gnusnode.errors import DataError, storage_error
from sandbox.run import boot
from sandbox.run.elf import libraries

REPOSITORY: Final = "gnusnode/sandbox"
_EPOCH: Final = "1970-01-01T00:00:00Z"
_NOBODY: Final = "65534:65534"
_LIBRARY_DIRECTORY: Final = "usr/lib/sandbox"
_LEFT_OUT: Final = frozenset({
    "__pycache__", "dist-packages", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages",
    "test", "tests", "tkinter", "turtledemo", "venv",
})  # fmt: skip
_LEFT_OUT_MODULES: Final = ("_crypt", "_ctypes_test", "_test", "_tkinter", "_xx", "xxlimited")
_DIRECTORIES: Final = ("code", "dev", "etc", "proc", "run", "sys", "tmp", "usr/local")
_ACCOUNTS: Final = {
    "etc/passwd": b"nobody:x:65534:65534:nobody:/tmp:/usr/sbin/nologin\n",
    "etc/group": b"nogroup:x:65534:\n",
    "etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files\n",
}

_COMPILE: Final = """
import json, py_compile, sys
for source, target, shown in json.load(sys.stdin):
    try:
        py_compile.compile(source, target, shown, doraise=True,
                           invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    except py_compile.PyCompileError:
        pass  # templates and samples of other Pythons
"""


@dataclass(frozen=True, slots=True)
class Image:
    """An image in an archive: its id is what configuration pins and attestations name.

    Attributes:
        image_id: ``sha256:<hex>`` of the image's configuration, which names the layer by its hash.
        archive: where it lies, for ``docker load``.
        files: how many files it has.
        layer_bytes: its size.
    """

    image_id: str
    archive: Path
    files: int
    layer_bytes: int

    @property
    def tag(self) -> str:
        """The name under which it is loaded; for people, never used to find it."""
        return f"{REPOSITORY}:{self.image_id[7:19]}"


def build(archive: Path) -> Image:
    """Writes the image of this interpreter to ``archive``; blocks for some seconds of CPU.

    Raises:
        DataError: a file cannot be read or written, or this interpreter cannot be packed.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="gnusnode-image-") as scratch:
            return pack(tree(Path(scratch)), archive)
    except OSError as error:
        raise storage_error(error, error.filename or archive, "the sandbox image could not be made") from error


def tree(scratch: Path) -> dict[str, Path | bytes]:
    """The files of the image: path inside, relative -> file here, or content. Byte code is written to ``scratch``."""
    if not sys.platform.startswith("linux"):
        raise DataError("a sandbox image can only be made on Linux", hint="build it there, or name one by its digest")
    interpreter = Path(os.path.realpath(sys.executable))
    standard = Path(sysconfig.get_path("stdlib"))
    place = f"usr/{sys.platlibdir}/{standard.name}"
    files: dict[str, Path | bytes] = {f"{place}/{path.relative_to(standard)}": path for path in _library(standard)}
    files["usr/bin/python3"] = interpreter
    native = [interpreter, *(path for path in files.values() if isinstance(path, Path) and path.suffix == ".so")]
    loader, needed = libraries(native)
    files[loader.name.lstrip("/")] = loader.file
    files |= {f"{_LIBRARY_DIRECTORY}/{name}": file for name, file in needed.items()}
    files |= _byte_code(files, scratch)
    return files | _ACCOUNTS


def _library(standard: Path) -> Iterator[Path]:
    for root, directories, names in os.walk(standard):
        directories[:] = sorted(
            name for name in directories if name not in _LEFT_OUT and not name.startswith(("config-", "__phello__"))
        )
        for name in sorted(names):
            if not name.endswith((".pyc", ".a", ".exe", ".o")) and not name.startswith(_LEFT_OUT_MODULES):
                yield Path(root, name)


def _byte_code(files: Mapping[str, Path | bytes], scratch: Path) -> dict[str, Path]:
    """Compiles every module in a process of its own: what else this one holds would change the bytes."""
    tag = sys.implementation.cache_tag
    work: list[tuple[str, str, str]] = []
    compiled: dict[str, Path] = {}
    for inside, file in sorted(files.items()):
        if inside.endswith(".py") and isinstance(file, Path):
            pure = PurePosixPath(inside)
            target = scratch / f"{len(work)}.pyc"
            work.append((str(file), str(target), f"/{inside}"))
            compiled[f"{pure.parent}/__pycache__/{pure.stem}.{tag}.pyc"] = target
    done = subprocess.run(
        [os.path.realpath(sys.executable), "-S", "-s", "-P", "-B", "-c", _COMPILE],
        input=json.dumps(work).encode(),
        env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"},
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise DataError(
            "the standard library could not be compiled", where=done.stderr[-300:].decode("utf-8", "replace")
        )
    return {inside: target for inside, target in compiled.items() if target.exists()}


def pack(files: Mapping[str, Path | bytes], archive: Path) -> Image:
    """Writes ``files`` as an image. Owner, times and order are fixed, so that the bytes depend on the files alone.

    Args:
        files: relative path inside -> file here, or content.

    Raises:
        OSError: a file cannot be read or written.
    """
    with tempfile.TemporaryFile(dir=archive.parent) as layer:
        _write_layer(files, layer)
        size = layer.tell()
        layer.seek(0)
        layer_hash = hashlib.file_digest(layer, "sha256").hexdigest()  # pyright: ignore[reportArgumentType] - a real file
        config = _configuration(layer_hash)
        image_hash = hashlib.sha256(config).hexdigest()
        image = Image(f"sha256:{image_hash}", archive, len(files), size)
        manifest = [{"Config": f"{image_hash}.json", "RepoTags": [image.tag], "Layers": [f"{layer_hash}/layer.tar"]}]
        layer.seek(0)
        partial = archive.with_name(archive.name + ".partial")
        with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as out:
            _add_bytes(out, f"{image_hash}.json", config)
            _add_bytes(out, "manifest.json", json.dumps(manifest).encode())
            out.addfile(_entry(layer_hash, 0o755, kind=tarfile.DIRTYPE))
            out.addfile(_entry(f"{layer_hash}/layer.tar", 0o644, size), layer)
        partial.replace(archive)
    return image


def _write_layer(files: Mapping[str, Path | bytes], out: Any) -> None:
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as layer:
        for directory in sorted(_parents(files) | set(_DIRECTORIES)):
            layer.addfile(_entry(directory, 0o1777 if directory == "tmp" else 0o755, kind=tarfile.DIRTYPE))
        for inside, source in sorted(files.items()):
            if isinstance(source, bytes):
                _add_bytes(layer, inside, source)
                continue
            with source.open("rb") as file:
                mode = 0o755 if os.access(source, os.X_OK) else 0o644
                layer.addfile(_entry(inside, mode, os.fstat(file.fileno()).st_size), file)


def _parents(files: Iterable[str]) -> set[str]:
    return {str(parent) for path in files for parent in PurePosixPath(path).parents if str(parent) != "."}


def _entry(name: str, mode: int, size: int = 0, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)  # mtime 0 and root's ids are its defaults
    entry.mode, entry.size, entry.type = mode, size, kind
    return entry


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    archive.addfile(_entry(name, 0o644, len(data)), io.BytesIO(data))


def _configuration(layer_hash: str) -> bytes:
    environment = {**boot.ENVIRONMENT, "LD_LIBRARY_PATH": f"/{_LIBRARY_DIRECTORY}"}
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "os": "linux",
        "created": _EPOCH,
        "config": {
            "Env": [f"{name}={value}" for name, value in sorted(environment.items())],
            "User": _NOBODY,
            "WorkingDir": "/tmp",  # noqa: S108 - inside the sandbox
            "Entrypoint": ["/usr/bin/python3"],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_hash}"]},
        "history": [{"created": _EPOCH, "created_by": "gnusnode sandbox image"}],
    }
    return json.dumps(config, sort_keys=True, separators=(",", ":")).encode()
