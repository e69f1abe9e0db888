"""Files below allow-listed directories, reached step by step through directory handles.

Every component is opened relative to the directory before it and must not be a symbolic link, so nothing that is
swapped while we walk leads out. What is reached must be a regular file with one name, on the file system of its root:
neither a hard link to a file elsewhere nor a mount, a device or a pipe.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from gnusnode.errors import ConfigError, DataError, NotFound, TooLarge, ToolBlocked, storage_error

# Systems without these flags import this too; ``Roots`` refuses to work there.
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_DIRECTORY: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NO_LINK
_READ: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | _NO_LINK
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
_MAX_DEPTH: Final = 64
_NEW_FILE: Final = 0o600
_CHUNK: Final = 1024 * 1024


@dataclass(frozen=True)
class Place:
    """A file below a root, as a path that is yet to be walked."""

    root: str
    """Absolute, without symbolic links when the node started."""
    parts: tuple[str, ...]
    """Below the root: at least the name of the file."""

    def __str__(self) -> str:
        return str(PurePosixPath(self.root, *self.parts))

    @property
    def hidden(self) -> bool:
        """Whether a component begins with a dot: settings and keys live in such places."""
        return any(part.startswith(".") for part in self.parts)


class Roots:
    """The directories that the operator has opened to file tools.

    Raises:
        ConfigError: one of them is not there, or this system cannot open files relative to directories.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        if not hasattr(os, "O_NOFOLLOW") or os.open not in os.supports_dir_fd:
            raise ConfigError(
                "file tools need a system that opens files relative to directories", hint="leave them out"
            )
        self._roots = tuple(_real_directory(root) for root in roots)

    def place(self, path: str, allowed: Collection[str]) -> Place:
        """Where ``path`` lies. Looks at nothing but the text.

        Args:
            path: absolute.
            allowed: files and directories that plan and policy allow; what is below them is allowed too.

        Raises:
            ToolBlocked: PATH_INVALID or PATH_NOT_ALLOWED.
        """
        pure = PurePosixPath(path)
        printable = path.isprintable() and "\\" not in path
        if not printable or not pure.is_absolute() or str(pure) != path or ".." in pure.parts or path.startswith("//"):
            raise ToolBlocked("PATH_INVALID", "not an absolute path in its plain spelling", where=ascii(path)[:200])
        if not any(_below(pure, PurePosixPath(entry)) for entry in allowed):
            raise ToolBlocked("PATH_NOT_ALLOWED", "plan and policy do not allow this path", where=path)
        for root in self._roots:
            if pure.is_relative_to(root) and str(pure) != root:
                parts = pure.relative_to(root).parts
                if len(parts) <= _MAX_DEPTH:
                    return Place(root, parts)
        raise ToolBlocked("PATH_NOT_ALLOWED", "not below a directory that is open to tools", where=path)


def read_file(place: Place, limit: int) -> bytes:
    """The file's content.

    Raises:
        ToolBlocked: PATH_ESCAPES, it is a link, or no plain file.
        NotFound, TooLarge, DataError: it is not there, too large, or cannot be read.
    """
    data = find_file(place, limit)
    if data is None:
        raise NotFound("there is no such file", where=str(place))
    return data


def find_file(place: Place, limit: int) -> bytes | None:
    """``read_file``; None where there is nothing of this name in an existing directory."""
    with _walk_to_parent(place) as parent, _faults(place):
        if not _look(place, parent):
            return None
        with _opened(place.parts[-1], _READ, parent) as fd:
            _require_plain(os.fstat(fd), place, parent)
            return _read_all(fd, place, limit)


def write_file(place: Place, data: bytes, *, replaces: bytes | None) -> None:
    """Puts ``data`` in the file's place in one step: readers see the old content or the new one, never a part.

    Args:
        replaces: what is there now; None: nothing is.

    Raises:
        ToolBlocked: PATH_ESCAPES, or STATE_CHANGED where something else is there by now. Nothing was changed.
        NotFound, DataError: the directory is not there, or the disk refuses.
    """
    name = place.parts[-1]
    temporary = f".gnusnode-{os.urandom(8).hex()}.tmp"
    with _walk_to_parent(place) as parent, _faults(place):
        mode = _NEW_FILE
        if replaces is not None:
            mode = _require_unchanged(place, parent, replaces)
        try:
            with _opened(temporary, _CREATE, parent, _NEW_FILE) as fd:
                _write_all(fd, data)
                os.fchmod(fd, mode)
                os.fsync(fd)
            if replaces is None:
                _link_new(temporary, name, parent, place)
            else:
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=parent)
        os.fsync(parent)


def _real_directory(root: Path) -> str:
    try:
        real = root.resolve(strict=True)
    except OSError as error:
        raise ConfigError("a directory for file tools is not there", where=str(root), hint="create it") from error
    if not real.is_dir() or real == Path("/"):
        raise ConfigError("not a directory that can be opened to file tools", where=str(root), hint="name another one")
    return str(real)


def _below(path: PurePosixPath, entry: PurePosixPath) -> bool:
    return entry.is_absolute() and ".." not in entry.parts and path.is_relative_to(entry)


@contextmanager
def _opened(name: str, flags: int, parent: int | None, mode: int = 0) -> Generator[int]:
    fd = os.open(name, flags, mode, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _walk_to_parent(place: Place) -> Generator[int]:
    """A handle of the directory in which the file lies; it stays the same directory whatever is renamed meanwhile."""
    with _faults(place):
        current = os.open(place.root, _DIRECTORY)
        try:
            device = os.fstat(current).st_dev
            for part in place.parts[:-1]:
                below = os.open(part, _DIRECTORY, dir_fd=current)
                os.close(current)
                current = below
                if os.fstat(current).st_dev != device:
                    raise _escapes(place, "another file system is mounted on the way")
        except BaseException:  # whatever it was, the descriptor must not leak; it is raised on
            os.close(current)
            raise
    try:
        yield current
    finally:
        os.close(current)


def _look(place: Place, parent: int) -> bool:
    """Whether there is a plain file. Looked at before it is opened: to open a pipe or device can have effects."""
    try:
        found = os.stat(place.parts[-1], dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    _require_plain(found, place, parent)
    return True


def _require_plain(found: os.stat_result, place: Place, parent: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _escapes(place, "not a plain file")
    if found.st_nlink > 1:
        raise _escapes(place, "the file has a second name, which may lie elsewhere")
    if found.st_dev != os.fstat(parent).st_dev:
        raise _escapes(place, "another file system is mounted there")


def _require_unchanged(place: Place, parent: int, content: bytes) -> int:
    """The mode of the file, whose content must still be ``content``."""
    if _look(place, parent):
        with _opened(place.parts[-1], _READ, parent) as fd:
            found = os.fstat(fd)
            _require_plain(found, place, parent)
            if found.st_size == len(content) and _read_all(fd, place, len(content)) == content:
                return stat.S_IMODE(found.st_mode) & 0o777
    raise _changed(place)


def _link_new(temporary: str, name: str, parent: int, place: Place) -> None:
    """Gives the new file its name, unless somebody was faster: a rename would replace theirs."""
    try:
        os.link(temporary, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
    except FileExistsError as error:
        raise _changed(place) from error


def _read_all(fd: int, place: Place, limit: int) -> bytes:
    data = bytearray()
    while piece := os.read(fd, min(_CHUNK, limit + 1 - len(data))):
        data += piece
        if len(data) > limit:
            raise TooLarge(f"the file has more than {limit} bytes", where=str(place))
    return bytes(data)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextmanager
def _faults(place: Place) -> Generator[None]:
    """Errors of the operating system as ours."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound("there is no such directory", where=str(place)) from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
            raise _escapes(place, "a symbolic link or a file stands on the way") from error
        raise _disk(error, place) from error


def _disk(error: OSError, place: Place) -> DataError:
    return storage_error(error, str(place), "a tool could not use the file")


def _escapes(place: Place, what: str) -> ToolBlocked:
    return ToolBlocked("PATH_ESCAPES", what, where=str(place))


def _changed(place: Place) -> ToolBlocked:
    return ToolBlocked("STATE_CHANGED", "the file is no longer what it was when this was agreed to", where=str(place))
