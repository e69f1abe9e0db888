"""The manifest of a stored model, and what may be a model's name. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from gnusnode.contracts.ids import Sha256
from gnusnode.errors import ModelInvalid, RequestError
from gnusnode.inference.artifacts.gguf import MAX_TEMPLATE_CHARS

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$"
DIGEST_PATTERN: Final = r"^(sha256:)?[0-9a-f]{8,64}$"
FETCH_AGAIN: Final = "remove it with `gnusnode models rm` and add or pull it again"

ModelName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class GenerationDefaults(_Frozen):
    """What a request that does not say gets. None: the node's own default."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1000)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


class Traits(_Frozen):
    """What is known of a model beyond its file."""

    template: Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEMPLATE_CHARS)] | None = None
    """Jinja chat template that replaces the file's own."""
    defaults: GenerationDefaults = GenerationDefaults()
    determinism: Literal["A", "B", "C"] = "C"
    """Class of the artifact, see ``EngineInfo``; C promises nothing."""


class StoredModel(_Frozen):
    """The manifest of one name."""

    name: ModelName
    sha256: Sha256
    size: Annotated[int, Field(ge=0)]
    """Bytes of the file."""
    source: Annotated[str, StringConstraints(max_length=4096)]
    """Where it came from, for people."""
    added: int
    """Unix seconds."""
    verified_at: int
    """Unix seconds of the last time that the whole file was hashed."""
    stamp: Annotated[tuple[int, ...], Field(min_length=5, max_length=5)]
    """Device, inode, size, mtime_ns and ctime_ns of the file that was hashed."""
    architecture: Annotated[str, StringConstraints(max_length=64)]
    license: Annotated[str, StringConstraints(max_length=128)]
    """As the file says; empty when it says nothing."""
    parameters: Annotated[int, Field(ge=0)]
    context_train: Annotated[int, Field(ge=1)]
    """Tokens."""
    generates: bool
    embeds: bool
    traits: Traits = Traits()


def require_digest(actual: str, expected: str | None, *, where: str) -> None:
    """Raises ``ModelInvalid`` when ``expected`` is given and another."""
    if expected is not None and actual != expected:
        raise ModelInvalid(
            f"the contents have the {short(actual)}, not the {short(expected)} that was promised",
            where=where,
            hint=FETCH_AGAIN,
        )


def checked_name(name: str) -> str:
    """``name``, which must be one that requests can use.

    Raises:
        RequestError: it is not.
    """
    if not is_name(name):
        raise RequestError(
            f"{name!r:.200} cannot be a model's name",
            hint="use up to 128 letters, digits, and . _ - /, starting with a letter or digit, and not a bare hash",
        )
    return name


def model_name(text: str) -> str:
    """A model name made of any text, such as a file name."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:128] or "model"
    return f"model-{name}"[:128] if is_digest(name) else name


def short(sha256: str) -> str:
    """A digest as people compare it."""
    return f"sha256 {sha256.removeprefix('sha256:')[:16]}…"


def is_name(text: str) -> bool:
    return bool(re.fullmatch(NAME_PATTERN, text)) and not is_digest(text)


def is_digest(text: str) -> bool:
    """Whether ``text`` is a sha256 or at least eight of its first digits."""
    return bool(re.fullmatch(DIGEST_PATTERN, text))
