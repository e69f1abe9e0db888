"""WASI preview 1 for one guest: standard streams, files in memory, a clock and randomness of our own. Nothing else.

Written here, not taken from the engine's own WASI, because that one is made to reach the host: it has files, threads
and clocks of the machine behind it. Here there is no code that could reach any.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from sandbox.run.wasmpython.descriptors import Descriptors, OpenDirectory, OpenFile, Stream, StreamIn, StreamOut
from sandbox.run.wasmpython.guest import Guest
from sandbox.run.wasmpython.memfs import Directory, Errno, File, MemoryFiles, Node, WasiError
from sandbox.run.wasmpython.virtual import VirtualClock, VirtualRandom

MODULE: Final = "wasi_snapshot_preview1"
PREOPEN: Final = b"/tmp"
_PREOPENED: Final = 3
_MAX_RANDOM: Final = 1 << 20
_MAX_SUBSCRIPTIONS: Final = 64
_ABSOLUTE: Final = 1
_CREATE, _DIRECTORY, _EXCLUSIVE, _TRUNCATE = 1, 2, 4, 8
_APPEND: Final = 1
_SET_MODIFIED, _SET_MODIFIED_NOW = 4, 8
_RIGHT_READ, _RIGHT_SEEK, _RIGHT_TELL, _RIGHT_WRITE = 1 << 1, 1 << 2, 1 << 5, 1 << 6
_ALL_RIGHTS: Final = (1 << 29) - 1
_KIND_UNKNOWN, _KIND_DIRECTORY, _KIND_FILE = 0, 3, 4
_SUBSCRIPTION: Final = struct.Struct("<QB7xI4xQQH6x")
_EVENT: Final = struct.Struct("<QHB5x16x")
_DIRENT: Final = struct.Struct("<QQIB3x")


class GuestExit(Exception):
    """The guest ended itself with a status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Wasi:
    """The calls of one guest, by name in ``calls``. Each takes the guest's memory and its numbers, and raises
    ``WasiError`` for an error number, ``GuestExit`` at the end, and whatever the streams raise.

    Args:
        arguments, environment: what the program finds.
        stdin, stdout, stderr: its standard streams.
        files: what it finds under ``/tmp``.
        max_open: descriptors at the same time, the standard ones included.
        clock, random: its time and its chance.
    """

    def __init__(
        self,
        *,
        arguments: tuple[str, ...],
        environment: dict[str, str],
        stdin: StreamIn,
        stdout: StreamOut,
        stderr: StreamOut,
        files: MemoryFiles,
        max_open: int,
        clock: VirtualClock,
        random: VirtualRandom,
    ) -> None:
        self._arguments = [text.encode() for text in arguments]
        self._environment = [f"{name}={value}".encode() for name, value in environment.items()]
        self._files = files
        self._clock = clock
        self._random = random
        self._open = Descriptors(files, max_open)
        for entry in (Stream(read=stdin), Stream(write=stdout), Stream(write=stderr), OpenDirectory(files.root)):
            self._open.add(entry)
        self.calls: dict[str, Callable[..., None]] = {
            name: getattr(self, f"_{name}")
            for name in (
                "args_get", "args_sizes_get", "environ_get", "environ_sizes_get", "clock_res_get", "clock_time_get",
                "fd_close", "fd_fdstat_get", "fd_fdstat_set_flags", "fd_filestat_get", "fd_filestat_set_size",
                "fd_filestat_set_times", "fd_prestat_get", "fd_prestat_dir_name", "fd_pread", "fd_pwrite", "fd_read",
                "fd_readdir", "fd_seek", "fd_tell", "fd_write", "fd_sync", "fd_datasync", "fd_advise",
                "path_create_directory", "path_filestat_get", "path_filestat_set_times", "path_open",
                "path_remove_directory", "path_rename", "path_unlink_file", "poll_oneoff", "proc_exit", "random_get",
                "sched_yield",
            )
        }  # fmt: skip

    # --- the world ----------------------------------------------------------------------------------------------------

    def _args_sizes_get(self, guest: Guest, count: int, size: int) -> None:
        _put_sizes(guest, count, size, self._arguments)

    def _args_get(self, guest: Guest, pointers: int, texts: int) -> None:
        guest.put_strings(pointers, texts, self._arguments)

    def _environ_sizes_get(self, guest: Guest, count: int, size: int) -> None:
        _put_sizes(guest, count, size, self._environment)

    def _environ_get(self, guest: Guest, pointers: int, texts: int) -> None:
        guest.put_strings(pointers, texts, self._environment)

    def _clock_res_get(self, guest: Guest, _clock: int, out: int) -> None:
        guest.put_u64(out, 1_000)

    def _clock_time_get(self, guest: Guest, clock: int, _precision: int, out: int) -> None:
        guest.put_u64(out, self._time(clock))

    def _time(self, clock: int) -> int:
        match clock:
            case 0:
                return self._clock.realtime()
            case 1:
                return self._clock.monotonic()
            case _:
                raise WasiError(Errno.INVAL)

    def _random_get(self, guest: Guest, pointer: int, length: int) -> None:
        if not 0 <= length <= _MAX_RANDOM:
            raise WasiError(Errno.INVAL)
        guest.write(pointer, self._random.take(length))

    def _sched_yield(self, _guest: Guest) -> None:
        return

    def _proc_exit(self, _guest: Guest, status: int) -> None:
        raise GuestExit(status)

    def _poll_oneoff(self, guest: Guest, subscriptions: int, events: int, count: int, out: int) -> None:
        """Everything is ready at once: streams never wait, and to sleep is to move the clock on."""
        if not 0 < count <= _MAX_SUBSCRIPTIONS:
            raise WasiError(Errno.INVAL)
        wanted = list(_SUBSCRIPTION.iter_unpack(guest.read(subscriptions, count * _SUBSCRIPTION.size)))
        ready = [(user, tag) for user, tag, *_ in wanted if tag != 0]
        if not ready:
            naps = [(self._nap(clock, timeout, flags), user) for user, _, clock, timeout, _, flags in wanted]
            shortest = min(naps)
            self._clock.sleep(shortest[0])
            ready = [(shortest[1], 0)]
        guest.write(events, b"".join(_EVENT.pack(user, 0, tag) for user, tag in ready))
        guest.put_u32(out, len(ready))

    def _nap(self, clock: int, timeout: int, flags: int) -> int:
        if not flags & _ABSOLUTE:
            return timeout
        return max(timeout - self._time(clock), 0)

    # --- descriptors --------------------------------------------------------------------------------------------------

    def _fd_close(self, _guest: Guest, number: int) -> None:
        self._open.close(number)

    def _fd_sync(self, _guest: Guest, number: int) -> None:
        self._open.get(number)

    _fd_datasync = _fd_sync

    def _fd_advise(self, _guest: Guest, number: int, _offset: int, _length: int, _advice: int) -> None:
        self._open.get(number)

    def _fd_fdstat_get(self, guest: Guest, number: int, out: int) -> None:
        entry = self._open.get(number)
        kind, flags, rights = _KIND_UNKNOWN, 0, _RIGHT_READ | _RIGHT_WRITE
        if isinstance(entry, OpenDirectory):
            kind, rights = _KIND_DIRECTORY, _ALL_RIGHTS
        elif isinstance(entry, OpenFile):
            kind, flags = _KIND_FILE, _APPEND if entry.append else 0
            rights = _ALL_RIGHTS & ~(0 if entry.readable else _RIGHT_READ) & ~(0 if entry.writable else _RIGHT_WRITE)
        guest.write(out, struct.pack("<BxH4xQQ", kind, flags, rights, rights))

    def _fd_fdstat_set_flags(self, _guest: Guest, number: int, flags: int) -> None:
        entry = self._open.get(number)
        if isinstance(entry, OpenFile):
            entry.append = bool(flags & _APPEND)

    def _fd_filestat_get(self, guest: Guest, number: int, out: int) -> None:
        entry = self._open.get(number)
        guest.write(out, _filestat(None if isinstance(entry, Stream) else entry.node))

    def _fd_filestat_set_size(self, _guest: Guest, number: int, size: int) -> None:
        file = self._writable(number)
        if size < 0:
            raise WasiError(Errno.INVAL)
        self._files.resize(file.node, size, self._clock.realtime())

    def _fd_filestat_set_times(self, _guest: Guest, number: int, _a: int, modified: int, flags: int) -> None:
        entry = self._open.get(number)
        if not isinstance(entry, Stream):
            self._touch(entry.node, modified, flags)

    def _fd_prestat_get(self, guest: Guest, number: int, out: int) -> None:
        if number != _PREOPENED:
            raise WasiError(Errno.BADF)
        guest.write(out, struct.pack("<B3xI", 0, len(PREOPEN)))

    def _fd_prestat_dir_name(self, guest: Guest, number: int, out: int, room: int) -> None:
        if number != _PREOPENED or room < len(PREOPEN):
            raise WasiError(Errno.BADF)
        guest.write(out, PREOPEN)

    def _fd_read(self, guest: Guest, number: int, buffers: int, count: int, out: int) -> None:
        entry = self._open.get(number)
        places = guest.buffers(buffers, count)
        room = sum(length for _, length in places)
        if isinstance(entry, Stream):
            if entry.read is None:
                raise WasiError(Errno.BADF)
            data = entry.read(room)
        else:
            file = self._readable(number)
            data = bytes(file.node.content[file.position : file.position + room])
            file.position += len(data)
        guest.scatter(places, data)
        guest.put_u32(out, len(data))

    def _fd_pread(self, guest: Guest, number: int, buffers: int, count: int, offset: int, out: int) -> None:
        file = self._readable(number)
        places = guest.buffers(buffers, count)
        start = _offset(offset)
        data = bytes(file.node.content[start : start + sum(length for _, length in places)])
        guest.scatter(places, data)
        guest.put_u32(out, len(data))

    def _fd_write(self, guest: Guest, number: int, buffers: int, count: int, out: int) -> None:
        entry = self._open.get(number)
        data = guest.gather(buffers, count)
        if isinstance(entry, Stream):
            if entry.write is None:
                raise WasiError(Errno.BADF)
            entry.write(data)
        else:
            file = self._writable(number)
            if file.append:
                file.position = len(file.node.content)
            self._files.write(file.node, file.position, data, self._clock.realtime())
            file.position += len(data)
        guest.put_u32(out, len(data))

    def _fd_pwrite(self, guest: Guest, number: int, buffers: int, count: int, offset: int, out: int) -> None:
        file = self._writable(number)
        data = guest.gather(buffers, count)
        self._files.write(file.node, _offset(offset), data, self._clock.realtime())
        guest.put_u32(out, len(data))

    def _fd_seek(self, guest: Guest, number: int, offset: int, whence: int, out: int) -> None:
        file = self._open.of(number, OpenFile)
        if not 0 <= whence <= 2:
            raise WasiError(Errno.INVAL)
        file.position = _offset((0, file.position, len(file.node.content))[whence] + offset)
        guest.put_u64(out, file.position)

    def _fd_tell(self, guest: Guest, number: int, out: int) -> None:
        guest.put_u64(out, self._open.of(number, OpenFile).position)

    def _fd_readdir(self, guest: Guest, number: int, buffer: int, room: int, cookie: int, out: int) -> None:
        directory = self._open.of(number, OpenDirectory).node
        room &= 0xFFFF_FFFF
        listed: list[tuple[str, Node]] = [(".", directory), ("..", directory), *directory.entries.items()]
        data = bytearray()
        for index in range(_offset(cookie), len(listed)):
            name, node = listed[index]
            text = name.encode("utf-8")
            kind = _KIND_DIRECTORY if isinstance(node, Directory) else _KIND_FILE
            data += _DIRENT.pack(index + 1, node.inode, len(text), kind) + text
            if len(data) >= room:
                break
        guest.write(buffer, bytes(data[:room]))
        guest.put_u32(out, min(len(data), room))

    # --- paths --------------------------------------------------------------------------------------------------------

    def _path_open(
        self, guest: Guest, number: int, _look: int, path: int, length: int, how: int, rights: int, _inherit: int,
        flags: int, out: int,
    ) -> None:  # fmt: skip
        base, name = self._at(guest, number, path, length)
        node = None if how & _CREATE else self._files.find(base, name)
        if how & _DIRECTORY or isinstance(node, Directory):
            found = self._files.find(base, name)
            if not isinstance(found, Directory):
                raise WasiError(Errno.NOTDIR)
            if rights & _RIGHT_WRITE and not how & _DIRECTORY:
                raise WasiError(Errno.ISDIR)
            guest.put_u32(out, self._open.add(OpenDirectory(found)))
            return
        file = self._files.open_file(
            base,
            name,
            create=bool(how & _CREATE),
            exclusive=bool(how & _EXCLUSIVE),
            truncate=bool(how & _TRUNCATE),
            now=self._clock.realtime(),
        )
        readable, writable = bool(rights & _RIGHT_READ), bool(rights & _RIGHT_WRITE)
        guest.put_u32(out, self._open.add(OpenFile(file, readable, writable, bool(flags & _APPEND))))

    def _path_filestat_get(self, guest: Guest, number: int, _look: int, path: int, length: int, out: int) -> None:
        guest.write(out, _filestat(self._files.find(*self._at(guest, number, path, length))))

    def _path_filestat_set_times(
        self, guest: Guest, number: int, _look: int, path: int, length: int, _a: int, modified: int, flags: int
    ) -> None:
        self._touch(self._files.find(*self._at(guest, number, path, length)), modified, flags)

    def _touch(self, node: Node, modified: int, flags: int) -> None:
        if flags & _SET_MODIFIED_NOW:
            node.modified_ns = self._clock.realtime()
        elif flags & _SET_MODIFIED:
            node.modified_ns = modified

    def _path_create_directory(self, guest: Guest, number: int, path: int, length: int) -> None:
        self._files.make_directory(*self._at(guest, number, path, length), self._clock.realtime())

    def _path_remove_directory(self, guest: Guest, number: int, path: int, length: int) -> None:
        base, name = self._at(guest, number, path, length)
        self._open.removed(self._files.remove(base, name, directory=True, now=self._clock.realtime()))

    def _path_unlink_file(self, guest: Guest, number: int, path: int, length: int) -> None:
        base, name = self._at(guest, number, path, length)
        self._open.removed(self._files.remove(base, name, directory=False, now=self._clock.realtime()))

    def _path_rename(
        self, guest: Guest, number: int, old: int, old_length: int, to: int, new: int, new_length: int
    ) -> None:
        source, target = self._at(guest, number, old, old_length), self._at(guest, to, new, new_length)
        replaced = self._files.rename(*source, *target, self._clock.realtime())
        if replaced is not None:
            self._open.removed(replaced)

    def _at(self, guest: Guest, number: int, path: int, length: int) -> tuple[Directory, str]:
        return self._open.of(number, OpenDirectory).node, guest.path(path, length)

    def _readable(self, number: int) -> OpenFile:
        file = self._open.of(number, OpenFile)
        if not file.readable:
            raise WasiError(Errno.NOTCAPABLE)
        return file

    def _writable(self, number: int) -> OpenFile:
        file = self._open.of(number, OpenFile)
        if not file.writable:
            raise WasiError(Errno.NOTCAPABLE)
        return file


def _put_sizes(guest: Guest, count: int, size: int, strings: list[bytes]) -> None:
    guest.put_u32(count, len(strings))
    guest.put_u32(size, sum(len(text) + 1 for text in strings))


def _offset(value: int) -> int:
    if value < 0:
        raise WasiError(Errno.INVAL)
    return value


def _filestat(node: Node | None) -> bytes:
    """``struct filestat``; None: a stream."""
    if node is None:
        return struct.pack("<QQB7xQQQQQ", 0, 0, _KIND_UNKNOWN, 1, 0, 0, 0, 0)
    kind = _KIND_DIRECTORY if isinstance(node, Directory) else _KIND_FILE
    size = len(node.content) if isinstance(node, File) else 0
    when = node.modified_ns & 0xFFFF_FFFF_FFFF_FFFF
    return struct.pack("<QQB7xQQQQQ", 1, node.inode, kind, 1, size, when, when, when)
