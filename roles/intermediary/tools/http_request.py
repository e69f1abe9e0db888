"""``http.request``: one HTTP request that may change something elsewhere. A person is always asked.

Redirects are not followed: what was approved goes to one place.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import trio
from pydantic import Field, StringConstraints

from gnusnode.contracts.tools import DryRunResult, ToolProposal
from gnusnode.errors import ToolBlocked
from gnusnode.policy.labels import Confidentiality, Width
from gnusnode.policy.sinks import Authors, Effect, Output, Sink, SinkKind, ToolDescription
from gnusnode.web.client import WebClient
from gnusnode.web.content import TEXT_TYPES
from gnusnode.web.exchange import WebRequest
from gnusnode.web.refusals import WebRefused
from gnusnode.web.urls import MAX_URL, parse
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


class Header(Arguments):
    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    value: Annotated[str, StringConstraints(max_length=4096)]


class RequestArguments(Arguments):
    method: Literal["POST", "PUT", "PATCH", "DELETE"]
    url: Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL)]
    headers: Annotated[list[Header], Field(max_length=16)] = []
    body: Annotated[str, StringConstraints(max_length=65_536)] = ""


MANIFEST: Final = ToolManifest(
    description=ToolDescription(
        name="http.request",
        capability="tool:http.request",
        effect=Effect.DESTROY,
        sinks=(
            Sink(argument="url", kind=SinkKind.URL, width=Width.PUBLIC),
            Sink(argument="method", kind=SinkKind.COMMAND, width=Width.PUBLIC),
            Sink(argument="headers", kind=SinkKind.BODY, width=Width.PUBLIC),
            Sink(argument="body", kind=SinkKind.BODY, width=Width.PUBLIC),
        ),
        output=Output(authors=Authors.ANYONE, confidentiality=Confidentiality.PRIVATE),
    ),
    category=Category.WEB,
    summary="Send an HTTP request that changes something on a server.",
    arguments=RequestArguments,
)


class HttpRequest:
    """See ``Tool``."""

    def __init__(self, web: WebClient) -> None:
        self._web = web

    @property
    def manifest(self) -> ToolManifest:
        return MANIFEST

    async def dry_run(self, call: ToolProposal, scope: Scope) -> DryRunResult:
        await trio.lowlevel.checkpoint()
        try:
            request = _request(read_arguments(RequestArguments, call), scope)
            self._web.judge(request)
        except (ToolBlocked, WebRefused) as error:
            return refused(call, error)
        return predicted(
            call,
            preview=_shown(request),
            requests=(f"{request.method} {request.url}",),
            flags=("external_mutation",),
            asks=True,
        )

    async def run(self, call: ToolProposal, scope: Scope, predicted: DryRunResult) -> ToolOutput:
        """See ``Tool``; raises ``WebFailed`` when there is no answer: then nobody knows whether it was carried out."""
        try:
            page = await self._web.fetch(_request(read_arguments(RequestArguments, call), scope))
        except WebRefused as error:
            raise blocked(error) from error
        return ToolOutput(
            data=page.body,
            media_type=page.media_type or "text/plain",
            source=str(page.url),
            charset=page.charset,
            headers=page.headers,
            note=f"HTTP status {page.status}",
        )


def _request(arguments: RequestArguments, scope: Scope) -> WebRequest:
    names = [header.name.lower() for header in arguments.headers]
    if len(set(names)) != len(names):
        raise ToolBlocked("HEADER_NOT_ALLOWED", "a header is given twice", where="http.request")
    return WebRequest(
        parse(arguments.url),
        method=arguments.method,
        headers={header.name: header.value for header in arguments.headers},
        body=arguments.body.encode(),
        domains=scope.domains,
        types=TEXT_TYPES,
        robots=False,  # a person has asked for this very request: no crawling
    )


def _shown(request: WebRequest) -> str:
    """The request as it would go out, for a person to read."""
    headers = "".join(f"{name}: {value}\n" for name, value in sorted(request.headers.items()))
    return f"{request.method} {request.url}\n{headers}\n{request.body.decode('utf-8', 'replace')}"
