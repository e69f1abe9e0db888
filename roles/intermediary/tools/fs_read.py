"""``fs.read``: reads one file below the directories that the operator has opened to tools."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Final

import trio
from pydantic import StringConstraints

from gnusnode.contracts.tools import DryRunResult, ToolProposal
from gnusnode.errors import DataError, NotFound, TooLarge, ToolBlocked
from gnusnode.policy.labels import Confidentiality, Width
from gnusnode.policy.sinks import Authors, Effect, Output, Sink, SinkKind, ToolDescription
from roles.intermediary.tools.base import (
    Arguments,
    Category,
    Scope,
    ToolManifest,
    ToolOutput,
    predicted,
    read_arguments,
    refused,
)
from roles.intermediary.tools.beneath import Place, Roots, read_file

MAX_FILE: Final = 1024 * 1024
"""Bytes."""
_TYPES: Final = {
    ".html": "text/html",
    ".htm": "text/html",
    ".json": "application/json",
    ".md": "text/markdown",
    ".pdf": "application/pdf",
    ".csv": "text/csv",
}


class ReadArguments(Arguments):
    path: Annotated[str, StringConstraints(min_length=2, max_length=1024)]
    """Absolute."""


MANIFEST: Final = ToolManifest(
    description=ToolDescription(
        name="fs.read",
        capability="tool:fs.read.readonly",
        effect=Effect.READ,
        sinks=(Sink(argument="path", kind=SinkKind.PATH, width=Width.OWN),),
        output=Output(authors=Authors.ANYONE, confidentiality=Confidentiality.PRIVATE),
    ),
    category=Category.FILES,
    summary="Read a file.",
    arguments=ReadArguments,
)


class FsRead:
    """See ``Tool``."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    @property
    def manifest(self) -> ToolManifest:
        return MANIFEST

    async def dry_run(self, call: ToolProposal, scope: Scope) -> DryRunResult:
        """See ``Tool``. That the file is there and may be read is tried out; its content is not shown."""
        await trio.lowlevel.checkpoint()
        try:
            place = self._place(call, scope)
            data = await trio.to_thread.run_sync(read_file, place, MAX_FILE)
        except ToolBlocked as error:
            return refused(call, error)
        except (NotFound, TooLarge, DataError) as error:
            return refused(call, ToolBlocked("FILE_UNREADABLE", error.what, where=error.where))
        return predicted(
            call,
            preview=f"The {len(data)} bytes of {place} would be read.",
            files=(str(place),),
            flags=("hidden_file",) if place.hidden else (),
        )

    async def run(self, call: ToolProposal, scope: Scope, predicted: DryRunResult) -> ToolOutput:
        """See ``Tool``; raises ``NotFound``, ``TooLarge`` or ``DataError`` when the file cannot be read."""
        place = self._place(call, scope)
        data = await trio.to_thread.run_sync(read_file, place, MAX_FILE)
        suffix = PurePosixPath(place.parts[-1]).suffix.lower()
        return ToolOutput(data=data, media_type=_TYPES.get(suffix, "text/plain"), source=f"file://{place}")

    def _place(self, call: ToolProposal, scope: Scope) -> Place:
        return self._roots.place(read_arguments(ReadArguments, call).path, scope.paths)
