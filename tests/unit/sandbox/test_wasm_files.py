"""The file system in a guest's memory: bounded, without a way out, and the same for everybody who has a file open."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sandbox.run.wasmpython.descriptors import Descriptors, OpenDirectory, OpenFile, Stream
from sandbox.run.wasmpython.memfs import MAX_DEPTH, NODE_COST, Directory, Errno, File, MemoryFiles, WasiError


def refused(call: Callable[[], object]) -> Errno | None:
    try:
        call()
    except WasiError as error:
        return error.errno
    return None


def put(files: MemoryFiles, path: str, content: bytes = b"") -> File:
    file = files.open_file(files.root, path, create=True, exclusive=False, truncate=False, now=1)
    files.write(file, 0, content, 1)
    return file


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x", "/x", "//x", "a/../../../etc/passwd"])
def test_no_path_leads_out_of_the_tree(path: str) -> None:
    files = MemoryFiles(1 << 20)
    assert refused(lambda: files.find(files.root, path)) is Errno.NOTCAPABLE
    assert refused(lambda: put(files, path)) is Errno.NOTCAPABLE


@pytest.mark.parametrize(
    ("path", "errno"),
    [
        ("a\0b", Errno.INVAL),
        ("x" * 256, Errno.NAMETOOLONG),
        ("é" * 128, Errno.NAMETOOLONG),
        ("/".join("a" * (MAX_DEPTH + 1)), Errno.NAMETOOLONG),
        ("missing/x", Errno.NOENT),
        ("file/x", Errno.NOTDIR),
        ("", Errno.EXIST),
        (".", Errno.EXIST),
    ],
)
def test_names_that_cannot_be_are_refused(path: str, errno: Errno) -> None:
    files = MemoryFiles(1 << 20)
    put(files, "file")
    assert refused(lambda: put(files, path)) is errno


def test_dots_are_resolved_by_name() -> None:
    files = MemoryFiles(1 << 20)
    files.make_directory(files.root, "a", 1)
    file = put(files, "a/../a/./x", b"1")
    assert files.find(files.root, "a//x") is file
    assert files.find(files.root, "./a/..") is files.root


def test_the_quota_holds_for_content_gaps_and_empty_nodes() -> None:
    files = MemoryFiles(1000 + 3 * NODE_COST)
    file = put(files, "file", b"x" * (1000 + 2 * NODE_COST))
    assert refused(lambda: files.write(file, len(file.content), b"x", 1)) is Errno.NOSPC
    assert refused(lambda: files.write(file, 2**62, b"x", 1)) is Errno.NOSPC
    assert refused(lambda: files.resize(file, 2**62, 1)) is Errno.NOSPC
    files.resize(file, 1000, 1)
    files.make_directory(files.root, "one", 1)
    put(files, "two")
    assert refused(lambda: put(files, "three")) is Errno.NOSPC
    assert refused(lambda: files.make_directory(files.root, "three", 1)) is Errno.NOSPC


def test_a_write_over_the_quota_changes_nothing() -> None:
    files = MemoryFiles(NODE_COST + 10)
    file = put(files, "file", b"0123456789")
    assert refused(lambda: files.write(file, 5, b"abcdefg", 2)) is Errno.NOSPC
    assert (bytes(file.content), file.modified_ns) == (b"0123456789", 1)


def test_a_removed_file_takes_room_until_it_is_closed() -> None:
    files = MemoryFiles(NODE_COST * 2 + 100)
    opened = Descriptors(files, 8)
    number = opened.add(OpenFile(put(files, "file", b"x" * 100), readable=True, writable=True, append=False))
    opened.removed(files.remove(files.root, "file", directory=False, now=1))
    assert refused(lambda: put(files, "other", b"x" * 100)) is Errno.NOSPC
    opened.close(number)
    put(files, "other", b"x" * 100)


def test_only_an_empty_directory_can_be_removed_and_then_takes_no_more_files() -> None:
    files = MemoryFiles(1 << 20)
    files.make_directory(files.root, "d", 1)
    directory = files.find(files.root, "d")
    assert isinstance(directory, Directory)
    put(files, "d/x")
    assert refused(lambda: files.remove(files.root, "d", directory=True, now=1)) is Errno.NOTEMPTY
    assert refused(lambda: files.remove(files.root, "d", directory=False, now=1)) is Errno.ISDIR
    assert refused(lambda: files.remove(files.root, "d/x", directory=True, now=1)) is Errno.NOTDIR
    files.remove(files.root, "d/x", directory=False, now=1)
    files.remove(files.root, "d", directory=True, now=1)
    made = files.open_file
    assert refused(lambda: made(directory, "y", create=True, exclusive=False, truncate=False, now=1)) is Errno.NOENT


def test_a_rename_replaces_what_may_be_replaced_and_never_makes_a_circle() -> None:
    files = MemoryFiles(1 << 20)
    root = files.root
    a, b = put(files, "a", b"a"), put(files, "b", b"b")
    assert files.rename(root, "a", root, "b", 2) is b
    assert files.find(root, "b") is a
    assert files.rename(root, "b", root, "b", 2) is None
    assert refused(lambda: files.rename(root, "a", root, "c", 2)) is Errno.NOENT
    files.make_directory(root, "d", 1)
    files.make_directory(root, "d/e", 1)
    assert refused(lambda: files.rename(root, "d", root, "d/e/f", 2)) is Errno.INVAL
    assert refused(lambda: files.rename(root, "d", root, "d/f", 2)) is Errno.INVAL
    assert refused(lambda: files.rename(root, "d", root, "b", 2)) is Errno.NOTDIR
    assert refused(lambda: files.rename(root, "b", root, "d", 2)) is Errno.ISDIR
    files.make_directory(root, "empty", 1)
    assert files.rename(root, "d", root, "empty", 2) is not None
    assert isinstance(files.find(root, "empty/e"), Directory)


def test_descriptors_are_bounded_and_the_lowest_free_one_comes_next() -> None:
    files = MemoryFiles(1 << 20)
    opened = Descriptors(files, 3)
    assert [opened.add(OpenDirectory(files.root)) for _ in range(3)] == [0, 1, 2]
    assert refused(lambda: opened.add(Stream())) is Errno.MFILE
    opened.close(1)
    assert opened.add(Stream()) == 1
    assert refused(lambda: opened.get(7)) is Errno.BADF
    assert refused(lambda: opened.get(-1)) is Errno.BADF
    assert refused(lambda: opened.of(0, OpenFile)) is Errno.ISDIR
    assert refused(lambda: opened.of(1, OpenDirectory)) is Errno.NOTDIR
