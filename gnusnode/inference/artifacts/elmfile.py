"""The ``.elm`` archive: a tar file with a closed set of members, each header exactly as we write it.

    manifest.json     what the artifact is; its sha256 is the artifact's hash and, through the hashes in it, covers all
    capability.cbor   the signed CapabilityManifest over that hash; missing when unsigned
    template.jinja    the chat template, where it has its own
    model.gguf        the model, unless the artifact only names its sha256

Any tar program can list and unpack one. Reading accepts nothing else: a header must equal, byte for byte, the one that
we would write for its name and size, so links, devices, absolute or climbing paths, owners and extensions have no
spelling.
"""

from __future__ import annotations

import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from gnusnode.errors import DataError
from gnusnode.inference.artifacts.filework import explained
from gnusnode.inference.artifacts.gguf import MAX_TEMPLATE_CHARS

MANIFEST: Final = "manifest.json"
CAPABILITY: Final = "capability.cbor"
TEMPLATE: Final = "template.jinja"
MODEL: Final = "model.gguf"

_BLOCK: Final = 512
_END: Final = bytes(2 * _BLOCK)
_LIMITS: Final = {
    MANIFEST: 256 * 1024,
    CAPABILITY: 256 * 1024,
    TEMPLATE: 4 * MAX_TEMPLATE_CHARS,
    MODEL: 2**42,
}
"""Members in their order -> most bytes."""


@dataclass(frozen=True)
class Span:
    """Where a member's bytes lie in the file."""

    start: int
    size: int


@dataclass(frozen=True)
class Archive:
    manifest: bytes
    capability: bytes | None
    template: bytes | None
    model: Span | None


def read_archive(handle: int, where: Path) -> Archive:
    """The small members and the place of the model. Blocks shortly; memory is bounded by the limits of the members.

    Raises:
        DataError: not such an archive.
    """
    spans = _spans(handle, where)
    if MANIFEST not in spans:
        _refuse(where, "it has no manifest")

    def small(name: str) -> bytes | None:
        return _read(handle, spans[name].start, spans[name].size, where) if name in spans else None

    return Archive(small(MANIFEST) or b"", small(CAPABILITY), small(TEMPLATE), spans.get(MODEL))


def write_archive(handle: int, archive: Archive) -> int:
    """Writes everything but the model's bytes to an empty file; returns where these must start.

    ``archive.model`` gives the model's size; its start is not used.

    Raises:
        OSError.
    """
    small = {MANIFEST: archive.manifest, CAPABILITY: archive.capability, TEMPLATE: archive.template}
    at = 0
    for name, data in small.items():
        if data is not None:
            at += _write(handle, at, _header(name, len(data)) + data + bytes(-len(data) % _BLOCK))
    if archive.model is None:
        _write(handle, at, _END)
        return at
    at += _write(handle, at, _header(MODEL, archive.model.size))
    end = at + archive.model.size
    _write(handle, end, bytes(-end % _BLOCK) + _END)
    return at


def _spans(handle: int, where: Path) -> dict[str, Span]:
    size = os.fstat(handle).st_size
    allowed = list(_LIMITS)
    spans: dict[str, Span] = {}
    at = 0
    while (block := _read(handle, at, _BLOCK, where)) != bytes(_BLOCK):
        name, length = _parse_header(block, where)
        if name not in allowed:
            _refuse(where, f"it has no place for a member {name[:80]!r}")
        del allowed[: allowed.index(name) + 1]
        if length > _LIMITS[name] or at + _BLOCK + length > size:
            _refuse(where, f"{name} has {length} bytes, more than allowed or than there are")
        spans[name] = Span(at + _BLOCK, length)
        at += _BLOCK + length
        if any(_read(handle, at, -length % _BLOCK, where)):
            _refuse(where, f"the padding of {name} is not empty")
        at += -length % _BLOCK
    if at + len(_END) != size or _read(handle, at, len(_END), where) != _END:
        _refuse(where, "it does not end where its members end")
    return spans


def _parse_header(block: bytes, where: Path) -> tuple[str, int]:
    try:
        info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
    except (tarfile.HeaderError, ValueError, OverflowError) as error:
        raise DataError(f"not an ELM archive: {error}", where=str(where), hint="get it again") from error
    if info.size < 0 or _header(info.name, info.size) != block:
        _refuse(where, f"the member {info.name[:80]!r} is not a plain file as ELM archives have them")
    return info.name, info.size


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT, "ascii", "replace")[:_BLOCK]


def _read(handle: int, at: int, size: int, where: Path) -> bytes:
    with explained(where, "cannot read the archive"):
        data = os.pread(handle, size, at)
    if len(data) < size:
        _refuse(where, "it ends too early")
    return data


def _write(handle: int, at: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, at)
        view, at = view[written:], at + written
    return len(data)


def _refuse(where: Path, reason: str) -> NoReturn:
    raise DataError(f"not an ELM archive: {reason}", where=str(where), hint="get it again from who packed it")
