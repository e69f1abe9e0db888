"""Getting an image into the engine: the one made here, or one from a registry by its digest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

from gnusnode.errors import ConfigError, DataError, storage_error
from sandbox.run import image
from sandbox.run.docker.engine import Engine

_PIECE: Final = 1 << 20
_PINNED: Final = re.compile(r"^(?P<repository>[a-z0-9][a-z0-9._/:-]{0,254})@(?P<digest>sha256:[0-9a-f]{64})$")


async def provide(engine: Engine, archive: Path) -> image.Image:
    """Makes the image of this Python at ``archive`` and loads it, unless the engine has it; takes seconds of CPU.

    Raises:
        DataError: the image could not be made, or the engine made another one of it.
        Unavailable: the engine did not take it.
    """
    made = await trio.to_thread.run_sync(image.build, archive)
    if await engine.image(made.image_id) is None:
        await engine.load(_pieces(archive))
        if await engine.image(made.image_id) is None:
            raise DataError(
                f"the container engine loaded the archive, but has no image {made.image_id}", where=str(archive)
            )
    return made


async def fetch(engine: Engine, reference: str) -> str:
    """Fetches ``repository@sha256:<hex>`` from its registry, unless the engine has it, and returns the image's id.

    Raises:
        ConfigError: ``reference`` does not name a digest: a tag may be another image tomorrow.
        DataError: the engine has no image with this digest after all.
        Unavailable: the engine could not fetch it.
    """
    match = _PINNED.match(reference)
    if match is None:
        raise ConfigError(
            f"{reference!r} does not pin an image", hint="name it as repository@sha256:<64 hex digits>, without a tag"
        )
    found = await engine.image(reference)
    if found is None:
        await engine.pull(match["repository"], match["digest"])
        found = await engine.image(reference)
    digests: list[str] = (found or {}).get("RepoDigests") or []
    if found is None or not any(digest.endswith("@" + match["digest"]) for digest in digests):
        raise DataError("the container engine has no image with this digest", where=reference)
    return found["Id"]


def _pieces(archive: Path) -> Iterator[bytes]:
    try:
        with archive.open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece
    except OSError as error:
        raise storage_error(error, archive, "the sandbox image could not be read") from error
