"""Dry-runs are functions: equal proposals in equal worlds give equal bytes, in every process, and change nothing."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from gnusnode.contracts.tools import DryRunResult, ToolProposal
from gnusnode.web.client import open_client
from roles.intermediary.tools.base import Scope, reason_of
from roles.intermediary.tools.http_request import HttpRequest
from roles.intermediary.tools.web_fetch import WebFetch
from roles.intermediary.tools.web_search import WebSearch
from tests.property.dryruns import COUNT, furnish, leaks, results

ROOT = Path(__file__).resolve().parents[2]


def digests(folder: Path, seed: int, hash_seed: str) -> list[str]:
    """Of one process of its own, whose sets and dictionaries are ordered by another secret."""
    command = [sys.executable, "-m", "tests.property.dryruns", str(folder), str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "TZ": f"UTC{hash_seed}", "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT, env=environment, check=True)
    return done.stdout.split()


@pytest.mark.requirement("G-TI-2")
def test_a_thousand_proposals_give_the_same_bytes_in_two_processes(tmp_path: Path) -> None:
    folder = tmp_path.resolve() / "open"
    furnish(folder)
    before = listing(folder)

    first, second = (digests(folder, 1, hash_seed) for hash_seed in ("1", "2"))

    assert len(first) == COUNT
    assert first == second
    assert first != digests(folder, 2, "1")
    assert listing(folder) == before


async def test_the_thousand_are_of_all_kinds_and_every_record_reads_back(tmp_path: Path) -> None:
    folder = tmp_path.resolve() / "open"
    furnish(folder)

    found = await results(folder, 1)

    counts = Counter(reason_of(result) for result in found)
    assert counts["OK"] > COUNT / 10
    assert counts.keys() >= {
        *("ARGUMENTS_INVALID", "SSRF_ADDRESS", "DOMAIN_NOT_ALLOWED", "URL_SCHEME", "URL_USERINFO", "URL_PORT"),
        *("CREDENTIAL_LEAK", "SOURCE_UNKNOWN", "PATH_ESCAPES", "PATH_INVALID", "FILE_EXISTS", "FILE_MISSING"),
        *("FILE_UNREADABLE", "HEADER_NOT_ALLOWED"),
    }
    for result in found:
        assert DryRunResult.from_bytes(result.to_bytes()) == result


# Half characters too: JSON can spell them, and no record can hold them.
TEXT = st.text(st.characters(), max_size=20) | st.sampled_from(["\ud800", "https://docs.gnus.ai/", "POST"])
JSON = st.recursive(st.none() | st.booleans() | st.integers(-5, 5) | TEXT, lambda inner: st.lists(inner, max_size=3))
KEYS = st.sampled_from(["url", "query", "source", "method", "headers", "body"]) | TEXT
ARGUMENTS = st.dictionaries(KEYS, JSON, max_size=6)


@given(st.sampled_from(["web.fetch", "web.search", "http.request"]), ARGUMENTS)
@example("web.fetch", {"url": "https://docs.gnus.ai/", "\ud800": 1})
@example("web.fetch", {"url": "https://docs.gnus.ai/\ud800"})
def test_no_arguments_make_a_dry_run_raise(tool: str, arguments: dict[str, Any]) -> None:
    call = ToolProposal(tool_call_id="5fd4a2a0-0000-4000-8000-000000000000", tool_name=tool, arguments=arguments)

    async def run() -> DryRunResult:
        async with open_client(leaks=leaks, ssl_context=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)) as web:
            tools = {"web.fetch": WebFetch(web), "web.search": WebSearch(web, ()), "http.request": HttpRequest(web)}
            return await tools[tool].dry_run(call, Scope(domains=("docs.gnus.ai",)))

    result = trio.run(run)

    assert DryRunResult.from_bytes(result.to_bytes()) == result


def listing(folder: Path) -> list[tuple[str, int, int, int]]:
    """Names, sizes, numbers and times of change of all that is in ``folder``."""
    return sorted(
        (str(path), stat.st_size, stat.st_ino, stat.st_mtime_ns)
        for path in [folder, *folder.rglob("*")]
        if (stat := path.lstat())
    )
