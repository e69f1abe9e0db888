"""Expert artifacts: ``pack`` makes one, ``verify`` checks one, ``install`` makes it an expert of this node.

An installed expert is one JSON file in ``<home>/models/elms`` that is checked again, signature included, each time it
is read; its model lies in the model store under the name ``elm/<expert>-<version>``.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio
from pydantic import BaseModel, ConfigDict, ValidationError

from gnusnode.contracts.base import describe
from gnusnode.contracts.dsse import Signer
from gnusnode.contracts.tools import CapabilityManifest
from gnusnode.errors import Conflict, DataError, GnusError, ModelNotFound, NotFound, RequestError
from gnusnode.inference.artifacts import filework
from gnusnode.inference.artifacts.elmfile import Span, read_archive, write_archive
from gnusnode.inference.artifacts.elmpack import archive_of
from gnusnode.inference.artifacts.elmrecord import Contents, ElmManifest, ElmSpec, check_contents
from gnusnode.inference.artifacts.filework import Hashed, Progress, Stamp, explained
from gnusnode.inference.artifacts.gguf import MAX_TEMPLATE_CHARS
from gnusnode.inference.artifacts.modelrecord import Traits, is_name, require_digest
from gnusnode.inference.artifacts.models import LoadableModel, ModelStore

__all__ = ["Contents", "ElmSpec", "InstalledElm", "install", "installed", "pack", "read_spec", "uninstall", "verify"]

_MAX_FILE: Final = 8 * 1024 * 1024
_CLEANUP_SECONDS: Final = 30


class InstalledElm(BaseModel):
    """An expert of this node."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    manifest: ElmManifest
    template: str | None
    capability: CapabilityManifest | None
    """None: unsigned; it asks for nothing and may do nothing but talk."""
    installed_ms: int

    @property
    def expert_id(self) -> str:
        return self.manifest.expert_id

    @property
    def version(self) -> str:
        return self.manifest.version

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Names of what it asks of its host."""
        return tuple(need.name for need in self.capability.required_capabilities) if self.capability else ()

    @property
    def signer(self) -> str | None:
        return self.capability and self.capability.signer

    @property
    def model_name(self) -> str:
        """Under which the model store has its model."""
        return f"elm/{self.expert_id}-{self.version}"


@dataclass(frozen=True)
class InstalledElms:
    elms: tuple[InstalledElm, ...]
    problems: tuple[GnusError, ...]
    """Files that are damaged or whose signature is not good; they serve nobody."""


def read_spec(directory: Path) -> ElmSpec:
    """What ``directory`` says is to be packed: ``elm.toml`` and, where it exists, ``template.jinja``. Blocks shortly.

    Raises:
        RequestError: missing or malformed.
    """
    path = directory / "elm.toml"
    try:
        fields = tomllib.loads(_bounded(path, _MAX_FILE).decode("utf-8"))
        template = directory / "template.jinja"
        if template.exists():
            fields["template"] = _bounded(template, 4 * MAX_TEMPLATE_CHARS).decode("utf-8")
        return ElmSpec.model_validate(fields)
    except ValidationError as error:
        raise RequestError(describe(error), where=str(path), hint="see docs/models.md for its keys") from error
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot be read: {error}", where=str(path), hint="see docs/models.md") from error


async def pack(
    spec: ElmSpec,
    model: LoadableModel,
    directory: Path,
    signer: Signer | None,
    *,
    embed: bool,
    now_ms: int,
    progress: Progress | None = None,
) -> Path:
    """Writes ``<expert>-<version>.elm`` into ``directory``. The same arguments give the same bytes.

    Args:
        signer: who vouches for it; None leaves it unsigned.
        embed: put the model in, rather than its sha256 only.

    Raises:
        Conflict: the file exists.
        DataError, DiskFull: it cannot be written; nothing is left behind.
    """
    target = directory / f"{spec.expert_id}-{spec.version}.elm"
    archive = archive_of(spec, model, signer, embed=embed, now_ms=now_ms)
    draft = directory / f".{target.name}.{os.urandom(6).hex()}"
    size = model.manifest.size if embed else 0
    await trio.to_thread.run_sync(filework.require_space, directory, size, filework.SMALL_RESERVE)
    with explained(target, "cannot write the artifact"):
        out = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            start = await trio.to_thread.run_sync(write_archive, out, archive)
            if archive.model is not None:
                await _copy_model(model, out, start, progress)
            await trio.to_thread.run_sync(os.fsync, out)
            os.link(draft, target)  # unlike a rename it never replaces a file
        except FileExistsError as error:
            raise Conflict("the file exists", where=str(target), hint="remove it, or raise the version") from error
        finally:
            os.close(out)
            draft.unlink()
    return target


async def verify(
    file: Path,
    *,
    trusted_signers: Collection[str] = (),
    require_signature: bool = True,
    progress: Progress | None = None,
) -> Contents:
    """Checks an artifact completely, the bytes of an embedded model included.

    Raises:
        DataError: not an ELM archive, or its parts do not belong together.
        RecordRefused: see ``elmrecord.check_contents``.
        ModelInvalid: the embedded model is another.
    """
    handle = await trio.to_thread.run_sync(filework.open_source, file)
    try:
        contents, span = await trio.to_thread.run_sync(_read, handle, file, trusted_signers, require_signature)
        if span is not None:
            digest = await filework.copy_span(handle, span.start, span.size, file, progress=progress)
            require_digest(digest, contents.manifest.model.sha256, where=str(file))
        return contents
    finally:
        os.close(handle)


async def install(
    file: Path,
    store: ModelStore,
    *,
    trusted_signers: Collection[str],
    require_signature: bool = True,
    now_ms: int,
    progress: Progress | None = None,
) -> InstalledElm:
    """Makes the artifact ``file`` an expert of this node. Installing it again changes nothing.

    Raises:
        as ``verify``;
        ModelNotFound: it only names its model, and the store has not got it.
        Conflict: another artifact of this expert and version is installed.
        DiskFull.
    """
    handle = await trio.to_thread.run_sync(filework.open_source, file)
    try:
        contents, span = await trio.to_thread.run_sync(_read, handle, file, trusted_signers, require_signature)
        if span is None:
            return await install_contents(contents, store, where=str(file), now_ms=now_ms, progress=progress)
        elm = await _new(contents, store, str(file), now_ms)
        await _take_embedded(elm, store, _traits(elm), handle, span, file, progress)
        await _keep(elm, store)
        return elm
    finally:
        os.close(handle)


async def install_contents(
    contents: Contents, store: ModelStore, *, where: str, now_ms: int, progress: Progress | None = None
) -> InstalledElm:
    """Makes checked ``contents``, whose model the store has, an expert of this node.

    Raises:
        ModelNotFound: the store has not got the model.
        Conflict: another artifact of this expert and version is installed.
        DataError, DiskFull.
    """
    elm = await _new(contents, store, where, now_ms)
    await _use_stored(elm, store, _traits(elm), progress)
    await _keep(elm, store)
    return elm


async def _new(contents: Contents, store: ModelStore, where: str, now_ms: int) -> InstalledElm:
    """The expert that ``contents`` make, which must not be installed with other contents."""
    elm = InstalledElm(
        manifest=contents.manifest, template=contents.template, capability=contents.capability, installed_ms=now_ms
    )
    before = await _installed(store, elm.expert_id, elm.version)
    if before is not None and before.manifest.artifact_hash != elm.manifest.artifact_hash:
        raise Conflict(
            f"another artifact is installed as {elm.expert_id} {elm.version}",
            where=where,
            hint="remove it with `gnusnode elm rm`, or raise the version",
        )
    return elm


def _traits(elm: InstalledElm) -> Traits:
    return Traits(template=elm.template, defaults=elm.manifest.defaults, determinism=elm.manifest.determinism)


async def _keep(elm: InstalledElm, store: ModelStore) -> None:
    async with store.workspace() as work:
        data = elm.model_dump_json(indent=1).encode("utf-8")
        await trio.to_thread.run_sync(_write_installed, _path(store, elm.expert_id, elm.version), data, work)


async def installed(store: ModelStore, *, trusted_signers: Collection[str], require_signature: bool) -> InstalledElms:
    """All installed experts, each checked again."""

    def scan() -> InstalledElms:
        elms: list[InstalledElm] = []
        problems: list[GnusError] = []
        for path in sorted((store.root / "elms").glob("*.json")):
            try:
                elms.append(_load(path, trusted_signers, require_signature))
            except FileNotFoundError:
                continue  # removed meanwhile
            except GnusError as error:
                problems.append(error)
        return InstalledElms(tuple(elms), tuple(problems))

    with explained(store.root, "cannot list the experts"):
        return await trio.to_thread.run_sync(scan)


async def uninstall(store: ModelStore, expert_id: str, version: str) -> None:
    """Forgets an expert and the model store's name for its model.

    Raises:
        NotFound: it is not installed.
    """
    path = _path(store, expert_id, version)
    if path.parent != store.root / "elms" or not is_name(f"elm/{path.stem}"):
        raise NotFound(f"{expert_id} {version} is not installed", hint="see `gnusnode elm list`")
    with explained(path, "cannot remove the expert"):
        try:
            await trio.Path(path).unlink()
        except FileNotFoundError as error:
            raise NotFound(f"{expert_id} {version} is not installed", hint="see `gnusnode elm list`") from error
    try:
        await store.remove(f"elm/{expert_id}-{version}")
    except ModelNotFound:
        await trio.lowlevel.checkpoint()  # somebody removed the model before: what was asked for is so


async def _copy_model(model: LoadableModel, out: int, start: int, progress: Progress | None) -> None:
    source = await trio.to_thread.run_sync(filework.open_source, model.path)
    try:
        digest = await filework.copy_span(
            source, 0, model.manifest.size, model.path, out=out, out_at=start, progress=progress
        )
    finally:
        os.close(source)
    require_digest(digest, model.manifest.sha256, where=str(model.path))


def _read(
    handle: int, file: Path, trusted_signers: Collection[str], require_signature: bool
) -> tuple[Contents, Span | None]:
    archive = read_archive(handle, file)
    contents = check_contents(
        archive.manifest,
        archive.template,
        archive.capability,
        trusted_signers=trusted_signers,
        require_signature=require_signature,
        where=str(file),
    )
    if archive.model is not None and archive.model.size != contents.manifest.model.size:
        raise DataError("the embedded model has not the size that the manifest names", where=str(file))
    return contents, archive.model


async def _use_stored(elm: InstalledElm, store: ModelStore, traits: Traits, progress: Progress | None) -> None:
    wanted = elm.manifest.model
    try:
        model = await store.resolve(wanted.sha256, progress)
    except ModelNotFound as error:
        raise ModelNotFound(
            f"this artifact needs the model {wanted.sha256}, which is not here",
            where=wanted.source or None,
            hint="pull or add that model first",
        ) from error
    await store.add(model.path, elm.model_name, mode="link", source=wanted.source, traits=traits, progress=progress)


async def _take_embedded(
    elm: InstalledElm,
    store: ModelStore,
    traits: Traits,
    handle: int,
    span: Span,
    file: Path,
    progress: Progress | None,
) -> None:
    async with store.workspace() as work:
        await trio.to_thread.run_sync(filework.require_space, work, span.size, store.reserve)
        staged = work / f"{os.urandom(8).hex()}.gguf"
        try:
            with explained(staged, "cannot take the model out of the artifact"):
                out = os.open(staged, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                digest = await filework.copy_span(handle, span.start, span.size, file, out=out, progress=progress)
                await trio.to_thread.run_sync(os.fsync, out)
                hashed = Hashed(digest, Stamp.of(out))
            finally:
                os.close(out)
            require_digest(digest, elm.manifest.model.sha256, where=str(file))
            await store.adopt(staged, hashed, elm.model_name, source=f"elm:{file.name}", traits=traits)
        finally:
            with trio.move_on_after(_CLEANUP_SECONDS, shield=True):
                await trio.to_thread.run_sync(lambda: staged.unlink(missing_ok=True))


async def _installed(store: ModelStore, expert_id: str, version: str) -> InstalledElm | None:
    def load() -> InstalledElm | None:
        try:
            return _load(_path(store, expert_id, version), (), False)
        except FileNotFoundError:
            return None

    return await trio.to_thread.run_sync(load)


def _path(store: ModelStore, expert_id: str, version: str) -> Path:
    return store.root / "elms" / f"{expert_id}-{version}.json"


def _load(path: Path, trusted_signers: Collection[str], require_signature: bool) -> InstalledElm:
    try:
        elm = InstalledElm.model_validate_json(_bounded(path, _MAX_FILE))
    except ValidationError as error:
        raise DataError(f"damaged: {describe(error)}", where=str(path), hint="remove and install it again") from error
    check_contents(
        elm.manifest.to_json(),
        None if elm.template is None else elm.template.encode("utf-8"),
        elm.capability and elm.capability.to_bytes(),
        trusted_signers=trusted_signers,
        require_signature=require_signature,
        where=str(path),
    )
    return elm


def _write_installed(path: Path, data: bytes, work: Path) -> None:
    with explained(path, "cannot write the expert"):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        filework.write_atomically(path, data, work)


def _bounded(path: Path, limit: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise DataError(f"larger than the {limit} bytes allowed", where=str(path), hint="this is not such a file")
    return data
