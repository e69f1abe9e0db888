"""``fs.read`` and ``fs.write``: nothing outside the open directories is read or changed, whatever stands in the way."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnusnode.contracts.ids import sha256
from gnusnode.contracts.tools import DryRunResult
from gnusnode.errors import ConfigError, NotFound, ToolBlocked
from roles.intermediary.tools.base import Scope, ToolOutput, reason_of
from roles.intermediary.tools.beneath import Place, Roots, find_file, read_file, write_file
from roles.intermediary.tools.fs_read import MAX_FILE, FsRead
from roles.intermediary.tools.fs_write import FsWrite, difference
from tests.unit.intermediary.proposals import proposal

SECRET = b"the secret"


class House:
    """``open`` is open to tools; ``closed`` beside it holds a secret."""

    def __init__(self, base: Path) -> None:
        self.open, self.closed = base / "open", base / "closed"
        for folder in (self.open, self.closed):
            folder.mkdir()
        (self.closed / "secret").write_bytes(SECRET)
        self.roots = Roots([self.open])
        self.scope = Scope(paths=(str(self.open),))

    async def read(self, path: Path | str) -> tuple[DryRunResult, ToolOutput]:
        tool, call = FsRead(self.roots), proposal("fs.read", path=str(path))
        result = await tool.dry_run(call, self.scope)
        return result, await tool.run(call, self.scope, result)

    async def read_refused(self, path: Path | str) -> str:
        """The reason; the run is refused as the dry-run was."""
        tool, call = FsRead(self.roots), proposal("fs.read", path=str(path))
        result = await tool.dry_run(call, self.scope)
        with pytest.raises((ToolBlocked, NotFound)):
            await tool.run(call, self.scope, result)
        assert SECRET.decode() not in result.mock_output.preview
        return reason_of(result)

    async def predict_write(self, path: Path | str, content: str = "new\n", mode: str = "create") -> DryRunResult:
        call = proposal("fs.write", path=str(path), content=content, mode=mode)
        return await FsWrite(self.roots).dry_run(call, self.scope)

    async def write(self, path: Path | str, content: str = "new\n", mode: str = "create") -> ToolOutput:
        call = proposal("fs.write", path=str(path), content=content, mode=mode)
        tool = FsWrite(self.roots)
        return await tool.run(call, self.scope, await tool.dry_run(call, self.scope))


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path.resolve())
    yield made
    assert (made.closed / "secret").read_bytes() == SECRET
    assert os.listdir(made.closed) == ["secret"]
    assert [name for name in os.listdir(made.open) if name.endswith(".tmp")] == []


# --- reading ----------------------------------------------------------------------------------------------------------


async def test_a_file_in_an_open_directory_is_read(house: House) -> None:
    (house.open / "a").mkdir()
    (house.open / "a" / "Notes.md").write_bytes(b"# hi")

    result, output = await house.read(house.open / "a" / "Notes.md")

    assert result.simulated_effects.filesystem_access == (str(house.open / "a" / "Notes.md"),)
    assert (output.data, output.media_type) == (b"# hi", "text/markdown")
    assert not result.human_approval_required
    assert "hi" not in result.mock_output.preview


@pytest.mark.parametrize(
    "make",
    [
        lambda house: (house.open / "x").symlink_to(house.closed / "secret"),
        lambda house: (house.open / "x").symlink_to("../closed/secret"),
        lambda house: os.link(house.closed / "secret", house.open / "x"),
        lambda house: os.mkfifo(house.open / "x"),
        lambda house: (house.open / "x").mkdir(),
    ],
)
async def test_what_leads_out_or_is_no_plain_file_is_refused(house: House, make: Callable[[House], None]) -> None:
    make(house)
    reason = await house.read_refused(house.open / "x")
    assert reason == "PATH_ESCAPES"
    for mode in ("create", "replace"):
        assert reason_of(await house.predict_write(house.open / "x", mode=mode)) == "PATH_ESCAPES"


async def test_a_socket_is_not_opened(house: House) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        where = os.getcwd()
        os.chdir(house.open)  # names of sockets are short
        try:
            listener.bind("x")
        finally:
            os.chdir(where)
        assert await house.read_refused(house.open / "x") == "PATH_ESCAPES"


async def test_a_directory_that_is_a_link_is_not_entered(house: House) -> None:
    (house.open / "way").symlink_to(house.closed)
    assert await house.read_refused(house.open / "way" / "secret") == "PATH_ESCAPES"
    assert reason_of(await house.predict_write(house.open / "way" / "new")) == "PATH_ESCAPES"


@pytest.mark.parametrize(
    ("spelling", "reason"),
    [
        ("{open}/../closed/secret", "PATH_INVALID"),
        ("{open}/./x", "PATH_INVALID"),
        ("{open}//x", "PATH_INVALID"),
        ("/{open}/x", "PATH_INVALID"),
        ("{open}/x/", "PATH_INVALID"),
        ("{open}/a\\b", "PATH_INVALID"),
        ("{open}/a\x00b", "PATH_INVALID"),
        ("{open}/a\nb", "PATH_INVALID"),
        ("{open}/a\u202eb", "PATH_INVALID"),
        ("x", "ARGUMENTS_INVALID"),
        ("open/x", "PATH_INVALID"),
        ("~/x", "PATH_INVALID"),
        ("{closed}/secret", "PATH_NOT_ALLOWED"),
        ("{open}closed/secret", "PATH_NOT_ALLOWED"),
        ("{open}", "PATH_NOT_ALLOWED"),
        ("/etc/passwd", "PATH_NOT_ALLOWED"),
        ("/proc/self/root/etc/passwd", "PATH_NOT_ALLOWED"),
        ("{open}/" + "a/" * 70 + "b", "PATH_NOT_ALLOWED"),
        ("{open}/none", "FILE_UNREADABLE"),
        ("{open}/none/x", "FILE_UNREADABLE"),
    ],
)
async def test_a_path_that_is_not_plainly_inside_is_refused(house: House, spelling: str, reason: str) -> None:
    (house.open.parent / "openclosed").mkdir()
    assert await house.read_refused(spelling.format(open=house.open, closed=house.closed)) == reason


async def test_the_scope_narrows_what_the_operator_opened(house: House) -> None:
    for name in ("a", "ab"):
        (house.open / name).mkdir()
        (house.open / name / "x").write_bytes(b"x")
    tool = FsRead(house.roots)
    for paths, allowed in (
        ((), set()),
        ((f"{house.open}/a",), {"a"}),
        ((f"{house.open}/a/x",), {"a"}),
        (("/",), {"a", "ab"}),
        ((f"{house.open}/a/../ab",), set()),
        (("a",), set()),
    ):
        found = {
            name
            for name in ("a", "ab")
            if (await tool.dry_run(proposal("fs.read", path=f"{house.open}/{name}/x"), Scope(paths=paths))).dry_run_ok
        }
        assert found == allowed, paths


async def test_a_file_that_is_too_large_is_refused(house: House) -> None:
    (house.open / "x").write_bytes(b"x" * MAX_FILE)
    assert len((await house.read(house.open / "x"))[1].data) == MAX_FILE
    (house.open / "y").write_bytes(b"x" * (MAX_FILE + 1))
    result = await FsRead(house.roots).dry_run(proposal("fs.read", path=f"{house.open}/y"), house.scope)
    assert reason_of(result) == "FILE_UNREADABLE"


def test_a_link_that_is_swapped_in_again_and_again_never_leads_out(house: House) -> None:
    (house.open / "way").mkdir()
    (house.open / "way" / "secret").write_bytes(b"harmless")
    place = Place(str(house.open), ("way", "secret"))
    stop = threading.Event()

    def swap() -> None:
        real, link, out = house.open / "real", house.open / "link", house.open / "way"
        link.symlink_to(house.closed)
        while not stop.is_set():
            os.rename(out, real)
            os.rename(link, out)
            os.rename(out, link)
            os.rename(real, out)

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen: set[bytes | None] = set()
    try:
        for number in range(3000):
            try:
                seen.add(find_file(place, 100))
                if number % 10 == 0:
                    write_file(Place(str(house.open), ("way", f"new{number}")), b"x", replaces=None)
            except (ToolBlocked, NotFound):
                seen.add(None)
    finally:
        stop.set()
        swapper.join()

    assert seen <= {b"harmless", None}
    assert b"harmless" in seen


def test_another_file_system_below_an_open_directory_is_not_entered() -> None:
    if os.stat("/proc").st_dev == os.stat("/").st_dev:
        pytest.skip("no other file system to look at")
    with pytest.raises(ToolBlocked, match="another file system"):
        read_file(Place("/", ("proc", "self", "status")), 10_000)


def test_a_directory_that_is_not_there_cannot_be_opened_to_tools(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "none", tmp_path / "file", Path("/")):
        with pytest.raises(ConfigError):
            Roots([path])


# --- writing ----------------------------------------------------------------------------------------------------------


async def test_a_new_file_is_shown_as_it_will_be_and_then_is_there(house: House) -> None:
    path = house.open / "new.txt"

    result = await house.predict_write(path, "one\ntwo")

    assert result.human_approval_required
    assert result.risk_flags == ("file_write",)
    assert result.simulated_effects.filesystem_access == (str(path),)
    assert result.mock_output.preview == (
        f"# {path}: nothing -> 7 bytes {sha256(b'one' + bytes([10]) + b'two')}\n"
        f"--- /dev/null\n+++ {path}\n@@ -0,0 +1,2 @@\n+one\n+two\n\\ No newline at end of file\n"
    )
    assert os.listdir(house.open) == []

    await house.write(path, "one\ntwo")

    assert path.read_text() == "one\ntwo"
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_replaced_file_keeps_its_mode_and_the_difference_is_what_is_shown(house: House) -> None:
    path = house.open / "x"
    path.write_text("a\nb\nc\n")
    path.chmod(0o640)

    result = await house.predict_write(path, "a\nB\nc\n", "replace")
    await house.write(path, "a\nB\nc\n", "replace")

    assert "-b\n+B\n" in result.mock_output.preview
    assert path.read_text() == "a\nB\nc\n"
    assert path.stat().st_mode & 0o777 == 0o640


async def test_a_dry_run_changes_nothing_not_even_times(house: House) -> None:
    (house.open / "x").write_text("old")
    before = [(entry.name, entry.stat().st_mtime_ns, entry.stat().st_ino) for entry in os.scandir(house.open)]
    folder = house.open.stat().st_mtime_ns

    await house.predict_write(house.open / "x", "new", "replace")
    await house.predict_write(house.open / "y", "new")

    assert [(entry.name, entry.stat().st_mtime_ns, entry.stat().st_ino) for entry in os.scandir(house.open)] == before
    assert house.open.stat().st_mtime_ns == folder


@pytest.mark.parametrize(
    ("path", "mode", "reason"),
    [
        ("there", "create", "FILE_EXISTS"),
        ("none", "replace", "FILE_MISSING"),
        ("none/x", "create", "FILE_UNWRITABLE"),
        ("there/x", "create", "PATH_ESCAPES"),
        ("x", "append", "ARGUMENTS_INVALID"),
    ],
)
async def test_a_write_that_cannot_be_what_was_meant_is_denied(house: House, path: str, mode: str, reason: str) -> None:
    (house.open / "there").write_text("old")

    assert reason_of(await house.predict_write(house.open / path, "new", mode)) == reason
    with pytest.raises(ToolBlocked, match=reason):
        await house.write(house.open / path, "new", mode)
    assert (house.open / "there").read_text() == "old"


@pytest.mark.parametrize("mode", ["create", "replace"])
async def test_a_file_that_changed_after_it_was_shown_is_left_alone(house: House, mode: str) -> None:
    path = house.open / "x"
    if mode == "replace":
        path.write_text("old")
    tool, call = FsWrite(house.roots), proposal("fs.write", path=str(path), content="new", mode=mode)
    agreed = await tool.dry_run(call, house.scope)
    path.write_text("changed meanwhile")

    with pytest.raises(ToolBlocked, match="STATE_CHANGED"):
        await tool.run(call, house.scope, agreed)

    assert path.read_text() == "changed meanwhile"


async def test_flags_that_somebody_added_to_a_prediction_do_not_make_it_another_one(house: House) -> None:
    tool, call = FsWrite(house.roots), proposal("fs.write", path=f"{house.open}/x", content="a")
    agreed = await tool.dry_run(call, house.scope)

    await tool.run(call, house.scope, agreed.model_copy(update={"risk_flags": ("bidi_control", *agreed.risk_flags)}))

    assert (house.open / "x").read_text() == "a"


async def test_what_was_agreed_to_for_one_content_is_no_leave_for_another(house: House) -> None:
    tool = FsWrite(house.roots)
    agreed = await tool.dry_run(proposal("fs.write", path=f"{house.open}/x", content="a"), house.scope)

    with pytest.raises(ToolBlocked, match="STATE_CHANGED"):
        await tool.run(proposal("fs.write", path=f"{house.open}/x", content="b"), house.scope, agreed)

    assert os.listdir(house.open) == []


def test_a_name_that_is_taken_at_the_last_moment_is_not_overwritten(house: House) -> None:
    place = Place(str(house.open), ("x",))
    (house.open / "x").write_bytes(b"theirs")

    with pytest.raises(ToolBlocked, match="STATE_CHANGED"):
        write_file(place, b"ours", replaces=None)
    with pytest.raises(ToolBlocked, match="STATE_CHANGED"):
        write_file(place, b"ours", replaces=b"others")
    (house.open / "x").unlink()
    with pytest.raises(ToolBlocked, match="STATE_CHANGED"):
        write_file(place, b"ours", replaces=b"theirs")

    assert os.listdir(house.open) == []


def test_readers_see_the_old_or_the_new_content_and_never_a_part(house: House) -> None:
    path, place = house.open / "x", Place(str(house.open), ("x",))
    contents = [bytes([65 + number]) * 200_000 for number in range(2)]
    path.write_bytes(contents[0])
    stop, parts = threading.Event(), set[int]()

    def look() -> None:
        while not stop.is_set():
            data = path.read_bytes()
            if data not in contents:
                parts.add(len(data))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(60):
            write_file(place, contents[(number + 1) % 2], replaces=contents[number % 2])
    finally:
        stop.set()
        reader.join()

    assert parts == set()


async def test_settings_and_keys_are_flagged(house: House) -> None:
    (house.open / ".git").mkdir()
    assert "hidden_file" in (await house.predict_write(house.open / ".git" / "config")).risk_flags
    assert "hidden_file" in (await house.predict_write(house.open / ".bashrc")).risk_flags


def test_a_difference_binds_both_contents_even_where_it_cannot_show_them() -> None:
    binary = difference("/x", b"\xff\0", "new")
    long = difference("/x", b"a\n" * 5000, "new\n")

    for text, old in ((binary, b"\xff\0"), (long, b"a\n" * 5000)):
        assert sha256(old) in text
        assert "new" in text
    assert difference("/x", b"a\xe2\x80\xa8b\n", "a\u2028c\n").count("\n") == 6


async def test_a_long_difference_is_cut_and_says_so(house: House) -> None:
    (house.open / "x").write_text("o\n" * 3000)
    result = await house.predict_write(house.open / "x", "n" * 65_000, "replace")

    assert "preview_truncated" in result.risk_flags
    assert len(result.mock_output.preview) == 65_536
    assert sha256(b"n" * 65_000) in result.mock_output.preview
