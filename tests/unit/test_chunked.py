"""The partial file of a download in chunks: what counts after an interruption, and what does not."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gnusnode.errors import Conflict
from gnusnode.inference.artifacts.chunked import ChunkedPart, ChunkLayout

PIECES = [bytes([n]) * 1000 for n in range(4)] + [b"end"]
DATA = b"".join(PIECES)
LAYOUT = ChunkLayout(
    "sha256:" + hashlib.sha256(DATA).hexdigest(),
    len(DATA),
    1000,
    tuple("sha256:" + hashlib.sha256(piece).hexdigest() for piece in PIECES),
)

_CHILD = """
import os, signal, sys
from pathlib import Path
from tests.unit.test_chunked import LAYOUT, PIECES
from gnusnode.inference.artifacts.chunked import ChunkedPart
part = ChunkedPart(Path(sys.argv[1]), LAYOUT.sha256)
part.begin(LAYOUT)
for chunk in (3, 0, 4):
    part.write(LAYOUT, chunk, memoryview(PIECES[chunk]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def part_of(folder: Path, *chunks: int) -> ChunkedPart:
    part = ChunkedPart(folder, LAYOUT.sha256)
    part.begin(LAYOUT)
    for chunk in chunks:
        part.write(LAYOUT, chunk, memoryview(PIECES[chunk]))
    return part


def test_chunks_in_any_order_make_the_file(tmp_path: Path) -> None:
    part = part_of(tmp_path, 4, 2, 0, 3, 1)
    part.flush()
    assert part.path.read_bytes() == DATA
    part.close()


def test_a_killed_process_leaves_what_it_wrote(tmp_path: Path) -> None:
    child = subprocess.run([sys.executable, "-c", _CHILD, str(tmp_path)], check=False, timeout=60)
    assert child.returncode == -signal.SIGKILL
    part = ChunkedPart(tmp_path, LAYOUT.sha256)
    assert part.begin(LAYOUT) == [0, 3, 4]
    assert [part.check(LAYOUT, chunk) for chunk in range(5)] == [True, False, False, True, True]
    part.close()


def test_a_chunk_that_is_damaged_no_longer_counts(tmp_path: Path) -> None:
    part = part_of(tmp_path, 0, 1)
    part.close()
    with part.path.open("r+b") as file:
        file.seek(1000)
        file.write(b"x")
    again = ChunkedPart(tmp_path, LAYOUT.sha256)
    assert [again.check(LAYOUT, chunk) for chunk in again.begin(LAYOUT)] == [True, False]
    assert again.begin(LAYOUT) == [0]
    again.close()


def test_another_layout_begins_anew(tmp_path: Path) -> None:
    part_of(tmp_path, 0, 1).close()
    other = ChunkLayout(LAYOUT.sha256, LAYOUT.size, LAYOUT.chunk_bytes, LAYOUT.chunks[::-1])
    part = ChunkedPart(tmp_path, LAYOUT.sha256)
    assert part.begin(other) == []
    assert part.begin(LAYOUT) == []
    part.close()


@pytest.mark.parametrize("damage", [b"", b"x" * 69, b"0" * 5000])
def test_a_damaged_map_begins_anew(tmp_path: Path, damage: bytes) -> None:
    part_of(tmp_path, 0, 1).close()
    next(tmp_path.glob("*.map")).write_bytes(damage)
    part = ChunkedPart(tmp_path, LAYOUT.sha256)
    assert part.begin(LAYOUT) == []
    part.close()


def test_two_downloads_of_one_file_exclude_each_other(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    with pytest.raises(Conflict):
        ChunkedPart(tmp_path, LAYOUT.sha256)
    part.close()
    part_of(tmp_path).close()


def test_a_discarded_part_is_gone(tmp_path: Path) -> None:
    part = part_of(tmp_path, 0)
    part.discard()
    part.close()
    assert list(tmp_path.iterdir()) == []
