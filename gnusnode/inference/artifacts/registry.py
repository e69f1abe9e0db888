"""The directory of models as plain blocking functions; ``models.ModelStore`` runs them in threads.

Every change is one rename, so that readers need no lock. Writers of any task and process take ``.registry.lock``.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from gnusnode.contracts.base import describe
from gnusnode.errors import Conflict, DataError, ModelNotFound
from gnusnode.identity import sync_directory
from gnusnode.inference.artifacts import filework
from gnusnode.inference.artifacts.filework import Hashed, Stamp
from gnusnode.inference.artifacts.gguf import GgufHeader
from gnusnode.inference.artifacts.modelrecord import StoredModel, Traits, is_digest, is_name, short

_MAX_MANIFEST_BYTES: Final = 2 * 1024 * 1024
_KEEP_PARTIAL_SECONDS: Final = 14 * 86_400
"""A download that nobody took up for so long is forgotten."""
_REPLACE_MANIFEST: Final = "remove this manifest and add the model again"


@dataclass(frozen=True)
class Listing:
    models: tuple[StoredModel, ...]
    problems: tuple[DataError, ...]
    """Manifests that cannot be read; they are left alone."""


class Registry:
    """Names, manifests and files below one directory. Failures of the system come as ``OSError``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / ".work"
        self.partial = root / ".partial"
        self.work_lock = root / ".work.lock"
        self._write_lock = root / ".registry.lock"

    def prepare(self, now: float) -> None:
        """Makes the directories; removes what interrupted additions left, unless one runs, and forgotten downloads."""
        for directory in (self.root, self.work, self.partial):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with filework.locked(self.work_lock, wait=False) as alone:
            for leftover in self.work.iterdir() if alone else ():
                if leftover.is_dir() and not leftover.is_symlink():
                    shutil.rmtree(leftover)
                else:
                    leftover.unlink()
        for part in self.partial.iterdir():
            if part.stat().st_mtime < now - _KEEP_PARTIAL_SECONDS:
                part.unlink()

    def file(self, sha256: str) -> Path:
        return self.root / f"{sha256.removeprefix('sha256:')}.gguf"

    def chunks(self, sha256: str) -> Path:
        """What is remembered of the file's chunks, for peers that fetch it."""
        return self.root / f"{sha256.removeprefix('sha256:')}.chunks"

    def manifest(self, name: str) -> Path:
        return self.root / f"{name.replace('/', '%2F')}.json"

    def stamp(self, sha256: str) -> Stamp | None:
        """Of the file of this digest; None when there is none."""
        try:
            return Stamp.of(self.file(sha256))
        except FileNotFoundError:
            return None

    def scan(self) -> Listing:
        models: list[StoredModel] = []
        problems: list[DataError] = []
        for path in sorted(self.root.glob("*.json")):
            try:
                models.append(self._read(path))
            except FileNotFoundError:
                continue  # removed meanwhile
            except DataError as error:
                problems.append(error)
        return Listing(tuple(models), tuple(problems))

    def get(self, key: str) -> StoredModel:
        """The model of a name, or of eight or more first digits of its sha256."""
        if is_name(key) and (model := self._read_if_there(key)) is not None:
            return model
        found: list[StoredModel] = []
        if is_digest(key):
            digest = "sha256:" + key.removeprefix("sha256:")
            found = [model for model in self.scan().models if model.sha256.startswith(digest)]
        if not found:
            raise ModelNotFound(f"there is no model {key[:200]!r}", hint="see `gnusnode models list`")
        if len({model.sha256 for model in found}) > 1:
            raise Conflict(f"{key} fits {len(found)} models", hint="give more digits or the name")
        return found[0]

    def register(
        self,
        staged: Path,
        hashed: Hashed,
        header: GgufHeader,
        *,
        name: str,
        source: str,
        traits: Traits | None,
        replace: bool,
        now: int,
    ) -> StoredModel:
        """Moves ``staged`` in, writes its manifest. The same file under the same name keeps its source and traits."""
        with filework.locked(self._write_lock):
            before = self._read_if_there(name)
            same = before is not None and before.sha256 == hashed.sha256
            if before is not None and not same and not replace:
                raise Conflict(
                    f"the name {name} belongs to another model ({short(before.sha256)})",
                    where=str(self.manifest(name)),
                    hint="choose another --name, or remove the old one with `gnusnode models rm`",
                )
            stamp = self._move_in(staged, hashed)
            model = StoredModel(
                name=name,
                sha256=hashed.sha256,
                size=stamp.size,
                source=(before.source if before and same else source)[:4096],
                added=before.added if before and same else now,
                verified_at=now,
                stamp=stamp.as_tuple(),
                architecture=header.architecture,
                license=header.license,
                parameters=header.parameters,
                context_train=header.context_train,
                generates=header.generates,
                embeds=header.embeds,
                traits=traits or (before.traits if before and same else Traits()),
            )
            self._write(model)
            if before is not None and not same:
                self._drop_unused(before.sha256)
            return model

    def remember(self, before: StoredModel, after: StoredModel) -> None:
        """Replaces a manifest unless it changed since ``before`` was read."""
        with filework.locked(self._write_lock):
            if self._read_if_there(before.name) == before:
                self._write(after)

    def remove(self, key: str) -> StoredModel:
        """Forgets one name; the file goes with its last."""
        with filework.locked(self._write_lock):
            model = self.get(key)
            self.manifest(model.name).unlink()
            self._drop_unused(model.sha256)
            return model

    def _move_in(self, staged: Path, hashed: Hashed) -> Stamp:
        if not Stamp.of(staged).same_content(hashed.stamp):
            raise DataError("the file changed after it was hashed", where=str(staged), hint="try again")
        target = self.file(hashed.sha256)
        staged.replace(target)
        staged.unlink(missing_ok=True)  # rename(2) does nothing when both are names of one file
        sync_directory(self.root)
        return Stamp.of(target)

    def _read_if_there(self, name: str) -> StoredModel | None:
        try:
            return self._read(self.manifest(name))
        except FileNotFoundError:
            return None

    def _read(self, path: Path) -> StoredModel:
        with path.open("rb") as file:
            data = file.read(_MAX_MANIFEST_BYTES + 1)
        if len(data) > _MAX_MANIFEST_BYTES:
            raise DataError("the manifest is too large", where=str(path), hint=_REPLACE_MANIFEST)
        try:
            model = StoredModel.model_validate_json(data)
        except ValidationError as error:
            reason = f"the manifest is damaged: {describe(error)}"
            raise DataError(reason, where=str(path), hint=_REPLACE_MANIFEST) from error
        if self.manifest(model.name) != path:
            raise DataError(f"this is the manifest of {model.name}", where=str(path), hint=_REPLACE_MANIFEST)
        return model

    def _write(self, model: StoredModel) -> None:
        data = model.model_dump_json(indent=2).encode() + b"\n"
        filework.write_atomically(self.manifest(model.name), data, self.work)

    def _drop_unused(self, sha256: str) -> None:
        listing = self.scan()
        # A manifest that cannot be read may be a name of this very file: then keep it.
        if not listing.problems and all(model.sha256 != sha256 for model in listing.models):
            self.file(sha256).unlink(missing_ok=True)
            self.chunks(sha256).unlink(missing_ok=True)
