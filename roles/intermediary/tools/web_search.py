"""``web.search``: asks one of the configured sources, or the node's own index, for pages about something."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

import trio
from pydantic import Field, StringConstraints

from gnusnode.contracts.tools import DryRunResult, ToolProposal
from gnusnode.errors import ToolBlocked
from gnusnode.policy.labels import Confidentiality, Width
from gnusnode.policy.sinks import Authors, Effect, Output, Sink, SinkKind, ToolDescription
from gnusnode.web.client import WebClient
from gnusnode.web.exchange import WebRequest
from gnusnode.web.refusals import Reason, WebFailed, WebRefused
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
from roles.intermediary.tools.search.local import LocalIndex
from roles.intermediary.tools.search.provider import Hit, Provider, UnreadableAnswer


class SearchArguments(Arguments):
    query: Annotated[str, StringConstraints(min_length=1, max_length=256, strip_whitespace=True)]
    source: Annotated[str, StringConstraints(max_length=32)] = ""
    """Name of a source; empty: the first one."""
    results: Annotated[int, Field(ge=1, le=10)] = 5


MANIFEST: Final = ToolManifest(
    description=ToolDescription(
        name="web.search",
        capability="tool:web.search.readonly",
        effect=Effect.READ,
        sinks=(Sink(argument="query", kind=SinkKind.BODY, width=Width.PUBLIC),),
        harmless=("source", "results"),
        output=Output(authors=Authors.ANYONE, confidentiality=Confidentiality.PUBLIC),
    ),
    category=Category.WEB,
    summary="Search the web for pages about a query.",
    arguments=SearchArguments,
)


class WebSearch:
    """See ``Tool``.

    Args:
        providers: sources on the web, the default one first. Which they are is the operator's word, so the plan's
            allow-list of domains does not apply: each source may be asked at its own host and nowhere else.
        local: the node's own index, as the source ``local``; the default where there are no others.
    """

    def __init__(self, web: WebClient, providers: Sequence[Provider], *, local: LocalIndex | None = None) -> None:
        self._web = web
        self._providers: Mapping[str, Provider] = {provider.name: provider for provider in providers}
        self._local = local
        self._names = (*self._providers, *(("local",) if local else ()))

    @property
    def manifest(self) -> ToolManifest:
        return MANIFEST

    async def dry_run(self, call: ToolProposal, scope: Scope) -> DryRunResult:
        await trio.lowlevel.checkpoint()
        try:
            arguments, source = self._read(call)
            request = self._request(arguments, source)
            if request is not None:
                self._web.judge(request)
        except (ToolBlocked, WebRefused) as error:
            return refused(call, error)
        return predicted(
            call,
            preview=f"{source} would be asked for {arguments.query!r}.",
            requests=() if request is None else (f"GET {request.url}",),
        )

    async def run(self, call: ToolProposal, scope: Scope, predicted: DryRunResult) -> ToolOutput:
        """See ``Tool``; raises ``WebFailed`` when the source cannot be asked or answers what it never should."""
        arguments, source = self._read(call)
        request = self._request(arguments, source)
        if request is None:
            assert self._local is not None
            return _output(
                await trio.to_thread.run_sync(self._local.search, arguments.query, arguments.results), source
            )
        provider = self._providers[source]
        try:
            page = await self._web.fetch(request)
        except WebRefused as error:
            raise blocked(error) from error
        page.require_success()
        try:
            hits = await trio.to_thread.run_sync(provider.read, page, arguments.results)
        except UnreadableAnswer as error:
            raise WebFailed(Reason.PROTOCOL_ERROR, f"{source} answers something else: {error}") from error
        return _output(hits, source)

    def _read(self, call: ToolProposal) -> tuple[SearchArguments, str]:
        arguments = read_arguments(SearchArguments, call)
        source = arguments.source or (self._names[0] if self._names else "")
        if source not in self._names:
            known = ", ".join(self._names) or "none"
            raise ToolBlocked("SOURCE_UNKNOWN", f"no source {source!r}; there are: {known}", where="web.search")
        return arguments, source

    def _request(self, arguments: SearchArguments, source: str) -> WebRequest | None:
        """What to send; None: nothing, the own index is asked."""
        provider = self._providers.get(source)
        return provider.request(arguments.query, arguments.results) if provider else None


def _output(hits: tuple[Hit, ...], source: str) -> ToolOutput:
    found: list[dict[str, Any]] = [asdict(entry) for entry in hits]
    data = json.dumps({"results": found}, ensure_ascii=False, sort_keys=True).encode("utf-8", "replace")
    return ToolOutput(data=data, media_type="application/json", source=f"search:{source}")
