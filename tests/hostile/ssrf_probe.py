"""Fetches what it reads from standard input, through the guard, inside the namespace under attack.

    python -m tests.hostile.ssrf_probe CLIENT|TRANSPORT

CLIENT is our own client; TRANSPORT a stock httpx2 client on our transport, which follows redirects by itself. Input: a
JSON list of ``[url, domains or null]``. Output: a JSON list of a reason for each, or of the text that was reached.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import httpx2
import trio

from gnusnode.web.client import WebClient, open_client
from gnusnode.web.exchange import Limits, WebRequest
from gnusnode.web.pacing import Pacer
from gnusnode.web.refusals import WebFailed, WebRefused
from gnusnode.web.transport import GuardedTransport
from gnusnode.web.urls import parse

Fetch = Callable[[str, list[str] | None], Awaitable[str]]


def by_client(client: WebClient) -> Fetch:
    async def fetch(url: str, domains: list[str] | None) -> str:
        page = await client.fetch(WebRequest(parse(url), domains=domains))
        return page.body.decode()

    return fetch


def by_transport(client: httpx2.AsyncClient) -> Fetch:
    async def fetch(url: str, domains: list[str] | None) -> str:
        return (await client.get(url)).text

    return fetch


async def main(way: str) -> None:
    outcomes: list[str] = []
    async with AsyncExitStack() as stack:
        if way == "CLIENT":
            opened = open_client(leaks=lambda url, headers, body: (), limits=Limits(total=10), pacer=Pacer(interval=0))
            fetch = by_client(await stack.enter_async_context(opened))
        else:
            stock = httpx2.AsyncClient(transport=GuardedTransport(), trust_env=False, follow_redirects=True, timeout=10)
            fetch = by_transport(await stack.enter_async_context(stock))
        for url, domains in json.loads(sys.stdin.read()):
            try:
                outcomes.append(await fetch(url, domains))
            except (WebRefused, WebFailed) as error:
                outcomes.append(error.reason)
            except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
                outcomes.append(f"httpx2 {type(error).__name__}")
    print(json.dumps(outcomes))


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
