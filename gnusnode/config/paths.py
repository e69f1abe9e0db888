"""Where a node keeps its things. One ``--home`` / ``GNUSNODE_HOME`` moves everything, the key included."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs

from gnusnode.errors import ConfigError, DataError, storage_error

SOCKET_PATH_LIMIT: Final = 107 if os.uname().sysname == "Linux" else 103
"""Longest path of a unix socket in bytes: ``sun_path`` without its closing zero."""


@dataclass(frozen=True)
class Home:
    """The directory of one node. Holds names only: nothing is read or made before ``ensure``."""

    root: Path
    """Absolute."""

    @classmethod
    def locate(cls, given: str | os.PathLike[str] | None = None, env: Mapping[str, str] = os.environ) -> Home:
        """``given`` (``--home``), else ``GNUSNODE_HOME``, else the user's data directory of the platform.

        Raises:
            ConfigError: the path begins with the home of a user that does not exist.
        """
        chosen = given or env.get("GNUSNODE_HOME") or platformdirs.user_data_path("gnusnode", appauthor=False)
        try:
            return cls(Path(os.path.abspath(Path(chosen).expanduser())))
        except RuntimeError as error:  # ~name of a user that does not exist
            raise ConfigError("there is no such user", where=str(chosen), hint="give the whole path") from error

    @property
    def key(self) -> Path:
        return self.root / "key"

    @property
    def config(self) -> Path:
        return self.root / "gnusnode.toml"

    @property
    def data(self) -> Path:
        """Directory of the LMDB environment."""
        return self.root / "data"

    @property
    def blobs(self) -> Path:
        return self.root / "blobs"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def run_json(self) -> Path:
        """What the running daemon says of itself; see ``config.runfile``."""
        return self.root / "run.json"

    @property
    def socket(self) -> Path:
        """The daemon's unix socket inside the home; may be too long to bind, see ``socket_path``."""
        return self.root / "api.sock"

    def socket_path(self, env: Mapping[str, str] = os.environ) -> Path:
        """Where to bind the unix socket: inside the home, or in a private runtime directory when that path is too long.

        The environment has a say in it, so clients read the choice from ``run.json``.
        """
        if len(os.fsencode(self.socket)) <= SOCKET_PATH_LIMIT:
            return self.socket
        return _runtime_dir(env) / f"{hashlib.sha256(os.fsencode(self.root)).hexdigest()[:24]}.sock"

    def ensure(self, env: Mapping[str, str] = os.environ) -> None:
        """Makes the home and its directories, mode 0700; an existing home must not be writable by others.

        Raises:
            DataError: read-only, no permission, a file in the way, another user's, or others can write there.
            DiskFull: no space.
        """
        make_private(self.root)
        for directory in (self.data, self.blobs, self.models, self.logs):
            make_private(directory)
        socket = self.socket_path(env)
        if socket != self.socket:
            make_private(socket.parent, shared_parent=True)


def make_private(directory: Path, *, shared_parent: bool = False) -> None:
    """Makes ``directory`` (0700) or checks the existing one; an empty one of ours is tightened.

    Args:
        shared_parent: others can write where it lies (such as /tmp), so it must be ours and closed to all others.

    Raises:
        DataError, DiskFull: see ``Home.ensure``.
    """
    look = directory.lstat if shared_parent else directory.stat
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = look()
        ours = found.st_uid == os.geteuid()
        # An empty directory that the user has just made with the usual umask is no reason to refuse; /tmp is.
        if ours and found.st_mode & 0o077 and not found.st_mode & stat.S_ISVTX and not any(directory.iterdir()):
            directory.chmod(0o700)
            found = look()
    except OSError as error:
        raise storage_error(error, directory, "cannot make the directory") from error
    if shared_parent and (not ours or found.st_mode & 0o077 or not stat.S_ISDIR(found.st_mode)):
        raise DataError(
            "the runtime directory is not ours alone",
            where=str(directory),
            hint="remove it, set XDG_RUNTIME_DIR, or choose a shorter --home",
        )
    if found.st_uid not in (os.geteuid(), 0):
        raise DataError(
            f"this directory belongs to another user (uid {found.st_uid})",
            where=str(directory),
            hint=f"run the node as that user, chown it to {os.geteuid()}, or choose another --home",
        )
    if found.st_mode & 0o022:
        raise DataError(
            f"others can write to this directory (mode {stat.S_IMODE(found.st_mode):04o})",
            where=str(directory),
            hint="chmod 700 it, or choose another --home",
        )


def _runtime_dir(env: Mapping[str, str]) -> Path:
    """A short per-user directory. Not platformdirs: its fall-back warns and is not checked for its owner."""
    base = env.get("XDG_RUNTIME_DIR")
    if base and len(os.fsencode(base)) <= SOCKET_PATH_LIMIT - 50:
        return Path(base) / "gnusnode"
    return Path("/tmp") / f"gnusnode-{os.geteuid()}"  # noqa: S108  owner and mode are checked by make_private
