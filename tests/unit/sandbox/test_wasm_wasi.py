"""The guest's system calls, called as a guest that has been taken over would call them."""

from __future__ import annotations

import inspect
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.run.wasmpython.guest import Guest
from sandbox.run.wasmpython.memfs import Errno, MemoryFiles, WasiError
from sandbox.run.wasmpython.virtual import EPOCH_NS, FUEL_PER_SECOND, VirtualClock, VirtualRandom
from sandbox.run.wasmpython.wasi import GuestExit, Wasi

SIZE = 4096


class Memory:
    """A small linear memory that notices every access outside."""

    def __init__(self, size: int = SIZE) -> None:
        self.data = bytearray(size)
        self.size = size

    def read(self, start: int, stop: int) -> bytes:
        assert 0 <= start <= stop <= self.size
        return bytes(self.data[start:stop])

    def write(self, start: int, data: bytes) -> None:
        assert start >= 0
        assert start + len(data) <= self.size
        self.data[start : start + len(data)] = data


class Tank:
    def __init__(self, fuel: int = 10 * FUEL_PER_SECOND) -> None:
        self.left = self.filled = fuel

    def burnt(self) -> int:
        return self.filled - self.left

    def burn(self, amount: int) -> None:
        self.left = max(self.left - amount, 0)


class World:
    """A guest with its memory, to call by name."""

    def __init__(self, *, stdin: bytes = b"", quota: int = 1 << 16, cpus: float = 1.0) -> None:
        self.memory = Memory()
        self.written: list[tuple[int, bytes]] = []
        self.tank = Tank()
        self._stdin = stdin
        self.wasi = Wasi(
            arguments=("python3", "-c"),
            environment={"HOME": "/tmp"},
            stdin=self._read,
            stdout=lambda data: self.written.append((1, data)),
            stderr=lambda data: self.written.append((2, data)),
            files=MemoryFiles(quota),
            max_open=16,
            clock=VirtualClock(self.tank, cpus),
            random=VirtualRandom(b"seed"),
        )

    def _read(self, most: int) -> bytes:
        piece, self._stdin = self._stdin[:most], self._stdin[most:]
        return piece

    def call(self, name: str, *numbers: int) -> Errno:
        try:
            self.wasi.calls[name](Guest(self.memory), *numbers)
        except WasiError as error:
            return error.errno
        return Errno.SUCCESS

    def put(self, at: int, data: bytes) -> tuple[int, int]:
        self.memory.write(at, data)
        return at, len(data)

    def u32(self, at: int) -> int:
        return struct.unpack("<I", self.memory.read(at, at + 4))[0]

    def u64(self, at: int) -> int:
        return struct.unpack("<Q", self.memory.read(at, at + 8))[0]

    def open(self, path: str, *, how: int = 1, rights: int = 0x42, flags: int = 0) -> int:
        assert self.call("path_open", 3, 0, *self.put(0, path.encode()), how, rights, 0, flags, 64) is Errno.SUCCESS
        return self.u32(64)

    def write(self, number: int, data: bytes) -> Errno:
        self.put(512, data)
        self.put(504, struct.pack("<II", 512, len(data)))
        return self.call("fd_write", number, 504, 1, 500)

    def read(self, number: int, room: int) -> bytes:
        self.put(504, struct.pack("<II", 512, room))
        assert self.call("fd_read", number, 504, 1, 500) is Errno.SUCCESS
        return self.memory.read(512, 512 + self.u32(500))


NUMBERS = st.integers(-(2**31), 2**31 - 1) | st.integers(0, 16) | st.integers(SIZE - 16, SIZE + 16)
CALLS = {name: len(inspect.signature(call).parameters) - 1 for name, call in World().wasi.calls.items()}


@given(st.lists(st.tuples(st.sampled_from(sorted(CALLS)), st.lists(NUMBERS, min_size=10, max_size=10)), max_size=12))
@pytest.mark.requirement("G-TI-12")
def test_no_numbers_reach_outside_the_memory_or_raise(steps: list[tuple[str, list[int]]]) -> None:
    world = World(stdin=b"input")
    for name, numbers in steps:
        try:
            assert world.call(name, *numbers[: CALLS[name]]) in Errno
        except GuestExit:
            assert name == "proc_exit"


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=8), st.binary(max_size=64))
def test_buffers_of_any_shape_carry_data_or_are_a_fault(pairs: list[tuple[int, int]], stdin: bytes) -> None:
    world = World(stdin=stdin)
    world.put(0, b"".join(struct.pack("<ii", *pair) for pair in pairs))
    for name, number in (("fd_write", 1), ("fd_read", 0)):
        answer = world.call(name, number, 0, len(pairs), 2048)
        inside = all(start >= 0 and length >= 0 and start + length <= SIZE for start, length in pairs)
        assert answer in ((Errno.SUCCESS, Errno.INVAL) if inside else (Errno.FAULT,))


def test_overlapping_buffers_cannot_make_the_host_build_more_than_the_memory_holds() -> None:
    world = World()
    world.put(0, struct.pack("<II", 0, SIZE) * 400)
    assert world.call("fd_write", 1, 0, 400, 4000) is Errno.INVAL
    assert world.call("fd_write", 1, 0, 2**31 - 1, 4000) is Errno.INVAL
    assert world.written == []


def test_streams_take_and_give() -> None:
    world = World(stdin=b"hello")
    assert world.write(1, b"out") is Errno.SUCCESS
    assert world.write(2, b"err") is Errno.SUCCESS
    assert world.written == [(1, b"out"), (2, b"err")]
    assert [world.read(0, 3), world.read(0, 9), world.read(0, 9)] == [b"hel", b"lo", b""]
    assert world.write(0, b"x") is Errno.BADF
    assert world.call("fd_read", 1, 504, 1, 500) is Errno.BADF
    assert world.call("fd_seek", 1, 0, 0, 64) is Errno.SPIPE


def test_a_file_can_be_written_sought_read_and_removed() -> None:
    world = World()
    number = world.open("f")
    assert world.write(number, b"0123456789") is Errno.SUCCESS
    assert world.call("fd_seek", number, -4, 2, 64) is Errno.SUCCESS
    assert world.u64(64) == 6
    assert world.read(number, 2) == b"67"
    assert world.call("fd_tell", number, 64) is Errno.SUCCESS
    assert world.u64(64) == 8
    assert world.call("fd_seek", number, -1, 0, 64) is Errno.INVAL
    assert world.call("fd_filestat_get", number, 128) is Errno.SUCCESS
    assert world.memory.data[128 + 16] == 4
    assert world.u64(128 + 32) == 10
    assert world.call("path_unlink_file", 3, *world.put(0, b"f")) is Errno.SUCCESS
    assert world.call("path_filestat_get", 3, 0, *world.put(0, b"f"), 128) is Errno.NOENT


def test_rights_that_were_not_asked_for_are_not_there() -> None:
    world = World()
    assert world.write(world.open("f", rights=2), b"x") is Errno.NOTCAPABLE
    number = world.open("f", rights=64)
    world.put(504, struct.pack("<II", 512, 4))
    assert world.call("fd_read", number, 504, 1, 500) is Errno.NOTCAPABLE


def test_appending_goes_to_the_end_wherever_the_position_is() -> None:
    world = World()
    number = world.open("f", flags=1)
    world.write(number, b"ab")
    world.call("fd_seek", number, 0, 0, 64)
    world.write(number, b"cd")
    world.call("fd_seek", number, 0, 0, 64)
    assert world.read(number, 9) == b"abcd"


def test_a_directory_lists_everything_once_however_small_the_buffer() -> None:
    world = World()
    for name in ("one", "two", "three"):
        world.open(name)
    names, cookie = [], 0
    while True:
        assert world.call("fd_readdir", 3, 1024, 40, cookie, 64) is Errno.SUCCESS
        if (used := world.u32(64)) == 0:
            break
        following, _, length, _ = struct.unpack("<QQIB3x", world.memory.read(1024, 1048))
        assert used >= 24 + length
        names.append(world.memory.read(1048, 1048 + length).decode())
        cookie = following
    assert names == [".", "..", "one", "two", "three"]


@pytest.mark.requirement("G-TI-12")
def test_time_is_made_of_instructions_and_sleeping_burns_them() -> None:
    world = World(cpus=0.5)
    world.tank.burn(FUEL_PER_SECOND // 2)
    assert world.call("clock_time_get", 1, 0, 64) is Errno.SUCCESS
    assert world.u64(64) == 10**9
    assert world.call("clock_time_get", 0, 0, 64) is Errno.SUCCESS
    assert world.u64(64) == EPOCH_NS + 10**9
    nap = struct.pack("<QB7xI4xQQH6x", 77, 0, 1, 2 * 10**9, 0, 0)
    assert world.call("poll_oneoff", world.put(256, nap)[0], 512, 1, 64) is Errno.SUCCESS
    assert world.tank.burnt() == FUEL_PER_SECOND // 2 + FUEL_PER_SECOND
    assert struct.unpack("<QHB", world.memory.read(512, 523)) == (77, 0, 0)
    assert world.call("clock_time_get", 9, 0, 64) is Errno.INVAL


def test_a_sleep_for_ever_burns_what_is_left() -> None:
    world = World()
    nap = struct.pack("<QB7xI4xQQH6x", 1, 0, 1, 2**64 - 1, 0, 0)
    assert world.call("poll_oneoff", world.put(256, nap)[0], 512, 1, 64) is Errno.SUCCESS
    assert world.tank.left == 0


def test_chance_is_the_same_for_the_same_seed_and_never_repeats() -> None:
    first, second = VirtualRandom(b"seed"), VirtualRandom(b"seed")
    taken = [first.take(20) for _ in range(3)]
    assert taken == [second.take(20) for _ in range(3)]
    assert len(set(taken)) == 3
    assert VirtualRandom(b"other").take(20) != taken[0]
    world = World()
    assert world.call("random_get", 0, SIZE + 1) is Errno.FAULT
    assert world.call("random_get", 0, 2**30) is Errno.INVAL


def test_what_this_world_has_not_is_not_there() -> None:
    missing: Any = {"sock_accept", "sock_recv", "sock_send", "path_link", "path_symlink", "path_readlink"}
    assert missing.isdisjoint(World().wasi.calls)
