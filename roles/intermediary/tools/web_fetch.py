"""``web.fetch``: reads one public page through the guard: robots.txt, the allow-list of domains, all limits."""

from __future__ import annotations

from typing import Annotated, Final

import trio
from pydantic import Field, StringConstraints

from gnusnode.contracts.tools import DryRunResult, ToolProposal
from gnusnode.errors import ToolBlocked
from gnusnode.policy.labels import Confidentiality, Width
from gnusnode.policy.sinks import Authors, Effect, Output, Sink, SinkKind, ToolDescription
from gnusnode.web.client import WebClient
from gnusnode.web.exchange import WebRequest
from gnusnode.web.refusals import WebRefused
from gnusnode.web.urls import MAX_URL, join, parse
from roles.intermediary.tools.base import (
    Arguments,
    Category,
    Scope,
    ToolManifest,
    ToolOutput,
    blocked,
    predicted,
    read_arguments,
    refused,
)


class FetchArguments(Arguments):
    url: Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL)]
    """Without a scheme it is https."""
    max_characters: Annotated[int, Field(ge=200, le=100_000)] = 20_000
    """Of the page's text."""


MANIFEST: Final = ToolManifest(
    description=ToolDescription(
        name="web.fetch",
        capability="tool:web.fetch.readonly",
        effect=Effect.READ,
        sinks=(Sink(argument="url", kind=SinkKind.URL, width=Width.PUBLIC),),
        harmless=("max_characters",),
        output=Output(authors=Authors.ANYONE, confidentiality=Confidentiality.PUBLIC),
    ),
    category=Category.WEB,
    summary="Read the text of a web page at a URL.",
    arguments=FetchArguments,
)


class WebFetch:
    """See ``Tool``."""

    def __init__(self, web: WebClient) -> None:
        self._web = web

    @property
    def manifest(self) -> ToolManifest:
        return MANIFEST

    async def dry_run(self, call: ToolProposal, scope: Scope) -> DryRunResult:
        await trio.lowlevel.checkpoint()
        try:
            request = self._request(read_arguments(FetchArguments, call), scope)
            self._web.judge(request)
        except (ToolBlocked, WebRefused) as error:
            return refused(call, error)
        return predicted(
            call,
            preview=f"The page {request.url} would be read.",
            requests=(f"GET {join(request.url, '/robots.txt')}", f"GET {request.url}"),
        )

    async def run(self, call: ToolProposal, scope: Scope, predicted: DryRunResult) -> ToolOutput:
        """See ``Tool``; raises ``WebFailed`` when the page cannot be had."""
        arguments = read_arguments(FetchArguments, call)
        try:
            page = await self._web.fetch(self._request(arguments, scope))
        except WebRefused as error:
            raise blocked(error) from error
        page.require_success()
        return ToolOutput(
            data=page.body,
            media_type=page.media_type or "text/plain",
            source=str(page.url),
            charset=page.charset,
            headers=page.headers,
            longest=arguments.max_characters,
        )

    def _request(self, arguments: FetchArguments, scope: Scope) -> WebRequest:
        text = arguments.url if "://" in arguments.url else f"https://{arguments.url}"
        return WebRequest(parse(text), domains=scope.domains)
