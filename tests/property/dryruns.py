"""Dry-runs of a thousand proposals, as one stream of bytes.

    python -m tests.property.dryruns DIRECTORY SEED

prints the sha256 of each DryRunResult, in order. ``DIRECTORY`` holds the files that file tools see.
"""

from __future__ import annotations

import random
import sys
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import trio

from gnusnode.contracts.tools import DryRunResult, ToolProposal
from gnusnode.web.client import open_client
from roles.intermediary.tools.base import Scope, Tool
from roles.intermediary.tools.beneath import Roots
from roles.intermediary.tools.fs_read import FsRead
from roles.intermediary.tools.fs_write import FsWrite
from roles.intermediary.tools.http_request import HttpRequest
from roles.intermediary.tools.search.arxiv import Arxiv
from roles.intermediary.tools.search.duckduckgo import DuckDuckGo
from roles.intermediary.tools.search.local import Document, LocalIndex
from roles.intermediary.tools.search.wikipedia import Wikipedia
from roles.intermediary.tools.web_fetch import WebFetch
from roles.intermediary.tools.web_search import WebSearch

COUNT = 1000
URLS = (
    *(
        "https://docs.gnus.ai/",
        "docs.gnus.ai/a?b=c",
        "http://DOCS.gnus.ai./ä",
        "https://evil.example/",
        "http://0x7f.1/",
    ),
    *(
        "http://[::ffff:127.0.0.1]/",
        "file:///etc/passwd",
        "https://a@docs.gnus.ai/",
        "https://docs.gnus.ai:8443/",
        "",
        "\x00",
    ),
    *("", "\x00", "https://docs.gnus.ai/" + "x" * 5000, "https://docs.gnus.ai/KEY"),
)
NAMES = ("a.txt", "b.md", "sub/c.txt", "link", "way/x", "none", "../closed", ".hidden", "binary", "sub", "a\nb")


def leaks(url: str, headers: Iterable[tuple[str, str]], body: bytes) -> list[str]:
    return ["key"] if "KEY" in url or b"KEY" in body else []


def furnish(folder: Path) -> None:
    """Files of every kind that a file tool can meet."""
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("one\ntwo\nthree\n")
    (folder / "b.md").write_text("# title\n" * 300)
    (folder / "sub" / "c.txt").write_text("no end of line")
    (folder / ".hidden").write_text("x")
    (folder / "binary").write_bytes(bytes(range(256)))
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "way").symlink_to("/etc")


def proposals(folder: Path, seed: int) -> Iterator[ToolProposal]:
    chance = random.Random(seed)
    words = ["trio", "flour & water", "ti:x OR au:y", "KEY", "ü" * 40, "", "a\tb", "<b>"]

    def text(longest: int) -> str:
        return "".join(chance.choice("ab \n<&ü") for _ in range(chance.randrange(longest)))

    for _ in range(COUNT):
        path = f"{folder}/{chance.choice(NAMES)}"
        header = {"name": chance.choice(("X-A", "Accept", "Host", "X B")), "value": text(20)}
        tool, arguments = chance.choice(
            [
                ("web.fetch", {"url": chance.choice(URLS), "max_characters": chance.choice((200, 5000, 0))}),
                ("web.search", {"query": chance.choice(words), "source": chance.choice(("", "arxiv", "local", "x"))}),
                ("fs.read", {"path": path}),
                ("fs.write", {"path": path, "content": text(400), "mode": chance.choice(("create", "replace"))}),
                (
                    "http.request",
                    {
                        "url": chance.choice(URLS),
                        "method": chance.choice(("POST", "DELETE", "GET")),
                        "headers": [header] * chance.randrange(3),
                        "body": chance.choice(words),
                    },
                ),
            ]
        )
        if chance.random() < 0.05:
            arguments = {**arguments, "extra": chance.choice((None, 1, [1], {"a": {"b": 1}}))}
        number = uuid.UUID(int=chance.getrandbits(128), version=4)
        yield ToolProposal(tool_call_id=str(number), tool_name=tool, arguments=arguments)


async def results(folder: Path, seed: int) -> list[DryRunResult]:
    roots = Roots([folder])
    scope = Scope(domains=("docs.gnus.ai",), paths=(str(folder),))
    index = LocalIndex([Document(title="Bread", url="http://docs.lan/bread", text="flour and water")])
    async with open_client(leaks=leaks) as web:
        made: list[Any] = [WebFetch(web), HttpRequest(web), FsRead(roots), FsWrite(roots)]
        made.append(WebSearch(web, [DuckDuckGo(), Arxiv(), Wikipedia()], local=index))
        tools: dict[str, Tool] = {tool.manifest.name: tool for tool in made}
        return [await tools[call.tool_name].dry_run(call, scope) for call in proposals(folder, seed)]


async def main() -> None:
    for result in await results(Path(sys.argv[1]), int(sys.argv[2])):
        print(result.digest)


if __name__ == "__main__":
    trio.run(main)
