"""The look at a data file before LMDB may map it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gnusnode.store import faults, pages

START_BUDGET: Final = 2048
"""Pages that the check at start looks at: about 0.2 s. Breadth first, so roots and branches come before leaves."""


@dataclass(frozen=True)
class CheckReport:
    """What a check saw. ``complete`` says whether every page in use was looked at."""

    pages_checked: int
    pages_total: int
    bytes: int
    complete: bool


@contextmanager
def opened(path: Path, *, tolerant: bool = False) -> Generator[pages.PageFile]:
    """The data file at ``path`` for bounded reading; ``tolerant`` accepts damaged roots.

    Raises:
        DataError: not a readable LMDB file of our format.
    """
    try:
        # O_NONBLOCK: a named pipe in the place of the file must not hang the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise faults.translate(error, path) from error
    try:
        yield pages.PageFile(descriptor, tolerant=tolerant)
    except IsADirectoryError as error:
        raise faults.damaged("a directory stands where the data file should be", path) from error
    except pages.Damaged as error:
        raise faults.damaged(f"the store is damaged: {error}", path) from error
    except OSError as error:
        raise faults.translate(error, path) from error
    finally:
        os.close(descriptor)


def check_data_file(path: Path, *, budget: int | None = START_BUDGET) -> CheckReport:
    """Walks the trees of the file at ``path``.

    A file that is long enough gets at most ``budget`` pages of attention, any other is walked whole: only then is it
    sure that no page in use lies beyond its end.

    Raises:
        DataError: damaged; the text says which page and how.
    """
    with opened(path) as file:
        limit = None if file.is_short else budget
        seen: set[int] = set()
        queue: deque[int] = deque()
        for tree in (file.meta.free, file.meta.main):
            if tree.root is not None:
                queue.append(tree.root)
        while queue and (limit is None or len(seen) < limit):
            number = queue.popleft()
            if number in seen:
                raise pages.Damaged(f"page {number} is used twice")
            seen.add(number)
            queue.extend(_check_page(file, number))
        return CheckReport(len(seen), file.meta.last_page + 1, file.size, complete=not queue)


def _check_page(file: pages.PageFile, number: int) -> list[int]:
    """The pages that page ``number`` leads to."""
    page = file.page(number)
    match pages.kind(page):
        case pages.BRANCH:
            found = pages.children(page)
            for child in found:
                file.require(child)
            return found
        case pages.LEAF:
            below: list[int] = []
            for node in pages.nodes(page):
                if node.overflow is not None:
                    file.check_overflow(node)
                elif node.is_tree:
                    tree = pages.parse_tree(file.value(page, node))
                    below += [] if tree.root is None else [tree.root]
            return below
        case other:
            raise pages.Damaged(f"page {number} has the unknown kind {other:#x}")
