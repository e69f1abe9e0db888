"""The sanitiser's rules as data: one file a subject, each with a version."""

from __future__ import annotations

import tomllib
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Any, Final

FILES: Final = (
    "confusables.toml",
    "english.toml",
    "languages.toml",
    "markup.toml",
    "secrets.toml",
    "vocabulary.toml",
)


@cache
def rule_file(name: str) -> dict[str, Any]:
    """The content of a rule file that comes with the package."""
    return tomllib.loads(_bytes(name).decode())


def _bytes(name: str) -> bytes:
    return resources.files(__name__).joinpath(name).read_bytes()


@cache
def rules_version() -> str:
    """``<sum of the files' versions>-<digest of their bytes>``: changes with every change of a rule."""
    digest = sha256(b"".join(sha256(_bytes(name)).digest() for name in FILES)).hexdigest()
    return f"{sum(rule_file(name)['version'] for name in FILES)}-{digest[:12]}"
