"""The sandbox's file system as a directory, for sandboxes that are not Docker's: the same files as the image."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from gnusnode.errors import storage_error
from sandbox.run import boot, image

ENVIRONMENT: Final = {**boot.ENVIRONMENT, "LD_LIBRARY_PATH": "/usr/lib/sandbox"}
"""As the image has it: the whole environment of a program."""


def build(directory: Path) -> str:
    """Makes ``directory``, which must not exist, of this Python; blocks for some seconds of CPU.

    Returns:
        The image id of the same files: what a ``Strength`` names.

    Raises:
        DataError: a file cannot be read or written, or this interpreter cannot be packed.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="gnusnode-rootfs-") as scratch:
            made = image.build(Path(scratch) / "image.tar")
            draft = directory.with_name(f"{directory.name}.{os.getpid()}.new")
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            draft.chmod(0o755)
            with tarfile.open(made.archive) as archive:
                (layer,) = (member for member in archive.getmembers() if member.name.endswith("/layer.tar"))
                with tarfile.open(fileobj=archive.extractfile(layer)) as files:
                    files.extractall(draft, filter="tar")
            (draft / "gnusnode-image-id").write_text(made.image_id)
            draft.rename(directory)
            return made.image_id
    except OSError as error:
        raise storage_error(error, directory, "the sandbox's file system could not be made") from error


def image_id(directory: Path) -> str:
    """The image id of a directory that ``build`` made; empty: it is none."""
    try:
        return (directory / "gnusnode-image-id").read_text()
    except OSError:
        return ""


def missing(directory: Path) -> str:
    """Why sandboxes cannot use ``directory``; empty: they can."""
    if not image_id(directory):
        return f"{directory} holds no sandbox file system: run `gnusnode sandbox image`"
    if closed := _closed_to_others(directory):
        return f"{closed} is closed to the user that sandboxes run as"
    return ""


def _closed_to_others(directory: Path) -> str:
    """The first directory on the way that other users cannot enter; empty: they can read it all."""
    for place in (*reversed(directory.resolve().parents), directory.resolve()):
        if not place.stat().st_mode & 0o001:
            return str(place)
    return ""
